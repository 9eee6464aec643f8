"""Local log: RocketMQ's classic log of records in files on this node. It keeps bytes and promises nothing about them.

                         directly: one pwrite into the file
    place, append_bytes <                                      > sync
                         by the pool: memory ---> commit (pwrite)

A policy on it (`store.log.commit_log` for a broker without replicas) decides what is confirmed, up to where readers may
read, and when a sender is answered. Kafka has the same two levels, `LocalLog` and `UnifiedLog`.

Source: apache/rocketmq `store/.../CommitLog.java` (5.3.3).
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledgermq.message.draft import RecordDraft
from ledgermq.wall_clock import wall_clock_ms
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError, DiskFullError
from store.files.allocator import FileAllocator
from store.files.deferred_removal import FileRemoval
from store.files.deleted_files import DeletedFiles
from store.files.file_maker import FileMaker
from store.files.mapped_file_queue import MappedFileQueue
from store.files.mapping_limit import Mappings
from store.files.transient_pool import TransientPool
from store.log.commit_log_config import CommitLogConfig
from store.log.committer import Committer
from store.log.flusher import Flusher, FlushMode
from store.log.placing import Placer, walk_file
from store.log.recovery import recover_log
from store.log.thresholds import IntervalTimer
from store.recovery.batch_fields import LogBatches
from store.recovery.record_batches import RecordBatch

LOOK_INTERVAL_S = 10.0
"""Seconds between two checks for idle mappings and deleted files."""


class LocalLog:
    """Records in files. Open it in this order: construct, `recover`, `start`. On the loop's thread from `start` on.

    Invariants: `min_offset <= flushed_offset <= committed_offset <= max_offset`. A record lies in one file. Below
    `max_offset` nothing is changed but by `cut`.

    Attributes:
        queue: the files.
        last_timestamp: store time (ms) of the last record placed or recovered; 0 when there is none. Never goes down.
        has_pool: records are placed in memory first and committed to their files later.
        is_sync: whether an acknowledgement waits for the disk (SYNC_FLUSH).
    """

    def __init__(
        self, config: CommitLogConfig, loop: asyncio.AbstractEventLoop, clock: Callable[[], int] = wall_clock_ms
    ) -> None:
        self.config = config
        self._loop = loop
        self._clock = clock
        self.has_pool = config.transient_pool
        self._pool: TransientPool | None = None
        if self.has_pool:
            self._pool = TransientPool(config.pool_count, config.file_size_bytes, refuses=config.pool_refuses)
        self.is_sync = config.flush_mode is FlushMode.SYNC
        flush_pages = config.warm_up_flush_pages if self.is_sync else 0
        self._maker = FileMaker(self._pool, warms_up=config.warms_up, flush_pages=flush_pages)
        self._allocator = FileAllocator(make=self._maker)
        self.queue = MappedFileQueue(
            config.directory,
            config.file_size_bytes,
            self._allocator,
            mappings=Mappings(
                config.mapped_count_max if config.mapped_file_swap else sys.maxsize, reads_ahead=config.reads_ahead
            ),
            deleted=DeletedFiles(config.forced_delete_after_ms / 1000),
        )
        self._placer = Placer(self.queue, config.store_host, stamps_crc=config.stamps_crc)
        self._removal = FileRemoval(loop)
        self._flusher: Flusher | None = None
        self._committer: Committer | None = None
        self._look_timer = IntervalTimer(loop, self.queue.release_idle)
        self.last_timestamp = 0
        self._damaged: list[int] = []
        self._held: dict[int, RecordBatch] = {}

    # -- opening and closing

    def recover(self, checkpoint: StoreCheckpoint, *, clean: bool) -> list[int]:
        """Load the files and cut an incomplete end; blocks, and may run in a thread.

        Everything that is kept is durable on return.

        Returns:
            Physical offsets of records with damaged bodies inside the log.

        Raises:
            StoreFormatError: a file of another length or name, a gap, or records behind a damaged place.
            DiskFailedError: the disk failed a sync.
            DiskReadError: the disk cannot read a file.
            PoolUnavailableError: there is no memory for the transient pool.
        """
        if self._pool is not None:
            self._pool.open()
        self.queue.load()
        scan = recover_log(self.queue, checkpoint, clean=clean)
        with contextlib.suppress(DiskFullError):  # the first sender gets the refusal
            self.queue.prepare(0)
        self.last_timestamp = scan.last_timestamp
        self._damaged, self._held = scan.damaged, scan.held
        return scan.damaged

    def start(
        self,
        *,
        on_committed: Callable[[int], None],
        on_failed: Callable[[DiskFailedError], None],
        on_flushed: Callable[[int, float], None] | None,
    ) -> None:
        """Start the threads that commit and flush, each as the configuration says when.

        Args:
            on_committed: called with the new committed offset, if there is a pool.
            on_failed: called once, when a sync or a commit failed; nothing is durable from then on.
            on_flushed: called with the flushed offset and the seconds of each sync; for metrics.
        """
        config = self.config
        self._flusher = Flusher(self.queue, self._loop, on_failed=on_failed, on_flushed=on_flushed)
        if not self.is_sync:
            self._flusher.flush_every(
                config.flush_interval_ms / 1000,
                least_pages=config.flush_least_pages,
                thorough_s=config.flush_thorough_interval_ms / 1000,
            )
        if self.has_pool:
            self._committer = Committer(self.queue, self._loop, on_committed=on_committed, on_failed=on_failed)
            self._committer.commit_every(
                config.commit_interval_ms / 1000,
                least_pages=config.commit_least_pages,
                thorough_s=config.commit_thorough_interval_ms / 1000,
            )
        self._look_timer.start(LOOK_INTERVAL_S)

    async def flush_and_stop(self) -> None:
        """Commit and flush the rest, unless the disk has failed; then stop the threads. Reads still work."""
        self._maker.stop()
        self._look_timer.stop()
        if self._committer is not None:
            await self._committer.close()
        if self._flusher is not None:
            await self._flusher.close()

    async def close_files(self) -> None:
        """Finish the removal of files and close the others; after `flush_and_stop`."""
        await self._removal.finish()
        self.queue.close()
        self._allocator.close()
        if self._pool is not None:
            self._pool.close()

    # -- writing

    def place(self, drafts: Sequence[RecordDraft]) -> int:
        """Set times and offsets of records, encode and write them in order, all or none; return the new end of the log.

        Raises:
            RecordTooLargeError, DiskFullError, DiskFailedError, AllocationPendingError, PoolUnavailableError,
                struct.error: nothing was placed.
        """
        timestamp = self._clock()
        if timestamp < self.last_timestamp:
            timestamp = self.last_timestamp
        self.last_timestamp = timestamp
        return self._placer.place(drafts, timestamp)

    def append_bytes(self, data: memoryview) -> int:
        """Write bytes of another node's log, with files of the same size, at the same offset; return the new end.

        They may begin and end inside a record, and continue over the end of a file, fillers included.

        Raises:
            DiskFullError, DiskFailedError, AllocationPendingError, PoolUnavailableError: nothing was written.
        """
        queue = self.queue
        start = queue.max_offset
        file = queue.last() or queue.roll()
        queue.ensure_room(len(data))
        try:
            while data:
                left = file.size_bytes - file.write_position
                if left == 0:
                    file = queue.roll()
                    continue
                file.write(data[:left])
                data = data[left:]
        except BaseException:
            if queue.max_offset != start:
                queue.truncate_to(start)
            raise
        return queue.max_offset

    def cut(self, offset: int) -> None:
        """Drop everything at or past `offset`. Durable on return: after a power cut nothing of it comes back.

        Raises:
            DiskFailedError: the disk failed; it cannot be trusted any more.
        """
        self.queue.cut(offset)

    def end_turn(self) -> None:
        """Commit or flush what was placed in this turn of the loop, if the configuration says so."""
        if self._committer is not None and self.config.commit_wakes:
            self._committer.request()
        if self.config.flush_wakes:
            self.flush_if_worth()

    def sync(self, offset: int, done: Callable[[int], None]) -> None:
        """Call `done(flushed_offset)` once everything below `offset` is durable; see `Flusher.request`."""
        assert self._flusher is not None, "start() comes first"
        self._flusher.request(offset, done)

    def flush_if_worth(self) -> None:
        """Flush without a request for it: in ASYNC_FLUSH, unless only the timer may, when the threshold is reached."""
        if self._flusher is not None and not self.config.flush_timed and not self.is_sync:
            self._flusher.flush_if_worth()

    def trim(self, before: int) -> None:
        """Remove the oldest whole files that end at or before `before`; they are deleted in a thread."""
        self._removal.start(self.queue, self.queue.take_before(before))

    # -- reading; single records are read from `queue`, up to where the policy lets its readers see

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """See `ReplicatedLog.walk`; headers are checked, bodies are not."""
        while start_offset < end_offset and (file := self.queue.file_at(start_offset)) is not None:
            base = file.start_offset
            limit = min(file.write_position, end_offset - base)
            yield from walk_file(file, start_offset - base, limit)
            start_offset = file.end_offset

    def batches(self) -> LogBatches:
        """See `ReplicatedLog.batches`."""
        held, self._held = self._held, {}
        return LogBatches(self.queue, self._damaged, held)

    def sealed_files(self, end: int) -> Sequence[tuple[Path, int]]:
        """See `ReplicatedLog.sealed_files`."""
        limit = min(end, self.queue.flushed_offset)
        return [(file.path, file.end_offset) for file in self.queue.files[:-1] if file.end_offset <= limit]

    # -- for views

    @property
    def free_buffer_count(self) -> int | None:
        """Number of buffers of the transient pool that no file has; None without a pool."""
        return None if self._pool is None else self._pool.free_count

    @property
    def flush_pending_since(self) -> float | None:
        """`time.monotonic()` at which the running sync began; None when there is none. For a watchdog."""
        return self._flusher.pending_since if self._flusher is not None else None
