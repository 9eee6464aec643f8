"""The role of one member, and everything that changes it: time-outs, votes, later terms.

             silence, lost link              quorum of pre-votes              quorum of votes, own one saved
    FOLLOWER -----------------------> PRE_CANDIDATE -----------------> CANDIDATE ----------------> LEADER
     ^  ^                                |                                |                         |
     |  '--- leader heard, gave way -----'--------- refused, later term --'                         |
     '----------- later term, quorum silent, disk stalled or failed, handed over ------------------'

Every transition is one of the four methods named after the role that begins. A TransferRequest skips the pre-vote.
"""

from dledger.core.ballot import Ballot, BallotOutcome
from dledger.core.busy import patience_ms
from dledger.core.election_clock import ElectionClock
from dledger.core.follower import Follower
from dledger.core.handover import Handover
from dledger.core.leader import Leader
from dledger.core.messages import NO_INDEX, BusyNotice, TransferRequest, VoteCause, VoteRequest, VoteResponse
from dledger.core.ready import TermStart
from dledger.core.roles import RaftRole
from dledger.core.state import NodeState
from dledger.core.voting import decide_vote


class Member:
    """One member of a group in its present role. It decides elections; `Raft` passes it inputs and the time.

    Args:
        state: the state that outlives a change of role; shared with `Raft`.

    Attributes:
        role: the present role.
        follower: always set; meaningful while the role is FOLLOWER.
        leader: set exactly while the role is LEADER.
        ballot: set exactly while the role is PRE_CANDIDATE or CANDIDATE.
        handover: set only while this node leads and hands over.
        asked_by: the leader that waits for this node to be ready to lead the next term.
        clock: when this node starts an election, unless it leads.
        ignored_count: messages that changed nothing: of strangers, of former or other leaders, invalid, late installs.
        allow_missing: an operator said that a member is lost for good: a quorum may hold a salvage election until a
            leader is heard.
    """

    def __init__(self, state: NodeState) -> None:
        self.settings = state.settings
        self.state = state
        self.role = RaftRole.FOLLOWER
        self.follower = Follower(state, None)
        self.clock = ElectionClock(state)
        self.leader: Leader | None = None
        self.ballot: Ballot | None = None
        self.handover: Handover | None = None
        self.asked_by: str | None = None
        self.ignored_count = 0
        self.allow_missing = False

    @property
    def leader_id(self) -> str | None:
        """The leader as far as this node knows; None if none is known."""
        if self.role is RaftRole.LEADER:
            return self.settings.node_id
        return self.follower.leader_id if self.role is RaftRole.FOLLOWER else None

    @property
    def is_writable(self) -> bool:
        """Whether this node leads and accepts proposals."""
        return self.leader is not None and self.leader.is_writable and not self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether this node leads and accepts no proposal, since another one is about to lead."""
        return self.handover is not None and self.handover.is_closed

    # -- who leads

    def follows(self, peer: str, leader_id: str, term: int) -> bool:
        """Return whether `peer` leads this node in `term`. If no leader of the term was known, it does from now on."""
        if term < self.state.term or leader_id != peer or (term == self.state.term and self.leader is not None):
            self.ignored_count += 1
            return False
        if term > self.state.term or self.role is not RaftRole.FOLLOWER:
            self.become_follower(term, peer)
        elif self.follower.leader_id is None:
            self.follower.leader_id = peer
        elif self.follower.leader_id != peer:
            self.ignored_count += 1
            return False
        self._heard_leader(peer)
        return True

    def _heard_leader(self, peer: str) -> None:
        self.follower.heard_ms = self.state.now_ms
        self.state.lost_links.discard(peer)  # a message from it proves that there is a connection
        self.clock.leader_heard()
        self.allow_missing = False

    def on_busy_notice(self, peer: str, notice: BusyNotice) -> None:
        """Wait for a leader whose loop is late, but not longer than `patience_ms` after its last message."""
        follower, state = self.follower, self.state
        is_led = self.role is RaftRole.FOLLOWER and follower.leader_id == peer and notice.term == state.term
        if not is_led or peer in state.lost_links:
            self.ignored_count += 1
        elif state.now_ms - follower.heard_ms < patience_ms(state.settings):
            follower.waited_ms = state.now_ms
            self.clock.restart()

    def is_of_this_term(self, term: int) -> bool:
        """Return whether a message of `term` is of the present term.

        A later term is entered first, and is then the present one.
        """
        if term > self.state.term:
            self.become_follower(term, None)
        return term == self.state.term

    def _has_leader(self) -> bool:
        if self.leader is not None:
            return self.leader.is_followed()
        return self.role is RaftRole.FOLLOWER and self.follower.hears_leader()

    # -- votes

    def on_vote_request(self, peer: str, request: VoteRequest) -> None:
        """Answer a candidate. Its term is entered unless this node has a leader."""
        state = self.state
        if request.candidate_id != peer:
            self.ignored_count += 1
            return
        if request.pre_vote and request.transfer:
            self._on_question(peer, request)
            return
        has_leader = self._has_leader()
        if not request.pre_vote and request.term > state.term and (request.transfer or not has_leader):
            self.become_follower(request.term, None)
            has_leader = False
        cause = decide_vote(state, request, has_leader=has_leader)
        is_granted = cause is VoteCause.GRANTED
        if is_granted:
            self._make_way(request)
        self._answer_vote(peer, request.term if is_granted else state.term, cause, pre_vote=request.pre_vote)

    def _answer_vote(self, peer: str, term: int, cause: VoteCause, *, pre_vote: bool) -> None:
        state, terms = self.state, self.state.terms
        is_granted = cause is VoteCause.GRANTED
        response = VoteResponse(term, is_granted, pre_vote, cause, terms.last_index, terms.last_term, state.recovering)
        if pre_vote:
            # a pre-vote commits this node to nothing, so nothing has to be durable first
            state.messages.append((peer, response))
        else:
            state.send(peer, response)

    def _make_way(self, request: VoteRequest) -> None:
        """Vote for the candidate, and start no election before it has had time to win."""
        if request.pre_vote:
            if self.role is RaftRole.PRE_CANDIDATE and self.settings.goes_before(request.candidate_id):
                # otherwise two candidates at the same time would split the votes
                self.become_follower(self.state.term, None)
            self.clock.make_way(self.settings.heartbeat_ms)
            return
        self.state.vote_for(request.candidate_id)
        self.clock.restart()

    def on_vote_response(self, peer: str, response: VoteResponse) -> None:
        """Count an answer if this node is a candidate or hands over. A later term ends either."""
        if response.term > self.state.term and not (response.pre_vote and response.granted):
            self.become_follower(response.term, None)
        elif self.leader is not None and self.handover is not None and self.handover.is_answer(peer, response):
            if response.granted:
                self.handover.close(self.leader)
            else:
                self.give_up()
        elif self.ballot is not None:
            self.act_on(self.ballot.record(peer, response))

    def on_saved(self) -> None:
        """Handle a new hard state on disk: a candidate's own vote may count, or this node may be ready to lead."""
        if self.ballot is not None and self.role is RaftRole.CANDIDATE and not self.state.unsaved:
            self.ballot.own_vote = True
            self.act_on(self.ballot.outcome())
        elif self.asked_by is not None and self.state.has_reserved(self.settings.node_id):
            self._answer_vote(self.asked_by, self.state.term + 1, VoteCause.GRANTED, pre_vote=True)
            self.asked_by = None

    # -- transfer

    def _on_question(self, peer: str, request: VoteRequest) -> None:
        """Answer the leader's question whether this node would lead: have its own vote saved, then say yes."""
        state = self.state
        if self.role is not RaftRole.FOLLOWER or self.follower.leader_id != peer or request.term != state.term + 1:
            self.ignored_count += 1
        elif self._is_fit:
            self.asked_by = peer
            state.reserve(self.settings.node_id)
            self.on_saved()  # a question that is asked again is answered at once
        else:
            self._decline(peer)

    def _decline(self, peer: str) -> None:
        """Say that this node does not take over. As a vote it counts for nobody (`Ballot.record`)."""
        self._answer_vote(peer, self.state.term, VoteCause.STALE_TERM, pre_vote=True)

    @property
    def _is_fit(self) -> bool:
        return not (self.state.recovering or self.state.stalled or self.state.is_unfit)

    def proceed(self) -> None:
        """Hand over, if the peer that is ready holds all entries by now."""
        if self.leader is not None and self.handover is not None and self.handover.is_due(self.leader):
            state, target = self.state, self.handover.target
            self.leader.tell_commit(idle_only=True)
            state.send(target, TransferRequest(state.term, self.settings.node_id))
            self.become_follower(state.term + 1, None)
            state.vote_for(target)
            self._answer_vote(target, state.term, VoteCause.GRANTED, pre_vote=False)

    def give_up(self) -> None:
        """Continue to lead instead of handing over."""
        if self.leader is not None and self.handover is not None:
            self.handover.give_up(self.leader)
            self.handover = None

    def on_transfer_request(self, peer: str, request: TransferRequest) -> None:
        """Campaign at once without a pre-vote, since the leader hands over; decline if this node is not fit to lead."""
        is_waiting = self.role in (RaftRole.FOLLOWER, RaftRole.PRE_CANDIDATE)
        if request.term != self.state.term or request.leader_id != peer or not is_waiting:
            return
        if self._is_fit:
            self._become_candidate(is_transfer=True)
        else:
            self._decline(peer)

    def campaign_if_fit(self) -> None:
        """Start an election, since it is time. A node whose disk does not answer waits for the next time."""
        if self.state.stalled:
            self.clock.restart()
        else:
            self._become_pre_candidate()

    def act_on(self, outcome: BallotOutcome) -> None:
        """Carry out the outcome of the ballot."""
        ballot = self.ballot
        assert ballot is not None
        if outcome is BallotOutcome.LOST:
            self.become_follower(self.state.term, None)
        elif outcome is BallotOutcome.SALVAGE:
            self._become_candidate(is_salvage=True)
        elif outcome is BallotOutcome.WON and ballot.request.pre_vote:
            self._become_candidate()
        elif outcome is BallotOutcome.WON:
            self._become_leader(ballot)

    def _ask_for_votes(self, request: VoteRequest) -> None:
        self.ballot = Ballot(self.state, request, allow_missing=self.allow_missing)
        # not held: what others promise binds only them, and this node's own vote counts when it is durable
        self.state.messages += [(peer, request) for peer in self.settings.others]

    def _vote_request(self, term: int, *, pre_vote: bool, transfer: bool = False, salvage: bool = False) -> VoteRequest:
        terms = self.state.terms
        return VoteRequest(
            term, self.settings.node_id, terms.last_index, terms.last_term, pre_vote, transfer=transfer, salvage=salvage
        )

    # -- roles: every transition is here

    def become_follower(self, term: int, leader_id: str | None) -> None:
        """Follow `leader_id` (None: not known yet) in `term`, which is not below the present one."""
        if self.role is RaftRole.LEADER:
            self.clock.restart()
        elif self.role is not RaftRole.FOLLOWER:
            self.clock.back_off()
        self._leave_role()
        if term > self.state.term:
            self.state.enter_term(term)
        self.role = RaftRole.FOLLOWER
        self.follower = Follower(self.state, leader_id)

    def _become_pre_candidate(self) -> None:
        self._leave_role()
        self.role = RaftRole.PRE_CANDIDATE
        self.clock.attempt()
        self._ask_for_votes(self._vote_request(self.state.term + 1, pre_vote=True))
        assert self.ballot is not None
        self.act_on(self.ballot.outcome())

    def _become_candidate(self, *, is_transfer: bool = False, is_salvage: bool = False) -> None:
        assert self.role is not RaftRole.LEADER, self.state.term
        self._leave_role()
        self.role = RaftRole.CANDIDATE
        self.state.enter_term(self.state.term + 1)
        self.state.vote_for(self.settings.node_id)
        self.clock.restart()
        self._ask_for_votes(
            self._vote_request(self.state.term, pre_vote=False, transfer=is_transfer, salvage=is_salvage)
        )
        self.on_saved()  # it may be on disk already

    def _become_leader(self, ballot: Ballot) -> None:
        assert self.role is RaftRole.CANDIDATE, self.role
        state, last_index = self.state, self.state.terms.last_index
        is_salvage = ballot.request.salvage
        is_new_group = last_index == NO_INDEX and not ballot.any_member_has_entries() and not ballot.missing()
        self._leave_role()
        self.role = RaftRole.LEADER
        # entries behind the known commit index may have lost to others that a majority has since forgotten
        may_miss_after = state.commit_index if is_salvage and not is_new_group else None
        self.leader = Leader(state, is_salvage=is_salvage, may_miss_after=may_miss_after)
        self.allow_missing = False
        state.terms.extend(state.term, last_index + 1)
        state.writes.append(TermStart(last_index + 1, state.term))

    def _leave_role(self) -> None:
        if self.leader is not None:
            self.leader.drop_reads()
        self.leader = self.ballot = self.handover = None
