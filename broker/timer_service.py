"""Timers: every node follows the timer topic into its index; the one that leads delivers, to the millisecond.

    timer topic, queue 0 --follow--> TimerIndex (wheel, timer log) --load--> DueTimers --deliver--> real topics
    state of the log: read time, queue offset <------------ progress, once a slot with deliveries ----'

Progress says: timers below the queue offset whose slot lies before the read time have been delivered. A new leader goes
on from there; what the one before delivered behind its last progress is found by `timer_deliveries`.

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (5.3.3). Ours: a timer fires at its exact time,
upstream when its second is over; and once, upstream again after a change of leaders.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from broker.config import BrokerConfig
from broker.drafts import DraftMaker
from broker.metadata import Metadata
from broker.role import Role
from broker.send_target import SendTargets
from broker.state import ReplicatedState, offset_key
from broker.timer_deliveries import Deliveries, Kind
from broker.timer_due import LATE, DueTimer, DueTimers
from ledgermq.message.errors import CorruptRecordError, InvalidPropertyError
from ledgermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.refusal import Refusal
from store.consume_queue import ConsumeQueue
from store.errors import StoreError
from store.message_store import MessageStore, QueuedDraft
from store.timer.timer_index import TimerIndex
from store.timer.timer_log import MAGIC_DEFAULT, TimerUnit
from store.timer.timer_message import (
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    TimerMessage,
    parse_timer,
)

log = logging.getLogger(__name__)

PROGRESS_KEY: Final = offset_key(TIMER_TOPIC, "CID_RMQ_SYS_LEDGERMQ_TIMER")
"""Where progress lies among the consumer offsets: queue 0 holds the queue offset, 1 the read time in ms."""

_OFFSET, _READ_TIME = 0, 1
_SLICE_S: Final = 0.005
_SLICE_CHECK: Final = 32
_LEAD_MS: Final = 2000  # how long before its time a slot is loaded
_LOADED_MAX: Final = 50_000  # timers in memory, beyond which no further slot is loaded
_PREPARED_BYTES_MAX: Final = 32 << 20
_BATCH: Final = 512
_RETRY_MS: Final = 500
_NEVER_ENQUEUED: Final = (1 << 63) - 1  # Java's mark of a timer that was due when it came


class TimerService:
    """Follows, loads and delivers.

    Args:
        index: loaded; closed by its owner.
        clock_ms: wall clock, the one of store times.

    Attributes:
        enqueued, delivered, dropped: timers taken into the index, delivered, and not delivered because their topic
            is gone.
    """

    def __init__(
        self,
        config: BrokerConfig,
        index: TimerIndex,
        state: ReplicatedState,
        deliveries: Deliveries,
        metadata: Metadata,
        role: Role,
        store: MessageStore,
        targets: SendTargets,
        drafts: DraftMaker,
        loop: asyncio.AbstractEventLoop,
        clock_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._state = state
        self._deliveries = deliveries
        self._metadata = metadata
        self._role = role
        self._store = store
        self._targets = targets
        self._drafts = drafts
        self._loop = loop
        self._clock_ms = clock_ms
        self._due = DueTimers(index.precision_ms)
        self._loading: Iterator[None] | None = None
        self._prepared_bytes = 0
        self._is_leading = False
        self._is_following = False
        self._wake: asyncio.TimerHandle | None = None
        self._recorded_ms = 0
        self._has_news = False
        self._is_first = False  # no progress was ever recorded
        self._opened = (0, 0)  # queue offset and read time of the index when it was opened
        self._run = 0
        self.index = index
        self.enqueued = 0
        self.delivered = 0
        self.dropped = 0

    # ---- following, on every node

    def open(self) -> None:
        """The store is recovered: find the message behind the last one that the index has, and follow from there."""
        queue = self._queue()
        self.index.resume_at(self._queue_offset_of)
        if queue is None:
            self.index.queue_offset = 0
        else:
            self.index.queue_offset = min(max(self.index.queue_offset, queue.min_offset), queue.max_offset)
        if self.index.read_ms == 0:
            self.index.read_ms = self._first_read_ms(is_empty=queue is None or queue.max_offset == 0)
        self._opened = self.index.queue_offset, self.index.read_ms
        self._follow()

    def close(self) -> None:
        """Leave files from which another program, too, goes on without delivering a timer again; see `stop`, first.

        Its read time says only which slots are over. So what is left of a slot that was begun is chained anew.
        """
        if self._due.oldest_late() is None:
            for slot_ms, left in self._due.begun().items():
                if left:
                    self.index.rechain(slot_ms, [(due.timer, due.magic, due.write_ms) for due in left])
                elif slot_ms == self.index.read_ms:
                    self.index.advance(slot_ms + self.index.precision_ms, _SLICE_S)
        self.index.close()

    def _first_read_ms(self, *, is_empty: bool) -> int:
        """Where an index without a read time of its own begins: timers before it have been delivered by others."""
        progress = self._state.offsets.get(PROGRESS_KEY, {})
        now_ms = self._floor(self._clock_ms())
        return progress.get(_READ_TIME, now_ms if is_empty else now_ms - self.index.span_ms)

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """These queues have new messages, some of them perhaps timers."""
        for queue in queues:
            if queue.topic == TIMER_TOPIC:
                self._follow()
                return

    def sync(self) -> None:
        """Take over the progress of the node that leads; to be called now and then."""
        if not self._is_leading:
            progress = self._state.offsets.get(PROGRESS_KEY, {})
            self.index.advance(progress.get(_READ_TIME, 0), _SLICE_S)

    @property
    def behind(self) -> int:
        """Messages of the timer topic that are not in the index yet."""
        queue = self._queue()
        return max(queue.max_offset - self.index.queue_offset, 0) if queue is not None else 0

    def _follow(self) -> None:
        """Take new messages of the timer topic for at most a slice."""
        queue = self._queue()
        if queue is None or self._is_following or self._config.timer_stop_enqueue:
            return
        deadline = time.monotonic() + _SLICE_S
        offset = self.index.queue_offset = max(self.index.queue_offset, queue.min_offset)
        while offset < queue.max_offset:
            try:
                self._take(queue, offset)
            except StoreError as error:
                log.error("timer at queue offset %d is not taken yet: %s", offset, error)
                self._follow_later(1.0)
                return
            offset = self.index.queue_offset = offset + 1
            if offset % _SLICE_CHECK == 0 and time.monotonic() > deadline:
                self._follow_later(0)
                return

    def _follow_later(self, seconds: float) -> None:
        self._is_following = True
        self._loop.call_later(seconds, self._follow_on)

    def _follow_on(self) -> None:
        self._is_following = False
        self._follow()

    def _take(self, queue: ConsumeQueue, offset: int) -> None:
        timer = self._timer_at(queue, offset)
        if timer is None:
            return
        unit = self.index.enqueue(timer)
        self.enqueued += 1
        if not self._is_leading:
            return
        if unit is None:
            self._add(DueTimer(timer, LATE, _NEVER_ENQUEUED, MAGIC_DEFAULT))
        elif unit.slot_ms < self._due.loaded_ms or self._is_loading(unit.slot_ms):
            self._add(_due_timer(timer, unit))
        self._wake_at_next()

    def _timer_at(self, queue: ConsumeQueue, offset: int) -> TimerMessage | None:
        unit = queue.unit(offset)
        return self._timer_of(unit[0]) if unit is not None else None

    def _timer_of(self, physical_offset: int) -> TimerMessage | None:
        record = self._store.look_up(physical_offset)
        return parse_timer(record, self.index.precision_ms) if record is not None else None

    def _queue_offset_of(self, physical_offset: int) -> int | None:
        timer = self._timer_of(physical_offset)
        return timer.queue_offset if timer is not None else None

    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.find(TIMER_TOPIC, 0)

    def _floor(self, time_ms: int) -> int:
        return time_ms // self.index.precision_ms * self.index.precision_ms

    # ---- leading

    def resume(self) -> None:
        """This node leads now, and what the leader before has delivered is known: go on."""
        self._run += 1
        self._catch_up(self._run)

    def stop(self) -> None:
        """No longer leading, or closing: what is delivered is recorded if that is still possible."""
        self._run += 1
        if self._is_leading:
            self._tell()
        self._is_leading = False
        self._loading = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _catch_up(self, run: int) -> None:
        """Bring the index to the progress in the log, in slices; then begin."""
        if run != self._run:
            return
        progress = self._state.offsets.get(PROGRESS_KEY, {})
        if not self.index.advance(progress.get(_READ_TIME, 0), _SLICE_S):
            self._loop.call_soon(self._catch_up, run)
            return
        self._due.restart(self.index.read_ms)
        self._prepared_bytes = 0
        self._recorded_ms = self.index.read_ms
        self._is_first = _READ_TIME not in progress
        self._has_news = False
        self._is_leading = True
        opened_offset, opened_ms = self._opened
        is_newest = progress.get(_READ_TIME, 0) >= opened_ms  # else the files were, when they were opened
        self._add_late(progress.get(_OFFSET, opened_offset) if is_newest else opened_offset)
        self._turn()

    def _add_late(self, start: int) -> None:
        """Timers that came behind the progress into slots that it calls delivered."""
        queue = self._queue()
        if queue is None:
            return
        for offset in range(max(start, queue.min_offset), min(self.index.queue_offset, queue.max_offset)):
            timer = self._timer_at(queue, offset)
            if timer is not None:
                slot_ms, _, _ = self.index.slot_of(timer)
                if slot_ms < self.index.read_ms:
                    self._add(DueTimer(timer, LATE, _NEVER_ENQUEUED, MAGIC_DEFAULT))

    def _add(self, due: DueTimer) -> None:
        if due.timer.physical_offset not in self._deliveries.origins:
            self._due.add(due)

    def _wake_at_next(self) -> None:
        """See that the next turn comes when the next timer is due, or the next slot is to be loaded."""
        if not self._is_leading:
            return
        now_ms = self._clock_ms()
        next_load_ms = self._due.loaded_ms - _LEAD_MS if len(self._due) < _LOADED_MAX else now_ms + _RETRY_MS
        next_due_ms = self._due.next_due_ms()
        at_ms = (
            next_load_ms if next_due_ms is None or self._config.timer_stop_dequeue else min(next_due_ms, next_load_ms)
        )
        seconds = 0.0 if self._loading is not None else max(at_ms - now_ms, 0) / 1000
        if self._wake is not None:
            self._wake.cancel()
        self._wake = self._loop.call_later(seconds, self._turn)

    def _turn(self) -> None:
        """Deliver a batch, load for a slice, record what is whole."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if not self._is_leading or not self._role.writable:
            return
        try:
            self._deliver()
            self._load()
            self._record()
        finally:
            self._wake_at_next()

    def _load(self) -> None:
        deadline = time.monotonic() + _SLICE_S
        while self._due.loaded_ms <= self._clock_ms() + _LEAD_MS and len(self._due) < _LOADED_MAX:
            if self._loading is None:
                self._loading = self._load_slot(self._due.loaded_ms)
            for _ in self._loading:
                if time.monotonic() > deadline:
                    return
            self._loading = None
            self._due.loaded_ms += self.index.precision_ms
            if time.monotonic() > deadline:
                return

    def _load_slot(self, slot_ms: int) -> Iterator[None]:
        for unit in self.index.units_at(slot_ms):
            found = self._store.look_up(unit.physical_offset)
            timer = parse_timer(found, self.index.precision_ms) if found is not None else None
            if found is not None and timer is not None and self.index.slot_of(timer)[0] == slot_ms:
                due = _due_timer(timer, unit)
                if self._prepared_bytes < _PREPARED_BYTES_MAX and not timer.deletes:
                    due.draft = self._draft(due, due.due_ms, found)
                    self._prepared_bytes += timer.size if due.draft is not None else 0
                self._add(due)
            yield

    def _is_loading(self, slot_ms: int) -> bool:
        return self._loading is not None and slot_ms == self._due.loaded_ms

    def _deliver(self) -> None:
        if self._config.timer_stop_dequeue:
            return
        now_ms = self._clock_ms()
        by_slot: dict[int, list[tuple[DueTimer, QueuedDraft]]] = {}
        for due in self._due.take(now_ms, _BATCH):
            draft = due.draft if due.draft is not None and self._is_current(due.draft) else self._draft(due, now_ms)
            if draft is None:
                self.dropped += 1
                self._due.finish(due)
            else:
                by_slot.setdefault(due.slot_ms, []).append((due, draft))
        for slot_ms, batch in by_slot.items():
            self._append(slot_ms, batch)

    def _is_current(self, draft: QueuedDraft) -> bool:
        """Its queue was not removed since."""
        return self._store.queues.by_key.get((draft.topic, draft.queue_id)) is draft.queue

    def _append(self, slot_ms: int, batch: list[tuple[DueTimer, QueuedDraft]]) -> None:
        if self._is_first:
            self._has_news, self._is_first = True, False
            self._tell()

        def done(is_delivered: bool) -> None:
            for due, _ in batch:
                if is_delivered:
                    self._finish(due)
                else:
                    self._due.retry(due, self._clock_ms() + _RETRY_MS)
            self._has_news = True
            self._record()
            if self._is_leading:
                self._wake_at_next()
            else:
                self._tell()

        self._deliveries.deliver(Kind.TIMER, slot_ms, [draft for _, draft in batch], done)

    def _finish(self, due: DueTimer) -> None:
        self.delivered += 1
        if due.draft is not None:
            self._prepared_bytes -= due.timer.size
        self._due.finish(due)

    def _record(self) -> None:
        """Once a slot is delivered whole, say so in the log."""
        read_ms = self._due.read_ms(self._clock_ms())
        self.index.advance(read_ms, _SLICE_S)
        if self._has_news and self.index.read_ms > self._recorded_ms:
            self._tell()

    def _tell(self) -> None:
        if not self._has_news or not self._role.writable:
            return
        late = self._due.oldest_late()
        self._has_news = False
        read_ms, self._recorded_ms = self._recorded_ms, self.index.read_ms
        for slot_ms in range(read_ms, self._recorded_ms, self.index.precision_ms):
            self._deliveries.end(Kind.TIMER, slot_ms)
        if late is None:
            self._deliveries.end(Kind.TIMER, LATE)
        offset = self.index.queue_offset if late is None else late
        self._deliveries.record(Kind.TIMER, {PROGRESS_KEY: {_OFFSET: offset, _READ_TIME: self._recorded_ms}})

    # ---- what is delivered

    def _draft(self, due: DueTimer, now_ms: int, found: memoryview | None = None) -> QueuedDraft | None:
        """The message to append; None, with a line in the log, when there is nowhere to put it."""
        found = self._store.look_up(due.timer.physical_offset) if found is None else found
        if found is None:
            return None
        try:
            record = decode_record(found)
            properties = dict(record.property_map)
            if due.write_ms >= 0:
                properties[TIMER_ENQUEUE_MS] = str(due.write_ms)
            properties[TIMER_DEQUEUE_MS] = str(now_ms)
            draft = self._rolled(due, record, properties) if due.is_roll else self._final(record, properties)
        except (CorruptRecordError, InvalidPropertyError, Refusal, ValueError) as error:
            log.warning("timer at %d dropped: %s", due.timer.physical_offset, error)
            return None
        draft.prepared_transaction_offset = record.physical_offset
        return draft

    def _final(self, record: Record, properties: dict[str, str]) -> QueuedDraft:
        name, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        topic = self._metadata.topic(name)
        if topic is None or topic.write_queues == 0:
            raise ValueError(f"topic {name} is gone")
        if not queue_id.isascii() or not queue_id.isdigit():
            raise ValueError(f"property {REAL_QUEUE_ID} is {queue_id!r}, not a queue")
        target = self._targets.target(name, min(int(queue_id), topic.write_queues - 1))
        return self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)

    def _rolled(self, due: DueTimer, record: Record, properties: dict[str, str]) -> QueuedDraft:
        times = properties.get(TIMER_ROLL_TIMES, "")
        properties[TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isascii() and times.isdigit() else 1)
        properties[TIMER_DELIVER_MS] = str(due.timer.due_ms)
        target = self._targets.target(TIMER_TOPIC, 0)
        return self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)


def _due_timer(timer: TimerMessage, unit: TimerUnit) -> DueTimer:
    return DueTimer(timer, unit.slot_ms, unit.write_ms, unit.magic)
