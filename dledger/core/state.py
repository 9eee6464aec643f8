"""What all roles of one node share: term, vote, the log's terms, what is durable, what is committed, what goes out.

messages   may go now
held       rest on a term or a vote that is not durable yet; `persisted` lets them go, in order
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.core.messages import HardState, Message, Span, TermRun, VoteRequest
from dledger.core.ready import ReadResult, Write
from dledger.core.settings import RaftSettings
from dledger.core.terms import TermRuns


class LogSource(Protocol):
    """The part of `dledger.ports.EntryStore` that the core reads; it writes through `Ready.writes` only."""

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
    def term_runs(self) -> Sequence[TermRun]: ...
    def read(self, first_index: int, size_limit_bytes: int) -> Span | None: ...


class NodeState:
    """One node's state across its changes of role. Mutable, owned by `Raft`.

    `dledger.core.invariants` checks what is said here of each field.

    Attributes:
        quorum: smallest majority of the members.
        now_ms: time of the last tick; never falls.
        term: never falls, and is never below the last entry's term.
        voted_for: who was given the vote of `term`, "" before; within a term it is set once.
        recovering, forgot_votes: see `HardState`. A leader is not recovering.
        saved: the hard state that is durable; `unsaved`: the one above differs from it, or its save is under way.
        unheard: members whose term a node that forgot its votes has not heard yet; it stays recovering as long as there
            are any. Empty for every other node.
        terms: terms of the log's entries, entries of this turn included.
        durable_index: entries up to here are flushed; in `[terms.first_index - 1, terms.last_index]`.
        commit_index: entries up to here can never vanish; in the same range, and it never falls.
        lost_links: members to which no connection stands, as far as known.
        stalled: the disk does not answer, so this node must not ask for votes.
        messages: may go out now. `held`: rest on a hard state that is not durable yet; they follow when it is.
        writes, reads: for the next `Ready`.
        snapshot: the state machine's bytes, for a follower that starts anew.
        jitter: `jitter(n)` is a random integer in `[0, n)`.
    """

    __slots__ = (
        "commit_index",
        "durable_index",
        "forgot_votes",
        "held",
        "jitter",
        "lost_links",
        "messages",
        "now_ms",
        "quorum",
        "reads",
        "recovering",
        "saved",
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
        self.recovering = hard_state.recovering
        self.forgot_votes = hard_state.forgot_votes
        self.unheard = set(settings.others) if hard_state.forgot_votes else set()
        # a crash between the flush of entries and that of a new term leaves entries ahead: no vote was given in theirs
        is_behind = self.terms.last_term > hard_state.term
        self.term = self.terms.last_term if is_behind else hard_state.term
        self.voted_for = "" if is_behind else hard_state.voted_for
        self.unsaved = is_behind
        self.lost_links: set[str] = set()
        self.stalled = False
        self.messages: list[tuple[str, Message]] = []
        self.held: list[tuple[str, Message]] = []
        self.writes: list[Write] = []
        self.reads: list[ReadResult] = []

    @property
    def hard_state(self) -> HardState:
        """As it should be on disk."""
        return HardState(self.term, self.voted_for, self.recovering, self.forgot_votes)

    @property
    def counted_index(self) -> int:
        """Up to where this node's own log counts for the quorum."""
        return self.durable_index if self.settings.durable_quorum else self.terms.last_index

    def grace_ms(self, stall_ms: int) -> int:
        """How long others are waited for after this node stood still for `stall_ms`, at least.

        Three heartbeats suffice, however long the stall was: what was sent meanwhile waits in the socket, and who stood
        still with this node (one machine) speaks at once. More would let a busy loop hide a dead leader.
        """
        return min(stall_ms, 3 * self.settings.heartbeat_ms)

    def send(self, peer: str, message: Message) -> None:
        """Queue a message; it waits as long as the hard state it rests on is not durable."""
        (self.held if self.unsaved else self.messages).append((peer, message))

    def enter_term(self, term: int) -> None:
        """Move to a later term, with its vote still to give."""
        assert term > self.term, (term, self.term)
        self.term, self.voted_for, self.unsaved = term, "", True

    @property
    def knows_its_votes(self) -> bool:
        """Whether this node gave no vote in a term above its own."""
        return not self.unheard

    def vote_for(self, peer: str) -> None:
        """Give this term's one vote."""
        assert self.voted_for in ("", peer), (self.term, self.voted_for, peer)
        if self.voted_for != peer:
            self.voted_for, self.unsaved = peer, True

    def become_sound(self, leader_id: str | None) -> None:
        """`leader_id` brought this node up, or (this node itself) a salvage election made its log the truth.

        A vote of this term that was forgotten was not for another leader, so none may be given to one now. In no later
        term can there be a forgotten vote: this node heard every member whose candidacy it may have voted for.
        """
        if self.recovering:
            self.recovering, self.forgot_votes, self.unsaved = False, False, True
            self.unheard.clear()
            self.voted_for = self.voted_for or leader_id or ""

    def persisted(self, hard_state: HardState) -> None:
        """`hard_state` is durable; if nothing changed since, what was held may go."""
        self.saved = hard_state
        if hard_state == self.hard_state:
            self.unsaved = False
            self.messages += self.held
            self.held.clear()

    def withdraw_vote_requests(self) -> None:
        """The candidacy is over before anybody could be asked."""
        self.held = [(peer, message) for peer, message in self.held if not isinstance(message, VoteRequest)]

    def commit_to(self, index: int) -> None:
        """Raise the commit index; it never falls."""
        self.commit_index = max(self.commit_index, index)
