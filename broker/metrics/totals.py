"""Counters and histograms under the names of RocketMQ 5.x.

Source: the page of a broker 5.3.3 (`tests/broker/metrics/golden_metrics_5_3_3.json`), and apache/rocketmq
`broker/.../metrics/BrokerMetricsConstant.java`, `PopMetricsConstant.java`.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from broker.counting.counting import Counting
from broker.counting.tallies import Counts, Key
from broker.metrics.rows import COUNTER_HELP, counter, histogram, labelled
from broker.state import names
from telemetry.families import Buckets, Collector, Family, Labels, Number, Row

STORAGE: Labels = (("storage_medium", "disk"), ("storage_type", "local"))
_SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"
_OUT = ("topic", "consumer_group")


def is_system(topic: str, group: str = "") -> str:
    """Return whether a topic or a group is a system one, as text for a label."""
    return str(names.is_system_topic(topic) or group.lower().startswith(_SYSTEM_GROUP_PREFIX)).lower()


def counter_families(counting: Counting) -> Collector:
    """Yield all families that have rows; a metric without counts is left out."""
    counting.arrivals.settle()
    counting.calls.settle()
    yield from _arrived(counting)
    yield from _departed(counting)
    yield from _calls(counting)
    yield from _transactions(counting)
    yield from _timers(counting)
    yield from _pop(counting)


def _arrived(counting: Counting) -> Iterator[Family]:
    def rows(value: Callable[[Buckets], Number | Buckets]) -> Iterator[Row]:
        for place, buckets in counting.arrivals.series():
            yield _arrival_labels(place), value(buckets)

    yield Family("rocketmq_messages_in_total", "counter", COUNTER_HELP, rows(lambda buckets: sum(buckets.counts)))
    yield Family("rocketmq_throughput_in_total", "counter", COUNTER_HELP, rows(lambda buckets: int(buckets.sum)))
    yield Family("rocketmq_message_size", "histogram", "Incoming messages size", rows(lambda buckets: buckets))


def _arrival_labels(place: tuple[str, str] | None) -> Labels:
    if place is None:
        return labelled(("topic",), ())
    topic, kind = place
    return (("topic", topic), ("message_type", kind), ("is_system", is_system(topic)))


def _departed(counting: Counting) -> Iterator[Family]:
    out = counting.departures
    for name, pulled, popped in (
        ("rocketmq_messages_out_total", out.pulled, out.popped),
        ("rocketmq_throughput_out_total", out.pulled_bytes, out.popped_bytes),
    ):
        rows = chain(_with_system(pulled, _OUT), _with_system(popped, (*_OUT, "is_retry")))
        yield Family(name, "counter", COUNTER_HELP, rows)
    dead = _with_system(counting.events.dead_letters, _OUT)
    yield Family("rocketmq_send_to_dlq_messages_total", "counter", COUNTER_HELP, dead)


def _with_system(counts: Counts, label_names: tuple[str, ...]) -> Iterator[Row]:
    """Yield rows of counts whose keys begin with topic and group."""
    return ((labelled(label_names, key) + _system_label(key), value) for key, value in counts.items())


def _system_label(key: Key) -> Labels:
    return (("is_system", is_system(str(key[0]), str(key[1]))),) if key else ()


def _calls(counting: Counting) -> Iterator[Family]:
    label_names = ("request_code", "response_code", "is_long_polling", "result")
    rows = (
        ((*labelled(label_names, key), ("protocol_type", "remoting")), buckets)
        for key, buckets in counting.calls.latencies()
    )
    yield Family("rocketmq_rpc_latency_milliseconds", "histogram", "Rpc latency", rows)
    events = counting.events
    yield histogram(
        "rocketmq_topic_create_execution_time_milliseconds",
        "The distribution of create topic time",
        ("invocation_status", "is_system"),
        events.topic_created_ms,
    )
    yield histogram(
        "rocketmq_consumer_group_create_execution_time_milliseconds",
        "The distribution of create subscription time",
        ("invocation_status",),
        events.group_created_ms,
    )


def _transactions(counting: Counting) -> Iterator[Family]:
    events = counting.events
    yield counter("rocketmq_commit_messages_total", ("topic",), events.commits)
    yield counter("rocketmq_rollback_messages_total", ("topic",), events.rollbacks)
    yield histogram(
        "rocketmq_finish_message_latency_milliseconds", "Transaction finish latency", ("topic",), events.finish_ms
    )


def _timers(counting: Counting) -> Iterator[Family]:
    events = counting.events
    yield counter("rocketmq_timer_enqueue_total", ("topic",), events.timers_in, STORAGE)
    yield counter("rocketmq_timer_dequeue_total", ("topic",), events.timers_out, STORAGE)
    rows = ((labelled(("topic",), key) + STORAGE, value) for key, value in events.delay_s.items())
    explanation = "Timer message set latency distribution"
    yield Family("rocketmq_delay_message_latency_seconds", "histogram", explanation, rows)


def _pop(counting: Counting) -> Iterator[Family]:
    events = counting.events
    place = ("consumer_group", "topic")
    yield counter(
        "rocketmq_pop_revive_in_message_total", (*place, "revive_message_type", "put_status"), events.revive_in
    )
    yield counter(
        "rocketmq_pop_revive_out_message_total", (*place, "queue_id", "revive_message_type"), events.revive_out
    )
    yield counter("rocketmq_pop_revive_retry_messages_total", (*place, "put_status"), events.revive_retries)
    scan: list[tuple[Key, Buckets]] = [((), events.scan_ms.buckets())]
    yield histogram("rocketmq_pop_buffer_scan_time_consume_milliseconds", "Time consuming of pop buffer scan", (), scan)
