"""Gauges under the names of RocketMQ 5.x, read from the broker's tables at the scrape.

Source: as `totals`, and apache/rocketmq `store/.../metrics/DefaultStoreMetricsManager.java`.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from broker.config import BrokerConfig
from broker.counting.oldest import OldestMessage
from broker.groups.clients import Client
from broker.metrics.rows import gauge, single
from broker.metrics.totals import STORAGE, is_system
from broker.parts import Parts
from telemetry.families import Collector, Family, Row

PROCESSORS: Final = (
    "send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull", "transaction",
    "consumer_manager", "admin", "reply",
)  # fmt: skip
TIMER_BOUNDS_S: Final = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
_FIRST_REGULAR_VERSION: Final = 212
_SLOTS_A_STEP: Final = 200
_CHECKPOINTS_A_STEP: Final = 1000


class Gauges:
    """Collects them.

    Args:
        clock_ms: wall clock.
    """

    def __init__(self, config: BrokerConfig, parts: Parts, clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._parts = parts
        self._clock_ms = clock_ms
        self._oldest = OldestMessage(parts.context.store)

    def collect(self) -> Collector:
        """Yield all families."""
        yield from self._broker()
        yield from self._connections()
        yield from self._storage()
        if self._config.timer_wheel_enable:
            yield from self._timers()
        yield from self._waiting()

    def _broker(self) -> Iterator[Family]:
        parts = self._parts
        # No request waits for a thread here; ledgermq_loop_lag_seconds has the time that requests wait for the loop.
        yield gauge("rocketmq_processor_watermark", [((("processor", name),), 0) for name in PROCESSORS])
        yield single("rocketmq_broker_permission", self._parts.context.identity.permission)
        yield single("rocketmq_topic_number", len(parts.context.metadata.topics()))
        yield single("rocketmq_consumer_group_number", len(parts.context.metadata.groups()))

    def _connections(self) -> Collector:
        producers: Counter[tuple[str, str]] = Counter()
        for members in self._parts.groups.clients.all_producers().values():
            producers.update(map(_kind, members))
            yield None
        rows: list[Row] = [
            ((("language", language), ("version", version), ("protocol_type", "remoting")), count)
            for (language, version), count in producers.items()
        ]
        yield gauge("rocketmq_producer_connections", rows)
        rows = []
        for group in self._parts.groups.clients.consumer_groups():
            same = (
                ("consumer_group", group.name),
                ("consume_mode", _MODES.get(group.consume_type, group.consume_type.lower())),
                ("is_system", is_system("", group.name)),
                ("protocol_type", "remoting"),
            )
            for (language, version), count in Counter(map(_kind, group.one_by_one())).items():
                rows.append(((*same, ("language", language), ("version", version)), count))
            yield None
        yield gauge("rocketmq_consumer_connections", rows)

    def _storage(self) -> Iterator[Family]:
        store = self._parts.context.store
        usage = shutil.disk_usage(self._config.store.folders.root)
        behind = store.log.backlog()
        yield single("rocketmq_storage_size_bytes", usage.used, STORAGE)
        unflushed = behind.unflushed_bytes + behind.uncommitted_bytes
        yield single("rocketmq_storage_flush_behind_bytes", unflushed, STORAGE)
        undispatched = store.log.confirm_offset - store.dispatched_offset
        yield single("rocketmq_storage_dispatch_behind_bytes", undispatched, STORAGE)
        oldest_ms = self._oldest.stored_ms
        rows: list[Row] = [(STORAGE, self._clock_ms() - oldest_ms)] if oldest_ms > 0 else []
        yield gauge("rocketmq_storage_message_reserve_time_milliseconds", rows)

    def _timers(self) -> Collector:
        timer, now_ms = self._parts.delay.timer, self._clock_ms()
        follower, queue = timer.follower, timer.follower.queue()
        waits = follower.behind
        late_ms = 0
        if queue is not None and waits:
            late_ms = max(0, now_ms - self._parts.context.store.reader.store_time(queue, queue.max_offset - waits))
        yield single("rocketmq_timer_enqueue_lag", waits, STORAGE)
        yield single("rocketmq_timer_enqueue_latency_milliseconds", late_ms, STORAGE)
        late_count, late_ms = timer.overdue(now_ms)
        yield single("rocketmq_timer_dequeue_lag", late_count, STORAGE)
        yield single("rocketmq_timer_dequeue_latency_milliseconds", late_ms, STORAGE)
        counts = timer.index.metrics.counts
        rows = (((("topic", name), *STORAGE), counts.get(name, 0)) for name in list(counts))
        yield gauge("rocketmq_timing_messages", rows)
        yield from self._timer_snapshot(now_ms)

    def _timer_snapshot(self, now_ms: int) -> Collector:
        index = self._parts.delay.timer.index
        precision = index.precision_ms
        slot_ms = now_ms // precision * precision
        rows: list[Row] = []
        for before_s, bound_s in zip((0, *TIMER_BOUNDS_S), TIMER_BOUNDS_S, strict=False):
            count = 0
            slots = range(before_s * 1000 // precision, bound_s * 1000 // precision)
            for number in slots if index.metrics.total else ():
                count += index.count_at(slot_ms + number * precision)
                if number % _SLOTS_A_STEP == 0:
                    yield None
            rows.append(((("timer_bound_s", str(bound_s)), *STORAGE), count))
        yield gauge("rocketmq_timer_message_snapshot", rows)

    def _waiting(self) -> Collector:
        parts, now_ms = self._parts, self._clock_ms()
        counts = parts.transactions.service.counts.counts
        halves = (((("topic", topic),), counts.get(topic, 0)) for topic in list(counts))
        yield gauge("rocketmq_half_messages", halves)
        checkpoints = parts.pop.progress.checkpoints
        yield single("rocketmq_pop_offset_buffer_size", 0)
        yield single("rocketmq_pop_checkpoint_buffer_size", len(checkpoints))
        due_ms = checkpoints.next_due_ms
        late_ms = max(0, now_ms - due_ms) if due_ms is not None else 0
        revive_queue = (("queue_id", "0"),)
        late = 0
        for number, one in enumerate(list(checkpoints) if late_ms else ()):
            late += one.due_ms <= now_ms
            if number % _CHECKPOINTS_A_STEP == 0:
                yield None
        yield single("rocketmq_pop_revive_lag_milliseconds", late, revive_queue)
        yield single("rocketmq_pop_revive_latency_milliseconds", late_ms, revive_queue)


def _kind(member: Client) -> tuple[str, str]:
    return member.language.lower(), version_name(member.version)


def version_name(number: int) -> str:
    """Return a RocketMQ version by its number, as labels have it: `v5_3_3`."""
    if number < _FIRST_REGULAR_VERSION:
        return f"v3_{number}"
    patch, is_release = divmod(number - _FIRST_REGULAR_VERSION, 2)
    name = f"v{4 + patch // 100}_{patch // 10 % 10}_{patch % 10}"
    return name if is_release else f"{name}_snapshot"
