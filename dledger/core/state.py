"""The state that all roles of a node share: term, vote, the log's terms, durable and commit index, pending output.

messages   may be sent now
held       depend on a term or vote that is not durable yet; `persisted` releases them, in order
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.core.messages import AppendRequest, AppendResponse, HardState, Message, Span, TermRun
from dledger.core.ready import ReadResult, Write
from dledger.core.settings import RaftSettings
from dledger.core.terms import TermRuns


class LogSource(Protocol):
    """The part of `dledger.ports.EntryStore` that the core reads; it writes only through `Ready.writes`."""

    @property
    def first_index(self) -> int: ...
    @property
    def first_position(self) -> int: ...
    @property
    def prev_term(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def durable_index(self) -> int: ...
    @property
    def damaged_index(self) -> int | None: ...
    @property
    def term_runs(self) -> Sequence[TermRun]: ...
    def read(self, first_index: int, size_limit_bytes: int) -> Span | None: ...


class NodeState:
    """The state of one node across its changes of role. Mutable, owned by `Raft`.

    `dledger.core.invariants` checks the invariants that are stated here.

    Attributes:
        quorum: smallest majority of the members.
        now_ms: time of the last tick; never falls.
        term: never falls, and is never below the last entry's term.
        voted_for: the candidate that got the vote of `term`, "" before; within a term it is set once.
        recovering, forgot_votes: see `HardState`. A leader is not recovering.
        saved: the hard state that is durable. It may be a *reservation*: that of the next term, with a vote that nobody
            was told of. What this node promises in its present term is kept, since it would not vote in it again.
        saving: the hard state whose save is under way.
        unsaved: the disk may lack a promise of the present hard state.
        unheard: members whose term a node that forgot its votes has not heard yet; it stays recovering as long as there
            are any. Empty for every other node.
        terms: terms of the log's entries, entries of this turn included.
        durable_index: entries up to here are flushed; in `[terms.first_index - 1, terms.last_index]`.
        commit_index: entries up to here are committed; in the same range, and it never falls.
        lost_links: members to which no connection is known to stand.
        stalled: the disk does not answer, so this node must not campaign.
        is_unfit: there is no room for messages, or this node handed over for want of a copy of a damaged entry: it
            does not take over from a leader that hands over.
        messages: may be sent now. `held`: depend on a hard state that is not durable yet, and follow when it is.
        writes, reads: for the next `Ready`.
        snapshot: returns the bytes of the state machine, for a follower that needs an install.
        jitter: `jitter(n)` is a random integer in `[0, n)`.
    """

    __slots__ = (
        "_reserved",
        "commit_index",
        "durable_index",
        "forgot_votes",
        "held",
        "is_unfit",
        "jitter",
        "lost_links",
        "messages",
        "now_ms",
        "quorum",
        "reads",
        "recovering",
        "saved",
        "saving",
        "settings",
        "snapshot",
        "source",
        "stalled",
        "term",
        "terms",
        "unheard",
        "unsaved",
        "voted_for",
        "writes",
    )

    def __init__(
        self,
        settings: RaftSettings,
        hard_state: HardState,
        source: LogSource,
        commit_index: int,
        snapshot: Callable[[], bytes],
        jitter: Callable[[int], int],
    ) -> None:
        self.settings = settings
        self.quorum = settings.quorum
        self.source = source
        self.snapshot = snapshot
        self.jitter = jitter
        self.now_ms = 0
        self.terms = TermRuns(source.first_index, source.last_index, source.prev_term, source.term_runs)
        self.durable_index = source.durable_index
        self.commit_index = min(max(commit_index, source.first_index - 1), source.last_index)
        self.saved = hard_state
        self.saving: HardState | None = None
        self._reserved: HardState | None = None
        self.recovering = hard_state.recovering
        self.forgot_votes = hard_state.forgot_votes
        self.unheard = set(settings.others) if hard_state.forgot_votes else set()
        # a crash between the flush of entries and the save of their term leaves such entries; no vote was given in it
        is_behind = self.terms.last_term > hard_state.term
        self.term = self.terms.last_term if is_behind else hard_state.term
        self.voted_for = "" if is_behind else hard_state.voted_for
        self.unsaved = is_behind
        self.lost_links: set[str] = set()
        self.stalled = self.is_unfit = False
        self.messages: list[tuple[str, Message]] = []
        self.held: list[tuple[str, Message]] = []
        self.writes: list[Write] = []
        self.reads: list[ReadResult] = []

    @property
    def hard_state(self) -> HardState:
        """The hard state as it should be on disk."""
        return HardState(self.term, self.voted_for, self.recovering, self.forgot_votes)

    @property
    def counted_index(self) -> int:
        """Last index up to which this node's own log counts for the quorum."""
        return self.durable_index if self.settings.durable_quorum else self.terms.last_index

    def grace_ms(self, stall_ms: int) -> int:
        """Return how long (ms) this node waits for others, at least, after it was stalled for `stall_ms`.

        Three heartbeats suffice for a stall of any length: messages sent during it wait in the socket, and members that
        stalled together with this node (one machine) send at once. A longer time would let a busy loop hide a dead
        leader.
        """
        return min(stall_ms, 3 * self.settings.heartbeat_ms)

    def send(self, peer: str, message: Message) -> None:
        """Queue a message; it is held while the hard state that it depends on is not durable."""
        (self.held if self.unsaved else self.messages).append((peer, message))

    def enter_term(self, term: int) -> None:
        """Move to a later term, in which no vote is given yet."""
        assert term > self.term, (term, self.term)
        self.term, self.voted_for = term, ""
        self._compare()

    @property
    def knows_its_votes(self) -> bool:
        """Whether this node has given no vote in a term above its own."""
        return not self.unheard

    def answer_append(
        self,
        peer: str,
        request: AppendRequest,
        matched_index: int | None,
        runs: tuple[TermRun, ...] = (),
        last_index: int | None = None,
    ) -> None:
        """Accept an append request up to `matched_index`; None: reject it, with this log's newest `runs`.

        `last_index`: where the rejecting log is to end for the leader; None: where it does end.
        """
        last_index = self.terms.last_index if last_index is None else last_index
        received_index = last_index if matched_index is None else matched_index
        self.send(
            peer,
            AppendResponse(
                self.term,
                matched_index is not None,
                request.prev_index,
                received_index,
                min(self.durable_index, received_index),
                request.sequence,
                self.recovering,
                runs,
            ),
        )

    def vote_for(self, peer: str) -> None:
        """Give the vote of this term."""
        assert self.voted_for in ("", peer), (self.term, self.voted_for, peer)
        if self.voted_for != peer:
            self.voted_for = peer
            self._compare()

    def become_sound(self, leader_id: str | None) -> None:
        """End recovering: `leader_id` brought this node up to date, or a salvage election elected this node itself.

        A forgotten vote of this term cannot have been for another leader, so the vote now counts as given to this one.
        There is no forgotten vote in a later term, since this node has heard every member for which it may have voted.
        """
        if self.recovering:
            self.recovering, self.forgot_votes = False, False
            self.unheard.clear()
            self.voted_for = self.voted_for or leader_id or ""
            self._compare()

    def reserve(self, candidate: str) -> None:
        """Have a vote for `candidate` in the next term saved ahead. It is not given before `vote_for`."""
        self._reserved = HardState(self.term + 1, candidate, self.recovering, self.forgot_votes)

    def has_reserved(self, candidate: str) -> bool:
        """Return whether a vote for `candidate` in the next term is durable."""
        return self.saved == HardState(self.term + 1, candidate, self.recovering, self.forgot_votes)

    def to_save(self) -> HardState | None:
        """Return the hard state to save now; None if there is none, or a save is under way."""
        if self.saving is not None or not (self.unsaved or self._reserved):
            return None
        reserved, self._reserved = self._reserved, None
        if self.unsaved:
            self.saving = self.hard_state
        elif reserved is not None and reserved.term > self.term:
            self.saving = reserved
        return self.saving

    def persisted(self, hard_state: HardState) -> None:
        """Note that `hard_state` is durable."""
        self.saved, self.saving = hard_state, None
        self._compare()

    def _compare(self) -> None:
        """Note whether a promise may be lost; if not, send what was held. A save under way may be durable or not."""
        self.unsaved = not all(_keeps(disk, self.hard_state) for disk in (self.saved, self.saving) if disk is not None)
        if not self.unsaved:
            self.messages += self.held
            self.held.clear()

    def commit_to(self, index: int) -> None:
        """Raise the commit index; it never falls."""
        self.commit_index = max(self.commit_index, index)


def _keeps(disk: HardState, promised: HardState) -> bool:
    """Return whether a node that comes back with the hard state `disk` is bound to all that it has promised."""
    are_marks_equal = (disk.recovering, disk.forgot_votes) == (promised.recovering, promised.forgot_votes)
    is_vote_kept = disk.term == promised.term and promised.voted_for in ("", disk.voted_for)
    return are_marks_equal and (disk.term > promised.term or is_vote_kept)
