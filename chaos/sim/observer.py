"""The observer: sees all state of a run, shares no code with the product, and checks the invariants after every event.

    code  invariant                                                            checked when
    R1    at most one leader per term                                          a node leads
    R2    one vote per term and node, over restarts and power cuts             a vote leaves
    R3    term and commit index never fall (`dledger.core.invariants`)         after every event
    R4    a leader never truncates its log                                     the log truncates
    R5    same index and term, same log up to there                            an entry is written
    R6    a new leader holds everything committed in earlier terms             a node begins to lead
    R7    one log of committed entries                                         a commit index rises
    R8    a leader commits by counting an entry of its own term, and a quorum  a leader's commit index rises
          of members holds it (durably, under SYNC_FLUSH)
    R9    durable before sent: acknowledgement, vote, term                      a message leaves
    R10   no truncation of what is committed                                   the log truncates
    R11   up-to-date is judged by the last entry's term                        a vote is asked for, a vote leaves
    R13   an acknowledged entry is in the log of every later leader there is;  an acknowledgement, a read
          a read misses nothing acknowledged before it was asked for
    R15   no term rises by a candidacy that a quorum did not agree to, and     a vote is asked for, a pre-vote leaves
          a member that heard its leader within the lease does not agree
    R16   the n-th committed message has queue offset n: none is in no queue,  a commit index rises
          and no two share a place; nothing undoes a recall, a removal of a
          group or a move of its offsets that an administrator was told of
    R17   an ordinary election is won by a quorum of votes of members that     a node begins to lead
          have not forgotten anything
    R18   a member that forgot its votes becomes sound again in no term below  a node turns sound
          one in which it voted
    R19   a sound node's tables hold what its log does not any more            a process begins, a node leads
    R20   consumers of a replica see each committed message at its own queue   a process begins, a node turns writable,
          offset, in the present life of its topic, and nothing else           a run ends
    R21   what was durable is there after a restart                            a process begins
    R22   a node starts on what it has left, unless its disk is at fault       a process begins
    R23   messages that members acknowledge or deliver are committed, and so    an answer comes
          are changes that administrators are told of
    R24   votes and acknowledgements go only to a node whose configuration     a vote or an acknowledgement leaves
          names the same members as the sender's
    R25   store times of committed entries do not fall by 5 s or less,         a commit index rises
          however clocks jump
    R26   no turn of a broker's loop does so much work that it could           after every event
          outlast a lease; counted where administrators set huge policies
    R27   a nameserver gives no route back to a deposed leader, and holds no   after every event of it
          question whose answer has changed
    R28   a message is committed at most as often as its producer tried, and   an entry is committed, a send ends
          never when the producer says that it is not stored
    R29   no offset of a group is committed beyond a message that no member    now and then
          was given (that all are handled in the end is the run's R14)
    R30   ordered: a message is given when all before it in its queue are      a member is given a message
          handled
    R31   ordered: no two members handle messages of one queue, unless         a member is given a message
          leadership has changed since one of them took it over
    R32   a transaction's message is there when its program has committed it,  an entry is committed
          and never otherwise; at most as often as its half message was stored
          (that all are decided in the end is the run's R14)
    R33   POP: a message acknowledged in time is given to nobody, while the    an answer comes, an entry is committed
          same node leads, and under later leaders if the log has a later
          record of its group's progress (that all messages are taken and
          acknowledged in the end is the run's R14)
    R34   POP: nobody else is given a message before its time is over, with    an answer comes, an entry is committed
          the same limits; earlier by as much as a clock is ahead of the
          one that gave it
    R35   a message has at most one copy in a group's retry topic              an entry is committed
    R36   POP in order: a message is given when an acknowledgement was sent    an answer comes
          for each before it in its queue, or it is given with it
    R37   shipping code logs no error but those that a fault explains, see      after every event
          `chaos.sim.stack.kit.EXPECTED_ERRORS`

R20 to R23 and R25 to R37 are checked where whole brokers run, in `chaos.sim.stack`. R16 and R19 are stricter there:
removed and recreated topics are distinguished, and topics and groups' offsets are compared with the committed log.
R12 (membership) has nothing to check yet; R14 (liveness) is checked by `chaos.sim.run`. Logs are compared by hash
chains, in one step. R1 to R13 are those of the Raft paper and thesis, numbered. Ours are R15 (for pre-vote), R16 (for
readers of the log), R17 and R18 (for members that forgot), R19 (for installs), R24 (for configurations that differ) and
R25 (for queries by time).
"""

