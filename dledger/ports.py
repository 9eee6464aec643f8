"""Ports of the Raft node: the interfaces of its log, its hard state, the network and the state machine.

    RaftNode --append_span, truncate_after, begin_install, request_flush--> EntryStore    disk log | the simulation's
             --save--> HardStateStore --done--> RaftNode
             --send--> Transport --on_message, on_peer_lost, on_peer_joined--> RaftNode
             --snapshot, restore--> store.replicated_log.StateMachine
             --on_commit, on_role, on_truncated, on_reset--> NodeListener

All methods are called on one thread. None calls the node back before it returns, except where its docstring says so.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from dledger.core.messages import HardState, Message, Span, TermRun
from dledger.core.roles import SoftState


class EntryStore(Protocol):
    """The log: entries `first_index .. last_index`, both included; `last_index` is `first_index - 1` when it is empty.

    Appended entries can be read at once and are durable later. `generation` rises with each `truncate_after` and each
    install, so that a flush report of an earlier generation is ignored. Everything in the log when it is opened is
    durable.

    Raises:
        DiskFullError, AllocationPendingError: an append found no room; nothing was changed.
        DiskFailedError: the disk failed; final.
    """

    @property
    def first_index(self) -> int:
        """Oldest entry kept. It rises when old files are deleted, and is at most `commit_index + 1`."""

    @property
    def first_position(self) -> int:
        """Position of the entry `first_index`; where it will be written, when the log is empty."""

    @property
    def prev_term(self) -> int:
        """Term of the entry `first_index - 1`; `NO_TERM` when `first_index` is 0 or the term is not known any more."""

    @property
    def last_index(self) -> int:
        """Last entry, durable or not."""

    @property
    def durable_index(self) -> int:
        """Last entry that a completed flush of this generation covers, in both flush modes; at most `last_index`."""

    @property
    def damaged_index(self) -> int | None:
        """First entry that was found damaged when the log was opened and is not repaired; `durable_index` is below."""

    @property
    def generation(self) -> int:
        """Number of truncations and installs since the log was opened."""

    @property
    def term_runs(self) -> Sequence[TermRun]:
        """Terms of `first_index .. last_index`, oldest first. Read once, when the node starts."""

    def read(self, first_index: int, size_limit_bytes: int) -> Span | None:
        """Return entries from `first_index` on: at least one, all of one term and in one file.

        They have at most `size_limit_bytes`, unless the first one alone is larger. None when `first_index` is above
        `last_index`. Callers never pass an index below the log's `first_index`.
        """

    def append_span(self, span: Span) -> None:
        """Append a leader's span. Entries up to `last_index` are skipped: the log has equal ones.

        Indexes continue without a gap. A gap in positions is the filler at the end of a file.
        """

    def append_term_start(self, index: int, term: int) -> None:
        """Write the entry that opens `term`, as its new leader, at `index`, which is `last_index + 1`."""

    def truncate_after(self, last_index: int) -> None:
        """Drop the entries above `last_index`, which is never below the commit index. Durable on return.

        The dropped bytes are zeroed up to their old end before anything is written there. Otherwise an old entry could
        appear behind newer ones after a crash, with a term that looks plausible. Recovery zeroes behind the end for the
        same reason.
        """

    def begin_install(self, first_index: int, start_position: int, prev_term: int, *, keep: bool = False) -> None:
        """Drop everything; the next entry is `first_index` at `start_position`. Durable on return.

        With `keep`, of a log that holds the entry before `first_index`, drop only the entries below `first_index`.

        If the process ends before `finish_install`, the next start finds an empty log and `HardStateStore.load` returns
        `recovering`. It may be called again after it, `StateMachine.restore` or `finish_install` has raised an error.
        """

    def finish_install(self) -> None:
        """Let the log count again: the state machine has been restored. Durable on return."""

    def request_flush(self, done: Callable[[int, int], None]) -> None:
        """Make durable what is written, then call `done(durable_index, generation)` later.

        Requests made while a flush runs share the next flush. `generation` is the one at the time of the request. Under
        ASYNC_FLUSH the node does not call this; the log flushes at its own interval.
        """


class HardStateStore(Protocol):
    """Stores term and vote, and whether this node may have forgotten entries or votes."""

    def load(self) -> HardState:
        """Return the last durable state.

        `recovering` is True for a directory that never held a state, and for one whose log may have lost acknowledged
        entries (ASYNC_FLUSH and another boot id without a clean stop; a damaged entry below the commit index). It stays
        True over any number of restarts, until a `save` of `recovering=False` is durable.
        """

    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Make `state` durable, then call `done()` later, never inside this call. At most one save is under way.

        A failed save never calls `done`: the implementation calls `RaftNode.on_disk_failed`.
        """


class Transport(Protocol):
    """Sends messages to peers, in order, over connections that may break."""

    def send(self, peer_id: str, message: Message) -> None:
        """Queue a message; without a connection it is dropped silently.

        A span's `data` is copied or sent before this returns. Messages sent over an earlier connection of a peer are
        never delivered after the first one of the next connection, nor to another process of this node than the one
        they were sent to.
        """


class NodeListener(Protocol):
    """Called by the node about its decisions. Inside these calls `RaftNode.propose` is allowed, and nothing else."""

    def on_commit(self, commit_index: int) -> None:
        """Handle that entries up to `commit_index` are committed, and in the log. The index rises from call to call."""

    def on_role(self, state: SoftState) -> None:
        """Handle a change of the soft state, whose term and vote are durable."""

    def on_truncated(self, last_index: int) -> None:
        """Handle that the entries above `last_index` were dropped; none of them was committed."""

    def on_reset(self, first_index: int, start_position: int) -> None:
        """Handle that an install replaced the log, which starts there, and the state machine."""

    def on_failed(self, error: Exception) -> None:
        """Handle that the node left the group for good: its disk failed, or its log contradicts committed entries."""
