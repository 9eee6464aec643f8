"""The metrics of a nameserver: counters, and sizes of its tables at each scrape."""

from collections.abc import Callable

from nameserver.core.routes import RouteTable
from telemetry.metrics import Registry
from telemetry.process import register_process_metrics
from telemetry.requests import RequestFigures


class NameserverMetrics(RequestFigures):
    """Counters of requests; sizes of the tables."""

    def __init__(self, registry: Registry, table: RouteTable, waiting: Callable[[], int]) -> None:
        super().__init__(registry)
        register_process_metrics(registry)
        gauge, first_revision = registry.gauge, table.revision
        gauge("ledgermq_nameserver_topics", "Topics with a route.").function(lambda: len(table.topics))
        gauge("ledgermq_nameserver_broker_names", "Broker names with a member.").function(
            lambda: sum(1 for _ in table.groups)
        )
        gauge("ledgermq_nameserver_brokers", "Registered broker processes.").function(
            lambda: sum(len(group.members) for group in table.groups)
        )
        gauge(
            "ledgermq_nameserver_leaderless_broker_names", "Broker names without a member that takes sends."
        ).function(lambda: sum(group.leader is None for group in table.groups))
        gauge("ledgermq_nameserver_waiting_route_requests", "Route requests that wait for a change.").function(waiting)
        registry.counter("ledgermq_nameserver_route_changes_total", "Changes of routes since the start.").function(
            lambda: table.revision - first_revision
        )
