"""LedgerMQ's own metrics of a broker: read from plain counts at the scrape, with no cost on the hot path."""

from collections import Counter
from collections.abc import Callable

from broker.admin.registration import NameserverLinks
from broker.parts import Parts
from broker.pop.subsystem import PopSubsystem
from broker.server import BrokerRequestHandler
from ledgermq.remoting.refusal import Cause
from ledgermq.remoting.server import RemotingServer
from store.cleaning.disk_space import disk_space
from telemetry.metrics import Histogram, Registry
from telemetry.quotas import register_quotas


def flush_histogram(registry: Registry) -> Histogram:
    """Return the histogram of the seconds of each sync of the log."""
    return registry.histogram("ledgermq_flush_seconds", "Time of one sync of the log's files.")


def register_metrics(registry: Registry, parts: Parts, server: RemotingServer, registration: NameserverLinks) -> None:
    """Add the broker's metrics to `registry`."""
    _register_traffic(registry, parts)
    _register_pop(registry, parts.pop)
    _register_waiting(registry, parts)
    _register_positions(registry, parts)
    _register_clients(registry, parts, server)
    _register_refusals(registry, parts.handler, parts)
    role, elsewhere = parts.context.role, parts.acting.elsewhere
    registry.gauge("ledgermq_stands_in", "1 while this slave stands in for its absent master.").function(
        lambda: int(role.stands_in)
    )
    registry.counter("ledgermq_delivered_elsewhere_total", "Messages that it delivered elsewhere.").function(
        lambda: elsewhere.stored
    )
    registry.gauge("ledgermq_nameservers_told", "Nameservers that know the present role and topics.").function(
        lambda: registration.registered_count
    )


def _register_traffic(registry: Registry, parts: Parts) -> None:
    answers, pulls, queries = parts.context.answers, parts.pull.processor, parts.pull.query
    counters: dict[str, tuple[str, Callable[[], float]]] = {
        "send_requests": ("Send requests acknowledged.", lambda: answers.messages),
        "pulls_found": ("Pulls that found messages.", lambda: pulls.found),
        "pulls_missed": ("Pulls that found none.", lambda: pulls.missed),
        "messages_pulled": ("Messages given to pulls.", lambda: pulls.messages_out),
        "bytes_pulled": ("Bytes of records given to pulls.", lambda: pulls.bytes_out),
        "key_queries_found": ("Queries by key that found messages.", lambda: queries.found),
        "key_queries_missed": ("Queries by key that found none.", lambda: queries.missed),
    }
    for name, (explanation, value) in counters.items():
        registry.counter(f"ledgermq_{name}_total", explanation).function(value)


def _register_pop(registry: Registry, pop: PopSubsystem) -> None:
    take, revive, progress = pop.take, pop.revive, pop.progress
    counters: dict[str, tuple[str, Callable[[], float]]] = {
        "messages_popped": ("Messages given to POP requests.", lambda: take.messages_out),
        "bytes_popped": ("Bytes of records given to POP requests.", lambda: take.bytes_out),
        "pop_revived": ("Messages taken by POP that came again.", lambda: revive.revived),
        "pop_dropped": ("Messages taken by POP that were gone when due.", lambda: revive.dropped),
    }
    for name, (explanation, value) in counters.items():
        registry.counter(f"ledgermq_{name}_total", explanation).function(value)
    registry.gauge("ledgermq_pop_open_checkpoints", "POP answers not wholly acknowledged, on the leader.").function(
        lambda: len(progress.checkpoints)
    )


