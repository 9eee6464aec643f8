"""The metrics of a nameserver: counters, and sizes of its tables at each scrape."""

from collections.abc import Callable

from ledgermq.remoting.codec.codes import request_name
from ledgermq.remoting.refusal import Cause
from nameserver.core.routes import RouteTable
from telemetry.metrics import Counter, Registry
from telemetry.process import register_process_metrics


class Figures:
    """Counters by request code and by cause of refusal; sizes of the tables."""

    def __init__(self, registry: Registry, table: RouteTable, waiting: Callable[[], int]) -> None:
        self._registry = registry
        self._requests: dict[int, Counter] = {}
        self._refusals: dict[Cause, Counter] = {}
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

    def request(self, code: int) -> None:
        """Count a request."""
        counter = self._requests.get(code)
        if counter is None:
            # Only known codes get a label, so that a client cannot create series without limit.
            name = request_name(code)
            label = "unknown" if name.isdigit() or name.startswith("-") else name
            counter = self._registry.counter("ledgermq_requests_total", "Requests by code.", {"request": label})
            if label != "unknown":
                self._requests[code] = counter
        counter.add()

    def refusal(self, cause: Cause) -> None:
        """Count a refused request."""
        counter = self._refusals.get(cause)
        if counter is None:
            labels = {"cause": cause.slug}
            counter = self._registry.counter("ledgermq_refused_total", "Refused requests by cause.", labels)
            self._refusals[cause] = counter
        counter.add()
