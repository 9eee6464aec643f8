"""What /metrics shows of a broker: read from plain counts at the scrape, nothing on the hot path."""

from collections import Counter
from collections.abc import Callable

from broker.admin.registration import Registration
from broker.parts import Parts
from broker.server import BrokerRequestHandler
from ledgermq.remoting.refusal import Cause
from ledgermq.remoting.server import RemotingServer
from telemetry.metrics import Histogram, Registry


def flush_histogram(registry: Registry) -> Histogram:
    """Seconds of each sync of the log."""
    return registry.histogram("ledgermq_flush_seconds", "Time of one sync of the log's files.")


def register_metrics(registry: Registry, parts: Parts, server: RemotingServer, registration: Registration) -> None:
    """Add the broker's figures to `registry`."""
    _register_traffic(registry, parts)
    _register_positions(registry, parts)
    _register_clients(registry, parts, server)
    _register_refusals(registry, parts.handler, parts)
    registry.gauge("ledgermq_nameservers_told", "Nameservers that know the present role and topics.").function(
        lambda: registration.registered_count
    )


def _register_traffic(registry: Registry, parts: Parts) -> None:
    registry.counter("ledgermq_send_requests_total", "Send requests acknowledged.").function(
        lambda: parts.context.answers.messages
    )
    registry.counter("ledgermq_pulls_found_total", "Pulls that found messages.").function(
        lambda: parts.pull.processor.found
    )
    registry.counter("ledgermq_pulls_missed_total", "Pulls that found none.").function(
        lambda: parts.pull.processor.missed
    )
    registry.counter("ledgermq_messages_pulled_total", "Messages given to pulls.").function(
        lambda: parts.pull.processor.messages_out
    )
    registry.counter("ledgermq_bytes_pulled_total", "Bytes of records given to pulls.").function(
        lambda: parts.pull.processor.bytes_out
    )
    registry.counter("ledgermq_key_queries_found_total", "Queries by key that found messages.").function(
        lambda: parts.pull.query.found
    )
    registry.counter("ledgermq_key_queries_missed_total", "Queries by key that found none.").function(
        lambda: parts.pull.query.missed
    )
    registry.counter("ledgermq_delayed_delivered_total", "Delayed messages delivered.").function(
        lambda: parts.delay.levels.delivered
    )
    registry.counter("ledgermq_delayed_dropped_total", "Delayed messages whose topic was gone.").function(
        lambda: parts.delay.levels.dropped
    )
    registry.counter("ledgermq_timers_delivered_total", "Timer messages delivered.").function(
        lambda: parts.delay.timer.delivered
    )
    registry.counter("ledgermq_timers_dropped_total", "Timer messages whose topic was gone.").function(
        lambda: parts.delay.timer.dropped
    )
    registry.counter("ledgermq_messages_popped_total", "Messages given to POP requests.").function(
        lambda: parts.pop.take.messages_out
    )
    registry.counter("ledgermq_bytes_popped_total", "Bytes of records given to POP requests.").function(
        lambda: parts.pop.take.bytes_out
    )
    registry.counter("ledgermq_pop_revived_total", "Messages taken by POP that came again.").function(
        lambda: parts.pop.revive.revived
    )
    registry.counter("ledgermq_pop_dropped_total", "Messages taken by POP that were gone when due.").function(
        lambda: parts.pop.revive.dropped
    )
    registry.gauge("ledgermq_pop_open_checkpoints", "POP answers not wholly acknowledged, on the leader.").function(
        lambda: len(parts.pop.progress.checkpoints)
    )
    registry.gauge("ledgermq_timers_waiting", "Timer messages that are not due yet.").function(
        lambda: parts.delay.timer.index.metrics.total
    )
    registry.gauge("ledgermq_transactions_open", "Half messages that nobody has decided, on the leader.").function(
        lambda: parts.transactions.service.open_count
    )
    registry.counter("ledgermq_transaction_checks_total", "Questions to producers about half messages.").function(
        lambda: parts.transactions.service.checks
    )
    registry.counter("ledgermq_transactions_given_up_total", "Half messages that nobody decided in time.").function(
        lambda: parts.transactions.service.given_up
    )


def _register_positions(registry: Registry, parts: Parts) -> None:
    store = parts.context.store
    registry.gauge("ledgermq_writable", "1 while this node takes messages.").function(
        lambda: int(parts.context.role.writable and store.why_full() is None)
    )
    registry.gauge("ledgermq_term", "Raft term, 0 where nothing is elected.").function(
        lambda: parts.context.role.generation
    )
    registry.gauge("ledgermq_log_min_offset_bytes", "Start of the log.").function(lambda: store.log.min_offset)
    registry.gauge("ledgermq_disk_full", "1 while messages are refused because the disk is full.").function(
        lambda: float(store.why_full() is not None)
    )
    registry.counter("ledgermq_log_files_deleted_total", "Old files of the log that were dropped.").function(
        lambda: store.cleaner.deleted_files if store.cleaner is not None else 0
    )
    registry.gauge("ledgermq_log_max_offset_bytes", "End of the log.").function(lambda: store.log.max_offset)
    registry.gauge("ledgermq_log_confirm_offset_bytes", "End of what can never vanish.").function(
        lambda: store.log.confirm_offset
    )
    registry.gauge("ledgermq_commit_lag_bytes", "Placed and not yet confirmed.").function(
        lambda: store.log.max_offset - store.log.confirm_offset
    )
    registry.gauge("ledgermq_dispatch_lag_bytes", "Confirmed and not yet in queues.").function(
        lambda: store.log.confirm_offset - store.dispatched_offset
    )
    if (index := store.index) is not None:
        registry.gauge("ledgermq_index_lag_bytes", "Dispatched and not yet in the index by key.").function(
            lambda: index.lag_bytes
        )
        registry.counter("ledgermq_index_entries_total", "Entries made in the index by key.").function(
            lambda: index.entries
        )
        registry.gauge("ledgermq_index_failed", "1 while the index by key cannot be written.").function(
            lambda: int(index.error is not None)
        )
    registry.gauge("ledgermq_state_applied_offset_bytes", "How far topics, groups and offsets are.").function(
        lambda: parts.context.state.applied_offset
    )
    registry.counter("ledgermq_state_records_skipped_total", "State records that could not be read.").function(
        lambda: parts.context.state_log.skipped
    )


def _register_clients(registry: Registry, parts: Parts, server: RemotingServer) -> None:
    registry.gauge("ledgermq_long_polls_held", "Pulls that wait for messages.").function(lambda: len(parts.pull.held))
    registry.gauge("ledgermq_pops_held", "POP requests that wait for messages.").function(lambda: len(parts.pop.held))
    registry.gauge("ledgermq_connections", "Open client connections.").function(lambda: len(server.connections))
    registry.counter("ledgermq_connections_refused_total", "Connections closed because there were too many.").function(
        lambda: server.connections.refused_count
    )
    registry.gauge("ledgermq_topics", "Topics made by users.").function(lambda: len(parts.context.state.topics))
    registry.gauge("ledgermq_groups", "Consumer groups.").function(lambda: len(parts.context.state.groups))


def _register_refusals(registry: Registry, handler: BrokerRequestHandler, parts: Parts) -> None:
    for cause in Cause:
        counter = registry.counter("ledgermq_refusals_total", "Requests refused, by cause.", {"cause": cause.slug})
        counter.function(_sum_of(cause.slug, handler.refusals, parts.context.answers.refusals))


def _sum_of(slug: str, *counts: Counter[str]) -> Callable[[], int]:
    return lambda: sum(count[slug] for count in counts)
