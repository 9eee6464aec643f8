"""The broker's parts, made and tied together: no files opened, nothing listened at, no time passing yet.

ReplicatedState <- StateLog <- Metadata, ConsumerOffsets            (what the log carries)
Appender <- SendProcessor, SendBack, StateLog, Deliveries           (what goes into the log)
Deliveries <- DelayService, TimerService, TransactionService        (what waits first)
HeldPulls <- PullProcessor, OffsetMoves                             (what is read)
PopProgress <- PopService                                           (what is taken without owning queues)
ClientTable, QueueLocks <- ClientRequests                           (who is connected)

A part knows those it is given, never the whole.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Any

from broker.admin.broker_requests import BrokerRequests
from broker.admin.cleaning import CleaningRequests
from broker.admin.registration import Announcement
from broker.admin.replica_requests import ReplicaRequests
from broker.admin.runtime_info import RuntimeInfo, Totals
from broker.admin.topic_requests import TopicRequests
from broker.admin.transfer import TransferRequests
from broker.append.answers import SendAnswers
from broker.append.appender import Appender
from broker.append.drafts import DraftMaker
from broker.append.state_log import StateLog
from broker.append.target import SendTargets
from broker.auth.guard import Guard
from broker.auth.requests import AuthRequests
from broker.config import BrokerConfig
from broker.counting.counting import Counting
from broker.delay.deliveries import Deliveries
from broker.delay.levels import DelayService
from broker.delay.parking import Parking
from broker.delay.timer_drafts import TimerDrafts
from broker.delay.timer_requests import TimerRequests
from broker.delay.timer_service import TimerService
from broker.forwarding import PassingOn
from broker.groups.client_requests import ClientRequests
from broker.groups.clients import ClientTable, ConsumerGroup
from broker.groups.consumer_admin import ConsumerAdmin
from broker.groups.group_requests import GroupRequests
from broker.groups.locks import QueueLocks
from broker.groups.offset_moves import OffsetMoves
from broker.groups.offset_requests import OffsetRequests
from broker.groups.subscription_refresh import SubscriptionRefresh
from broker.leadership import Leadership
from broker.pop.service import PopService
from broker.pull.cold_data import ColdReads
from broker.pull.filter_turns import FilterTurns
from broker.pull.held_pulls import HeldPulls
from broker.pull.processor import PullProcessor
from broker.pull.query import QueryRequests
from broker.request_table import request_table
from broker.role import Role
from broker.send.processor import SendProcessor
from broker.send.request_reply import RequestReply
from broker.send.send_back import SendBack
from broker.server import BrokerRequestHandler
from broker.state import names
from broker.state.metadata import Metadata
from broker.state.new_topics import NewTopics
from broker.state.offsets import ConsumerOffsets
from broker.state.settings import PERM_READ_WRITE
from broker.state.tables import ReplicatedState, StateChange
from broker.timers import Spawn
from broker.transactions.copies import TransactionCopies
from broker.transactions.requests import TransactionRequests
from broker.transactions.service import TransactionService
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.message.properties import REAL_TOPIC
from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import LogState
from store.timer.metrics import TopicCounts
from store.timer.timer_index import TimerIndex

log = logging.getLogger(__name__)


class Parts:
    """Everything between the sockets and the store; follows the store as its listener.

    Args:
        state: the tables as loaded from disk.
        store_host: encoded address that records and message ids carry.
        timer_index, transaction_counts: as loaded from disk.
        announce: waits until the nameservers that answer have been told.
        announce_soon: has the nameservers told of topics that changed; with None, of everything.
        spawn: runs a coroutine until the broker stops.
    """

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        store: MessageStore,
        store_host: bytes,
        loop: asyncio.AbstractEventLoop,
        timer_index: TimerIndex,
        transaction_counts: TopicCounts,
        *,
        announce: Callable[[], Awaitable[None]],
        announce_soon: Callable[[Collection[str] | None], None],
        spawn: Spawn,
    ) -> None:
        self.state = state
        self._config = config
        self.store = store
        self._announce_soon = announce_soon
        queues = store.queues
        not_yet = replace(store.log.state, refusal=Refusal(Cause.RECOVERING, "the log is being recovered"))
        self.role = role = Role(config, not_yet)
        self.counting = counting = Counting(config.cluster_name, config.metrics_label_sets_max, loop.time)
        self.statistics = counting.statistics
        self.answers = SendAnswers(store_host, counting.calls, config.region_id, config.trace_on)
        self.appender = Appender(store.put, self.answers, counting.settled, loop)
        drafts = DraftMaker(queues, store_host)
        self.state_log = StateLog(state, self.appender, drafts, self._on_applied)
        self.new_topics = NewTopics(announce, spawn, self._on_topic_known, loop)
        self.metadata = Metadata(config, state, role, self._propose, self.new_topics)
        self.targets = SendTargets(
            config, self.metadata, role, queues, self.new_topics, counting.arrivals, lambda: store.disk_full
        )
        self.offsets = ConsumerOffsets(state, role, self._propose, self.metadata.is_undecided, loop)
        self.metadata.before_removal = self.offsets.send
        self.locks = QueueLocks(loop.time)
        self.clients = ClientTable(loop.time, self._on_group_changed)
        self.held = HeldPulls(loop.time)
        ids = UniqueIdGenerator(store_host[:-4], os.getpid(), id(self) & 0x7FFFFFFF)
        self.deliveries = Deliveries(store.log, state, self.appender, self._propose, loop, counting.arrivals)
        self.parking = Parking(config, self.targets, timer_index, wall_clock_ms)
        self.send = SendProcessor(
            config,
            self.metadata,
            self.targets,
            self.appender,
            self.answers,
            self.new_topics,
            self.locks,
            self.parking,
            store_host,
            ids,
            counting,
        )
        self.request_reply = RequestReply(config, self.clients, self.send, self.appender, store_host, spawn)
        self.send_back = SendBack(
            config, self.metadata, role, store, self.targets, drafts, self.appender, self.new_topics, counting
        )
        self.delay = DelayService(
            self.metadata, state, self.deliveries, role, store, self.targets, drafts, loop, wall_clock_ms
        )
        timer_drafts = TimerDrafts(self.metadata, store, self.targets, drafts)
        self.timer = TimerService(
            config, timer_index, state, self.deliveries, role, store, timer_drafts, loop, wall_clock_ms, counting.events
        )
        self.timer_requests = TimerRequests(
            config,
            self.metadata,
            role,
            self.timer,
            self.parking,
            self.targets,
            drafts,
            self.appender,
            wall_clock_ms,
        )
        copies = TransactionCopies(config, self.metadata, self.clients, self.targets, drafts)
        self.transactions = TransactionService(
            config,
            state,
            self.deliveries,
            copies,
            role,
            store,
            self.targets,
            drafts,
            self.appender,
            transaction_counts,
            loop,
            wall_clock_ms,
        )
        self.transaction_requests = TransactionRequests(
            config,
            self.metadata,
            role,
            self.transactions,
            self.parking,
            self.targets,
            drafts,
            wall_clock_ms,
            counting.events,
        )
        refresh = SubscriptionRefresh(self.clients, loop.time)
        turns = FilterTurns(loop)
        self.cold = ColdReads(config, self.clients, store.log, loop.time)
        self.pull = PullProcessor(
            config,
            self.metadata,
            self.clients,
            self.offsets,
            role,
            store,
            self.held,
            refresh,
            counting.departures,
            self.cold,
            turns,
        )
        self.consumer_admin = ConsumerAdmin(
            config, self.metadata, self.offsets, self.clients, store, self.statistics, spawn
        )
        self.offset_moves = OffsetMoves(
            config, self.metadata, self.offsets, self.clients, role, store, self.held.release
        )
        self.query = QueryRequests(config, store, spawn)
        self.offset_requests = OffsetRequests(self.metadata, self.offsets, role, store)
        self.pop = PopService(
            config,
            state,
            self.metadata,
            self.clients,
            self.offsets,
            role,
            store,
            self.targets,
            drafts,
            self.appender,
            counting,
            self._propose,
            self.offset_requests.is_start_at_hand,
            spawn,
            loop,
            wall_clock_ms,
            turns,
        )
        self.client_requests = ClientRequests(
            config, self.metadata, self.new_topics, self.clients, self.locks, role, store, spawn
        )
        self.runtime = RuntimeInfo(config, self.totals, counting, self._waiting_figures, store)
        self.topic_requests = TopicRequests(config, state, self.metadata, self.offsets, role, store, announce, spawn)
        self.group_requests = GroupRequests(state, self.metadata, self.offsets, role)
        self.broker_requests = BrokerRequests(config, role, self.runtime, self.statistics)
        self.cleaning = CleaningRequests(self.metadata, self.targets, store, spawn)
        self.replicas = ReplicaRequests(config, role, store.log)
        self.transfer = TransferRequests(store.log, role, self.offsets, spawn)
        self.guard = Guard(config.auth, config.cluster_name, state.user, state.acl, self._topic_at)
        self.passing_on = PassingOn(role, spawn)
        self.auth_requests = AuthRequests(state, role, self.guard, self._propose, self.passing_on, loop.time)
        self.leadership = Leadership(
            config,
            state,
            self.state_log,
            store.log,
            self.metadata,
            self.offsets,
            self.locks,
            self.auth_requests,
            self.deliveries,
            self.pop,
            self.delay,
            self.timer,
            self.transactions,
        )
        self.handler = BrokerRequestHandler(
            request_table(
                send=self.send,
                request_reply=self.request_reply,
                send_back=self.send_back,
                pull=self.pull,
                pop=self.pop,
                query=self.query,
                offset_requests=self.offset_requests,
                client_requests=self.client_requests,
                transaction_requests=self.transaction_requests,
                timer_requests=self.timer_requests,
                delay=self.delay,
                topics=self.topic_requests,
                groups=self.group_requests,
                broker=self.broker_requests,
                consumer_admin=self.consumer_admin,
                offset_moves=self.offset_moves,
                cleaning=self.cleaning,
                cold=self.cold,
                replicas=self.replicas,
                transfer=self.transfer,
                auth=self.auth_requests,
                passing_on=self.passing_on,
            ),
            self.clients,
            self.guard,
            counting,
        )

    def totals(self) -> Totals:
        """Counts since the start."""
        self.counting.settle()
        return Totals(
            self.counting.arrivals.messages,
            self.counting.arrivals.size_bytes,
            self.pull.messages_out + self.pop.take.messages_out,
            self.pull.found,
            self.pull.missed,
        )

    def _waiting_figures(self) -> dict[str, str]:
        return self.timer.figures() | self.delay.figures()

    def describe(self) -> Announcement:
        """What nameservers are told: the topics with what this broker permits; where that is less, another version."""
        topics, version = self.metadata.topics(), self.topic_requests.topic_version()
        allowed = self._config.broker_permission
        if withheld := PERM_READ_WRITE & ~allowed:
            topics = {name: replace(topic, perm=topic.perm & allowed) for name, topic in topics.items()}
            version = replace(version, counter=version.counter + withheld)
        return Announcement(topics, version, self.store.log.confirm_offset)

    def restore(self, snapshot: bytes) -> None:
        """Become what a leader's snapshot says; errors as `ReplicatedState.restore`."""
        before, applied_offset = set(self.state.topics), self.state.applied_offset
        self.state.restore(snapshot)
        made_again = {name for name, removed_at in self.state.removed.items() if removed_at >= applied_offset}
        for name in before - self.state.topics.keys() | made_again:
            self.store.queues.delete_topic(name)
        self.targets.forget()
        self.metadata.forget_proposals()
        self.offsets.forget_ahead()
        self._announce_soon(None)

    # ---- what follows the store

    def follow(self) -> None:
        """Hear of everything that the store dispatches from now on, and of its role."""
        self.store.watch_topic(names.STATE_TOPIC)
        self.store.add_listener(self)

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """These queues have new messages: held pulls and delayed messages may be due."""
        self.held.wake(queues)
        self.pop.wake(queues)
        for queue in queues:
            if queue.topic in names.WAITING_TOPICS:
                self.delay.wake(queues)
                self.timer.follower.wake(queues)
                self.transactions.wake(queues)
                break

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """A change is committed."""
        self.state_log.apply_record(physical_offset, record)

    def on_role_change(self, state: LogState) -> None:
        """This node may write now, or may not any more, or follows another leader."""
        self.role.update(state)
        self.targets.forget()
        self.leadership.take(state)
        self._announce_soon(None)

    # ---- inside

    def _topic_at(self, physical_offset: int) -> str | None:
        found = self.store.look_up(physical_offset)
        if found is None:
            return None
        record = decode_record(found)
        return record.property_map.get(REAL_TOPIC, record.topic) if _waits(record.topic) else record.topic

    def _propose(self, change: StateChange, done: Callable[[Any], None]) -> None:
        def settle(refusal: Any) -> None:
            if refusal is not None:
                self.targets.forget()
            done(refusal)

        if change.topics or change.groups:
            self.targets.forget()
        self.state_log.propose(change, settle)

    def _on_applied(self, change: StateChange) -> None:
        self.metadata.applied(change)
        for name, topic in change.topics.items():
            if topic is None:
                self.held.release(self.store.queues.of_topic(name))
                self.store.queues.delete_topic(name)
                self.offsets.forget_topic(name)
                self.pop.forget_topic(name)
                self.counting.forget_topic(name)
        for name, group in change.groups.items():
            if group is None:
                self.pop.progress.orders.forget_group(name)
                self.counting.forget_group(name)
        for key, queues in change.offsets.items():
            if queues is None:
                self.offsets.forget_key(key)
        if change.topics or change.groups:
            self.targets.forget()
        if change.topics:
            self._announce_soon(change.topics.keys())

    def _on_topic_known(self) -> None:
        self.targets.forget()

    def _on_group_changed(self, group: ConsumerGroup) -> None:
        self.client_requests.notify_members(group)


def _waits(topic: str) -> bool:
    return topic in names.WAITING_TOPICS or topic == names.CHECKED_OUT_TOPIC


def wall_clock_ms() -> int:
    """Ms since the epoch: the clock of store times."""
    return time.time_ns() // 1_000_000
