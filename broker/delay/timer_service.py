"""Timers: every node enters the timer topic into its index; the leader delivers, to the millisecond.

    timer topic --TimerFollower--> TimerIndex (wheel, timer log) --load--> DueTimers --deliver--> real topics
    state of the log: read time, queue offset <------------ progress, once a slot with deliveries ----'

Progress is a queue offset and a read time: timers below the offset whose slot is before the read time are delivered. A
new leader continues from there; deliveries behind the last progress are found by `delay.deliveries`.

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (5.3.3). Differences: RocketMQ delivers a timer at the
end of its second, and again after a change of the leader; LedgerMQ delivers it at its exact time, and once.
"""

import asyncio
import logging
from collections.abc import Generator, Iterator
from typing import Final

from broker.context import BrokerContext
from broker.delay.deliveries import WAIT_SECONDS, Deliveries, DeliveryKind
from broker.delay.due import LATE, DueTimer, DueTimers
from broker.delay.timer_drafts import TimerDrafts
from broker.delay.timer_follower import TimerFollower
from broker.state.tables import TIMER_OFFSET, TIMER_PROGRESS_KEY, TIMER_READ_TIME
from store.errors import DiskReadError, StoreError
from store.log.drafts import QueuedDraft
from store.time_slice import TimeSlice
from store.timer.timer_index import TimerIndex
from store.timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, TimerUnit
from store.timer.timer_message import TimerMessage, parse_timer

log = logging.getLogger(__name__)

_SLICE_S: Final = 0.005
_SLICE_CHECK: Final = 32
_LEAD_MS: Final = 2000  # how long before its time a slot is loaded
_LOADED_MAX: Final = 50_000  # timers in memory, beyond which no further slot is loaded
_PREPARED_BYTES_MAX: Final = 32 << 20
_BATCH: Final = 512
_RETRY_MS: Final = 500
_RECALL_LOOK_MS: Final = 20
_LOOK_MS: Final = 1000  # longest wait, since the wall clock may be set meanwhile
_QUIET_MS: Final = 600_000  # interval of progress without deliveries, so that a new leader skips empty slots
_FAR_TIMERS: Final = 5000  # new timers after which progress is recorded sooner, since a new leader reads them all
_NEVER_ENQUEUED: Final = (1 << 63) - 1  # Java's mark of a timer that was due when it came


