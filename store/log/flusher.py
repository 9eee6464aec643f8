"""Flusher: one thread that makes a queue of mapped files durable, batch by batch.

    loop thread    request(a) request(b) request(c) ......... finished(a)  finished(c): done a, done b, done c
    flush thread        fdatasync up to a --------> fdatasync up to c ------->

Requests gather while a sync runs, and the next sync starts without waiting for the loop. The thread calls
`os.fdatasync` (which releases the GIL; `mmap.flush` would hold it) and nothing else: files are pinned and offsets
moved on the loop's thread only.

The first failed sync is final: dirty pages may be marked clean by then, and a retry would report success (Rebello et
al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). Nothing is acknowledged after it.
"""

import asyncio
import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable

from store.errors import DiskFailedError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log.thresholds import IntervalTimer, Threshold
from store.worker import Worker

FlushDone = Callable[[int], None]


class FlushMode(enum.StrEnum):
    """The place that a message must have reached on each node: SYNC the disk, ASYNC the page cache."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


class _Job:
    """Work for the thread: once `files` are synced, everything below physical offset `target` is durable."""

    __slots__ = ("error", "files", "generation", "seconds", "target")

    def __init__(self, target: int, generation: int, files: list[MappedFile]) -> None:
        self.target = target
        self.generation = generation
        self.files = files
        self.seconds = 0.0
        self.error: OSError | None = None


class Flusher:
    """Flushes one queue. Everything is called, and calls back, on the loop's thread.

    Args:
        queue: its `flushed_offset` and its files' `flush_position` are moved here.
        on_failed: called once, when a sync failed; no `done` is called afterwards.
        on_flushed: called with the new flushed offset and the seconds that the sync took; for metrics.
    """

    def __init__(
        self,
        queue: MappedFileQueue,
        loop: asyncio.AbstractEventLoop,
        *,
        on_failed: Callable[[DiskFailedError], None],
        on_flushed: Callable[[int, float], None] | None = None,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._on_failed = on_failed
        self._on_flushed = on_flushed
        self._waiting: deque[tuple[int, FlushDone]] = deque()
        self._requested = queue.flushed_offset
        self._generation = queue.generation
        self._jobs_in_flight = 0
        self._timer = IntervalTimer(loop, self.flush_if_worth)
        self._threshold = Threshold(queue.file_size, 0, 0.0, loop.time())
        self._worker: Worker[_Job] = Worker("ledgermq-flush", self._work)
        self.failed: DiskFailedError | None = None
        self.pending_since: float | None = None

    def request(self, offset: int, done: FlushDone) -> None:
        """Call `done(flushed_offset)` once everything below `offset` is durable.

        If the queue is cut below `offset` before that, `done` is called after the next sync with the offset that is
        durable then. After a failed sync no `done` is called.
        """
        self._note_cut(offset)
        if self.failed is None:
            self._waiting.append((offset, done))
            self._submit(offset)

    def flush_every(self, interval_s: float, *, least_pages: int = 0, thorough_s: float = 0.0) -> None:
        """Flush at this interval (s) from now on, if the threshold is reached (ASYNC_FLUSH); 0 stops the timer."""
        self._threshold = Threshold(self._queue.file_size, least_pages, thorough_s, self._loop.time())
        if self.failed is None:
            self._timer.start(interval_s)

    def flush_if_worth(self) -> None:
        """Flush all committed bytes if they reach the threshold and no sync is running."""
        queue, end = self._queue, self._queue.committed_offset
        if self._jobs_in_flight == 0 and self._threshold.is_reached(queue.flushed_offset, end, self._loop.time()):
            self._note_cut(end)
            self._submit(end)

    async def close(self) -> None:
        """Flush all committed bytes, unless a sync has failed, then stop the thread."""
        self._timer.stop()
        if self.failed is None and self._queue.flushed_offset < self._queue.committed_offset:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._on_failed = _chain(self._on_failed, flushed)
            self.request(self._queue.committed_offset, lambda _: flushed.set_result(None))
            await flushed
        await self._loop.run_in_executor(None, self._worker.close)

    def abandon(self) -> None:
        """Stop the thread without a last flush, as the end of the process does; for simulated ones."""
        self._worker.end()

    def _note_cut(self, offset: int) -> None:
        """After a cut of the queue, lower the offsets that requests wait for to `offset` at most."""
        if self._generation != self._queue.generation:
            self._generation = self._queue.generation
            self._requested = self._queue.flushed_offset
            self._waiting = deque((min(asked, offset), done) for asked, done in self._waiting)

    def _submit(self, offset: int) -> None:
        if offset <= self._requested and self._jobs_in_flight:
            return  # a job under way covers it
        files = self._queue.unflushed(self._requested, offset)
        for file in files:
            file.pin()
        self._requested = max(self._requested, offset)
        self._jobs_in_flight += 1
        if self.pending_since is None:
            self.pending_since = time.monotonic()
        self._worker.put(_Job(offset, self._generation, files))

    def _work(self, batch: list[_Job]) -> None:
        """Run in the thread: sync the files of all jobs that have gathered, in one go."""
        _sync(batch)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._finished, batch)

    def _finished(self, batch: list[_Job]) -> None:
        self._jobs_in_flight -= len(batch)
        self.pending_since = time.monotonic() if self._jobs_in_flight else None
        last = batch[-1]
        files = [file for job in batch for file in job.files]
        for file in files:
            file.unpin()
        if self.failed is None and last.error is not None:
            self._fail(last)
        if self.failed is None and last.generation == self._queue.generation:
            self._advance(last.target, files)
            if self._on_flushed is not None:
                self._on_flushed(last.target, last.seconds)
        if self.failed is None and self._jobs_in_flight == 0 and self._waiting:
            self._note_cut(self._queue.committed_offset)
            self._submit(self._queue.committed_offset)

    def _advance(self, target: int, files: list[MappedFile]) -> None:
        for file in files:
            file.flush_position = max(file.flush_position, min(target - file.start_offset, file.size_bytes))
        flushed = self._queue.flushed_offset = max(self._queue.flushed_offset, target)
        waiting = self._waiting
        while waiting and waiting[0][0] <= flushed:
            waiting.popleft()[1](flushed)

    def _fail(self, job: _Job) -> None:
        self.failed = DiskFailedError(self._queue.directory, f"sync failed, and is not tried again: {job.error}")
        self._waiting.clear()
        self._timer.stop()
        self._on_failed(self.failed)


def _sync(batch: list[_Job]) -> None:
    """Sync every file of the batch once; error and seconds are stored in its last job."""
    last = batch[-1]
    started = time.monotonic()
    try:
        for file in dict.fromkeys(file for job in batch for file in job.files):
            file.sync()
    except OSError as error:
        last.error = error
    last.seconds = time.monotonic() - started


def _chain(
    on_failed: Callable[[DiskFailedError], None], flushed: asyncio.Future[None]
) -> Callable[[DiskFailedError], None]:
    """Return a callback that calls `on_failed` and then ends the wait of `close` for the last flush."""

    def failed(error: DiskFailedError) -> None:
        on_failed(error)
        if not flushed.done():
            flushed.set_result(None)

    return failed
