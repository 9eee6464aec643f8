"""Enters the messages of the timer topic into the timer index, on every node.

    timer topic, queue 0 --read--> TimerIndex.enqueue --> on_entered: to deliver, if this node leads

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (enqueue), 5.3.3.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from broker.config import BrokerConfig
from broker.counting.events import Events
from store.errors import StoreError
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.time_slice import TimeSlice
from store.timer.timer_index import TimerIndex
from store.timer.timer_log import TimerUnit
from store.timer.timer_message import TIMER_TOPIC, TimerMessage, parse_timer

log = logging.getLogger(__name__)

_SLICE_S: Final = 0.005
_SLICE_CHECK: Final = 32
_RETRY_SECONDS: Final = 1.0

OnEntered = Callable[[TimerMessage, TimerUnit | None], None]


class TimerFollower:
    """Reads the timer topic.

    Args:
        index: loaded.
        on_entered: called with each timer and its unit in the index; None when its slot was delivered already.

    Attributes:
        count: timers entered by this process.
    """

    def __init__(
        self,
        config: BrokerConfig,
        index: TimerIndex,
        store: MessageStore,
        loop: asyncio.AbstractEventLoop,
        on_entered: OnEntered,
        events: Events,
    ) -> None:
        self._config = config
        self._index = index
        self._store = store
        self._loop = loop
        self._on_entered = on_entered
        self._events = events
        self._is_pausing = False
        self._error: StoreError | None = None
        self.count = 0

    def open(self) -> None:
        """Find the first message that the index does not have; to be called when the store is recovered."""
        queue, index = self.queue(), self._index
        index.cut(self._store.dispatched_offset)  # a damaged entry, a crash or a power cut may have set the queue back
        index.resume_at(self._queue_offset_of)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        index.queue_offset = min(max(index.queue_offset, low), high)

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Read the timer topic if it is among these queues, which have new messages."""
        for queue in queues:
            if queue.topic == TIMER_TOPIC:
                self.follow()
                return

    @property
    def behind(self) -> int:
        """Number of messages of the timer topic that are not in the index yet."""
        queue = self.queue()
        return max(queue.max_offset - self._index.queue_offset, 0) if queue is not None else 0

    def has_entered(self, end: int) -> bool:
        """Return whether the messages before queue offset `end` are in the index.

        Also true when they cannot come into it now: the next one cannot be read, or the configuration stopped it.
        """
        return self._index.queue_offset >= end or self._error is not None or self._config.timer_stop_enqueue

    def queue(self) -> ConsumeQueue | None:
        """Return the one queue of the timer topic; None before its first message."""
        return self._store.queues.find(TIMER_TOPIC, 0)

    def timer_at(self, queue: ConsumeQueue, offset: int) -> TimerMessage | None:
        """Return the timer at a queue offset; None when its record is deleted or no timer.

        Raises:
            StoreError: it cannot be read now.
        """
        unit = queue.unit(offset)
        record = self._store.reader.look_up(unit[0]) if unit is not None else None
        return parse_timer(record, self._index.precision_ms) if record is not None else None

    def follow(self) -> None:
        """Enter new messages for at most one time slice, and schedule the rest."""
        queue = self.queue()
        if queue is None or self._is_pausing or self._config.timer_stop_enqueue:
            return
        time_slice = TimeSlice(_SLICE_S)
        offset = self._index.queue_offset = max(self._index.queue_offset, queue.min_offset)
        while offset < queue.max_offset:
            try:
                self._enter(queue, offset)
            except StoreError as error:
                if self._error is None:
                    log.error("the timer topic cannot be read from queue offset %d on: %s", offset, error)
                self._error = error
                self._follow_later(_RETRY_SECONDS)
                return
            self._error = None
            offset = self._index.queue_offset = offset + 1
            if offset % _SLICE_CHECK == 0 and time_slice.is_over():
                self._follow_later(0)
                return

    def _enter(self, queue: ConsumeQueue, offset: int) -> None:
        timer = self.timer_at(queue, offset)
        if timer is not None:
            unit = self._index.enqueue(timer)
            self.count += 1
            self._events.timers_in.add((timer.topic,))
            self._events.delay_s.of((timer.topic,)).observe(max(0, timer.due_ms - timer.store_ms) // 1000)
            self._on_entered(timer, unit)

    def _queue_offset_of(self, physical_offset: int) -> int | None:
        """Return the queue offset as the queue has it: the record itself may be unreadable now."""
        queue = self.queue()
        if queue is None:
            return None
        offset = queue.bisect(lambda unit: unit[0] < physical_offset)
        unit = queue.unit(offset)
        return offset if unit is not None and unit[0] == physical_offset else None

    def _follow_later(self, seconds: float) -> None:
        self._is_pausing = True
        self._loop.call_later(seconds, self._follow_on)

    def _follow_on(self) -> None:
        self._is_pausing = False
        self.follow()
