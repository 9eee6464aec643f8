"""Ports of the Raft node: what it needs of a disk, of a network and of the state machine above.

    RaftNode --append_span, truncate_after, begin_install, request_flush--> EntryStore    disk log | the simulation's
             --save--> HardStateStore --done--> RaftNode
             --send--> Transport --on_message, on_peer_lost, on_peer_joined--> RaftNode
             --snapshot, restore--> store.replicated_log.StateMachine
             --on_commit, on_role, on_truncated, on_reset--> NodeListener

Everything is called on one thread, and nothing here calls the node back from inside a call, except where said.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.core.messages import HardState, Message, Span, TermRun
from dledger.core.roles import SoftState


class EntryStore(Protocol):
    """Entries `first_index .. last_index` (both included; `last_index` is `first_index - 1` when empty).

    Appends are visible at once and durable later. `generation` rises with each `truncate_after` and install, so that
    a flush report of an earlier generation is not believed. Out of room raises `store.errors.DiskFullError` or
    `AllocationPendingError` with nothing changed; a failed disk raises `DiskFailedError`. What it holds when it is
    opened is durable.
    """

    @property
    def first_index(self) -> int:
        """Oldest kept entry; rises when old files are deleted (never above `commit_index + 1`)."""

    @property
    def first_position(self) -> int:
        """Position of the entry `first_index`; where it will be written, when the log is empty."""

    @property
    def prev_term(self) -> int:
        """Term of the entry `first_index - 1`: `NO_TERM` when `first_index` is 0 or when it is not known any more."""

    @property
    def last_index(self) -> int:
        """Newest entry, durable or not."""

    @property
    def durable_index(self) -> int:
        """Newest entry that a completed flush of the present generation covers, whatever the flush mode."""

    @property
    def generation(self) -> int:
        """Count of truncations and resets since the log was opened."""

    @property
    def term_runs(self) -> Sequence[TermRun]:
        """Terms of `first_index .. last_index`, oldest first. Read once, when the node starts."""

    def read(self, first_index: int, size_limit_bytes: int) -> Span | None:
        """Entries from `first_index` on: at least one, of one term and one file, within the limit unless one is larger.

        None when `first_index` is past `last_index`. Called only with `first_index` at or past the log's.
        """

    def append_span(self, span: Span) -> None:
        """Write a leader's span. Entries up to `last_index` are held already (equal, by the core's check): skip them.

        The span joins the log without a gap in indexes; a gap in positions is the filler of a file's end.
        """

    def append_term_start(self, index: int, term: int) -> None:
        """As a new leader, write the entry that opens `term` at `index` (= `last_index + 1`)."""

    def truncate_after(self, last_index: int) -> None:
        """Drop the entries above `last_index`; never called below the commit index. Durable on return.

        The dropped bytes are zeroed to their old end before anything new is written: after a crash an old entry must
        not come back above a newer one, where its term would still look plausible. Recovery zeroes past the end too.
        """

    def begin_install(self, first_index: int, start_position: int, prev_term: int) -> None:
        """Drop everything; the next entry is `first_index` at `start_position`. Durable on return.

        A process that ends before `finish_install` leaves an empty log in doubt: `HardStateStore.load` says
        `recovering`. May be called again after an error of its own, of `StateMachine.restore` or of `finish_install`.
        """

    def finish_install(self) -> None:
        """The state machine was restored: the log counts from here on. Durable on return."""

    def request_flush(self, done: Callable[[int, int], None]) -> None:
        """Make what is written durable; then, later, `done(durable_index, generation)`.

        Requests made while a flush runs are gathered into the next one. `generation` is the one at the time of the
        request. Under ASYNC_FLUSH the node does not ask; the log flushes at its own interval.
        """


class HardStateStore(Protocol):
    """Term, vote, and whether this node may have forgotten something."""

    def load(self) -> HardState:
        """The last durable state.

        A directory that never held one gives `recovering=True`, and so does one whose log may have lost acknowledged
        entries (ASYNC_FLUSH, another boot id, no clean stop; a bad entry inside the committed prefix). It goes on
        giving it, over any number of restarts, until a `save` of `recovering=False` is durable.
        """

    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Make `state` durable; then, later (never inside this call), `done()`. One save is under way at a time.

        A save that fails never calls `done`: its owner calls `RaftNode.on_disk_failed`.
        """


class Transport(Protocol):
    """Messages to peers, in order, over connections that may break."""

    def send(self, peer_id: str, message: Message) -> None:
        """Hand over a message; dropped silently when no connection stands. A span's `data` is copied or sent by return.

        Messages of a peer's earlier connection are never delivered after the first of its next one, nor to another
        process of this node than the one they were sent to.
        """


class NodeListener(Protocol):
    """Who follows the node: the replicated log above. From inside these it may propose, and call nothing else."""

    def on_commit(self, commit_index: int) -> None:
        """Entries up to `commit_index` can never vanish. Called after the log holds them, in rising order."""

    def on_role(self, state: SoftState) -> None:
        """Something of the soft state changed; called after the term and vote behind it are durable."""

    def on_truncated(self, last_index: int) -> None:
        """Entries above `last_index` are gone; none of them was committed."""

    def on_reset(self, first_index: int, start_position: int) -> None:
        """The log starts anew there, and the state machine was restored."""

    def on_failed(self, error: Exception) -> None:
        """The node left the group for good: its disk failed, or its log denies what was committed."""