class TimerService:
    """Loads timers from the index and delivers them.

    Args:
        index: loaded.

    Attributes:
        follower: enters timers into the index.
        delivered: timers delivered.
        dropped: timers not delivered because their topic was removed.
    """

    def __init__(self, context: BrokerContext, index: TimerIndex, deliveries: Deliveries, drafts: TimerDrafts) -> None:
        self._config = context.config
        self._state = context.state
        self._deliveries = deliveries
        self._role = context.role
        self._store = context.store
        self._drafts = drafts
        self._loop = context.loop
        self._clock_ms = context.clock_ms
        self._events = context.counting.events
        self._due = DueTimers(index.precision_ms)
        self._loading: Iterator[None] | None = None
        self._unread: list[tuple[int, TimerUnit]] = []  # slots and units whose records the disk could not read
        self._unread_chains: list[tuple[int, int]] = []  # slots, and where in the timer log the rest of each begins
        self._loading_again: Iterator[None] | None = None
        self._read_again_s = 0.0
        self._prepared_bytes = 0
        self._is_leading = False
        self._wake: asyncio.TimerHandle | None = None
        self._recorded_ms = 0
        self._recorded_offset = 0
        self._has_changes = False
        self._is_first = False  # no progress was ever recorded
        self._recalled: dict[str, int] = {}  # by key: deletions that are not committed; such timers wait
        self._opened = (0, 0)  # queue offset and read time of the index when it was opened
        self._run = 0
        self._rates = (0.0, 0.0)  # taken and delivered a second
        self._sampled_counts = (0, 0)
        self._sampled_s = self._loop.time()
        self.index = index
        self.follower = TimerFollower(self._config, index, self._store, self._loop, self._on_entered, self._events)
        self.delivered = 0
        self.dropped = 0

    # ---- on every node

    def open(self) -> None:
        """Continue to enter timers; to be called when the store is recovered and the tables are loaded."""
        self.follower.open()
        if self.index.read_ms == 0:
            self.index.read_ms = self._first_read_ms()
        self._opened = self.index.queue_offset, self.index.read_ms
        self.follower.follow()

    def cut(self) -> None:
        """Enter all timers again that the tables do not call delivered; the timer topic and the tables were cut.

        Durable on return. The index must not be flushed meanwhile.

        Raises:
            DiskFailedError: the disk refused.
        """
        queue = self.follower.queue()
        self.index.restart(queue.min_offset if queue is not None else 0, self._first_read_ms())
        self._due.restart(self.index.read_ms)
        self._forget_unread()
        self._opened = self.index.queue_offset, self.index.read_ms
        self.follower.follow()

    def figures(self) -> dict[str, str]:
        """Return the rows of GET_BROKER_RUNTIME_INFO about timers."""
        return {
            "timerReadBehind": str(max(self._clock_ms() - self.index.read_ms, 0) // 1000),
            "timerOffsetBehind": str(self.follower.behind),
            "timerCongestNum": str(self.index.metrics.total),
            "timerEnqueueTps": f"{self._rates[0]:.1f}",
            "timerDequeueTps": f"{self._rates[1]:.1f}",
        }

    def overdue(self, now_ms: int) -> tuple[int, int]:
        """Return the number of timers that are late, and by how many ms the first of them is; only the leader knows."""
        first_ms = self._due.next_due_ms()
        if not self._is_leading or first_ms is None or first_ms >= now_ms:
            return 0, 0
        return self._due.overdue_count(now_ms), now_ms - first_ms

    def sync(self) -> None:
        """Take over the leader's progress into the index; to be called periodically."""
        now_s, seen = self._loop.time(), (self.follower.count, self.delivered)
        passed_s = max(now_s - self._sampled_s, 0.001)
        self._rates = (seen[0] - self._sampled_counts[0]) / passed_s, (seen[1] - self._sampled_counts[1]) / passed_s
        self._sampled_s, self._sampled_counts = now_s, seen
        if not self._is_leading:
            progress = self._state.offsets.get(TIMER_PROGRESS_KEY, {})
            self.index.advance(progress.get(TIMER_READ_TIME, 0), _SLICE_S)

    def close(self) -> None:
        """Leave files from which a Java broker, too, continues without delivering a timer twice; call `stop` first.

        The index's read time only says which slots are complete. So the rest of a slot that was delivered in part is
        entered again; a slot that was not loaded whole stays as it is.
        """
        is_whole = not self._unread and not self._unread_chains and self._loading_again is None
        if self._due.oldest_late() is None and is_whole:
            for slot_ms, left in self._due.partly_delivered().items():
                if left:
                    self.index.rechain(slot_ms, [(due.timer, due.magic, due.write_ms) for due in left])
                elif slot_ms == self.index.read_ms:
                    self.index.advance(slot_ms + self.index.precision_ms, _SLICE_S)
        self.index.close()

    def read_ms_elsewhere(self) -> Generator[None, None, int]:
        """Find, in steps, the read time behind slots whose timers this slave has all delivered at other masters.

        While timers wait to be entered it is that of the index: they may be due.

        Raises:
            StoreError: the disk cannot read a slot.
        """
        noted = yield from self._deliveries.noted_elsewhere(DeliveryKind.TIMER)
        read_ms, end_ms = self.index.read_ms, self._floor(self._clock_ms())
        while noted and read_ms < end_ms and not self.follower.behind:
            open_ones, deletions = [], list[TimerUnit]()
            for unit in self.index.units_at(read_ms):
                if unit.magic & MAGIC_DELETE:
                    deletions.append(unit)
                elif unit.physical_offset not in noted:
                    open_ones.append(unit)
                yield
            deleted = {timer.deletes for unit in deletions if (timer := self._timer_of(unit)) is not None}
            for unit in open_ones:
                timer = self._timer_of(unit) if deleted else None
                if timer is None or timer.key not in deleted:
                    return read_ms
            read_ms = max(read_ms + self.index.precision_ms, self.index.skip_empty(read_ms, end_ms))
            yield
        return read_ms

    def _timer_of(self, unit: TimerUnit) -> TimerMessage | None:
        found = self._store.reader.look_up(unit.physical_offset)
        return parse_timer(found, self.index.precision_ms) if found is not None else None

    def _first_read_ms(self) -> int:
        """Return the read time of an index that has none: early enough for every timer that the log may have."""
        progress = self._state.offsets.get(TIMER_PROGRESS_KEY, {})
        return progress.get(TIMER_READ_TIME, self._floor(self._clock_ms() - self.index.span_ms))

    def _floor(self, time_ms: int) -> int:
        return time_ms // self.index.precision_ms * self.index.precision_ms

    def is_waiting(self, key: str) -> bool:
        """Return whether a timer with this key is in memory and not delivered; those of unloaded slots are not."""
        return self._due.has(key)

    def hold_back(self, key: str) -> None:
        """Keep the timer with this key back: its deletion is about to be appended."""
        self._recalled[key] = self._recalled.get(key, 0) + 1

    def release(self, key: str) -> None:
        """End one `hold_back`: the deletion is in effect, or was refused."""
        if key in self._recalled:
            self._recalled[key] -= 1
            if not self._recalled[key]:
                del self._recalled[key]

    def _on_entered(self, timer: TimerMessage, unit: TimerUnit | None) -> None:
        if self._is_leading:
            self._take_in(timer, unit)
        self.release(timer.deletes)

    def _take_in(self, timer: TimerMessage, unit: TimerUnit | None) -> None:
        if unit is None:
            self._add(DueTimer(timer, LATE, _NEVER_ENQUEUED, MAGIC_DEFAULT))
        elif unit.slot_ms < self._due.loaded_ms or (self._loading is not None and unit.slot_ms == self._due.loaded_ms):
            self._add(_due_timer(timer, unit))
        self._wake_at_next()

    # ---- leading

    def resume(self) -> None:
        """Begin to deliver: this node leads, and the deliveries of earlier leaders are known."""
        self._run += 1
        queue = self.follower.queue()
        self._catch_up(self._run, queue.max_offset if queue is not None else 0)

    def stop(self) -> None:
        """Stop delivering, and record the progress if this node may still write."""
        self._run += 1
        if self._is_leading:
            self._record_progress()
        self._is_leading = False
        self._recalled.clear()
        self._loading = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self._role.writable:
            self._due.restart(self.index.read_ms)

    def _catch_up(self, run: int, end: int) -> None:
        """Bring the index to the recorded progress, in slices; then begin to deliver.

        Before that the index takes the timer topic up to queue offset `end`: what an earlier leader recalled is there.
        """
        if run != self._run:
            return
        if not self.follower.has_entered(end):
            self._loop.call_later(_RECALL_LOOK_MS / 1000, self._catch_up, run, end)
            return
        progress = self._state.offsets.get(TIMER_PROGRESS_KEY, {})
        if not self.index.advance(progress.get(TIMER_READ_TIME, 0), _SLICE_S):
            self._loop.call_soon(self._catch_up, run, end)
            return
        opened_offset, opened_ms = self._opened
        is_newest = (
            progress.get(TIMER_READ_TIME, 0) >= opened_ms
        )  # otherwise the files were newer when they were opened
        self._due.restart(self.index.read_ms)
        self._forget_unread()
        self._prepared_bytes = 0
        self._recorded_ms = self.index.read_ms
        self._is_first, self._has_changes = TIMER_READ_TIME not in progress, False
        self._recorded_offset = progress.get(TIMER_OFFSET, opened_offset) if is_newest else opened_offset
        self._add_late(run, self._recorded_offset)

    def _add_late(self, run: int, offset: int) -> None:
        """Add timers stored behind the progress in slots that it calls delivered, in slices; then begin to deliver."""
        if run != self._run:
            return
        time_slice, queue = TimeSlice(_SLICE_S), self.follower.queue()
        if queue is not None:
            offset = max(offset, queue.min_offset)
            while offset < min(self.index.queue_offset, queue.max_offset):
                try:
                    timer = self.follower.timer_at(queue, offset)
                except StoreError as error:
                    log.error("timer messages cannot be delivered yet: %s", error)
                    self._loop.call_later(_RETRY_MS / 1000, self._add_late, run, offset)
                    return
                if timer is not None and self.index.slot_of(timer)[0] < self.index.read_ms:
                    self._add(DueTimer(timer, LATE, _NEVER_ENQUEUED, MAGIC_DEFAULT))
                offset += 1
                if offset % _SLICE_CHECK == 0 and time_slice.is_over():
                    self._loop.call_soon(self._add_late, run, offset)
                    return
        self._is_leading = True
        self._turn()

    def _add(self, due: DueTimer) -> None:
        if due.timer.physical_offset not in self._deliveries.origins:
            self._due.add(due)

    def _wake_at_next(self) -> None:
        """Set the timer of the next turn: the next timer is due, or the next slot is to be loaded."""
        if not self._is_leading:
            return
        now_ms = self._clock_ms()
        next_load_ms = self._due.loaded_ms - _LEAD_MS if len(self._due) < _LOADED_MAX else now_ms + _RETRY_MS
        next_due_ms = None if self._config.timer_stop_dequeue else self._due.next_due_ms()
        at_ms = next_load_ms if next_due_ms is None else min(next_due_ms, next_load_ms)
        is_loading = self._loading is not None or self._loading_again is not None
        wait_ms = 0 if is_loading else max(at_ms - now_ms, 0)
        self._wake_in(min(wait_ms, _LOOK_MS) / 1000)

    def _wake_in(self, seconds: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        """Deliver a batch, load for one time slice, record complete slots."""
        if not self._is_leading or not self._role.delivers:
            return
        if self._deliveries.is_crowded:
            self._wake_in(WAIT_SECONDS)
            return
        try:
            self._deliver()
            self._read_again()
            self._load()
            self._record_if_due()
        except StoreError as error:
            log.error("timer messages cannot be delivered now: %s", error)
            self._loading = None  # the slot is loaded again; timers that are present are skipped
            self._wake_in(_RETRY_MS / 1000)
        else:
            self._wake_at_next()

    def _load(self) -> None:
        time_slice = TimeSlice(_SLICE_S)
        if self.index.is_empty:
            self._due.loaded_ms = max(self._due.loaded_ms, self._floor(self._clock_ms()))
        while self._due.loaded_ms <= self._clock_ms() + _LEAD_MS and len(self._due) < _LOADED_MAX:
            if self._loading is None:
                last_ms = self._floor(self._clock_ms() + _LEAD_MS)
                self._due.loaded_ms = self.index.skip_empty(self._due.loaded_ms, last_ms)
                self._loading = self._load_slot(self._due.loaded_ms)
            for _ in self._loading:
                if time_slice.is_over():
                    return
            self._loading = None
            self._due.loaded_ms += self.index.precision_ms
            if time_slice.is_over():
                return

    def _load_slot(self, slot_ms: int, position: int | None = None) -> Iterator[None]:
        """Add the timers of a slot, or the rest of them from the unit at `position` on, in steps.

        What the disk cannot read is tried again later; until then it holds up the progress only.
        """
        position = self.index.newest_at(slot_ms) if position is None else position
        try:
            for unit in self.index.units_from(slot_ms, position):
                position = unit.previous
                if not self._load_unit(slot_ms, unit):
                    self._due.hold(slot_ms)
                    self._unread.append((slot_ms, unit))
                yield
        except DiskReadError as error:
            log.error("timers of slot %d wait: %s", slot_ms, error)
            self._due.hold(slot_ms)
            self._unread_chains.append((slot_ms, position))

    def _load_unit(self, slot_ms: int, unit: TimerUnit) -> bool:
        """Add the timer of a unit; return False if it cannot be read now."""
        try:
            found = self._store.reader.look_up(unit.physical_offset)
            timer = parse_timer(found, self.index.precision_ms) if found is not None else None
            if found is not None and timer is not None and self.index.slot_of(timer)[0] == slot_ms:
                due = _due_timer(timer, unit)
                if self._prepared_bytes < _PREPARED_BYTES_MAX and not timer.deletes:
                    due.draft = self._drafts.make(due, due.due_ms, found)
                    self._prepared_bytes += timer.size if due.draft is not None else 0
                self._add(due)
        except StoreError as error:
            log.error("the timer message at %d cannot be delivered yet: %s", unit.physical_offset, error)
            return False
        return True

    def _read_again(self) -> None:
        """Try again what the disk could not read."""
        if self._loading_again is not None:
            time_slice = TimeSlice(_SLICE_S)
            for _ in self._loading_again:
                if time_slice.is_over():
                    return
            self._loading_again = None
        if not (self._unread or self._unread_chains) or self._loop.time() < self._read_again_s:
            return
        self._read_again_s = self._loop.time() + _RETRY_MS / 1000
        chains, self._unread_chains = self._unread_chains, []
        self._loading_again = self._load_chains(chains)
        unread, self._unread = self._unread, []
        for slot_ms, unit in unread:
            if self._load_unit(slot_ms, unit):
                self._due.release(slot_ms)
            else:
                self._unread.append((slot_ms, unit))

    def _load_chains(self, chains: list[tuple[int, int]]) -> Iterator[None]:
        for slot_ms, position in chains:
            yield from self._load_slot(slot_ms, position)
            self._due.release(slot_ms)

    def _forget_unread(self) -> None:
        self._unread.clear()
        self._unread_chains.clear()
        self._loading_again = None

    def _deliver(self) -> None:
        if self._config.timer_stop_dequeue:
            return
        now_ms = self._clock_ms()
        by_slot: dict[int, list[tuple[DueTimer, QueuedDraft]]] = {}
        for due in self._due.take(now_ms, _BATCH):
            if due.timer.key in self._recalled and not due.is_roll:
                self._due.retry(due, now_ms + _RECALL_LOOK_MS)
                continue
            draft = due.draft
            if draft is None or not self._drafts.is_current(draft):
                draft = self._make_draft(due, now_ms)
            if draft is not None:
                by_slot.setdefault(due.slot_ms, []).append((due, draft))
        for slot_ms, batch in by_slot.items():
            self._append(slot_ms, batch)

    def _make_draft(self, due: DueTimer, now_ms: int) -> QueuedDraft | None:
        if not due.is_roll and self._drafts.is_undecided(due.timer.topic):
            self._due.retry(due, now_ms + _RETRY_MS)
            return None
        try:
            draft = self._drafts.make(due, now_ms)
        except StoreError as error:
            log.error("the timer message at %d cannot be delivered yet: %s", due.timer.physical_offset, error)
            self._due.retry(due, now_ms + _RETRY_MS)
            return None
        if draft is None:
            self.dropped += 1
            self._due.finish(due)
        return draft

    def _append(self, slot_ms: int, batch: list[tuple[DueTimer, QueuedDraft]]) -> None:
        if self._is_first:
            self._has_changes, self._is_first = True, False
            self._record_progress()

        def done(is_delivered: bool) -> None:
            for due, _ in batch:
                if is_delivered:
                    self._finish(due)
                else:
                    self._due.retry(due, self._clock_ms() + _RETRY_MS)
            self._has_changes = True
            self._record_if_due()
            if self._is_leading:
                self._wake_at_next()
            else:
                self._record_progress()

        self._deliveries.deliver(DeliveryKind.TIMER, slot_ms, [draft for _, draft in batch], done)

    def _finish(self, due: DueTimer) -> None:
        self.delivered += 1
        self._events.timers_out.add((due.timer.topic,))
        if due.draft is not None:
            self._prepared_bytes -= due.timer.size
        self._due.finish(due)

    def _record_if_due(self) -> None:
        """Record the progress when a slot was delivered completely; the index of a slave keeps to its master's."""
        if not self._role.writable:
            return
        self.index.advance(self._due.read_ms(self._clock_ms()), _SLICE_S)
        is_far = self.index.read_ms - self._recorded_ms > _QUIET_MS and not self.index.is_empty
        is_far = is_far or self.index.queue_offset - self._recorded_offset > _FAR_TIMERS
        self._has_changes = self._has_changes or is_far
        if self._has_changes and self.index.read_ms > self._recorded_ms:
            self._record_progress()

    def _record_progress(self) -> None:
        if not self._has_changes or not self._role.writable:
            return
        late = self._due.oldest_late()
        self._has_changes = False
        before, self._recorded_ms = self._recorded_ms, self.index.read_ms
        begun = [slot_ms for slot_ms in self._deliveries.tokens(DeliveryKind.TIMER) if isinstance(slot_ms, int)]
        ended = [slot_ms for slot_ms in begun if (late is None if slot_ms == LATE else slot_ms < self._recorded_ms)]

        def refused() -> None:
            self._has_changes, self._recorded_ms = True, min(before, self._recorded_ms)

        offset = self._recorded_offset = self.index.queue_offset if late is None else late
        progress = {TIMER_PROGRESS_KEY: {TIMER_OFFSET: offset, TIMER_READ_TIME: self._recorded_ms}}
        self._deliveries.record(DeliveryKind.TIMER, progress, ended, refused)


def _due_timer(timer: TimerMessage, unit: TimerUnit) -> DueTimer:
    return DueTimer(timer, unit.slot_ms, unit.write_ms, unit.magic)
