"""Seeded bugs: each is one wrong decision, put into the core for the length of a `with`.

Most have been in a published Raft at some time (those are named). None is in the product: they live here, as patches.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from chaos.sim.disk import SimLog
from dledger.core.ballot import Ballot, BallotOutcome
from dledger.core.follower import Follower
from dledger.core.leader import Leader
from dledger.core.member import Member
from dledger.core.messages import AppendRequest, HardState, Span, VoteRequest, VoteResponse
from dledger.core.progress import PeerProgress
from dledger.core.ready import AppendSpan, ReadResult, TruncateAfter
from dledger.core.settings import RaftSettings
from dledger.core.state import NodeState

take = Follower._take
on_append = Follower.on_append
begin_install = SimLog.begin_install
become_pre_candidate = Member._become_pre_candidate
ask_for_votes = Member._ask_for_votes
record = Ballot.record
make_state = NodeState.__init__


def acknowledge_before_durable(self: Follower, span: Span) -> None:
    """DLedger: acknowledgements never wait for a flush."""
    take(self, span)
    self._state.durable_index = self._state.terms.last_index


@property  # type: ignore[misc]  # it replaces a property
def vote_that_is_not_saved(self: NodeState) -> HardState:
    """DLedger: the vote's file is not synced, its write errors are swallowed."""
    return HardState(self.term, "", self.recovering)


def commit_old_terms_by_counting(self: Leader) -> None:
    """DLedger 0.3: figure 8 of the paper can lose a committed entry."""
    self._state.commit_to(min(self._quorum_index(), self._state.terms.last_index))


def truncate_on_every_append(self: Follower, span: Span) -> None:
    """PySyncObj: the suffix is deleted on every append, so a late request takes back what was acknowledged."""
    state, terms = self._state, self._state.terms
    if span.first_index <= terms.last_index:
        terms.truncate_after(span.first_index - 1)
        state.durable_index = min(state.durable_index, span.first_index - 1)
        state.writes.append(TruncateAfter(span.first_index - 1))
    terms.extend(span.term, span.last_index)
    state.writes.append(AppendSpan(span))


def campaign_without_pre_vote(self: Member) -> None:
    """DLedger: no pre-vote; who was cut off comes back with a higher term and deposes a healthy leader."""
    if self.state.recovering or len(self.settings.peers) == 1:
        become_pre_candidate(self)
    else:
        self._become_candidate()


def ignore_the_previous_term(self: Follower, request: AppendRequest) -> bool:
    """The consistency check looks whether there is an entry, not whether it is the same one."""
    return request.prev_index <= self._state.terms.last_index


def compare_by_node_term(
    self: Member, term: int, *, pre_vote: bool, transfer: bool = False, salvage: bool = False
) -> Any:
    """DLedger issue 52: the term of the node instead of the last entry's."""
    terms, last_term = self.state.terms, self.state.term
    return VoteRequest(term, self.settings.node_id, terms.last_index, last_term, pre_vote, transfer, salvage)


def any_log_will_do(_last_term: int, _last_index: int, _own_last_term: int, _own_last_index: int) -> bool:
    """DLedger 0.3 in its first round: the log is not looked at."""
    return True


def hears_nobody(self: Member) -> bool:
    """DLedger: a higher term deposes at once; who hears its leader agrees to depose it."""
    return False


def salvage_without_hearing_all(self: Member, request: VoteRequest) -> None:
    """A quorum of members that may have forgotten elects the longest of its logs."""
    allow, self.allow_missing = self.allow_missing, True
    try:
        ask_for_votes(self, request)
    finally:
        self.allow_missing = allow


def count_the_unsound(self: Leader) -> int:
    """A follower that may have forgotten what it acknowledged still counts."""
    counted = [peer.received_index for peer in self.peers.values()] + [self._state.counted_index]
    return sorted(counted)[-self._state.quorum]


def commit_what_does_not_match(self: Follower, request: AppendRequest) -> None:
    """DLedger issue 316: the leader's commit index is believed up to the end of a log that may be another one."""
    on_append(self, request)
    self._state.commit_to(min(request.commit_index, self._state.terms.last_index))


def read_at_once(self: Leader, token: int) -> None:
    """A leader that was deposed, and does not know it, serves reads: nobody is asked whether he still leads."""
    self._state.reads.append(ReadResult(token, self._state.commit_index))


def never_go_back(self: PeerProgress, next_index: int, last_index: int) -> None:
    """The leader does not look for the fork: a follower with another log never catches up."""


def without_chance(self: NodeState, *arguments: Any, **named: Any) -> None:
    """Time-outs and pauses are not random: figure 16 of Raft."""
    make_state(self, *arguments, **named)
    self.jitter = lambda _: 0


def nobody_goes_before(_self: RaftSettings, _peer: str) -> bool:
    """Nodes take no turns, and of two candidates of one moment neither gives way."""
    return False


def never_campaign(self: Member) -> None:
    """Nobody ever asks for votes."""


