"""Metrics of our own: how far this node's log is replicated and durable, and how long appends take."""

from collections.abc import Iterator

from broker.parts import Parts
from telemetry.families import Buckets, Family, Number


def replication(parts: Parts) -> Iterator[Family]:
    """Yield all families, and those of the mode of replication."""
    yield _append_seconds(parts)
    unflushed = parts.context.store.log.backlog().unflushed_bytes
    yield _one("ledgermq_unflushed_bytes", "In the log and not durable on this node.", unflushed)
    changes = parts.leadership.changes
    yield Family("ledgermq_role_changes_total", "counter", "How often it began or ceased to lead.", [((), changes)])
    yield from parts.context.store.log.metrics()


def _append_seconds(parts: Parts) -> Family:
    bounds_ms, counts, sum_ms = parts.context.counting.calls.appends.distribution()
    buckets = Buckets([bound / 1000 for bound in bounds_ms], counts, sum_ms / 1000)
    explanation = "From a message's arrival to its answer."
    return Family("ledgermq_append_seconds", "histogram", explanation, [((), buckets)])


def _one(name: str, explanation: str, value: Number) -> Family:
    return Family(name, "gauge", explanation, [((), value)])
