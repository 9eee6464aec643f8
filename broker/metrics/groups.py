"""How far consumer groups are, under the names that RocketMQ 5.x gives it.

    committed offset ...... pulled to ...... end of the queue
          |--- in flight ------|---- ready ------|
          |------------- lag --------------------|

Only groups with members are shown, and the topics that they subscribe to. A group that takes by POP has committed what
it was given; what is in flight of it are open checkpoints. Latencies are the age of the first message that is not
consumed, or not pulled.

Source: apache/rocketmq `broker/.../metrics/ConsumerLagCalculator.java` (5.3.3).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from broker import names
from broker.metrics.counted import is_system
from broker.metrics.rows import gauge
from broker.parts import Parts
from broker.pop.handles import retry_topics
from ledgermq.telemetry.families import Collector, Labels, Row
from store.consume_queue import ConsumeQueue

_POP: Final = "CONSUME_POP"
_FAMILIES: Final = (
    ("rocketmq_consumer_lag_messages", "lag"),
    ("rocketmq_consumer_lag_latency_milliseconds", "lag_ms"),
    ("rocketmq_consumer_inflight_messages", "in_flight"),
    ("rocketmq_consumer_queueing_latency_milliseconds", "queueing_ms"),
    ("rocketmq_consumer_ready_messages", "ready"),
)


@dataclass(slots=True)
class _Backlog:
    """Of one group in one topic; times are of the oldest message, ms since the epoch, 0 without one."""

    labels: Labels
    lag: int = 0
    in_flight: int = 0
    ready: int = 0
    unconsumed_ms: int = 0
    unpulled_ms: int = 0

    def value(self, name: str, now_ms: int) -> int:
        if name == "lag_ms":
            return max(0, now_ms - self.unconsumed_ms) if self.unconsumed_ms else 0
        if name == "queueing_ms":
            return max(0, now_ms - self.unpulled_ms) if self.unpulled_ms else 0
        return int(getattr(self, name))


class Groups:
    """Collects it.

    Args:
        clock_ms: wall clock.
    """

    def __init__(self, parts: Parts, clock_ms: Callable[[], int]) -> None:
        self._parts = parts
        self._clock_ms = clock_ms

    def collect(self) -> Collector:
        """All families."""
        backlogs: list[_Backlog] = []
        for group, topic, is_pop in self._subscribed():
            backlogs.append(found := _Backlog(_labels(group, topic, is_retry=False)))
            yield from self._add_queues(found, group, topic, is_pop=is_pop)
            if is_pop:
                backlogs.append(found := _Backlog(_labels(group, topic, is_retry=True)))
                for retries in retry_topics(topic, group, newer=True, older=True):
                    yield from self._add_queues(found, group, retries, is_pop=True)
        rows: dict[str, list[Row]] = {name: [] for name, _ in _FAMILIES}
        now_ms = self._clock_ms()
        for found in backlogs:
            for name, attribute in _FAMILIES:
                rows[name].append((found.labels, found.value(attribute, now_ms)))
            yield None
        yield from (gauge(name, rows[name]) for name in rows)

    def _subscribed(self) -> Iterator[tuple[str, str, bool]]:
        """Group, topic, and whether it takes by POP."""
        for group in self._parts.clients.consumer_groups():
            for topic in list(group.subscriptions):
                if not topic.startswith(names.RETRY_PREFIX):
                    yield group.name, topic, group.consume_type == _POP

    def _add_queues(self, found: _Backlog, group: str, topic_name: str, *, is_pop: bool) -> Iterator[None]:
        topic = self._parts.metadata.topic(topic_name)
        for queue_id in range(topic.write_queues) if topic is not None else ():
            queue = self._parts.store.queues.find(topic_name, queue_id)
            if queue is not None:
                self._add(found, group, queue, is_pop=is_pop)
            yield None

    def _add(self, found: _Backlog, group: str, queue: ConsumeQueue, *, is_pop: bool) -> None:
        topic, queue_id, end = queue.topic, queue.queue_id, queue.max_offset
        stored = self._parts.offsets.get(topic, group, queue_id)
        committed = end if stored is None else stored
        if is_pop:
            pulled = committed
            committed -= self._parts.pop.progress.checkpoints.open_count(topic, group, queue_id)
        else:
            pulled = max(self._parts.counting.departures.pulled_to(topic, group, queue_id), committed)
        found.lag += max(0, end - committed)
        found.in_flight += max(0, pulled - committed)
        found.ready += max(0, end - pulled)
        found.unconsumed_ms = self._oldest(found.unconsumed_ms, queue, committed)
        found.unpulled_ms = self._oldest(found.unpulled_ms, queue, pulled)

    def _oldest(self, oldest_ms: int, queue: ConsumeQueue, offset: int) -> int:
        if offset >= queue.max_offset:
            return oldest_ms
        stored_ms = self._parts.store.store_time(queue, max(offset, queue.min_offset))
        return min(oldest_ms or stored_ms, stored_ms) if stored_ms > 0 else oldest_ms


def _labels(group: str, topic: str, *, is_retry: bool) -> Labels:
    return (
        ("consumer_group", group),
        ("topic", topic),
        ("is_retry", str(is_retry).lower()),
        ("is_system", is_system(topic, group)),
    )
