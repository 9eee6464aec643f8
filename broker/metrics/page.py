"""The page of /metrics, and RocketMQ's own page beside it if it is configured.

    own registry, RocketMQ's 5.x names   -> healthPort (always)
    RocketMQ's 5.x names                 -> metricsPromExporterPort (metricsExporterType=PROM)

Rows are gathered on the loop, some a turn, and written in a thread, piece by piece; scrapes that arrive meanwhile get
the same page.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java` (init: labels), OpenTelemetry's Prometheus page.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from broker.config import BrokerConfig
from broker.identity import BrokerIdentity
from broker.metrics.gauges import Gauges
from broker.metrics.groups import Groups
from broker.metrics.totals import counter_families
from broker.parts import Parts
from telemetry.families import Buckets, Collector, Family, Labels, Number, TextWriter
from telemetry.metrics import Registry
from telemetry.pages import Section, SharedPage, pieces

SCOPE: Final = "broker-meter"


class MetricsPage:
    """Makes the pages.

    Args:
        registry: LedgerMQ's own metrics.
        clock_ms: wall clock.
    """

    def __init__(self, config: BrokerConfig, registry: Registry, parts: Parts, clock_ms: Callable[[], int]) -> None:
        self._registry = registry
        self._parts = parts
        self._rows_max = config.metrics_label_sets_max + 1
        self._gauges = Gauges(config, parts, clock_ms)
        self._groups = Groups(parts, clock_ms)
        self._own_writer = TextWriter(tuple(registry.labels.items()))
        self._rocketmq_writer = TextWriter(common_labels(config), SCOPE)
        self._whole, self._rocketmq_page = SharedPage(self._make_whole), SharedPage(self._make_rocketmq_page)

    def whole(self) -> AsyncIterator[bytes]:
        """Yield the page of the health port."""
        return self._whole.read()

    def rocketmq_page(self) -> AsyncIterator[bytes]:
        """Yield the page with RocketMQ's 5.x names only."""
        return self._rocketmq_page.read()

    async def _make_whole(self) -> AsyncIterator[bytes]:
        yield self._registry.render().encode()
        async for piece in self._section(self._own_writer, _replication(self._parts)):
            yield piece
        async for piece in self._make_rocketmq_page():
            yield piece

    def _make_rocketmq_page(self) -> AsyncIterator[bytes]:
        collectors = self._gauges.collect(), counter_families(self._parts.context.counting), self._groups.collect()
        return self._section(self._rocketmq_writer, *collectors)

    def _section(self, writer: TextWriter, *collectors: Collector) -> AsyncIterator[bytes]:
        """Yield families as text; as on RocketMQ's page, one without rows is left out."""
        return pieces(Section(collectors, writer, self._rows_max))


def common_labels(config: BrokerConfig) -> Labels:
    """Return the labels that RocketMQ puts on every series; configured labels cannot replace them."""
    identity, labels = BrokerIdentity(config), dict(config.metrics_labels)
    if config.metrics_in_delta:
        labels["aggregation"] = "delta"
    labels |= {"node_type": "broker", "cluster": identity.cluster, "node_id": identity.name}
    return tuple(sorted(labels.items()))


def _replication(parts: Parts) -> Iterator[Family]:
    """Yield metrics of our own: how far the log is replicated and durable, and how long appends take."""
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
