"""Commit log: RocketMQ's classic log of records, and the replicated log of a broker that stands alone.

                        directly: one pwrite into the file
    append ---> place <                                       > [sync] ---> confirm: listeners, `done` of each batch
                        by the pool: memory ---> commit (pwrite)

SYNC_FLUSH: batches are acknowledged and confirmed by the sync that covers them, many batches a sync. ASYNC_FLUSH: at
the end of the turn of the loop that placed them; with a transient pool, by the commit that covers them. Nothing is
confirmed, read or acknowledged that is not in the file. A failed write or sync ends writing for good.

Source: apache/rocketmq `store/.../CommitLog.java` (5.3.3).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.checkpoint import Checkpoint
from store.errors import (
    DiskFailedError,
    DiskFullError,
    RecordUnavailableError,
    StoreError,
)
from store.files.allocator import FileAllocator
from store.files.deferred_removal import FileRemoval
from store.files.deleted_files import DeletedFiles
from store.files.log_span import LogSpan, Read
from store.files.mapped_file_queue import MappedFileQueue
from store.files.mapping_limit import Mappings
from store.files.preparation import FileMaker
from store.files.transient_pool import TransientPool
from store.log.commit_log_config import CommitLogConfig
from store.log.committer import Committer
from store.log.flush_waiters import FlushWaiters
from store.log.flusher import Flusher, FlushMode
from store.log.placing import Placer, walk_file
from store.log.recovery import recover_log
from store.log.refusals import refusal_of
from store.recovery.batch_fields import LogBatches
from store.recovery.record_batches import RecordBatch
from store.replicated_log import (
    Backlog,
    Done,
    Generation,
    LogListener,
    LogRole,
    LogState,
    Readiness,
    Replica,
)
from telemetry.families import Family

__all__ = ["CommitLog", "CommitLogConfig"]

LOOK_INTERVAL_S = 10.0
"""Between two looks after idle mappings and deleted files."""

log = logging.getLogger(__name__)


class CommitLog:
    """The log. Open it in this order: construct, `recover`, `start`; a `ReplicatedLog` from then on.

    Args:
        clock: store time in ms.
        on_flushed: flushed offset and seconds of each sync; for metrics.
    """

    def __init__(
        self,
        config: CommitLogConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        on_flushed: Callable[[int, float], None] | None = None,
    ) -> None:
        self.config = config
        self._loop = loop
        self._clock = clock
        self._on_flushed = on_flushed
        self._pool = _make_pool(config)
        self._maker = _make_maker(config, self._pool)
        self._allocator = FileAllocator(make=self._maker)
        self._queue = MappedFileQueue(
            config.directory,
            config.file_size_bytes,
            self._allocator,
            mappings=Mappings(config.mapped_count_max, reads_ahead=config.reads_ahead),
            deleted=DeletedFiles(config.forced_delete_after_ms / 1000),
        )
        self._placer = Placer(self._queue, config.store_host, stamps_crc=config.stamps_crc)
        self._removal = FileRemoval(loop)
        self._flusher: Flusher | None = None
        self._committer: Committer | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._listeners: list[LogListener] = []
        self._is_sync = config.flush_mode is FlushMode.SYNC
        self._waiting = FlushWaiters(loop, config.sync_flush_timeout_ms, has_deadlines=self._is_sync)
        self._settling = False
        self._confirm_offset = 0
        self._last_timestamp = 0
        self._damaged: list[int] = []
        self._held: dict[int, RecordBatch] = {}
        self._refusal: Refusal | None = Refusal(Cause.RECOVERING, "the commit log is not recovered yet")

    # -- opening and closing

    def recover(self, checkpoint: Checkpoint, *, clean: bool) -> list[int]:
        """Load the files and cut what is no record; blocks, and may run in a thread.

        Everything that is kept is durable when this returns.

        Returns:
            Physical offsets of records with damaged bodies that lie inside the log.

        Raises:
            StoreFormatError: a file of another length or name, a gap, or records behind a damaged place.
            DiskFailedError: the disk failed a sync.
            DiskReadError: the disk cannot read a file.
            PoolUnavailableError: there is no memory for the transient pool.
        """
        if self._pool is not None:
            self._pool.open()
        self._queue.load()
        scan = recover_log(self._queue, checkpoint, clean=clean)
        with contextlib.suppress(DiskFullError):  # senders will hear of it
            self._queue.prepare(0)
        self._confirm_offset = self._queue.max_offset
        self._last_timestamp = scan.last_timestamp
        self._damaged, self._held = scan.damaged, scan.held
        return scan.damaged

    def start(self) -> None:
        """Begin to take records; on the loop's thread."""
        config = self.config
        self._flusher = Flusher(self._queue, self._loop, on_failed=self._fail, on_flushed=self._on_flushed)
        if not self._is_sync:
            self._flusher.flush_every(
                config.flush_interval_ms / 1000,
                least_pages=config.flush_least_pages,
                thorough_s=config.flush_thorough_interval_ms / 1000,
            )
        if self._pool is not None:
            self._committer = Committer(self._queue, self._loop, on_committed=self._on_committed, on_failed=self._fail)
            self._committer.commit_every(
                config.commit_interval_ms / 1000,
                least_pages=config.commit_least_pages,
                thorough_s=config.commit_thorough_interval_ms / 1000,
            )
        self._look_timer = self._loop.call_later(LOOK_INTERVAL_S, self._look)
        self._refusal = None

    async def close(self) -> None:
        """Flush, acknowledge what that makes durable, refuse the rest, stop the threads, close the files."""
        if self._refusal is None:
            self._refusal = Refusal(Cause.SHUTTING_DOWN, "the broker is shutting down")
        self._maker.stop()
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._committer is not None:
            await self._committer.close()
        if self._flusher is not None:
            await self._flusher.close()
            self._settle()
        self._waiting.refuse_all(self._refusal)
        await self._removal.finish()
        self._queue.close()
        self._allocator.close()
        if self._pool is not None:
            self._pool.close()

    # -- the replicated log

    @property
    def state(self) -> LogState:
        """Writable unless it is not open, or the disk failed."""
        return LogState(LogRole.ALONE, 0, None, self._refusal)

    @property
    def directory(self) -> Path:
        """Where the files lie."""
        return self.config.directory

    @property
    def min_offset(self) -> int:
        """Start of the oldest kept file."""
        return self._queue.min_offset

    @property
    def max_offset(self) -> int:
        """End of the last record placed."""
        return self._queue.max_offset

    @property
    def confirm_offset(self) -> int:
        """ASYNC_FLUSH: end of the last record of a finished turn, in its file; SYNC_FLUSH: of the last one flushed."""
        return self._confirm_offset

    @property
    def committed_offset(self) -> int:
        """Everything below is in the files; what is above, up to `max_offset`, in the transient pool."""
        return self._queue.committed_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        return self._queue.flushed_offset

    @property
    def last_timestamp(self) -> int:
        """Store time (ms) of the last record placed or recovered; 0 when there is none."""
        return self._last_timestamp

    @property
    def flush_pending_since(self) -> float | None:
        """`time.monotonic()` at which the running sync began; None when there is none. For a watchdog."""
        return self._flusher.pending_since if self._flusher is not None else None

    def add_listener(self, listener: LogListener) -> None:
        """Listeners are called in the order in which they were added."""
        self._listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. A draft that cannot be encoded raises `struct.error`, and nothing is placed."""
        if self._refusal is not None or self._flusher is None:
            raise self._refusal or Refusal(Cause.RECOVERING, "the commit log is not started yet")
        self._last_timestamp = max(self._clock(), self._last_timestamp)
        try:
            end = self._placer.place(drafts, self._last_timestamp)
        except StoreError as error:
            if isinstance(error, DiskFailedError):
                self._loop.call_soon(self._fail, error)
            raise refusal_of(error) from error
        self._waiting.add(end, done)
        if self._committer is None and self._is_sync:
            self._flusher.request(end, self._on_synced)
        elif not self._settling:
            self._settling = True
            self._loop.call_soon(self._end_turn)

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`."""
        if physical_offset + size_bytes > self._confirm_offset:
            raise RecordUnavailableError(physical_offset, size_bytes, self.min_offset, self._confirm_offset)
        return self._queue.slice(physical_offset, size_bytes)

    def reader(self) -> Read:
        """See `ReplicatedLog.reader`."""
        return self._queue.reader(0, self._confirm_offset, self.read)

    def span(self, physical_offset: int) -> LogSpan | None:
        """See `ReplicatedLog.span`."""
        return self._queue.span(physical_offset, 0, self._confirm_offset)

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """See `ReplicatedLog.walk`; frames are checked, bodies are not."""
        while start_offset < end_offset and (file := self._queue.file_at(start_offset)) is not None:
            base = file.start_offset
            limit = min(file.write_position, end_offset - base)
            yield from walk_file(file, start_offset - base, limit)
            start_offset = file.end_offset

    def batches(self) -> LogBatches:
        """As `walk`, for recovery: by the thousand, and with a word on which are damaged. To be called once."""
        held, self._held = self._held, {}
        return LogBatches(self._queue, self._damaged, held)

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """See `ReplicatedLog.sealed_files`."""
        limit = min(self._confirm_offset, self._queue.flushed_offset)
        return [(file.path, file.end_offset) for file in self._queue.files[:-1] if file.end_offset <= limit]

    def trim(self, before: int) -> int:
        """See `ReplicatedLog.trim`; this log has no other members."""
        limit = min(before, self._confirm_offset, self._queue.flushed_offset)
        self._removal.start(self._queue, self._queue.take_before(limit))
        return self.min_offset

    def transfer(self, target: str | None) -> str:
        """See `ReplicatedLog.transfer`; always refused."""
        raise Refusal(Cause.NOT_SUPPORTED, "this broker stands alone: there is nobody to hand leadership to")

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """See `ReplicatedLog.set_reads_ahead` (dataReadAheadEnable)."""
        self._queue.set_reads_ahead(reads_ahead)

    def backlog(self) -> Backlog:
        """See `ReplicatedLog.backlog`; what is not in the files yet lies in the transient pool."""
        committed = self._queue.committed_offset
        free_count = None if self._pool is None else self._pool.free_count
        return Backlog(self.max_offset - committed, committed - self.flushed_offset, free_count)

    def readiness(self) -> Readiness:
        """See `ReplicatedLog.readiness`."""
        return Readiness(True, "standalone") if self._refusal is None else Readiness(False, self._refusal.remark)

    def generations(self) -> Sequence[Generation]:
        """See `ReplicatedLog.generations`."""
        return ()

    def replicas(self) -> Sequence[Replica]:
        """See `ReplicatedLog.replicas`."""
        return ()

    def metrics(self) -> Iterator[Family]:
        """See `ReplicatedLog.metrics`."""
        return iter(())

    # -- settling

    def _end_turn(self) -> None:
        """What was placed in this turn is to be committed, or is in the file already."""
        self._settling = False
        if self._committer is None:
            self._settle()
        elif self.config.commit_wakes:
            self._committer.request()
        if self.config.flush_wakes:
            self._flush_if_worth()

    def _on_committed(self, committed_offset: int) -> None:
        if self._is_sync and self._flusher is not None:
            self._flusher.request(committed_offset, self._on_synced)
            return
        self._settle()
        self._flush_if_worth()

    def _flush_if_worth(self) -> None:
        if self._flusher is not None and not self.config.flush_timed and not self._is_sync:
            self._flusher.flush_if_worth()

    def _on_synced(self, _flushed_offset: int) -> None:
        self._settle()

    def _settle(self) -> None:
        """Confirm what may be confirmed, tell the listeners, then the senders."""
        flushed = self._queue.flushed_offset
        confirmed = flushed if self._is_sync else self._queue.committed_offset
        if confirmed > self._confirm_offset:
            self._confirm_offset = confirmed
            for listener in self._listeners:
                listener.on_confirmed(confirmed)
        self._waiting.settle(confirmed, flushed)

    def _fail(self, error: DiskFailedError) -> None:
        """The first failed write or sync: nothing is acknowledged any more."""
        if self._refusal is not None and self._refusal.cause is Cause.DISK_FAILED:
            return
        self._refusal = Refusal(Cause.DISK_FAILED, str(error))
        log.error("the commit log takes no more records: %s", error)
        self._waiting.refuse_all(self._refusal)
        for listener in self._listeners:
            listener.on_role_change(self.state)

    def _look(self) -> None:
        self._queue.look()
        self._look_timer = self._loop.call_later(LOOK_INTERVAL_S, self._look)


def _make_pool(config: CommitLogConfig) -> TransientPool | None:
    if config.pool_count == 0:
        return None
    return TransientPool(config.pool_count, config.file_size_bytes, refuses=config.pool_refuses)


def _make_maker(config: CommitLogConfig, pool: TransientPool | None) -> FileMaker:
    flush_pages = config.warm_up_flush_pages if config.flush_mode is FlushMode.SYNC else 0
    return FileMaker(pool, warms_up=config.warms_up, flush_pages=flush_pages)
