"""Progress of consumer groups, under the names of RocketMQ 5.x.

    committed offset ...... pulled to ...... end of the queue
          |--- in flight ------|---- ready ------|
          |------------- lag --------------------|

Only groups with members are shown, and the topics to which they subscribe. For a group that uses POP, the messages that
it was given count as committed, and open checkpoints as in flight. Latencies are the age of the first message that is
not consumed, or not pulled.

Source: apache/rocketmq `broker/.../metrics/ConsumerLagCalculator.java` (5.3.3).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from broker.metrics.rows import gauge
from broker.metrics.totals import is_system
from broker.parts import Parts
from broker.pop.handles import retry_topics
from broker.state import names
from store.queues.consume_queue import ConsumeQueue
from telemetry.families import Collector, Labels, Row

_POP: Final = "CONSUME_POP"


@dataclass(slots=True)
class _Backlog:
    """The backlog of one group in one topic; times are of the oldest message, ms since the epoch, 0 without one."""

    group: str
    topic: str
    is_retry: bool
    lag: int = 0
    in_flight: int = 0
    ready: int = 0
    unconsumed_ms: int = 0
    unpulled_ms: int = 0


class _Table:
    """Backlogs in columns: for many groups the garbage collector would otherwise have to scan an object for each."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._places: tuple[list[str], list[str], list[bool]] = ([], [], [])
        self.lag: list[int] = []
        self.in_flight: list[int] = []
        self.ready: list[int] = []
        self.lag_ms: list[int] = []
        self.queueing_ms: list[int] = []

    def add(self, found: _Backlog) -> None:
        groups, topics, retries = self._places
        groups.append(found.group)
        topics.append(found.topic)
        retries.append(found.is_retry)
        self.lag.append(found.lag)
        self.in_flight.append(found.in_flight)
        self.ready.append(found.ready)
        self.lag_ms.append(self._age_ms(found.unconsumed_ms))
        self.queueing_ms.append(self._age_ms(found.unpulled_ms))

    def _age_ms(self, stored_ms: int) -> int:
        return max(0, self._now_ms - stored_ms) if stored_ms else 0

    def rows(self, column: list[int]) -> Iterator[Row]:
        """Yield the rows of one family."""
        return zip(map(_labels, *self._places), column, strict=True)


class Groups:
    """Collects the progress from offsets and queues.

    Args:
        clock_ms: wall clock.
    """

    def __init__(self, parts: Parts, clock_ms: Callable[[], int]) -> None:
        self._parts = parts
        self._clock_ms = clock_ms

    def collect(self) -> Collector:
        """Yield all families."""
        table = _Table(self._clock_ms())
        for group, topic, is_pop in self._subscribed():
            found = _Backlog(group, topic, is_retry=False)
            yield from self._add_queues(found, topic, is_pop=is_pop)
            table.add(found)
            if is_pop:
                found = _Backlog(group, topic, is_retry=True)
                for retries in retry_topics(topic, group, newer=True, older=True):
                    yield from self._add_queues(found, retries, is_pop=True)
                table.add(found)
        for name, column in (
            ("rocketmq_consumer_lag_messages", table.lag),
            ("rocketmq_consumer_lag_latency_milliseconds", table.lag_ms),
            ("rocketmq_consumer_inflight_messages", table.in_flight),
            ("rocketmq_consumer_queueing_latency_milliseconds", table.queueing_ms),
            ("rocketmq_consumer_ready_messages", table.ready),
        ):
            yield gauge(name, table.rows(column))

    def _subscribed(self) -> Iterator[tuple[str, str, bool]]:
        """Yield group, topic, and whether the group uses POP."""
        for group in self._parts.groups.clients.consumer_groups():
            for topic in list(group.subscriptions):
                if not topic.startswith(names.RETRY_PREFIX):
                    yield group.name, topic, group.consume_type == _POP

    def _add_queues(self, found: _Backlog, topic_name: str, *, is_pop: bool) -> Iterator[None]:
        topic = self._parts.context.metadata.topic(topic_name)
        for queue_id in range(topic.write_queues) if topic is not None else ():
            queue = self._parts.context.store.queues.find(topic_name, queue_id)
            if queue is not None:
                self._add(found, queue, is_pop=is_pop)
            yield None

    def _add(self, found: _Backlog, queue: ConsumeQueue, *, is_pop: bool) -> None:
        group, topic, queue_id, end = found.group, queue.topic, queue.queue_id, queue.max_offset
        stored = self._parts.context.offsets.get(topic, group, queue_id)
        committed = end if stored is None else stored
        if is_pop:
            pulled = committed
            committed -= self._parts.pop.progress.checkpoints.open_count(topic, group, queue_id)
        else:
            pulled = max(self._parts.context.counting.departures.pulled_to(topic, group, queue_id), committed)
        found.lag += max(0, end - committed)
        found.in_flight += max(0, pulled - committed)
        found.ready += max(0, end - pulled)
        unconsumed_ms = self._stored_ms(queue, committed)
        unpulled_ms = unconsumed_ms if pulled == committed else self._stored_ms(queue, pulled)
        found.unconsumed_ms = _older(found.unconsumed_ms, unconsumed_ms)
        found.unpulled_ms = _older(found.unpulled_ms, unpulled_ms)

    def _stored_ms(self, queue: ConsumeQueue, offset: int) -> int:
        if offset >= queue.max_offset:
            return 0
        return self._parts.context.store.reader.store_time(queue, max(offset, queue.min_offset))


def _older(one_ms: int, other_ms: int) -> int:
    """Return the earlier of two times; a value that is not above 0 means no time."""
    return min(one_ms or other_ms, other_ms) if other_ms > 0 else one_ms


def _labels(group: str, topic: str, is_retry: bool) -> Labels:
    return (
        ("consumer_group", group),
        ("topic", topic),
        ("is_retry", str(is_retry).lower()),
        ("is_system", is_system(topic, group)),
    )
