"""The Raft rules of one node as a state machine: messages, ticks and proposals go in, a `Ready` comes out.

    propose, proposed     step(peer, message)     tick     peer_lost, peer_joined     persisted, durable, refused
           '--------------------'----------------- Raft ------------'---------------------------'
                                                    '--> ready() -> hard state, writes, messages, commit, role, reads

It has no clock, randomness, disk or network: the time comes with `tick`, jitter is a function given at construction.
Messages about the log are handled here, elections in `member`.

Reading order: messages, ready, state, voting, ballot, follower, progress, leader, handover, member, then this file.
Source: Raft dissertation (Ongaro 2014). Step, tick and ready are from etcd raft, the effects from ra.
"""

from collections.abc import Callable

from dledger.core.errors import ImplausibleMessageError, NotLeaderError, TransferRefusedError
from dledger.core.handover import Handover, best_successor, check_target, preferred_successor
from dledger.core.leader import Leader
from dledger.core.member import Member
from dledger.core.messages import (
    NO_INDEX,
    NO_TERM,
    TERM_LEAP_MAX,
    AppendRequest,
    AppendResponse,
    BusyNotice,
    HardState,
    InstallRequest,
    InstallResponse,
    Message,
    TransferRequest,
    VoteRequest,
    VoteResponse,
    sender_term,
)
from dledger.core.ready import Ready
from dledger.core.roles import RaftRole, SoftState
from dledger.core.settings import RaftSettings
from dledger.core.state import LogSource, NodeState
from dledger.core.state_parts import STATE_SIZE_MAX
from dledger.core.terms import TermRuns


