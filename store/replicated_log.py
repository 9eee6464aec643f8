"""The one seam: a log that keeps a promise. The broker writes to, reads from and listens to this protocol only.

                append(drafts, done)                         confirm_offset
    broker --------------------------> ReplicatedLog ----------------------------> MessageStore, long polls
                done(receipt|refusal) <------'   '---- on_confirmed / on_role_change / on_truncated

Standalone (`store.log.commit_log`) and Raft (`dledger.raft_log`) are its first two sides; asynchronous and synchronous
master/slave replication fit the same protocol. All run on the event loop's thread and are not thread-safe.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import LeaderHint, Refusal
from store.log.log_span import LogSpan


@dataclass(frozen=True, slots=True)
class LogState:
    """What this node may do with the log, since when, and who else may.

    `generation` is the Raft term, the master's epoch, or 0 where nothing is elected. It never goes down.
    `writable` is true only when everything earlier generations committed is confirmed and readable here.
    """

    writable: bool
    generation: int
    leader: LeaderHint | None


@dataclass(frozen=True, slots=True)
class AppendReceipt:
    """The promise of the mode holds for a batch: in which generation, and on how many nodes it lay at that moment."""

    generation: int
    copies: int
    durable_copies: int


Done = Callable[[AppendReceipt | Refusal], None]
Read = Callable[[int, int], memoryview]
"""The bytes at a physical offset, so many; see `ReplicatedLog.read`."""


class LogListener(Protocol):
    """What follows a log. Called on the loop's thread, never from inside `append`."""

    def on_confirmed(self, confirm_offset: int) -> None:
        """Records that end at or before `confirm_offset` can never vanish: dispatch and serve them.

        Called before the `done` of the batches it covers, so that an acknowledged message is readable.
        """

    def on_role_change(self, state: LogState) -> None:
        """The log became writable, stopped being so, or follows another leader."""

    def on_truncated(self, max_offset: int) -> None:
        """Records at or past `max_offset` are gone; all of them were above the confirm offset."""


class ReplicatedLog(Protocol):
    """An append-only log of RocketMQ records, addressed by physical offset (bytes from the log's start)."""

    @property
    def state(self) -> LogState:
        """Present role."""

    @property
    def min_offset(self) -> int:
        """Where the walk of the oldest kept file starts."""

    @property
    def max_offset(self) -> int:
        """End of the last record placed, confirmed or not."""

    @property
    def confirm_offset(self) -> int:
        """Dispatch, reads and long polls stop here."""

    def add_listener(self, listener: LogListener) -> None:
        """Listeners are called in the order in which they were added."""

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """Place the drafts, in order, all or none: encoded into the log's own format, written once.

        On return each draft's `physical_offset` and `store_timestamp` are set; `queue_offset` was set by the caller.
        `done` is called exactly once, later (never inside this call), when the mode's promise holds for the last
        draft, or with the refusal that says why it may not.

        Raises:
            Refusal: nothing was placed (not writable, disk full, disk failed, a record larger than a file).
        """

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """The bytes of one confirmed record, without a copy.

        Raises:
            RecordUnavailableError: outside `[min_offset, confirm_offset)`.
            DiskReadError: the disk cannot read it.
        """

    def reader(self) -> Read:
        """`read`, faster, for a run of reads between which nothing else happens."""

    def span(self, physical_offset: int) -> LogSpan | None:
        """The file that holds a physical offset, for who reads many records of it at once; None where there is none."""

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """Yield `(physical_offset, record)` of each record in `[start_offset, end_offset)` that ends by `end_offset`.

        `start_offset` is a record's start, a record's end, or `min_offset`. Framing (file-end blanks, entry headers)
        is the log's own business and is skipped.

        Raises:
            CorruptRecordError: a record that cannot be parsed lies in the range.
            DiskReadError: the disk cannot read a page of it; what lies in front of that was yielded.
        """

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """`(path, end offset)` of the files that are written no more and confirmed to their ends, oldest first."""

    def trim(self, before: int) -> int:
        """Drop the oldest whole files that end at or before physical offset `before`; the new `min_offset`.

        Files stay that hold what is not confirmed or not durable here, or what a member within reach still needs;
        one out of reach gets the whole log anew when it is back. Bytes that readers hold stay valid. The files are
        removed in a thread: on the disk soon, from the log at once.

        Raises:
            DiskFailedError: the log's own notes cannot be written; nothing was dropped.
        """

    async def close(self) -> None:
        """Flush, stop threads, close files. Batches still waiting are refused with SHUTTING_DOWN."""
