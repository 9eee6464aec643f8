"""The seam between the broker and the modes of replication: a log that keeps a promise.

The broker writes to, reads from and listens to this protocol only, and asks it for everything it shows of replication.

                append(drafts, done)                         confirm_offset
    broker --------------------------> ReplicatedLog ----------------------------> MessageStore, long polls
                done(receipt|refusal) <------'   '---- on_confirmed / on_role_change / on_truncated

`store.log.commit_log` (standalone) and `dledger.raft_log` (Raft) implement it. All calls are made on the event loop's
thread; implementations are not thread-safe.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.files.log_span import LogSpan, Read
from store.recovery.batch_fields import RecordSource
from telemetry.families import Family


class LogRole(enum.Enum):
    """Which part this node plays in the replication of its log."""

    ALONE = "alone"
    """Nothing is replicated: no other node has this log."""
    LEADER = "leader"
    """Elected by a majority."""
    FOLLOWER = "follower"
    """Of an elected leader, also while none is known."""
    MASTER = "master"
    """Appointed, not elected: its slaves copy its log."""
    SLAVE = "slave"

    @property
    def is_member(self) -> bool:
        """Whether this node is a member of a Raft group: it gets confirmed records that it has lost again."""
        return self in (LogRole.LEADER, LogRole.FOLLOWER)


@dataclass(frozen=True, slots=True, eq=False)
class LogState:
    """The state of the log on this node: role, generation, leader, and the refusal of appends.

    Two states are equal if they differ in nothing but the wording of the refusal.

    Attributes:
        role: as above. A leader is not writable before everything that earlier generations committed is confirmed here.
        generation: Raft term, master's epoch, or 0 where nothing is elected. It never goes down.
        leader: who is writable, as far as this node knows; None where nothing is elected.
        refusal: what `append` raises at present; None while the log is writable. The log turns writable only when
            every record placed is confirmed, since queue offsets are then counted on from the confirmed end.
    """

    role: LogRole
    generation: int
    leader: LeaderHint | None
    refusal: Refusal | None

    @property
    def writable(self) -> bool:
        """Whether `append` takes records."""
        return self.refusal is None

    def __eq__(self, other: object) -> bool:
        """Compare without the refusal's wording, by its cause."""
        return isinstance(other, LogState) and self._key == other._key

    def __hash__(self) -> int:
        """Hash what is compared."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[LogRole, int, LeaderHint | None, Cause | None]:
        return self.role, self.generation, self.leader, None if self.refusal is None else self.refusal.cause


@dataclass(frozen=True, slots=True)
class AppendReceipt:
    """The promise of the mode holds for a batch: in which generation, and on how many nodes it lay at that moment.

    Attributes:
        shortfall: the refusal for senders if the mode continues with fewer copies than wanted, although the records are
            confirmed and stay; None otherwise.
    """

    generation: int
    copies: int
    durable_copies: int
    shortfall: Refusal | None = None


class DiskBacklog(NamedTuple):
    """How far the log's disk is behind: bytes not in its files, bytes not durable, and free write buffers (or None)."""

    uncommitted_bytes: int
    unflushed_bytes: int
    free_buffer_count: int | None


class Readiness(NamedTuple):
    """Whether the log may be served by this node, and why not, or in which role.

    Attributes:
        is_level: this node has all that it knows to be confirmed, but for what takes it less than a second to get.
    """

    is_ready: bool
    reason: str
    is_level: bool = True


class Generation(NamedTuple):
    """A generation (Raft term, master's epoch) and the physical offset of its first record that is kept.

    Attributes:
        is_final: its start does not change any more, and no record of an earlier one comes behind it; else this is so
            when a record of it is confirmed.
    """

    number: int
    start_offset: int
    is_final: bool = False


class Replica(NamedTuple):
    """Another node to which this one sends its log, by physical offsets.

    Attributes:
        address: node id or address.
        received_offset: end of what it has received.
        durable_offset: end of what is durable there, as far as this node knows.
        in_sync: it counts towards the promise.
        serves_at: where it serves clients and other members, `host:port`; empty where that is not known.
        broker_id: under which routes show it while it follows; -1 where that is not known, or it may refuse readers.
        is_level: it is connected and lacks little, see `Readiness.is_level`.
    """

    address: str
    received_offset: int
    durable_offset: int
    in_sync: bool
    serves_at: str = ""
    broker_id: int = -1
    is_level: bool = False


Done = Callable[[AppendReceipt | Refusal], None]
PLACED: Final = (Cause.FLUSH_TIMEOUT, Cause.REPLICA_TIMEOUT, Cause.NO_QUORUM)
"""Causes of refusals of records that lie in the log all the same: whether they stay there is not decided yet."""


