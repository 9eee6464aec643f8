"""Timer index: the wheel and the timer log together, kept from the timer topic on every node.

    enqueue(timer) ---> unit appended to the timer log, chained to its slot's last one; slot in the wheel moved
    units_at(slot) <--- the chain, newest first           advance(read time) ---> slots behind it count no more

Which slot a timer goes to is decided by `store.timer.placing`.

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (doEnqueue, recover, prepareTimerCheckPoint), 5.3.3.
"""

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledgermq.message.hashing import java_string_hash
from store.errors import DiskFailedError, DiskReadError
from store.files.disk import sync_directory
from store.files.mapped_file import MappedFile
from store.time_slice import TimeSlice
from store.timer.checkpoint import TimerCheck, read_check, write_check
from store.timer.metrics import TopicCounts, write_counts
from store.timer.placing import TimerIndexConfig, place
from store.timer.recovery import cut, last_unit, recover
from store.timer.timer_log import MAGIC_DELETE, NO_POSITION, TimerLog, TimerUnit
from store.timer.timer_message import TimerMessage
from store.timer.wheel import Slot, TimerWheel

log = logging.getLogger(__name__)


class TimerIndex:
    """All timers that wait. Owned by the loop's thread; its files are made with the first timer.

    Args:
        clock_ms: wall clock.

    Attributes:
        read_ms: slots before it have been delivered, here or on the node that led.
        queue_offset: next message of the timer topic to take.
        metrics: how many wait, by real topic.
    """

    def __init__(self, config: TimerIndexConfig, clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._clock_ms = clock_ms
        self._wheel: TimerWheel | None = None
        self._log: TimerLog | None = None
        self._check = TimerCheck()
        self._saved_counts = 0
        self._is_dirty = False
        self._has_lost_units = False
        self._has_failed = False
        self.precision_ms = config.precision_ms
        self.read_ms = 0
        self.queue_offset = 0
        self.metrics = TopicCounts("timingCount", clock_ms)

    # ---- opening and closing

    def load(self) -> None:
        """Open and recover what is there.

        Raises:
            StoreFormatError: a file that is not ours to read.
            DiskFullError, DiskFailedError: the disk refused.
        """
        self._check = read_check(self._path("config/timercheck"))
        self.metrics.load(self._path("config/timermetrics"))
        self._saved_counts = self.metrics.version
        self.read_ms, self.queue_offset = self._check.read_ms, self._check.queue_offset
        if self._path("timerwheel").exists() or self._path("timerlog").exists():
            found = recover(*self._files(), self._check.log_position)
            self._has_lost_units, self._is_dirty = found.has_lost_units, found.is_dirty
            self._check = self._check._replace(log_position=min(self._check.log_position, found.end))
        else:
            self._has_lost_units = self._check.log_position > 0

    def close(self) -> None:
        """Flush everything and let go of the files; blocks.

        Raises:
            DiskFailedError: the disk refused.
        """
        try:
            self.prepare_flush()()
        finally:
            for part in (self._wheel, self._log):
                if part is not None:
                    part.close()
            self._wheel = self._log = None

    def restart(self, queue_offset: int, read_ms: int) -> None:
        """Forget all timers, to be taken anew from the timer topic's message `queue_offset` on; durable on return.

        Nothing of the index may be flushed by another thread meanwhile. The checkpoint goes back first: files that a
        crash leaves beside it are read through at the next start.

        Args:
            queue_offset: first message to take.
            read_ms: timers of earlier slots have been delivered.

        Raises:
            DiskFailedError: the disk refused.
        """
        for part in (self._wheel, self._log):
            if part is not None:
                part.close()
        self._wheel = self._log = None
        self._is_dirty = self._has_lost_units = False
        self.queue_offset, self.read_ms = queue_offset, read_ms
        self.metrics.clear()
        check = self._next_check(0, read_ms)
        try:
            if check is not None:
                write_check(self._path("config/timercheck"), check)
            self._path("timerwheel").unlink(missing_ok=True)
            if self._path("timerlog").exists():
                shutil.rmtree(self._path("timerlog"))
            sync_directory(self._config.root)
        except OSError as error:
            raise DiskFailedError(self._config.root, f"timers cannot be removed: {error}") from error

    # ---- taking and giving

    def slot_of(self, timer: TimerMessage) -> tuple[int, int, int]:
        """See `place`."""
        return place(timer, self._config)

    def enqueue(self, timer: TimerMessage) -> TimerUnit | None:
        """Add a timer to its slot; return None, and store nothing, if that slot has been delivered already.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored; try again.
        """
        slot_ms, magic, write_ms = self.slot_of(timer)
        return self._append(timer, slot_ms, magic, write_ms) if slot_ms >= self.read_ms else None

    def rechain(self, slot_ms: int, left: Sequence[tuple[TimerMessage, int, int]]) -> None:
        """Replace the timers of a slot by these: `(timer, magic, write time)` of each, in order.

        Raises:
            DiskFullError, DiskFailedError: the slot holds fewer, or as many as before.
        """
        for unit in self.units_at(slot_ms):
            self.metrics.add_by_hash(unit.topic_hash, 1 if unit.magic & MAGIC_DELETE else -1)
        self._files()[0].put(slot_ms, None)
        for timer, magic, write_ms in left:
            self._append(timer, slot_ms, magic, write_ms)

    def _append(self, timer: TimerMessage, slot_ms: int, magic: int, write_ms: int) -> TimerUnit:
        wheel, timer_log = self._files()
        slot = wheel.get(slot_ms) or Slot(NO_POSITION, NO_POSITION, 0)
        topic_hash = java_string_hash(timer.topic)
        delay_ms = slot_ms - write_ms
        unit = TimerUnit(slot.last, magic, write_ms, delay_ms, timer.physical_offset, timer.size, topic_hash)
        position = timer_log.append(unit)
        change = -1 if timer.deletes else 1
        first = position if slot.first == NO_POSITION else slot.first
        wheel.put(slot_ms, Slot(first, position, slot.waiting + change, slot.magic))
        self.metrics.add(timer.topic, change)
        self._is_dirty = True
        return unit

    @property
    def is_empty(self) -> bool:
        """Whether there never was a timer, so that no slot needs to be read."""
        return self._wheel is None

    @property
    def span_ms(self) -> int:
        """Half a turn of the wheel: the longest that a timer may have waited in it."""
        return self._config.slot_count // 2 * self.precision_ms

    def units_at(self, slot_ms: int) -> Iterator[TimerUnit]:
        """Return the units of a slot, the newest first; errors as `units_from`."""
        return self.units_from(slot_ms, self.newest_at(slot_ms))

    def newest_at(self, slot_ms: int) -> int:
        """Return the position of a slot's newest unit in the timer log; `NO_POSITION` without one."""
        slot = self._wheel.get(slot_ms) if self._wheel is not None else None
        return slot.last if slot is not None else NO_POSITION

    def units_from(self, slot_ms: int, position: int) -> Iterator[TimerUnit]:
        """Yield the units of a slot from the one at `position` on, the newest first.

        Raises:
            DiskReadError: the disk cannot read the unit behind the last one that came.
        """
        timer_log = self._log
        while timer_log is not None and position != NO_POSITION:
            unit = timer_log.unit(position)
            if unit is None or unit.slot_ms != slot_ms:
                log.warning(
                    "the chain of the timers due at %d ms breaks at position %d of the timer log", slot_ms, position
                )
                return
            yield unit
            if unit.previous >= position:
                return
            position = unit.previous

    def skip_empty(self, slot_ms: int, before_ms: int) -> int:
        """Return a slot in `[slot_ms, before_ms]` such that those before it are empty, found within a slice of time."""
        if slot_ms >= before_ms or self._wheel is None:
            return slot_ms
        return self._wheel.skip_empty(slot_ms, before_ms)

    def count_at(self, slot_ms: int) -> int:
        """Return how many timers wait in a slot."""
        slot = self._wheel.get(slot_ms) if self._wheel is not None else None
        return slot.waiting if slot is not None else 0

    def advance(self, read_ms: int, slice_s: float) -> bool:
        """Note that slots before `read_ms` have been delivered.

        Returns False if the slice of time ended before all of them were taken out of the counts.
        """
        time_slice = TimeSlice(slice_s)
        if self._wheel is None:
            self.read_ms = max(self.read_ms, read_ms)
        while self.read_ms < read_ms:
            self.read_ms = self.skip_empty(self.read_ms, read_ms)
            if self.read_ms == read_ms:
                return True
            try:
                for unit in self.units_at(self.read_ms):
                    self.metrics.add_by_hash(unit.topic_hash, 1 if unit.magic & MAGIC_DELETE else -1)
            except DiskReadError as error:
                log.error("timers of slot %d stay in the counts: %s", self.read_ms, error)
            self.read_ms += self.precision_ms
            if time_slice.is_over():
                return self.read_ms >= read_ms
        return True

    def forget_before(self, physical_offset: int) -> None:
        """Delete files of the timer log that only point before this physical offset, the start of the commit log."""
        if self._log is not None:
            self._log.delete_before(physical_offset)

    # ---- flushing

    @property
    def check(self) -> TimerCheck:
        """Progress of the timers now."""
        return self._check._replace(
            read_ms=self.read_ms, queue_offset=self.queue_offset, master_queue_offset=self.queue_offset
        )

    def prepare_flush(self, read_ms: int | None = None) -> Callable[[], None]:
        """Note what has to be durable; return a function that makes it durable and may run in a thread.

        `read_ms` is the read time that the checkpoint tells, the present one when not given. What was delivered before
        it must be durable: after a power cut no timer of an earlier slot is delivered again.

        The units come first, then the wheel that points to them, then the checkpoint that says so. After a failed sync
        no checkpoint is written any more: the last good one stands, and what came behind it is linked again.

        Raises:
            DiskFailedError: a file cannot be opened; nothing was noted.
        """
        wheel, timer_log = self._wheel, self._log
        end = timer_log.end if timer_log is not None else 0
        files = timer_log.queue.unflushed(self._check.log_position, end) if timer_log is not None else []
        _pin(files)  # before anything counts as noted
        is_dirty, self._is_dirty = self._is_dirty, False
        check = self._next_check(end, self.read_ms if read_ms is None else read_ms)
        counts = self._next_counts()

        def flush() -> None:
            try:
                if is_dirty and wheel is not None:
                    _sync(files)
                    wheel.sync()
            except BaseException:
                self._has_failed = True
                raise
            finally:
                for file in files:
                    file.unpin()
            if check is not None and not self._has_failed:
                write_check(self._path("config/timercheck"), check)
            if counts is not None:
                write_counts(self._path("config/timermetrics"), counts)

        return flush

    def _next_check(self, end: int, read_ms: int) -> TimerCheck | None:
        """Return the checkpoint if it differs from the last one; it has a new version if the timers have changed."""
        fresh = self.check._replace(log_position=end, read_ms=read_ms)
        if fresh == self._check:
            return None
        if fresh[:1] + fresh[2:4] != self._check[:1] + self._check[2:4]:
            fresh = fresh._replace(timestamp=self._clock_ms(), counter=fresh.counter + 1)
        self._check = fresh
        return fresh

    def _next_counts(self) -> bytes | None:
        if self.metrics.version == self._saved_counts:
            return None
        self._saved_counts = self.metrics.version
        return self.metrics.encode()

    # ---- files

    def _path(self, name: str) -> Path:
        return self._config.root / name

    def _files(self) -> tuple[TimerWheel, TimerLog]:
        """Return the files, made when missing."""
        if self._wheel is None or self._log is None:
            config = self._config
            wheel = TimerWheel(self._path("timerwheel"), config.precision_ms, config.slot_count)
            try:
                timer_log = TimerLog(self._path("timerlog"), config.log_file_size_bytes)
                timer_log.load()
            except BaseException:
                wheel.close()
                raise
            self._wheel, self._log = wheel, timer_log
        return self._wheel, self._log

    def cut(self, physical_offset: int) -> None:
        """Drop the newest units, whose records lie at or behind a physical offset and may be dispatched again."""
        if self._wheel is None or self._log is None:
            return
        for position, unit in cut(self._wheel, self._log, physical_offset):
            self._is_dirty = True
            is_counted = position < self._check.log_position and unit.slot_ms >= self.read_ms  # in the counts on disk
            if is_counted:
                self.metrics.add_by_hash(unit.topic_hash, 1 if unit.magic & MAGIC_DELETE else -1)
        self._check = self._check._replace(log_position=min(self._check.log_position, self._log.end))

    def resume_at(self, queue_offset_of: Callable[[int], int | None]) -> None:
        """Find the next message to take after a recovery: the one behind the last unit's.

        Args:
            queue_offset_of: the timer topic's queue offset of the record at a physical offset; None without one.
        """
        last = last_unit(self._log) if self._log is not None else None
        found = queue_offset_of(last.physical_offset) if last is not None else None
        behind_last = found + 1 if found is not None else 0
        self.queue_offset = behind_last if self._has_lost_units else max(behind_last, self._check.queue_offset)


def _pin(files: list[MappedFile]) -> None:
    """Pin all files, or none.

    Raises:
        DiskFailedError: one cannot be opened.
    """
    with contextlib.ExitStack() as pinned:
        for file in files:
            file.pin()
            pinned.callback(file.unpin)
        pinned.pop_all()


def _sync(files: list[MappedFile]) -> None:
    for file in files:
        try:
            file.sync()
        except OSError as error:
            raise DiskFailedError(file.path, f"sync failed: {error}") from error
