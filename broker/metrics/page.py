"""The page of /metrics, and RocketMQ's own page beside it where that is asked for.

    own registry, RocketMQ's 5.x names, the exporter's names   -> healthPort (always)
    RocketMQ's 5.x names                                       -> metricsPromExporterPort (metricsExporterType=PROM)

It is gathered on the loop in slices of two milliseconds and written in a thread; scrapes that come meanwhile get the
same page.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java` (init: labels), OpenTelemetry's Prometheus page.
"""

import asyncio
from collections.abc import Callable, Iterator

from broker.config import BrokerConfig
from broker.metrics.counted import counted
from broker.metrics.exporter import ExporterSeries
from broker.metrics.groups import Groups
from broker.metrics.replication import replication
from broker.metrics.runtime import RuntimeSeries
from broker.metrics.standing import Standing
from broker.parts import Parts
from ledgermq.telemetry.families import Collector, Family, Labels, gather, write
from ledgermq.telemetry.metrics import Registry

SCOPE = "broker-meter"


class MetricsPage:
    """Makes it.

    Args:
        registry: what only we have.
        address: `host:port` of this broker as clients dial it.
        clock_ms: wall clock.
    """

    def __init__(
        self, config: BrokerConfig, registry: Registry, parts: Parts, address: str, clock_ms: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._parts = parts
        self._labels = common_labels(config)
        self._limit = config.metrics_label_sets_max
        self._standing = Standing(config, parts, clock_ms)
        self._groups = Groups(parts, clock_ms)
        self._exporter = ExporterSeries(config, parts, address, clock_ms)
        self._runtime = RuntimeSeries(lambda: parts.runtime.table(parts.role.writable), config.cluster_name, address)
        self._whole: asyncio.Task[bytes] | None = None
        self._theirs: asyncio.Task[bytes] | None = None

    async def whole(self) -> bytes:
        """The page of the health port."""
        if self._whole is None or self._whole.done():
            self._whole = asyncio.get_running_loop().create_task(self._make_whole())
        return await asyncio.shield(self._whole)

    async def theirs(self) -> bytes:
        """RocketMQ's 5.x names only."""
        if self._theirs is None or self._theirs.done():
            self._theirs = asyncio.get_running_loop().create_task(self._make_theirs())
        return await asyncio.shield(self._theirs)

    async def _make_whole(self) -> bytes:
        theirs = await self._gather_theirs()
        exporter = await gather((self._exporter.collect(), self._runtime.collect()))
        own, more = self._registry.render().encode(), list(replication(self._parts))
        labels = tuple(self._registry.labels.items())
        return await asyncio.to_thread(
            lambda: own + write(more, labels) + self._write_theirs(theirs) + write(self._bounded(exporter))
        )

    async def _make_theirs(self) -> bytes:
        theirs = await self._gather_theirs()
        return await asyncio.to_thread(self._write_theirs, theirs)

    async def _gather_theirs(self) -> list[Family]:
        collectors: tuple[Collector, ...] = (
            self._standing.collect(),
            counted(self._parts.counting),
            self._groups.collect(),
        )
        return await gather(collectors)

    def _write_theirs(self, families: list[Family]) -> bytes:
        return write(self._bounded(families), self._labels, scope=SCOPE)

    def _bounded(self, families: list[Family]) -> Iterator[Family]:
        for family in families:
            rows = list(family.rows)
            if rows:  # as on RocketMQ's page, what was never counted is not there
                yield family._replace(rows=rows[: self._limit + 1])


def common_labels(config: BrokerConfig) -> Labels:
    """What RocketMQ puts on every series; what is configured cannot replace it."""
    labels = dict(config.metrics_labels)
    if config.metrics_in_delta:
        labels["aggregation"] = "delta"
    labels |= {"node_type": "broker", "cluster": config.cluster_name, "node_id": config.broker_name}
    return tuple(sorted(labels.items()))