@property  # type: ignore[misc]  # it replaces a property
def own_vote_always_counts(self: Ballot) -> bool:
    """A member that may have forgotten what it acknowledged votes for itself."""
    return True


@property  # type: ignore[misc]  # it replaces a property
def own_real_vote_counts(self: Ballot) -> bool:
    """As above, in the real election only: its pre-votes are those of the others."""
    return not self.request.pre_vote or not self._state.recovering


def count_the_own_vote_at_once(self: Ballot, peer: str, response: VoteResponse) -> BallotOutcome:
    """A candidate asks before its vote is on disk, and leads before it is."""
    self.own_vote = True
    return record(self, peer, response)


@property  # type: ignore[misc]  # it replaces a property
def every_vote_is_known(self: NodeState) -> bool:
    """A node whose disk was replaced votes and counts as soon as its log is level."""
    return True


def writable_with_entries_undecided(self: Leader) -> None:
    """A hand-over given up makes the leader writable at once, whatever of its log still waits for a quorum."""


def install_without_a_mark(
    self: SimLog, first_index: int, start_position: int, prev_term: int, *, keep: bool = False
) -> None:
    """The log is reset durably, the tables are not there yet, and a restart does not know."""
    begin_install(self, first_index, start_position, prev_term, keep=keep)
    self.finish_install()


@dataclass(frozen=True)
class Mutant:
    """One bug: where it is put in, and what the simulation must answer (codes of `chaos.sim.observer`).

    `first_seed`: where to begin looking; a bug that shows in few runs is not looked for in those before.
    `also`: a second patch, of a mechanism that would hide the bug.
    """

    name: str
    target: type | str
    attribute: str
    replacement: Callable[..., Any] | property
    codes: tuple[str, ...]
    first_seed: int = 0
    also: tuple[type, str, Callable[..., Any]] | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the core until the block ends."""
        with ExitStack() as patches:
            if isinstance(self.target, str):
                patches.enter_context(patch(f"{self.target}.{self.attribute}", self.replacement))
            else:
                patches.enter_context(patch.object(self.target, self.attribute, self.replacement))
            if self.also is not None:
                patches.enter_context(patch.object(*self.also))
            yield


MUTANTS = (
    Mutant("ack before durable", Follower, "_take", acknowledge_before_durable, ("R8", "R9")),
    Mutant("vote not persisted", NodeState, "hard_state", vote_that_is_not_saved, ("R9", "R2")),
    Mutant("leads before its vote is saved", Ballot, "record", count_the_own_vote_at_once, ("R9",), 3),
    Mutant("old term committed by counting", Leader, "advance_commit", commit_old_terms_by_counting, ("R8",)),
    Mutant("committed entries truncated", Follower, "_take", truncate_on_every_append, ("R3/R4/R10", "R10"), 2),
    Mutant("no pre-vote", Member, "campaign_if_fit", campaign_without_pre_vote, ("R15",)),
    Mutant("wrong previous-term check", Follower, "_is_consistent", ignore_the_previous_term, ("R5",), 20),
    Mutant("node's term for the log's", Member, "_vote_request", compare_by_node_term, ("R11",)),
    Mutant(
        "vote for a shorter log", "dledger.core.voting", "is_up_to_date", any_log_will_do, ("R6", "R3/R4/R10", "R10"), 5
    ),
    Mutant("no lease", Member, "_has_leader", hears_nobody, ("R15",), 58),
    Mutant(
        "salvage without hearing all", Member, "_ask_for_votes", salvage_without_hearing_all, ("R1", "R2", "R6"), 60
    ),
    Mutant("recovering members counted", Leader, "_quorum_index", count_the_unsound, ("R8", "R6"), 3),
    Mutant(
        "commit index above what matches", Follower, "on_append", commit_what_does_not_match, ("R7", "R16", "R6"), 20
    ),
    Mutant("stale read of a deposed leader", Leader, "read_index", read_at_once, ("R13",), 55),
    Mutant("no way back to the fork", PeerProgress, "rejected", never_go_back, ("R14",)),
    Mutant("recovering member's own pre-vote", Ballot, "_own_vote_counts", own_vote_always_counts, ("R15",), 49),
    Mutant("recovering member's own vote", Ballot, "_own_vote_counts", own_real_vote_counts, ("R17", "R6"), 445),
    Mutant("forgotten votes", NodeState, "knows_its_votes", every_vote_is_known, ("R18", "R2"), 1455),
    Mutant("writable with entries undecided", Leader, "settle", writable_with_entries_undecided, ("R16",), 168),
    Mutant("install without a mark", SimLog, "begin_install", install_without_a_mark, ("R19",), 217),
    Mutant(
        "election time-outs not random",
        NodeState,
        "__init__",
        without_chance,
        ("R14",),
        401,
        also=(RaftSettings, "goes_before", nobody_goes_before),
    ),
    Mutant("nobody campaigns", Member, "campaign_if_fit", never_campaign, ("R14",)),
)