def _register_waiting(registry: Registry, parts: Parts) -> None:
    """Add metrics of messages that wait for a time or for a producer's decision."""
    levels, timer, transactions = parts.delay.levels, parts.delay.timer, parts.transactions.service
    counters: dict[str, tuple[str, Callable[[], float]]] = {
        "delayed_delivered": ("Delayed messages delivered.", lambda: levels.delivered),
        "delayed_dropped": ("Delayed messages whose topic was gone.", lambda: levels.dropped),
        "timers_delivered": ("Timer messages delivered.", lambda: timer.delivered),
        "timers_dropped": ("Timer messages whose topic was gone.", lambda: timer.dropped),
        "transaction_checks": ("Questions to producers about half messages.", lambda: transactions.checks),
        "transactions_given_up": ("Half messages without a decision in time.", lambda: transactions.given_up),
    }
    for name, (explanation, value) in counters.items():
        registry.counter(f"ledgermq_{name}_total", explanation).function(value)
    registry.gauge("ledgermq_timers_waiting", "Timer messages that are not due yet.").function(
        lambda: timer.index.metrics.total
    )
    registry.gauge("ledgermq_transactions_open", "Half messages without a decision, on the leader.").function(
        lambda: transactions.open_count
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
    registry.gauge("ledgermq_disk_used_ratio", "Share of the log's disk that is used, in whole percents.").function(
        lambda: disk_space(store.log.directory).ratio
    )
    registry.counter("ledgermq_log_files_deleted_total", "Old files of the log that were dropped.").function(
        lambda: store.cleaner.deleted_files if store.cleaner is not None else 0
    )
    registry.gauge(
        "ledgermq_log_waits_for_archive", "1 while old files of the log are kept because no archive holds them."
    ).function(lambda: int(store.cleaner is not None and store.cleaner.waits_for_archive))
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
        lambda: parts.context.state.skipped
    )


def _register_clients(registry: Registry, parts: Parts, server: RemotingServer) -> None:
    registry.gauge("ledgermq_long_polls_held", "Pulls that wait for messages.").function(lambda: len(parts.pull.held))
    registry.gauge("ledgermq_pops_held", "POP requests that wait for messages.").function(lambda: len(parts.pop.held))
    registry.gauge("ledgermq_connections", "Open client connections.").function(lambda: len(server.connections))
    registry.counter("ledgermq_connections_refused_total", "Connections closed because there were too many.").function(
        lambda: server.connections.refused_count
    )
    output = server.connections.output
    registry.gauge("ledgermq_unsent_bytes", "Bytes of answers that clients have not read yet.").function(
        lambda: output.spent_bytes
    )
    registry.counter(
        "ledgermq_slow_readers_closed_total", "Connections closed because all left too much unread together."
    ).function(lambda: output.closed_count)
    registry.gauge("ledgermq_unserved_bytes", "Bytes of requests that wait to be served.").function(
        lambda: server.line.unserved_bytes
    )
    registry.counter(
        "ledgermq_fast_senders_closed_total", "Connections closed because too much waited to be served."
    ).function(lambda: server.line.closed_count)
    registry.gauge("ledgermq_unfinished_bytes", "Bytes of requests that came in part, but 64 KiB of each.").function(
        lambda: server.connections.unfinished_bytes
    )
    registry.gauge("ledgermq_buffered_bytes", "Unsent, unserved and unfinished bytes: they have one budget.").function(
        lambda: server.line.buffered_bytes
    )
    register_quotas(registry, parts.quotas)
    pass_on = parts.passing.pass_on
    registry.counter("ledgermq_passed_on_total", "Requests of clients passed on to the leader.").function(
        lambda: pass_on.passed
    )
    registry.counter("ledgermq_passed_on_unanswered_total", "Of these, how many the leader did not answer.").function(
        lambda: pass_on.unanswered
    )
    registry.counter(
        "ledgermq_postponed_dropped_total",
        "One-way requests of other members' clients that were not served: a quota was used up and too many waited.",
    ).function(lambda: parts.passing.postponed.dropped)
    registry.gauge("ledgermq_topics", "Topics made by users.").function(lambda: len(parts.context.state.topics))
    registry.gauge("ledgermq_groups", "Consumer groups.").function(lambda: len(parts.context.state.groups))


def _register_refusals(registry: Registry, handler: BrokerRequestHandler, parts: Parts) -> None:
    for cause in Cause:
        counter = registry.counter("ledgermq_refusals_total", "Requests refused, by cause.", {"cause": cause.slug})
        counter.function(_sum_of(cause.slug, handler.refusals, parts.context.answers.refusals))


def _sum_of(slug: str, *counts: Counter[str]) -> Callable[[], int]:
    return lambda: sum(count[slug] for count in counts)