class LogListener(Protocol):
    """A follower of a log. Called on the loop's thread, never from inside `append` or `transfer`."""

    def on_confirmed(self, confirm_offset: int) -> None:
        """Dispatch and serve the records that end at or before `confirm_offset`: they can never vanish.

        Called before the `done` of the batches it covers, so that an acknowledged message is readable.
        """

    def on_role_change(self, state: LogState) -> None:
        """Handle that the log became writable, stopped being so, or follows another leader."""

    def on_truncated(self, max_offset: int) -> None:
        """Records at or past `max_offset`, a record's end, are gone or about to go.

        Where some of them were confirmed before (a slave that followed a master of an older epoch), everything that
        was made of them is taken back, durably, before this returns. So that what is derived from the log is never
        ahead of it, whenever the process dies, a mode that cuts below its confirm offset does it in this order:
        not writable; the confirm offset lowered; this call; then the cut of its files. It may block for long.

        Raises:
            StoreError: not all was taken back, and the log must not be cut there. `StateUnknownError`: the node
                needs the state of another one (`StateMachine.restore`); else the disk refused.
        """


class StateMachine(Protocol):
    """The tables that state records build: topics, groups, consumer offsets. Opaque bytes for the log.

    A mode of replication hands it to a node that starts anew in the middle of the log.
    """

    def snapshot(self) -> bytes:
        """Return the present state: that at some offset between the log's start and the confirm offset."""

    def restore(self, state: bytes) -> None:
        """Replace the state by another node's snapshot, after the log was reset. Durable on return.

        Raises:
            StoreError, OSError: the disk refused; when it is only full, the call comes again.
            ValueError: it is no state that this program can read.
        """


class ReplicatedLog(Protocol):
    """An append-only log of RocketMQ records, addressed by physical offset (bytes from the log's start)."""

    @property
    def state(self) -> LogState:
        """The present state."""

    @property
    def directory(self) -> Path:
        """The folder of the log's files."""

    @property
    def min_offset(self) -> int:
        """Physical offset at which the walk of the oldest kept file starts."""

    @property
    def max_offset(self) -> int:
        """End of the last record placed, confirmed or not."""

    @property
    def confirm_offset(self) -> int:
        """Dispatch, reads and long polls stop here."""

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable on this node; may be above the confirm offset."""

    def add_listener(self, listener: LogListener) -> None:
        """Add a listener; listeners are called in the order in which they were added."""

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """Place the drafts, in order, all or none: encoded into the log's own format, written once.

        On return each draft's `physical_offset` and `store_timestamp` are set; `queue_offset` was set by the caller.
        `done` is called exactly once, later (never inside this call), when the mode's promise holds for the last
        draft, or with the refusal that says why it may not.

        Raises:
            Refusal: nothing was placed (not writable, disk full, disk failed, a record larger than a file).
        """

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """Return the bytes of one confirmed record, without a copy.

        Raises:
            RecordUnavailableError: outside `[min_offset, confirm_offset)`.
            DiskReadError: the disk cannot read it.
        """

    def reader(self) -> Read:
        """Return a faster `read`, for a run of reads with nothing else in between."""

    def span(self, physical_offset: int) -> LogSpan | None:
        """Return the file that holds a physical offset, to read many of its records at once; None without one."""

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """Yield `(physical_offset, record)` of each record in `[start_offset, end_offset)` that ends by `end_offset`.

        `start_offset` is a record's start, a record's end, or `min_offset`. Framing (file-end blanks, entry headers)
        is the log's own business and is skipped.

        Raises:
            CorruptRecordError: a record that cannot be parsed lies in the range.
            DiskReadError: the disk cannot read a page of it; what lies in front of that was yielded.
        """

    def batches(self) -> RecordSource | None:
        """Return a faster walk, which can tell damaged records apart in recovery; None if there is none."""

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """Return `(path, end offset)` of the files that are full and confirmed to their ends, oldest first."""

    def trim(self, before: int) -> int:
        """Drop the oldest whole files that end at or before physical offset `before`; return the new `min_offset`.

        Files stay that hold what is not confirmed or not durable here, or what a member within reach still needs; one
        out of reach gets the whole log anew when it is back. Bytes that readers hold stay valid. The files are removed
        in a thread: on the disk soon, from the log at once.

        Raises:
            DiskFailedError: the log's own notes cannot be written; nothing was dropped.
        """

    def transfer(self, target: str | None) -> str:
        """Let another node write: the one with id `target`, or (None) the one that holds most of the log.

        Returns:
            The id of the node chosen; it takes over some milliseconds later.

        Raises:
            Refusal: NOT_SUPPORTED where no other node can; BUSY when it cannot take over now.
        """

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """Set whether the system reads ahead in the log's files.

        Raises:
            Refusal: NOT_SUPPORTED, this log's files cannot be read ahead.
        """

    def backlog(self) -> DiskBacklog:
        """Return how far the disk is behind at present."""

    def readiness(self) -> Readiness:
        """Return whether this node's log may be served."""

    def generations(self) -> Sequence[Generation]:
        """Return every generation of which records are kept, oldest first; none where nothing is elected."""

    def replicas(self) -> Sequence[Replica]:
        """Return the nodes to which this one sends its log; none unless it is their leader or master."""

    def metrics(self) -> Iterator[Family]:
        """Metrics of this mode alone."""

    async def close(self) -> None:
        """Flush, stop threads, close files. Batches still waiting are refused as not decided."""