from bisect import bisect_left
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Protocol, TypeVar

from chaos.sim.errors import SafetyViolation
from chaos.sim.log_image import NEW_CHAIN
from chaos.sim.machine import Machine
from dledger.core.errors import InvariantError
from dledger.core.invariants import View, check, view
from dledger.core.leader import Leader
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    InstallResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from dledger.core.raft import Raft
from dledger.core.roles import RaftRole

_Payload = TypeVar("_Payload", contravariant=True)


class Accounts(Protocol[_Payload]):
    """What the committed entries mean for queues and tables."""

    def enter(self, index: int, payload: _Payload) -> str | None:
        """Take the next committed entry; return what is wrong with its place in its queue, or None."""

    def forget_above(self, index: int) -> None:
        """Forget the entries above `index`, which may be lost, as the node has reported."""


class Observer:
    """Remembers all that the nodes of one run have committed, voted and acknowledged, and checks the invariants.

    `durable_quorum`: SYNC_FLUSH. `quorum`: size of a majority. `peers_of`: by node, the members that its configuration
    names. `is_lossy`: a member forgot entries or a disk was replaced, so that the holders of an entry can no longer be
    counted on the disks. `recoverable` runs never lose a quorum's memory. `ignored`: codes that are not checked.
    """

    def __init__(
        self,
        disks: Mapping[str, Machine[Any]],
        accounts: Accounts[Any],
        *,
        quorum: int,
        durable_quorum: bool,
        recoverable: bool,
        peers_of: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._disks = dict(disks)
        self._peers_of = peers_of
        self._electorates: dict[tuple[str, int], tuple[str, ...]] = {}  # by candidate and term
        self.accounts = accounts
        self._quorum = quorum
        self._durable_quorum = durable_quorum
        self._recoverable = recoverable
        self.committed: list[int] = []
        self._commit_terms: list[int] = []  # the term of each commit; never falls, since a leader commits first
        self.acked_index = -1
        self.acked_count = 0
        self.is_lossy = False
        self.ignored: tuple[str, ...] = ()
        self.leaders: dict[int, str] = {}
        self._chains: dict[int, dict[int, int]] = {}  # by term and index
        self._votes: dict[tuple[str, int], str] = {}
        self._sound_votes: dict[tuple[str, int], dict[str, None]] = {}  # by candidate and term
        self._terms: dict[str, int] = {}
        self._grants: dict[tuple[str, int], dict[str, None]] = {}
        self._seen: dict[str, View] = {}

    def past(self) -> "Observer":
        """Return a copy of what is known now, without the disks."""
        return deepcopy(self, {id(self._disks): {}})

    def go_on(self, disks: Mapping[str, Machine[Any]]) -> None:
        """Check these disks from now on, in place of the ones before."""
        self._disks = dict(disks)

    def committed_chain(self, index: int) -> int:
        """Return the hash of the committed log up to `index`."""
        return self.committed[index] if index >= 0 else NEW_CHAIN

    def booted(self, name: str, raft: Raft) -> None:
        """Check the state that a process has found at its start."""
        self._expect(raft.state.term >= self._terms.get(name, 0), "R3", f"{name} came back in term {raft.state.term}")
        self._seen[name] = view(raft)
        if not raft.state.recovering:
            self._has_tables(name)

    def _has_tables(self, name: str) -> None:
        lack = self._disks[name].why_tables_lack()
        self._expect(lack is None, "R19", f"{name}: {lack}")

    def replace_disk(self, name: str, disk: Machine[Any]) -> None:
        """Note that a node has a new, empty disk; of its earlier promises only its votes still count."""
        self._disks[name] = disk
        self.is_lossy = True
        self._terms.pop(name, None)
        if not self._recoverable:
            self._forget_terms()

    def _forget_terms(self) -> None:
        """Forget terms that are on no disk any more, since they may be used again."""
        saved = [disk.hard_state.term for disk in self._disks.values() if disk.hard_state is not None]
        known = max(saved, default=0)
        self.leaders = {term: leader for term, leader in self.leaders.items() if term <= known}
        self._votes = {key: candidate for key, candidate in self._votes.items() if key[1] <= known}
        self._chains = {term: chains for term, chains in self._chains.items() if term <= known}

    def after(self, name: str, raft: Raft) -> None:
        """Check the invariants of one node after an event on it."""
        before = self._seen[name]
        try:
            self._seen[name] = after = check(before, raft)
        except InvariantError as error:
            raise SafetyViolation("R3/R4/R10", str(error)) from error
        if before.recovering and not after.recovering:
            # a vote for itself does not count here: only the process that forgot it knew of it
            votes = (term for (voter, term), candidate in self._votes.items() if voter == name != candidate)
            voted = max(votes, default=0)
            self._expect(after.term >= voted, "R18", f"{name} is sound in term {after.term}, and voted in term {voted}")
        if after.role is RaftRole.LEADER and before.role is not RaftRole.LEADER:
            self._begins_to_lead(name, raft)
        if after.commit_index != before.commit_index:
            self._commits(name, raft)

    def _begins_to_lead(self, name: str, raft: Raft) -> None:
        self._has_tables(name)
        term, leader = raft.state.term, raft.member.leader
        self._voted(name, term, name)
        other = self.leaders.setdefault(term, name)
        self._expect(other == name, "R1", f"{other} and {name} lead term {term}")
        if leader is not None and leader.is_salvage:
            self._salvages(name, leader)
        elif self._quorum > 1:  # a group of one needs no votes
            sound = self._sound_votes.get((name, term), {})
            self._expect(
                len(sound) >= self._quorum, "R17", f"{name} leads term {term} by the sound votes of {[*sound]}"
            )
        # a paused candidate may win a term that is over for others: it must have what was committed in earlier terms
        last_index = bisect_left(self._commit_terms, term) - 1
        held = self._disks[name].chain_at(last_index)
        if last_index >= raft.state.terms.first_index - 1:
            self._expect(
                held == self.committed_chain(last_index),
                "R6",
                f"{name} leads term {term} without the entry committed at {last_index}",
            )

    def _salvages(self, name: str, leader: Leader) -> None:
        """Check a salvage election: it reports what may be missing, unless a quorum remembers or all disks are new."""
        if self._recoverable:
            return
        all_new = not any(disk.entries for other, disk in self._disks.items() if other != name)
        self._expect(
            leader.may_miss_after is not None or (all_new and leader.term_start_index == 0),
            "R6",
            f"{name} was elected by members that forgot, and does not say what may be missing",
        )
        lost_after = leader.may_miss_after
        self.forget_above(leader.term_start_index - 1 if lost_after is None else lost_after)

    def _commits(self, name: str, raft: Raft) -> None:
        disk, index = self._disks[name], raft.state.commit_index
        if raft.state.terms.first_index > disk.last_index + 1:
            return  # an install that waits for room on the disk; its state is not reported yet
        if raft.member.role is RaftRole.LEADER:
            self._commits_by_counting(name, raft)
        known = len(self.committed) - 1
        shared = min(index, known)
        if shared >= disk.first_index - 1:
            is_same = disk.chain_at(shared) == self.committed_chain(shared)
            self._expect(is_same, "R7", "{} committed another log up to {}", name, shared)
        for new in range(known + 1, index + 1):
            chain = disk.chain_at(new)
            assert chain is not None, (name, new, disk.first_index, disk.last_index)
            fault = self.accounts.enter(new, disk.payload_at(new))
            self._expect(fault is None, "R16", "{} committed {}: {}", name, new, fault)
            self.committed.append(chain)
            self._commit_terms.append(raft.state.term)

    def _commits_by_counting(self, name: str, raft: Raft) -> None:
        index, term = raft.state.commit_index, raft.state.term
        counted = raft.state.terms.term_at(index)
        wrong = "{} in term {} committed {} of term {} by counting"
        self._expect(counted == term, "R8", wrong, name, term, index, counted)
        if self.is_lossy:
            return
        chain = self._disks[name].chain_at(index)
        holders = [other for other, disk in self._disks.items() if self._holds(disk, index, chain)]
        wrong = "{} committed {}, which only {} hold for the quorum"
        self._expect(len(holders) >= self._quorum, "R8", wrong, name, index, holders)

    def _holds(self, disk: Machine[Any], index: int, chain: int | None) -> bool:
        end = disk.durable_index if self._durable_quorum else disk.last_index
        return index <= end and (index < disk.first_index or disk.chain_at(index) == chain)

    def forget_above(self, index: int) -> None:
        """Stop expecting the committed entries above `index`, which a salvage election reported as perhaps lost."""
        del self.committed[index + 1 :], self._commit_terms[index + 1 :]
        self.accounts.forget_above(index)
        self.acked_index = min(self.acked_index, index)

    # -- the log

    def appended(self, name: str, index: int) -> None:
        """Check R5 for an entry that was written."""
        disk = self._disks[name]
        term, chain = disk.entries[-1][0], disk.chains[-1]
        chains = self._chains.get(term)
        if chains is None:
            chains = self._chains[term] = {}
        wrong = "{}: entry {} of term {} follows another log than elsewhere"
        self._expect(chains.setdefault(index, chain) == chain, "R5", wrong, name, index, term)

    def truncates(self, name: str, raft: Raft, last_index: int) -> None:
        """Check R4 and R10 before entries above `last_index` are dropped."""
        disk = self._disks[name]
        self._expect(raft.member.role is not RaftRole.LEADER, "R4", f"leader {name} truncates after {last_index}")
        self._expect(
            last_index >= self._seen[name].commit_index,
            "R10",
            f"{name} truncates after {last_index}, committed {self._seen[name].commit_index}",
        )
        first = last_index + 1
        if disk.first_index <= first < len(self.committed):
            is_committed = disk.chain_at(first) == self.committed_chain(first)
            self._expect(not is_committed, "R10", f"{name} truncates the committed entry {first}")

    # -- messages

    def sends(self, name: str, raft: Raft, peer: str, message: Message) -> None:
        """Check a message that is about to be sent."""
        disk = self._disks[name]
        saved_term = 0 if disk.hard_state is None else disk.hard_state.term
        match message:
            case AppendRequest() | InstallResponse():
                self._expect_saved_term(name, message.term, saved_term)
            case AppendResponse():
                self._acknowledges(name, message, saved_term)
                self._has_same_members(name, peer, message.term)
            case VoteRequest():
                self._asks_for_votes(name, raft, message)
            case VoteResponse():
                self._votes_for(name, raft, peer, message, saved_term)
                self._has_same_members(name, peer, message.term)

    def _asks_for_votes(self, name: str, raft: Raft, request: VoteRequest) -> None:
        """Check a vote request. The candidate's own vote need not be durable yet: it is checked when the node leads."""
        disk = self._disks[name]
        last_term = disk.last_term
        self._expect(
            (request.last_term, request.last_index) == (last_term, disk.last_index),
            "R11",
            f"{name} asks with the last entry {request.last_term}/{request.last_index},"
            f" holds {last_term}/{disk.last_index}",
        )
        if request.pre_vote:
            return
        self._electorates[name, request.term] = self._peers_of[name]
        self._sound_votes[name, request.term] = {} if raft.state.recovering else {name: None}
        if not request.transfer and not request.salvage:
            agreed = self._grants.get((name, request.term), {})
            self._expect(
                (not raft.state.recovering) + len(agreed) >= self._quorum,
                "R15",
                f"{name} raised the term to {request.term}; agreed: {[*agreed]}",
            )

    def _votes_for(self, name: str, raft: Raft, peer: str, response: VoteResponse, saved_term: int) -> None:
        if not response.granted:
            return
        if response.pre_vote:
            self._grants.setdefault((peer, response.term), {})[name] = None
            return
        self._expect_saved_term(name, response.term, saved_term)
        self._voted(name, response.term, peer)

    def _has_same_members(self, name: str, peer: str, term: int) -> None:
        own = self._peers_of[name]
        asked = self._electorates.get((peer, term), own)
        self._expect(own == asked, "R24", "{}, of {}, counts for {}, of {}, in term {}", name, own, peer, asked, term)

    def receives(self, name: str, peer: str, message: Message) -> None:
        """Note a vote of a sound member that is about to be handed to a node."""
        if isinstance(message, VoteResponse) and message.granted and not message.pre_vote and not message.recovering:
            self._sound_votes.setdefault((name, message.term), {})[peer] = None

    def granted_early(self, name: str, candidate: str, heard_ago_us: int, lease_us: int) -> None:
        """Check R15: a pre-vote was granted `heard_ago_us` after the leader was heard over a link that is still up."""
        self._expect(
            heard_ago_us >= lease_us, "R15", f"{name} heard its leader {heard_ago_us} us ago and agrees to {candidate}"
        )

    def _voted(self, name: str, term: int, candidate: str) -> None:
        hard_state = self._disks[name].hard_state
        # a later term on disk suffices, too: no second vote in the earlier term can follow
        is_bound = hard_state is not None and (
            hard_state.term > term or (hard_state.term, hard_state.voted_for) == (term, candidate)
        )
        self._expect(is_bound, "R9", f"{name} votes for {candidate} in term {term}; on disk: {hard_state}")
        other = self._votes.setdefault((name, term), candidate)
        self._expect(other == candidate, "R2", f"{name} votes for {other} and {candidate} in term {term}")

    def _acknowledges(self, name: str, response: AppendResponse, saved_term: int) -> None:
        disk = self._disks[name]
        self._expect_saved_term(name, response.term, saved_term)
        if response.accepted:
            received, durable = disk.last_index, disk.durable_index
            self._expect(
                response.durable_index <= durable and response.received_index <= received,
                "R9",
                "{}: {}; the log ends at {}, and is durable up to {}",
                name,
                response,
                received,
                durable,
            )

    def _expect_saved_term(self, name: str, term: int, saved_term: int) -> None:
        self._expect(term <= saved_term, "R9", "{} speaks in term {}, on disk {}", name, term, saved_term)
        self._terms[name] = max(term, self._terms.get(name, 0))

    # -- clients

    def acknowledged(self, name: str, term: int, index: int, rafts: dict[str, Raft]) -> None:
        """Check an acknowledgement to a client: everything up to `index` is committed, and later leaders have it."""
        chain = self._disks[name].chain_at(index)
        self._expect(self.committed_chain(index) == chain, "R13", "{} acknowledged {}: not committed", name, index)
        self.acked_index = max(self.acked_index, index)
        self.acked_count += 1
        for other, raft in rafts.items():
            if raft.member.role is RaftRole.LEADER and raft.state.term > term and index >= raft.state.terms.first_index:
                self._expect(
                    self._disks[other].chain_at(index) == chain,
                    "R13",
                    f"{name} in term {term} acknowledged {index}, which {other} of term {raft.state.term} lacks",
                )

    def read(self, name: str, index: int, owed_index: int) -> None:
        """Check that a read that was asked for when `owed_index` was acknowledged sees at least that."""
        self._expect(index >= owed_index, "R13", f"{name} serves a read at {index}, {owed_index} was acknowledged")

    def _expect(self, holds: bool, code: str, detail: str, *values: object) -> None:
        """Raise a violation unless the condition holds. `values` fill the places in `detail`, and only then."""
        if not holds and code not in self.ignored:
            raise SafetyViolation(code, detail.format(*values) if values else detail)
