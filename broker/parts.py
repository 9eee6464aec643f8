"""Makes the broker's subsystems and connects them; opens no file and no port, and starts no timer.

    BrokerContext <- all of them
    groups (clients, locks) <- pull, pop, send, transactions, admin
    delay (deliveries, parking) <- pop, transactions, send

A subsystem gets the others that it uses as arguments; none gets `Parts`.
"""

import logging
from collections.abc import Callable, Collection

from broker.acting.subsystem import ActingSubsystem
from broker.admin.runtime_info import Totals
from broker.admin.subsystem import AdminSubsystem
from broker.auth.subsystem import AuthSubsystem
from broker.context import BrokerContext
from broker.delay.subsystem import DelaySubsystem
from broker.groups.subsystem import GroupSubsystem
from broker.leadership import Leadership
from broker.passing.subsystem import PassingSubsystem
from broker.pop.subsystem import PopSubsystem
from broker.pull.subsystem import PullSubsystem
from broker.send.subsystem import SendSubsystem
from broker.server import BrokerRequestHandler
from broker.state import names
from broker.state.subsystem import StateSubsystem
from broker.state.tables import StateChange, StateFormatError
from broker.subsystem import Subsystem
from broker.transactions.subsystem import TransactionSubsystem
from ledgermq.remoting.quotas import Quotas
from ledgermq.wall_clock import wall_clock_ms
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import LogRole, LogState
from store.timer.metrics import TopicCounts
from store.timer.timer_index import TimerIndex

_WAITING_TOPICS = frozenset(topic.encode() for topic in names.WAITING_TOPICS)

log = logging.getLogger(__name__)


class Parts:
    """Everything between the sockets and the store; follows the store as its listener.

    Args:
        timer_index, transaction_counts: as loaded from disk.

    Attributes:
        subsystems: in the order in which events are passed on. Held pulls of a removed topic are answered before its
            queues are removed; POP and the counters drop it after that.
        cut: takes the tables and timers back to a physical offset; set by `broker.log_follower`, which has their files.
    """

    def __init__(self, context: BrokerContext, timer_index: TimerIndex, transaction_counts: TopicCounts) -> None:
        self.context = context
        self.cut: Callable[[int], None] = lambda _: None
        self.groups = groups = GroupSubsystem(context)
        self.pull = PullSubsystem(context, groups.clients, groups.locks)
        self.tables = StateSubsystem(
            context.state,
            context.metadata,
            context.offsets,
            context.store,
            context.role,
            context.appender.propose,
        )
        self.auth = AuthSubsystem(context)
        self.delay = delay = DelaySubsystem(context, timer_index)
        self.pop = PopSubsystem(context, groups.clients, groups.offset_requests.is_start_at_hand, delay.deliveries)
        self.transactions = TransactionSubsystem(
            context, groups.clients, delay.deliveries, delay.parking, transaction_counts, self.auth.guard.may_publish
        )
        self.send = SendSubsystem(context, groups.clients, groups.locks, delay.parking)
        self.admin = AdminSubsystem(context, groups.clients, self.pull.held, self.totals, delay.figures)
        self.quotas = Quotas(context.config.address_quotas, context.config.user_quotas)
        self.handler = BrokerRequestHandler(
            groups.clients,
            self.auth.guard,
            context.counting,
            context.turns,
            context.metadata,
            context.appender,
            self.quotas,
        )
        context.throttled.serve_late = self.handler.serve_late
        self.acting = acting = ActingSubsystem(context, delay.deliveries, self.transactions.service.first_left)
        self.passing = PassingSubsystem(
            context, groups.clients, groups.shared_locks, self.handler, groups.answer_group, acting.stand_back
        )
        self.pull.processor.refresh.ask_leader = self.passing.pass_on.ask_for_group
        self.subsystems: tuple[Subsystem, ...] = (
            self.pull,
            self.tables,
            groups,
            self.auth,
            self.pop,
            delay,
            self.transactions,
            self.send,
            self.admin,
            context.counting,
            acting,
            self.passing,  # the last one: what waited for this node to lead is served when all others know that it does
        )
        self.leadership = acting.leadership = Leadership(
            context.role, context.store.log, delay.deliveries, self.subsystems, context.spawn
        )
        if acting.asks_slaves:
            self.leadership.ask_slaves = acting.before_deliveries
        for subsystem in self.subsystems:
            self.handler.serve(subsystem.requests())

    def totals(self) -> Totals:
        """Counts since the start."""
        counting, pulls = self.context.counting, self.pull.processor
        counting.calls.settle()
        return Totals(
            counting.arrivals.messages,
            counting.arrivals.size_bytes,
            pulls.messages_out + self.pop.take.messages_out,
            pulls.found,
            pulls.missed,
        )

    def restore(self, snapshot: bytes) -> None:
        """Replace the tables by a leader's snapshot; raises as `ReplicatedState.restore`."""
        self.tables.restore(snapshot)
        self.context.announce_soon(None)

    # ---- when the broker stops

    def stop(self) -> None:
        """Stop deliveries, and record their progress if this node may still write."""
        for subsystem in self.subsystems:
            subsystem.stop()

    async def drain(self) -> None:
        """Wait until changes that only this node has are committed or refused: deliveries first, offsets last."""
        for subsystem in reversed(self.subsystems):
            await subsystem.drain()

    def release(self) -> None:
        """Answer the requests that wait."""
        for subsystem in self.subsystems:
            subsystem.release()

    # ---- what follows the store

    def follow(self) -> None:
        """Follow the store as a listener: dispatched messages, cuts, and changes of its role."""
        self.context.store.watch_topic(names.STATE_TOPIC)
        self.context.store.add_listener(self)

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Pass on that these queues have new messages. Hot path: only subsystems that read queues are called."""
        self.pull.on_dispatched(queues)
        self.pop.on_dispatched(queues)
        for queue in queues:
            if queue.topic_bytes in _WAITING_TOPICS:
                self.delay.on_parked(queues)
                self.transactions.on_parked(queues)
                break

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """Apply a change of the tables that is committed."""
        try:
            change = self.context.state.apply_record(physical_offset, record)
        except StateFormatError as error:
            log.error("a state record is skipped: %s", error)
            return
        self._on_applied(change)

    def take_over(self, change: StateChange) -> None:
        """Apply a change that a slave copies from its master's tables, beside the log."""
        state, store = self.context.state, self.context.store
        state.apply(change, wall_clock_ms(), store.dispatched_offset)
        state.applied_offset = max(state.applied_offset, store.dispatched_offset)
        self._on_applied(change)

    def _on_applied(self, change: StateChange) -> None:
        self.tables.on_applied(change)
        for subsystem in self.subsystems:
            for name, topic in change.topics.items():
                if topic is None:
                    subsystem.forget_topic(name)
            for name, group in change.groups.items():
                if group is None:
                    subsystem.forget_group(name)
        if change.topics:
            self.context.announce_soon(change.topics.keys())

    def on_cut(self, offset: int) -> None:
        """Answer held pulls, whose offsets may be cut off, then take tables and timers back to `offset`."""
        self.pull.held.release()
        self.acting.on_cut(offset)
        self.passing.pass_on.on_cut()
        self.cut(offset)

    def on_role_change(self, state: LogState) -> None:
        """Handle that this node may write now, or may not any more, or follows another leader."""
        self.context.role.update(state)
        self.context.appender.has_slaves = state.role is LogRole.MASTER
        self.context.targets.forget()
        self.leadership.take(state)
        self.context.announce_soon(None)
