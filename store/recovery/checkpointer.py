"""Store checkpointer: syncs the changed queues from time to time and then saves in the checkpoint how far they are.

loop thread   count changed queues, some a turn ... capture: dispatched offset, unit count, files
              write units that queues hold in memory, or copy them, some a turn
its thread                                              sync the files ... ends of the queues ... checkpoint

A start after a crash dispatches the log again from the checkpoint on. A checkpoint is therefore due after a number of
dispatched bytes, and after an interval in a store with little traffic. Where thousands of queues hold units, it is due
less often, and most checkpoints only note those units with the queues' ends, so that each file is written once for many
units: a start after a kill takes them from there, a start after a power cut makes them again from the log.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from ledgermq.durable_files import NO_DESCRIPTORS
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.store_progress import CHECKPOINT_SIZE, Progress
from store.directory.checkpoint import IndexProgress, StoreCheckpoint, StoreCheckpointFile
from store.errors import DiskFailedError, DiskFullError, NoDescriptorError, StoreError
from store.files.disk import NO_ROOM
from store.queues.consume_queue import ConsumeQueue
from store.queues.held_units import Holder
from store.queues.queue_ends import merge_ends, save_ends
from store.queues.queue_file import QueueFile
from store.queues.queue_sync import QueueSync
from store.recovery.queue_recovery import QueueRecovery
from store.recovery.queue_trust import may_be_cut
from store.store_listener import FollowedStore

log = logging.getLogger(__name__)

BYTES_BEHIND_MAX = 128 << 20
"""Bytes of the log that are dispatched before the next checkpoint is due; a start after a crash reads them again."""

_LOOK_S = 1.0

_COUNTED_AT_ONCE = 1000
"""Changed queues that are counted in one turn of the loop, about a millisecond."""

MANY_HOLDING = 1000
"""If more queues hold units, a checkpoint is due only after the following bytes, or multiples of the interval."""
HELD_BYTES_BEHIND_MAX = 512 << 20
HELD_INTERVALS = 6
WRITTEN_BYTES_BEHIND_MAX = 2 << 30
WRITTEN_INTERVALS = 60
"""Bytes, and multiples of the interval, after which held units are written to their files and not only noted."""

_WRITE_S = 0.001
"""Seconds for which held units are written in one turn of the loop; the loop then has a pause for other things."""
_WRITE_PAUSE_S = 0.003

_LAST_WRITE_S = 5.0
"""Seconds for which units are written at a stop. What is left then is made again from the log, as after a kill."""


class _Counted(NamedTuple):
    """Queues that were counted for a checkpoint, with the other fields of their part of `queueEnds.ledgermq`."""

    queues: list[ConsumeQueue]
    lineage: int
    cleaned_to: int
    dispatched_offset: int
    unit_count: int


class _Captured(NamedTuple):
    """The content of one checkpoint, and what has to be done before it is written.

    Attributes:
        files: files to sync.
        holding: queues whose held units are to be written, and their files synced, or noted.
        noted: held units by queue, if they are only noted; None: they are written.
        said: what the checkpoint before says, if the last one of a process may say it again in place of this one.
    """

    files: list[QueueFile]
    checkpoint: StoreCheckpoint
    counted: _Counted | None
    holding: list[Holder]
    noted: dict[Holder, bytes] | None
    said: StoreCheckpoint | None


class StoreCheckpointer:
    """Writes the checkpoint of one store. Owned by the loop's thread.

    Args:
        recovery: of the queues, when this store was opened.
        sync_index: makes the index durable and says up to where, in the checkpointer's thread; None without an index.

    Attributes:
        saved_offset: the last checkpoint says that all units of records below are durable. The log must keep what lies
            behind: a start after a power cut reads the queue offsets from it.
    """

    def __init__(
        self,
        file: StoreCheckpointFile,
        store: FollowedStore,
        loop: asyncio.AbstractEventLoop,
        *,
        recovery: QueueRecovery,
        sync_index: Callable[[], IndexProgress | None] | None = None,
    ) -> None:
        self._file = file
        self._store = store
        self._loop = loop
        self._queues_timestamp = recovery.last_timestamp or file.found.queues_timestamp
        self._sync_index = sync_index
        self.saved_offset = recovery.durable_offset
        self._dispatched = (store.dispatched_offset, self._queues_timestamp)  # at the last capture
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-checkpoint")
        queues = store.queues
        self._queue_sync = QueueSync([*queues.roots, queues.directory.parent])  # other roots may be made there later
        self._unsynced: list[QueueFile] = []  # of queues that were counted since the last capture
        self._timer: asyncio.Handle | None = None
        self._has_failed = False
        self._ends_trouble = RateLimitedLog(log)
        self._is_full = False
        self._interval_s = 0.0
        self._saved_at = loop.time()
        self._saving: Future[None] | None = None
        self._pending: _Captured | None = None  # held units are being written for it
        self._removals = 0
        self._due: list[QueueFile] = []  # to be synced by the next save; of its thread
        self._ends_offset = store.dispatched_offset  # at the last capture
        self._noted_offset = recovery.durable_offset  # also what a start has read again
        self._written_at = self._saved_at
        self._last = _known(file.found, recovery)  # what the last checkpoint says, if later ones may say it again

    def run_every(self, interval_s: float) -> None:
        """Save at this interval (s) from now on, and sooner when `BYTES_BEHIND_MAX` bytes were dispatched.

        It also saves sooner when queues were dropped: the unit count of the last checkpoint would not agree with the
        queues that are left, and a start would walk the whole log. For the same reason it saves now if the queues have
        fewer units than the checkpoint found at the start counts.
        """
        self._interval_s = interval_s
        found = self._file.found.progress
        if found is not None and self._ends_offset < found.dispatched_offset:
            self.save()
        self._look_again()

    def save(self, *, only_notes: bool = False) -> None:
        """Write held units, or only note them, and begin to save in its thread, unless it is saving already."""
        if not self._is_saving:
            self._pending = self._capture(only_notes=only_notes)
            if self._write_held(math.inf):
                self._begin_save()

    @property
    def _is_saving(self) -> bool:
        return self._pending is not None or (self._saving is not None and not self._saving.done())

    def save_cut(self) -> None:
        """Save the state after a cut of the log, or after a log that starts anew; durable on return. Blocks.

        Raises:
            DiskFullError: the disk has no room for the checkpoint or for units now.
            DiskFailedError: a sync or write failed; no checkpoint is written any more.
        """
        self._queues_timestamp = self._store.last_timestamp
        self._put_off()
        self._pending = self._capture()
        is_written = self._write_held(math.inf)
        if is_written:
            self._begin_save().result()
        if self._has_failed:
            raise DiskFailedError(self._file.path, "the checkpoint of a cut cannot be synced")
        if self._is_full or not is_written:
            raise DiskFullError(self._file.path, CHECKPOINT_SIZE)

    async def close(self, log_end: int) -> bool:
        """Save once more; return whether everything confirmed is dispatched and durable, and all units in their files.

        Where many queues hold units, these are only noted: to make so many files may take a minute, and the next start
        is as quick without, as after a kill. Where a note would not be believed, they are written for `_LAST_WRITE_S`.

        Args:
            log_end: max offset that the log had while it was open. Records below it may be unconfirmed: what a failed
                sync left only in the page cache must be written again by the next start.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._pending is not None:
            self._last = self._pending.said
            self._put_off()
        elif self._saving is not None:
            await asyncio.wrap_future(self._saving)
        only_notes = self._is_note_believed()
        self._pending = self._capture(only_notes=only_notes)
        end_s = time.monotonic() + (_LAST_WRITE_S if self._pending.said is not None else math.inf)
        while not self._write_held(_WRITE_S) and (pending := self._pending) is not None:
            await asyncio.sleep(0)
            if time.monotonic() >= end_s:
                left = len(pending.holding)
                log.info("the last units of %d queues are not written: the next start is as after a kill", left)
                self._put_off()
        is_written = self._pending is not None
        if is_written:
            await asyncio.wrap_future(self._begin_save())
        store = self._store
        is_dispatched = store.durable_offset >= store.dispatched_offset >= store.log.confirm_offset
        is_saved = is_written and not self._has_failed and not self._is_full
        is_clean = is_saved and is_dispatched and store.log.flushed_offset >= log_end and not only_notes
        if only_notes:
            holding = len(store.queues.held.queues)
            log.info("the last units of %d queues are only noted: the next start is as after a kill", holding)
        if is_clean:
            await self._loop.run_in_executor(self._executor, self._save_last_ends, store.dispatched_offset)
        self._executor.shutdown()
        self._queue_sync.close()
        return is_clean

    def _save_last_ends(self, dispatched_offset: int) -> None:
        """Save the ends of all queues durably, in the thread."""
        queues = self._store.queues
        if not queues.has_kinds:
            with self._without_ends():
                save_ends(self._file.path.parent, queues.ends(dispatched_offset))

    def _save_ends(self, counted: _Counted, noted: dict[Holder, bytes] | None) -> None:
        """Save the ends of the queues that were counted, in its thread; of all if it lacks some or has old notes."""
        queues = self._store.queues
        file = queues.ends_file
        has_all = file.wants_all or (noted is None and file.has_notes)
        ends = replace(
            queues.ends(counted.dispatched_offset, None if has_all else counted.queues, noted or {}),
            unit_count=counted.unit_count,
            log_min_offset=counted.cleaned_to,
        )
        if has_all and merge_ends([ends]) is None:  # queues were counted meanwhile; the next save tries again
            return
        with self._without_ends():
            file.write(ends, counted.lineage, has_all=has_all)

    @contextlib.contextmanager
    def _without_ends(self) -> Iterator[None]:
        """Log a failure only: the next start works without the ends of the queues."""
        try:
            yield
        except (OSError, DiskFailedError) as error:
            text = "the queue ends cannot be saved, so the next start checks every queue: %s"
            self._ends_trouble.warning(text, error)

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(min(self._interval_s, _LOOK_S), self._save_when_due)

    def _save_when_due(self) -> None:
        if self._is_due() and not self._is_saving:
            self._count_then_save(1 + len(self._store.queues.changed) // _COUNTED_AT_ONCE)
        else:
            self._look_again()

    def _is_due(self) -> bool:
        queues = self._store.queues
        behind = self._store.dispatched_offset - self._dispatched[0]
        waited_s = self._loop.time() - self._saved_at + _LOOK_S / 2
        if self._removals != queues.removals or queues.held.is_half_full:
            return True
        if self._are_many_holding:
            behind = self._store.dispatched_offset - self._noted_offset
            return waited_s >= self._interval_s * HELD_INTERVALS or behind >= HELD_BYTES_BEHIND_MAX
        return waited_s >= self._interval_s or behind >= BYTES_BEHIND_MAX

    def _is_note_believed(self) -> bool:
        """Return whether a checkpoint need not write held units: many queues hold some, and a start believes a note."""
        queues = self._store.queues
        if self._last is None or self._removals != queues.removals:
            return False
        return self._are_many_holding and not may_be_cut(self._store.log)

    @property
    def _are_many_holding(self) -> bool:
        queues = self._store.queues
        return len(queues.held.queues) > MANY_HOLDING and not queues.has_kinds

    def _is_note_enough(self) -> bool:
        """Return whether the next checkpoint need not write held units, nor is it time to."""
        store = self._store
        if not self._is_note_believed() or store.queues.held.is_half_full or store.disk_full is not None:
            return False
        behind, waited_s = store.dispatched_offset - self.saved_offset, self._loop.time() - self._written_at
        return behind < WRITTEN_BYTES_BEHIND_MAX and waited_s < self._interval_s * WRITTEN_INTERVALS

    def _count_then_save(self, turns: int) -> None:
        """Count most of the changed queues in up to `turns` turns of the loop, so that the capture finds few."""
        changed = self._store.queues.changed
        if turns > 0 and len(changed) > _COUNTED_AT_ONCE and not self._has_failed:
            self._unsynced += self._store.queues.take_changed(_COUNTED_AT_ONCE)
            self._timer = self._loop.call_soon(self._count_then_save, turns - 1)
            return
        self._pending = self._capture(only_notes=self._is_note_enough())
        self._write_then_save()

    def _write_then_save(self) -> None:
        """Write held units for a moment, and continue in a later turn until all are written; then save."""
        if self._pending is not None and not self._write_held(_WRITE_S):
            pause_s = 0.0 if self._store.queues.held.is_half_full else _WRITE_PAUSE_S
            self._timer = self._loop.call_later(pause_s, self._write_then_save)
            return
        if self._pending is not None:
            self._begin_save()
        self._look_again()

    def _write_held(self, limit_s: float) -> bool:
        """Write held units for the pending checkpoint; return whether all are written.

        Without room or descriptors the checkpoint is put off; after another error none is written any more.
        """
        captured = self._pending
        end_s = time.monotonic() + limit_s
        try:
            while captured is not None and captured.holding and not self._has_failed:
                queue = captured.holding[-1]
                if captured.noted is None:
                    queue.write_held()
                elif units := queue.held_below(queue.counted_units):
                    captured.noted[queue] = units
                captured.holding.pop()
                captured.files.extend(queue.take_unflushed())
                if time.monotonic() >= end_s:
                    return not captured.holding
        except DiskFullError as error:
            self._note_delay(error)
            self._put_off()
            return False
        except (OSError, StoreError) as error:
            self._fail(error)
        return True

    def _begin_save(self) -> Future[None]:
        captured, self._pending = self._pending, None
        assert captured is not None, "nothing was captured"
        self._saving = self._executor.submit(self._save, captured)
        return self._saving

    def _put_off(self) -> None:
        """Give up the pending checkpoint; the next one syncs its files and saves its queues' ends."""
        captured, self._pending = self._pending, None
        if captured is not None:
            self._unsynced += captured.files
            if captured.counted is not None:
                self._store.queues.counted += captured.counted.queues

    def _capture(self, *, only_notes: bool = False) -> _Captured:
        """Return what the next checkpoint says; units are written all the same where no last one can be said again."""
        store = self._store
        self._saved_at = self._loop.time()
        flushed = store.durable_offset
        found = self._file.found
        timestamp = store.last_timestamp or self._queues_timestamp
        if flushed >= store.dispatched_offset:
            log_timestamp = timestamp
        else:
            log_timestamp = self._dispatched[1] if flushed >= self._dispatched[0] else 0
        self._dispatched = (store.dispatched_offset, timestamp)
        queues = store.queues
        said = self._last if self._removals == queues.removals else None
        self._removals = queues.removals
        files = self._unsynced + queues.take_changed()
        self._unsynced = []
        for queue in queues.held.take_moved():
            files += queue.take_unflushed()
        counted = None
        ends_file = queues.ends_file
        is_changed = queues.counted or self._ends_offset != store.dispatched_offset or ends_file.wants_all
        is_changed = is_changed or (ends_file.has_notes and not only_notes)
        if is_changed and not queues.has_kinds:
            place = store.dispatched_offset, queues.unit_count
            counted = _Counted(queues.counted, ends_file.lineage, queues.cleaned_to, *place)
        queues.counted = []
        self._ends_offset = self._noted_offset = store.dispatched_offset
        checkpoint = StoreCheckpoint(
            log_timestamp=log_timestamp,
            queues_timestamp=timestamp,
            index_timestamp=found.index_timestamp,
            master_flushed_offset=store.master_flushed_offset,
            confirm_offset=store.log.confirm_offset,
            progress=Progress(flushed, store.dispatched_offset, queues.unit_count, queues.removed_offset),
            index=found.index,
        )
        holding = list(queues.held.queues)
        if only_notes and self._last is not None and self._last.progress is not None:
            progress = replace(self._last.progress, flushed_offset=flushed)
            checkpoint = replace(checkpoint, queues_timestamp=self._last.queues_timestamp, progress=progress)
            return _Captured(files, checkpoint, counted, holding, {}, said)
        self._last, self._written_at = None, self._saved_at
        return _Captured(files, checkpoint, counted, holding, None, said)

    def _save(self, captured: _Captured) -> None:
        """Sync and save, in the thread. After a failed sync the last good checkpoint is kept and nothing is retried.

        Where no descriptor is left, nothing was synced: the next save syncs these files, too.
        """
        if self._has_failed:
            return
        files, checkpoint, counted, _, noted, _ = captured
        self._due = list(dict.fromkeys((*self._due, *files))) if self._due else files  # at most all files that are open
        try:
            self._queue_sync.sync(self._due)
            self._due = []
            if counted is not None:
                self._save_ends(counted, noted)
            index = self._sync_index() if self._sync_index is not None else None
            if index is not None:
                checkpoint = replace(checkpoint, index=index, index_timestamp=index.end_timestamp)
            self._note_delay(self._write(checkpoint))
        except NoDescriptorError as error:
            self._note_delay(error)
            self._store.queues.ends_file.invalidate()  # the queues counted for this save may not be in it
        except (OSError, DiskFailedError) as error:
            if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
                self._note_delay(error)
                self._store.queues.ends_file.invalidate()
                return
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        log.error("no checkpoint is written any more, and no file of the log is deleted: %s", error)

    def _note_delay(self, error: Exception | None) -> None:
        """Note whether the checkpoint waits for room or descriptors; told once."""
        if error is not None and not self._is_full:
            log.warning("the checkpoint is written when there are room and descriptors again: %s", error)
        self._is_full = error is not None

    def _write(self, checkpoint: StoreCheckpoint) -> OSError | None:
        """Write the checkpoint; return the error if there is no room for it: then the next save tries again.

        Raises:
            OSError: the checkpoint cannot be written.
        """
        try:
            self._file.save(checkpoint)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return error
        if checkpoint.progress is not None:
            self.saved_offset = checkpoint.progress.dispatched_offset
        self._last = checkpoint
        return None


def _known(found: StoreCheckpoint, recovery: QueueRecovery) -> StoreCheckpoint | None:
    """Return the checkpoint that a start has found, if what it says of the queues still holds."""
    is_known = found.progress is not None and 0 < found.progress.dispatched_offset == recovery.durable_offset
    return found if is_known else None