class Raft:
    """One member of a Raft group.

    Call `ready()` after each input, carry it out from the top down, and report with `persisted`, `proposed` and
    `durable`. Messages of peers may be late, reordered or repeated. That they are authentic (from the peer they name)
    is the duty of the transport.

    Args:
        settings: membership and timing.
        hard_state: result of `HardStateStore.load`.
        source: the log, for its extent and for the spans to send.
        snapshot: returns the bytes of the state machine, for a follower behind the oldest kept file.
        jitter: `jitter(n)` is a random integer in `[0, n)`.
        commit_index: an index known to be committed from before a restart; `NO_INDEX` if none is.
        now_ms: the time of construction, on a clock that never falls.
    """

    def __init__(
        self,
        settings: RaftSettings,
        hard_state: HardState,
        source: LogSource,
        snapshot: Callable[[], bytes],
        jitter: Callable[[int], int],
        commit_index: int = NO_INDEX,
        now_ms: int = 0,
    ) -> None:
        self.settings = settings
        self.state = NodeState(settings, hard_state, source, commit_index, snapshot, jitter)
        self.state.now_ms = now_ms
        self.member = Member(self.state)
        self.is_halted = False
        self._joined: set[str] = set()
        self._reported_commit = self.state.commit_index
        self._reported_soft_state: tuple[object, ...] = ()
        self._reported_before: tuple[int, tuple[object, ...]] = self._reported_commit, ()
        self._ask_terms_due_ms = 0
        self._handlers: dict[type[Message], Callable[..., None]] = {
            AppendResponse: self._on_append_response,
            AppendRequest: self._on_append_request,
            VoteRequest: self.member.on_vote_request,
            VoteResponse: self.member.on_vote_response,
            InstallRequest: self._on_install_request,
            InstallResponse: self._on_install_response,
            TransferRequest: self.member.on_transfer_request,
            BusyNotice: self.member.on_busy_notice,
        }

    # -- what others may ask

    @property
    def soft_state(self) -> SoftState:
        """See `SoftState`."""
        leader = self.member.leader
        return SoftState(
            self.member.role,
            self.state.term,
            self.member.leader_id,
            self.member.is_writable,
            self.state.recovering,
            leader.may_miss_after if leader is not None else None,
        )

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Members whose answer the running election needs; empty when none is running."""
        return self.member.ballot.missing() if self.member.ballot is not None else ()

    # -- inputs: proposals

    def propose(self, count: int) -> int:
        """Reserve the next `count` (1 or more) indexes for entries of this term; the caller writes them at once.

        Returns:
            Index of the first. Follow with `proposed` when the entries are in the log, or `withdraw` when they are not.

        Raises:
            NotLeaderError: this node does not lead, or is handing over.
        """
        if self.member.leader is None or self.member.is_closed:
            hint = self.member.handover.target if self.member.handover is not None else self.member.leader_id
            raise NotLeaderError(self.state.term, hint)
        first_index = self.state.terms.last_index + 1
        self.state.terms.extend(self.state.term, first_index + count - 1)
        return first_index

    def withdraw(self, first_index: int) -> None:
        """Give back the reserved indexes from `first_index` on, which were not written or sent."""
        self.state.terms.truncate_after(first_index - 1)

    def proposed(self) -> None:
        """Replicate the reserved entries: they are in the log."""
        if self.member.leader is not None:
            # not before its first entry is written: if that fails, nobody was told what may be missing
            self.state.become_sound(self.settings.node_id)
            self.member.leader.replicate()

    # -- inputs: time, messages, links

    def tick(self, now_ms: int, stall_ms: int = 0) -> None:
        """Advance the time.

        For `stall_ms` of it this node was stalled and received nothing; that is not the others' silence.
        """
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        if self.is_halted:
            return
        if stall_ms > 0:
            self._forgive(stall_ms)
        if state.unheard and state.now_ms >= self._ask_terms_due_ms:
            self._ask_terms_due_ms = state.now_ms + self.settings.heartbeat_ms
            for peer in sorted(state.unheard - state.lost_links):
                self._ask_for_term(peer)
        if self.member.leader is not None:
            self._tick_leader(self.member.leader)
        elif self.member.clock.is_due:
            self.member.campaign_if_fit()

    def step(self, peer: str, message: Message) -> None:
        """Handle a message of a member.

        Raises:
            InvariantError: a leader's log contradicts entries that are committed here.
            ImplausibleMessageError: its term is more than `TERM_LEAP_MAX` ahead.
        """
        if message.term - self.state.term > TERM_LEAP_MAX:
            self.member.ignored_count += 1
            raise ImplausibleMessageError(
                f"{peer} sent term {message.term}, too far ahead of this node's term {self.state.term}"
            )
        if self.is_halted or peer not in self.settings.peers or peer == self.settings.node_id:
            self.member.ignored_count += 1
            return
        self._handlers[type(message)](peer, message)
        if self.state.unheard:
            term = sender_term(message)
            if term is not None and term <= self.state.term:
                self.state.unheard.discard(peer)

    def peer_lost(self, peer: str) -> None:
        """Handle a lost connection to a member. If it led, start an election without waiting for the time-out.

        A leader without a connection to a quorum steps down at once, since the others elect a new one as quickly.
        """
        self._joined.discard(peer)
        self.state.lost_links.add(peer)
        if self.member.leader is not None and peer in self.member.leader.peers:
            self.member.leader.link_changed(peer, is_up=False)
            if self.member.handover is not None and self.member.handover.target == peer:
                self.member.give_up()
            if len(self.settings.peers) - len(self.state.lost_links) < self.settings.quorum:
                # the others have lost their leader and elect another one
                self.member.become_follower(self.state.term, None)
        elif self.member.role is RaftRole.FOLLOWER and self.member.follower.leader_id == peer:
            self.member.clock.hasten(0, without=peer)

    def peer_joined(self, peer: str) -> None:
        """Handle a new connection to a member."""
        self._joined.add(peer)
        self.state.lost_links.discard(peer)
        if peer in self.state.unheard:
            self._ask_for_term(peer)
        if self.member.leader is not None and peer in self.member.leader.peers:
            self.member.leader.link_changed(peer, is_up=True)
        elif self.member.role is RaftRole.FOLLOWER and self.member.leader_id is None:
            needed = len(self.settings.peers) if self.state.recovering else self.settings.quorum
            if len(self._joined) + 1 >= needed:
                self.member.clock.hasten(self.settings.heartbeat_ms, without=None)

    def no_copy(self, peer: str, index: int) -> None:
        """Note that a member has no sound copy of the entry `index`, which is damaged here."""
        follower, is_first = self.member.follower, index == self.state.source.damaged_index
        if is_first and self.member.role is RaftRole.FOLLOWER and follower.leader_id == peer:
            follower.missed_index = index

    # -- inputs: the disk

    def persisted(self, hard_state: HardState) -> None:
        """Note that `hard_state` is durable."""
        self.state.persisted(hard_state)
        self.member.on_saved()

    def durable(self, index: int) -> None:
        """Note that the log, in its present generation, is flushed up to `index`."""
        state = self.state
        index = min(index, state.terms.last_index)
        if index <= state.durable_index or self.is_halted:
            return
        state.durable_index = index
        if self.member.leader is not None:
            self.member.leader.advance_commit()
        elif self.member.role is RaftRole.FOLLOWER:
            self.member.follower.on_durable()

    def refused(self) -> None:
        """Handle a failed write of the last `Ready`: entries taken for written, or for dropped, are not.

        The messages, the commit index and the soft state of that `Ready` must not be used. The commit index falls back
        to what an earlier `Ready` had, since the log may still hold entries of an earlier term where newer ones are
        committed. The next `Ready` has the soft state again, as it is then.
        """
        state, source = self.state, self.state.source
        # what the log has: also where the write was an install, after which the core's entries begin elsewhere
        state.terms = TermRuns(source.first_index, source.last_index, source.prev_term, source.term_runs)
        state.durable_index = min(state.durable_index, source.last_index)
        state.commit_index = min(state.commit_index, max(self._reported_before[0], source.first_index - 1))
        self._reported_commit, self._reported_soft_state = self._reported_before
        state.held.clear()  # it may contain the acknowledgement; the leader asks again if it gets no answer
        self.member.follower.on_refused()

    def trimmed(self) -> None:
        """Note that the log deleted its oldest entries, none of them above the commit index."""
        state, source = self.state, self.state.source
        if source.first_index > state.terms.first_index:
            state.terms.trim(source.first_index, source.prev_term)
            state.durable_index = max(state.durable_index, source.first_index - 1)

    def needed_index(self) -> int | None:
        """Return the first entry that a reachable follower lacks; None while this node does not lead."""
        return self.member.leader.needed_index() if self.member.leader is not None else None

    def disk_stalled(self, *, is_stalled: bool) -> None:
        """Do not lead as long as a flush does not return, and ask the best follower to campaign."""
        self.state.stalled = is_stalled
        if is_stalled:
            self.step_down()

    def halt(self) -> None:
        """Take no further part: the disk failed, or the log cannot be trusted.

        The best follower is asked to campaign first.
        """
        self.step_down()
        self.is_halted = True

    # -- inputs: requests of an operator

    def step_down(self) -> None:
        """Stop leading now; the follower with the longest log is asked to campaign at once."""
        if self.member.leader is None:
            return
        successor = best_successor(self.state, self.member.leader)
        if successor is not None:
            self.state.send(successor, TransferRequest(self.state.term, self.settings.node_id))
        self.member.become_follower(self.state.term, None)

    def transfer(self, target: str | None = None) -> str:
        """Transfer leadership to `target`, or to the follower with the longest log.

        Proposals are refused from when the target is ready until the transfer is done. If it is given up then, they are
        refused until everything proposed before it is committed.

        Returns:
            The target.

        Raises:
            NotLeaderError: this node does not lead.
            TransferRefusedError: no member is able to take over, `target` is not, or another transfer is under way.
        """
        if self.member.leader is None:
            raise NotLeaderError(self.state.term, self.member.leader_id)
        chosen = target or best_successor(self.state, self.member.leader)
        if chosen is None:
            raise TransferRefusedError("(any)", "no member is able to take over now")
        if self.member.handover is not None:
            raise TransferRefusedError(chosen, f"a transfer to {self.member.handover.target} is under way")
        check_target(self.state, self.member.leader, chosen)
        self.member.handover = Handover(self.state, chosen)
        return chosen

    def read_index(self, token: int) -> None:
        """Ask for a read that is not stale; `Ready.reads` answers with `token` later.

        Raises:
            NotLeaderError: this node does not lead.
        """
        if self.member.leader is None:
            raise NotLeaderError(self.state.term, self.member.leader_id)
        self.member.leader.read_index(token)

    def allow_missing(self) -> None:
        """Allow a salvage election by a quorum until a leader is heard: for an operator, if a member is lost for good.

        A node that forgot its votes no longer waits for the term of that member.
        """
        self.member.allow_missing = True
        self.state.unheard.clear()

    # -- output

    def ready(self) -> Ready | None:
        """Return what is to be done now; None if nothing is.

        A leader hands over only when those that wait for commits have been told of all.
        """
        if self.member.is_closed and self.state.commit_index == self._reported_commit:
            self.member.proceed()
        state, reported_before = self.state, (self._reported_commit, self._reported_soft_state)
        hard_state = state.to_save()
        soft_state = self._changed_soft_state()
        commit_index = state.commit_index if state.commit_index > self._reported_commit else None
        if not (state.messages or state.writes or state.reads or hard_state or soft_state or commit_index is not None):
            return None
        ready = Ready(hard_state, state.writes, state.messages, commit_index, soft_state, state.reads)
        self._reported_before, self._reported_commit = reported_before, state.commit_index
        state.writes, state.messages = [], []
        if state.reads:
            state.reads = []
        return ready

    def _changed_soft_state(self) -> SoftState | None:
        state, leader = self.state, self.member.leader
        # called after every input: comparing a tuple is faster than making a SoftState
        if leader is None:
            key: tuple[object, ...] = (self.member.role, state.term, self.member.follower.leader_id, state.recovering)
        else:
            key = (self.member.role, state.term, self.member.is_writable)
        if key == self._reported_soft_state:
            return None
        if state.unsaved:
            return self._deposed()
        self._reported_soft_state = key
        return self.soft_state

    def _deposed(self) -> SoftState | None:
        """Return what a deposed leader is to others until its disk has the new term: a follower in its own term."""
        if self._reported_soft_state[:1] != (RaftRole.LEADER,):
            return None
        term = self._reported_soft_state[1]
        assert isinstance(term, int)
        if self.member.leader is not None and term == self.state.term:
            return None
        self._reported_soft_state = (RaftRole.FOLLOWER, term, None, self.state.recovering)
        return SoftState(RaftRole.FOLLOWER, term, None, False, self.state.recovering)

    # -- messages

    def _on_append_request(self, peer: str, request: AppendRequest) -> None:
        if not self.member.follows(peer, request.leader_id, request.term):
            if request.term < self.state.term:
                self.state.answer_append(peer, request, None)  # with our term
            return
        self.member.follower.on_append(request)

    def _on_install_request(self, peer: str, request: InstallRequest) -> None:
        if not self.member.follows(peer, request.leader_id, request.term):
            if request.term < self.state.term:
                state = self.state
                state.send(peer, InstallResponse(state.term, False, NO_INDEX, request.sequence, state.recovering))
        elif request.first_index < 1 or request.prev_term > request.term:
            self.member.ignored_count += 1  # a log cannot begin there
        elif request.part_start < 0 or not (
            request.part_start + len(request.part) <= request.state_size <= STATE_SIZE_MAX
        ):
            self.member.ignored_count += 1  # the state has an impossible size, or is too large to keep
        elif not self.member.follower.on_install(request):
            self.member.ignored_count += 1

    def _ask_for_term(self, peer: str) -> None:
        """Request a pre-vote in a term below all others. It is never granted, and the answer has the member's term."""
        terms = self.state.terms
        request = VoteRequest(NO_TERM, self.settings.node_id, terms.last_index, terms.last_term, pre_vote=True)
        self.state.messages.append((peer, request))

    def _on_append_response(self, peer: str, response: AppendResponse) -> None:
        if self.member.is_of_this_term(response.term) and self.member.leader is not None:
            self.member.leader.on_append_response(peer, response)

    def _on_install_response(self, peer: str, response: InstallResponse) -> None:
        if self.member.is_of_this_term(response.term) and self.member.leader is not None:
            self.member.leader.on_install_response(peer, response)

    # -- time

    def _tick_leader(self, leader: Leader) -> None:
        if not leader.tick():
            self.member.become_follower(self.state.term, None)
            return
        if self.member.handover is not None and self.member.handover.is_overdue:
            self.member.give_up()
        if self.state.now_ms >= leader.prefer_due_ms:
            leader.prefer_due_ms = self.state.now_ms + self.settings.prefer_interval_ms
            self._prefer(leader)

    def _prefer(self, leader: Leader) -> None:
        if self.member.handover is None and leader.is_writable:
            target = preferred_successor(self.state, leader)
            if target is not None:
                leader.prefer_due_ms = self.state.now_ms + 10 * self.settings.election_max_ms
                self.transfer(target)

    def _forgive(self, stall_ms: int) -> None:
        if self.member.leader is not None:
            self.member.leader.forgive(stall_ms)
        else:
            self.member.clock.forgive(stall_ms)
