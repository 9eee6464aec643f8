"""The metrics of a controller: counters, and its state at each scrape."""

from collections.abc import Mapping

from ha.controller.core.live import LiveBrokers
from ha.controller.core.machine import ControllerMachine
from ha.controller.quorum.quorum import Quorum
from telemetry.metrics import Registry
from telemetry.process import register_process_metrics
from telemetry.requests import RequestFigures


class ControllerMetrics(RequestFigures):
    """Counters of requests and elections; the quorum; sizes of the tables."""

    def __init__(
        self,
        registry: Registry,
        quorum: Quorum,
        machine: ControllerMachine,
        live: LiveBrokers,
        elections: Mapping[str, int],
    ) -> None:
        super().__init__(registry)
        register_process_metrics(registry)
        gauge = registry.gauge
        gauge("ledgermq_controller_is_leader", "1 on the controller that leads.").function(
            lambda: int(quorum.status.is_leader)
        )
        gauge("ledgermq_controller_term", "Term of the controllers' log.").function(lambda: quorum.status.term)
        gauge("ledgermq_controller_log_entries", "Entries in the journal.").function(lambda: quorum.status.entries)
        gauge("ledgermq_controller_applied_index", "Index of the last command in the state.").function(
            lambda: quorum.status.applied
        )
        gauge("ledgermq_controller_is_sound", "0 while this controller may have forgotten what it agreed to.").function(
            lambda: int(quorum.status.is_sound)
        )
        gauge("ledgermq_controller_broker_names", "Registered broker names.").function(lambda: len(machine.groups))
        gauge("ledgermq_controller_masterless_broker_names", "Broker names that have no master.").function(
            lambda: sum(group.master_id is None for group in machine.groups.values())
        )
        gauge("ledgermq_controller_in_sync_replicas", "Members of all in-sync sets.").function(
            lambda: sum(len(group.in_sync) for group in machine.groups.values())
        )
        gauge("ledgermq_controller_live_brokers", "Brokers whose heartbeats this controller hears.").function(
            lambda: len(live)
        )
        for result in elections:
            counter = registry.counter(
                "ledgermq_controller_elections_total", "Elections held by this controller.", {"result": result}
            )
            counter.function(lambda result=result: elections[result])  # type: ignore[misc]
