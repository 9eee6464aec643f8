"""Committer: one thread that writes the buffers of the transient pool into the files, batch by batch.

    loop thread    place, place, place ........ request ......................... committed: confirm, acknowledge
    commit thread                                 pwrite of all that gathered -->

Records are visible and acknowledged when they are in the file, so a process that dies loses only records that were
never acknowledged. (RocketMQ acknowledges records in the buffer, and loses them with its process.) They are flushed
afterwards.

The thread only writes; files are pinned and positions moved on the loop's thread. Files that were written directly are
committed in order with the others, so that everything below the committed offset is in the files.

Source: apache/rocketmq `store/.../CommitLog.java` (CommitRealTimeService, 5.3.3).
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from store.errors import DiskFailedError, DiskFullError
from store.files.disk import write_at
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.files.pooled_file import PooledFile
from store.log.thresholds import IntervalTimer, Threshold
from store.worker import Worker


@dataclass(slots=True)
class _Job:
    """Work for the thread: once `pieces` are written, each at its file's commit position, all below `target` is."""

    target: int
    pieces: list[tuple[PooledFile, memoryview]] = field(default_factory=list)
    error: DiskFailedError | DiskFullError | None = None


class Committer:
    """Commits one queue. Everything is called, and calls back, on the loop's thread.

    Args:
        queue: its `committed_offset` is moved here.
        on_committed: called with the new committed offset.
        on_failed: called once, when a write failed; `on_committed` is not called afterwards.
    """

    def __init__(
        self,
        queue: MappedFileQueue,
        loop: asyncio.AbstractEventLoop,
        *,
        on_committed: Callable[[int], None],
        on_failed: Callable[[DiskFailedError], None],
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._is_busy = False
        self._is_wanted = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer = IntervalTimer(loop, self._commit_if_worth)
        self._threshold = Threshold(queue.file_size, 0, 0, 0)
        self.failed: DiskFailedError | None = None
        queue.track_commits()
        self._worker: Worker[_Job] = Worker("ledgermq-commit", self._work)

    def request(self) -> None:
        """Commit everything placed so far, at once or when the running commit has ended."""
        if self.failed is not None:
            return
        if self._is_busy:
            self._is_wanted = True
            return
        job = self._collect()
        if job.pieces:
            self._is_busy = True
            self._idle.clear()
            self._worker.put(job)
        elif job.target > self._queue.committed_offset:
            self._advance(job.target)

    def commit_every(self, interval_s: float, *, least_pages: int = 0, thorough_s: float = 0.0) -> None:
        """Commit at this interval (s) from now on, if the threshold is reached; 0 stops the timer."""
        self._threshold = Threshold(self._queue.file_size, least_pages, thorough_s, self._loop.time())
        if self.failed is None:
            self._timer.start(interval_s)

    async def close(self) -> None:
        """Commit everything placed, unless a write has failed, then stop the thread."""
        self._timer.stop()
        self.request()
        while self._is_busy:
            await self._idle.wait()
        await self._loop.run_in_executor(None, self._worker.close)

    def _commit_if_worth(self) -> None:
        queue = self._queue
        if self._threshold.is_reached(queue.committed_offset, queue.max_offset, self._loop.time()):
            self.request()

    def _collect(self) -> _Job:
        queue = self._queue
        job = _Job(queue.max_offset)
        for file in queue.unflushed(queue.committed_offset, job.target):
            data = _uncommitted(file)
            if data:
                assert isinstance(file, PooledFile)
                file.pin()
                job.pieces.append((file, data))
        return job

    def _work(self, batch: list[_Job]) -> None:
        """Run in the thread: write the pieces of the job, of which there is one at a time."""
        (job,) = batch
        try:
            for file, data in job.pieces:
                write_at(file.fd, file.path, data, file.commit_position)
        except (DiskFailedError, DiskFullError) as error:
            job.error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._finished, job)

    def _finished(self, job: _Job) -> None:
        self._is_busy = False
        self._idle.set()
        for file, data in job.pieces:
            file.unpin()
            if job.error is None:
                file.committed_to(file.commit_position + len(data))
        if job.error is not None:
            self._fail(job.error)
            return
        self._advance(job.target)
        if self._is_wanted:
            self._is_wanted = False
            self.request()

    def _advance(self, target: int) -> None:
        self._queue.note_committed(target)
        self._on_committed(target)

    def _fail(self, error: DiskFailedError | DiskFullError) -> None:
        self.failed = DiskFailedError(error.file, f"commit failed, and is not tried again: {error}")
        self._timer.stop()
        self._on_failed(self.failed)


def _uncommitted(file: MappedFile) -> memoryview | None:
    return file.uncommitted() if isinstance(file, PooledFile) else None
