"""Checkpointer: now and then makes the queues durable, and then says so in the checkpoint.

loop thread   capture: dispatched offset, unit count, files        (next time)
its thread              fdatasync each file ... checkpoint

In between, queues that grow fast are synced as they fill pages.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from store.directory.checkpoint import Checkpoint, CheckpointFile, IndexProgress, Progress
from store.errors import DiskFailedError
from store.message_store import MessageStore
from store.queues.queue_ends import QueueEnds, save_ends
from store.queues.queue_file import QueueFile

log = logging.getLogger(__name__)

BYTES_BEHIND_MAX = 512 << 20
"""So much of the log is dispatched at most until the checkpoint knows, if the disk keeps up."""

_LOOK_S = 1.0

_SYNC_THREADS = 8
"""Syncs at once: a journalling file system commits them together, twenty times as many in the same time."""


class Checkpointer:
    """Writes the checkpoint of one store. Owned by the loop's thread.

    Args:
        last_timestamp: store time (ms) of the last record dispatched before this store was opened.
        sync_index: makes the index durable and says up to where, in the checkpointer's thread; None without an index.
    """

    def __init__(
        self,
        file: CheckpointFile,
        store: MessageStore,
        loop: asyncio.AbstractEventLoop,
        *,
        last_timestamp: int,
        sync_index: Callable[[], IndexProgress | None] | None = None,
    ) -> None:
        self._file = file
        self._store = store
        self._loop = loop
        self._queues_timestamp = last_timestamp
        self._sync_index = sync_index
        self._dispatched = (store.dispatched_offset, last_timestamp)  # at the last capture
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-checkpoint")
        self._timer: asyncio.TimerHandle | None = None
        self._sync_timer: asyncio.TimerHandle | None = None
        self._has_failed = False
        self._interval_s = 0.0
        self._saved_at = loop.time()
        self._saving: Future[None] | None = None
        self._removals = 0

    def run_every(self, interval_s: float) -> None:
        """From now on save at this interval, and sooner when much was dispatched: a crash costs about a second.

        Sooner, too, when queues were dropped: the units of the last checkpoint would not agree with those that are
        left, and the whole log would be walked.
        """
        self._interval_s = interval_s
        self._look_again()

    def sync_every(self, interval_s: float, least_pages: int) -> None:
        """From now on sync, at this interval, the queues that filled so many pages since."""
        self._sync_timer = self._loop.call_later(interval_s, self._sync_by_timer, interval_s, least_pages)

    def save(self) -> None:
        """Save now, in the checkpointer's thread; returns at once. While one is being saved, the next one will do."""
        if self._saving is None or self._saving.done():
            self._saved_at = self._loop.time()
            self._saving = self._executor.submit(self._save, *self._capture())

    async def close(self) -> bool:
        """Save once more; answer whether the store is all durable and dispatched."""
        for timer in (self._timer, self._sync_timer):
            if timer is not None:
                timer.cancel()
        await self._loop.run_in_executor(self._executor, self._save, *self._capture())
        store = self._store
        end = store.log.confirm_offset
        is_clean = not self._has_failed and store.durable_offset >= store.dispatched_offset >= end
        if is_clean:
            ends = store.queues.ends(store.log.min_offset, store.dispatched_offset)
            await self._loop.run_in_executor(self._executor, self._save_ends, ends)
        self._executor.shutdown()
        return is_clean

    def _save_ends(self, ends: QueueEnds | None) -> None:
        """In the thread. The next start can do without."""
        try:
            if ends is not None:
                save_ends(self._file.path.parent, ends)
        except (OSError, DiskFailedError) as error:
            log.warning("the next start will look at each queue: %s", error)

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(min(self._interval_s, _LOOK_S), self._save_when_due)

    def _save_when_due(self) -> None:
        behind = self._store.dispatched_offset - self._dispatched[0]
        is_time = self._loop.time() - self._saved_at >= self._interval_s - _LOOK_S / 2
        if is_time or behind >= BYTES_BEHIND_MAX or self._removals != self._store.queues.removals:
            self.save()
        self._look_again()

    def _sync_by_timer(self, interval_s: float, least_pages: int) -> None:
        queues = self._store.queues
        files = [file for queue in queues if queue.unflushed_pages >= least_pages for file in queue.take_unflushed()]
        if files:
            self._executor.submit(self._sync, files)
        self.sync_every(interval_s, least_pages)

    def _capture(self) -> tuple[list[QueueFile], Checkpoint]:
        store = self._store
        flushed = store.durable_offset
        found = self._file.found
        timestamp = store.last_timestamp or self._queues_timestamp
        if flushed >= store.dispatched_offset:
            log_timestamp = timestamp
        else:
            log_timestamp = self._dispatched[1] if flushed >= self._dispatched[0] else 0
        self._dispatched = (store.dispatched_offset, timestamp)
        self._removals = store.queues.removals
        files = [file for queue in store.queues for file in queue.take_unflushed()]
        units = sum(queue.max_offset for queue in store.queues)
        return files, Checkpoint(
            log_timestamp=log_timestamp,
            queues_timestamp=timestamp,
            index_timestamp=found.index_timestamp,
            master_flushed_offset=found.master_flushed_offset,
            confirm_offset=store.log.confirm_offset,
            progress=Progress(flushed, store.dispatched_offset, units),
            index=found.index,
        )

    def _sync(self, files: list[QueueFile]) -> None:
        """In the thread. What failed here is not asked for again, so no later checkpoint may count it."""
        try:
            _sync_all(files)
        except (OSError, DiskFailedError) as error:
            self._has_failed = True
            log.error("no checkpoint is written any more: %s", error)

    def _save(self, files: list[QueueFile], checkpoint: Checkpoint) -> None:
        """In the thread. After a failed sync the last good checkpoint stands: queues can be made again from there."""
        if self._has_failed:
            return
        try:
            _sync_all(files)
            index = self._sync_index() if self._sync_index is not None else None
            if index is not None:
                checkpoint = replace(checkpoint, index=index, index_timestamp=index.end_timestamp)
            self._file.save(checkpoint)
        except (OSError, DiskFailedError) as error:
            self._has_failed = True
            log.error("no checkpoint is written any more: %s", error)


def _sync_all(files: list[QueueFile]) -> None:
    """Make the files durable; blocks.

    Raises:
        OSError, DiskFailedError: of the first that failed.
    """
    if len(files) <= _SYNC_THREADS:
        for file in files:
            file.sync()
        return
    with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="ledgermq-queue-sync") as threads:
        for _ in threads.map(QueueFile.sync, files):
            pass
