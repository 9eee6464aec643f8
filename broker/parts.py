"""The broker's parts, made and tied together: no files opened, nothing listened at, no time passing yet.

ReplicatedState <- StateLog <- Metadata, ConsumerOffsets            (what the log carries)
Appender <- SendProcessor, SendBack, StateLog, Deliveries           (what goes into the log)
Deliveries <- DelayService, TimerService, TransactionService        (what waits first)
HeldPulls <- PullProcessor, OffsetRequests, AdminRequests           (what is read)
PopProgress <- PopService                                           (what is taken without owning queues)
ClientTable, QueueLocks <- ClientRequests                           (who is connected)

A part knows those it is given, never the whole.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from broker import names
from broker.admin import AdminRequests
from broker.adoption import whole_tables
from broker.appender import Appender
from broker.auth.guard import Guard
from broker.auth.requests import AuthRequests
from broker.cleaning import CleaningRequests
from broker.client_requests import ClientRequests
from broker.clients import ClientTable, ConsumerGroup
from broker.cold_data import ColdReads
from broker.config import BrokerConfig, LogMode
from broker.consumer_admin import ConsumerAdmin
from broker.delay import DelayService
from broker.drafts import DraftMaker
from broker.filter_turns import FilterTurns
from broker.locks import QueueLocks
from broker.long_polling import HeldPulls
from broker.metadata import Metadata
from broker.metrics.counting import Counting
from broker.new_topics import NewTopics
from broker.offset_requests import OffsetRequests
from broker.offsets import ConsumerOffsets
from broker.passing_on import PassingOn
from broker.pop.service import PopService
from broker.pull import PullProcessor
from broker.query import QueryRequests
from broker.registration import Announcement
from broker.replica_requests import ReplicaRequests
from broker.request_reply import RequestReply
from broker.role import Role
from broker.runtime_info import RuntimeInfo, Totals
from broker.send import SendProcessor
from broker.send_answers import SendAnswers
from broker.send_back import SendBack
from broker.send_target import SendTargets
from broker.server import BrokerRequestHandler, Serve
from broker.settings import PERM_READ_WRITE
from broker.state import ReplicatedState, StateChange
from broker.state_log import StateLog
from broker.subscription_refresh import SubscriptionRefresh
from broker.timer_deliveries import Deliveries
from broker.timer_drafts import TimerDrafts
from broker.timer_parking import Parking
from broker.timer_requests import TimerRequests
from broker.timer_service import TimerService
from broker.transaction_copies import TransactionCopies
from broker.transaction_requests import TransactionRequests
from broker.transaction_service import TransactionService
from broker.transfer import TRANSFER_LEADERSHIP, TransferRequests
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.message.properties import REAL_TOPIC
from ledgermq.message.record import decode_record
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.refusal import Refusal
from store.consume_queue import ConsumeQueue
from store.message_store import MessageStore
from store.replicated_log import LogState
from store.timer.metrics import TopicCounts
from store.timer.timer_index import TimerIndex

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], None]


class Parts:
    """Everything between the sockets and the store; follows the store as its listener.

    Attributes:
        role_changes: how often it began or ceased to write.
        deposed: set while this node does not write, from the first time it was told so.

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
        self._is_raft = config.mode is LogMode.RAFT
        self.store = store
        self.deposed = asyncio.Event()
        self.role_changes = 0
        self._announce_soon = announce_soon
        queues = store.queues
        not_yet = LogState(writable=False, generation=store.log.state.generation, leader=store.log.state.leader)
        self.role = role = Role(config, not_yet)
        self.counting = counting = Counting(config.cluster_name, config.metrics_label_sets_max, loop.time)
        self.statistics = counting.statistics
        self.answers = SendAnswers(store_host, counting.calls, config.region_id, config.trace_on)
        self.appender = Appender(store.put, self.answers, counting.settled, loop)
        drafts = DraftMaker(queues, store_host)
        self.state_log = StateLog(state, self.appender, drafts, self._on_applied)
        self.new_topics = NewTopics(announce, spawn, self._on_topic_known, loop)
        self.metadata = Metadata(config, state, role, self._propose, self.new_topics)
        self.targets = SendTargets(config, self.metadata, role, queues, self.new_topics, counting.arrivals)
        self.offsets = ConsumerOffsets(state, role, self._propose, loop)
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
            config, self.metadata, self.offsets, self.clients, role, store, self.held, self.statistics, spawn
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
        self.admin = AdminRequests(
            config,
            state,
            self.metadata,
            self.offsets,
            self.clients,
            role,
            store,
            self.runtime,
            self.statistics,
            self.consumer_admin,
            announce,
            spawn,
        )
        self.cleaning = CleaningRequests(self.metadata, self.targets, store, spawn)
        self.replicas = ReplicaRequests(config, role, store.log)
        self.transfer = TransferRequests(store.log, role, self.offsets, spawn)
        self.guard = Guard(config.auth, config.cluster_name, state.user, state.acl, self._topic_at)
        self.passing_on = PassingOn(role, spawn)
        self.auth_requests = AuthRequests(state, role, self.guard, self._propose, self.passing_on, loop.time)
        self._super_users = config.auth.super_users()
        self.handler = BrokerRequestHandler(
            {**self._table(), **self.auth_requests.table()}, self.clients, self.guard, counting
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
        topics, version = self.metadata.topics(), self.admin.topic_version()
        allowed = self._config.broker_permission
        if withheld := PERM_READ_WRITE & ~allowed:
            topics = {name: replace(topic, perm=topic.perm & allowed) for name, topic in topics.items()}
            version = replace(version, counter=version.counter + withheld)
        return Announcement(topics, version, self.store.log.confirm_offset)

    def restore(self, snapshot: bytes) -> None:
        """Become what a leader's snapshot says; errors as `ReplicatedState.restore`."""
        before = set(self.state.topics)
        self.state.restore(snapshot)
        for name in before - self.state.topics.keys():
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
        self.role_changes += self.role.writable != state.writable
        self.role.update(state)
        self.targets.forget()
        leader = f"led by {state.leader.node_id} at {state.leader.address}" if state.leader else "no leader is known"
        log.info(
            "%s in term %d, %s; confirmed up to %d of %d",
            "takes writes" if state.writable else "takes no writes",
            state.generation,
            leader,
            self.store.log.confirm_offset,
            self.store.log.max_offset,
        )
        if state.writable:
            self._adopt_tables()
            self.auth_requests.make_users(self._super_users)
            self.deposed.clear()
            self.pop.lead()
            self.transactions.expect()
            self.deliveries.scan(self._resume_deliveries)
        else:
            self.deposed.set()
            self.metadata.forget_proposals()
            self.offsets.forget_ahead()
            self.pop.follow()
            self.stop_deliveries()
            self.deliveries.stop()
        self._announce_soon(None)

    def stop_deliveries(self) -> None:
        """Nothing that waits is delivered any more; what is under way is recorded if this node still may."""
        self.pop.stop()
        self.delay.stop()
        self.timer.stop()
        self.transactions.stop()

    def refresh_marks(self) -> None:
        """To be called now and then: a new leader looks through less of the log."""
        if self.role.writable:
            self.deliveries.refresh()

    def _resume_deliveries(self) -> None:
        self.delay.resume()
        self.timer.resume()
        self.transactions.resume()

    # ---- inside

    def _adopt_tables(self) -> None:
        """A Java group's members have tables of their own: from here on they are those of this leader."""
        if self._is_raft and self.state.is_foreign:
            self.state.is_foreign = False
            for change in whole_tables(self.state):
                self.state_log.propose(change, self._on_adopted)

    def _on_adopted(self, outcome: Refusal | None) -> None:
        if outcome is not None:
            self.state.is_foreign = True  # the next leader tries again
            log.warning("the tables that Java left are not replicated yet: %s", outcome)

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

    def _table(self) -> Mapping[int, Serve]:
        code = RequestCode
        return {
            code.SEND_MESSAGE: self.send.send_v1,
            code.SEND_MESSAGE_V2: self.send.send_v2,
            code.SEND_BATCH_MESSAGE: self.send.send_batch,
            code.SEND_REPLY_MESSAGE: self.request_reply.reply,
            code.SEND_REPLY_MESSAGE_V2: self.request_reply.reply,
            code.CONSUMER_SEND_MSG_BACK: self.send_back.send_back,
            code.PULL_MESSAGE: self.pull.pull,
            code.LITE_PULL_MESSAGE: self.pull.pull,
            code.QUERY_CONSUMER_OFFSET: self.offset_requests.query_consumer_offset,
            code.UPDATE_CONSUMER_OFFSET: self.offset_requests.update_consumer_offset,
            code.GET_ALL_CONSUMER_OFFSET: self.offset_requests.all_consumer_offsets,
            code.SEARCH_OFFSET_BY_TIMESTAMP: self.offset_requests.search_offset,
            code.GET_MAX_OFFSET: self.offset_requests.max_offset,
            code.GET_MIN_OFFSET: self.offset_requests.min_offset,
            code.GET_EARLIEST_MSG_STORETIME: self.offset_requests.earliest_store_time,
            code.QUERY_MESSAGE: self.query.query,
            code.VIEW_MESSAGE_BY_ID: self.offset_requests.view_message,
            code.HEART_BEAT: self.client_requests.heartbeat,
            code.UNREGISTER_CLIENT: self.client_requests.unregister,
            code.GET_CONSUMER_LIST_BY_GROUP: self.client_requests.members,
            code.CHECK_CLIENT_CONFIG: self.client_requests.check_client_config,
            code.LOCK_BATCH_MQ: self.client_requests.lock,
            code.UNLOCK_BATCH_MQ: self.client_requests.unlock,
            code.GET_CONSUMER_CONNECTION_LIST: self.client_requests.consumer_connections,
            code.GET_PRODUCER_CONNECTION_LIST: self.client_requests.producer_connections,
            code.GET_CONSUMER_RUNNING_INFO: self.client_requests.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: self.client_requests.consume_directly,
            code.END_TRANSACTION: self.transaction_requests.end,
            code.RECALL_MESSAGE: self.timer_requests.recall,
            code.GET_ALL_DELAY_OFFSET: self.delay.all_offsets,
            code.GET_TIMER_CHECK_POINT: self.timer_requests.check_point,
            code.GET_TIMER_METRICS: self.timer_requests.metrics,
            code.UPDATE_AND_CREATE_TOPIC: self.admin.update_topic,
            code.UPDATE_AND_CREATE_TOPIC_LIST: self.admin.update_topics,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.admin.system_topics,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.admin.update_groups,
            code.UPDATE_AND_GET_GROUP_FORBIDDEN: self.admin.group_forbidden,
            code.VIEW_BROKER_STATS_DATA: self.admin.view_statistics,
            code.GET_BROKER_HA_STATUS: self.replicas.status,
            code.GET_BROKER_EPOCH_CACHE: self.replicas.terms,
            code.NOTIFY_MIN_BROKER_ID_CHANGE: self.replicas.min_broker_changed,
            code.RESET_MASTER_FLUSH_OFFSET: self.replicas.reset_master_flush_offset,
            code.EXPORT_ROCKSDB_CONFIG_TO_JSON: self.replicas.nothing_elsewhere,
            code.POP_ROLLBACK: self.replicas.nothing_elsewhere,
            code.RESUME_CHECK_HALF_MESSAGE: self.transaction_requests.resume,
            code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.cold.set_thresholds,
            code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.cold.remove_threshold,
            code.GET_COLD_DATA_FLOW_CTR_INFO: self.cold.show,
            code.SET_COMMITLOG_READ_MODE: self.cold.set_read_ahead,
            code.DELETE_TOPIC_IN_BROKER: self.passing_on.led(self.admin.delete_topic),
            code.GET_ALL_TOPIC_CONFIG: self.admin.all_topics,
            code.GET_TOPIC_CONFIG: self.admin.topic_config,
            code.GET_TOPIC_STATS_INFO: self.admin.topic_stats,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.admin.update_group,
            code.DELETE_SUBSCRIPTIONGROUP: self.admin.delete_group,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.admin.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: self.admin.group_config,
            code.GET_CONSUME_STATS: self.admin.consume_stats,
            code.INVOKE_BROKER_TO_RESET_OFFSET: self.consumer_admin.reset_offset,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_admin.consumer_status,
            code.QUERY_TOPIC_CONSUME_BY_WHO: self.consumer_admin.topic_consumers,
            code.QUERY_CONSUME_TIME_SPAN: self.consumer_admin.time_span,
            code.QUERY_CORRECTION_OFFSET: self.consumer_admin.correction_offsets,
            code.CLONE_GROUP_OFFSET: self.consumer_admin.clone_offsets,
            code.GET_BROKER_CONSUME_STATS: self.consumer_admin.all_consume_stats,
            code.QUERY_CONSUME_QUEUE: self.consumer_admin.queue_units,
            code.QUERY_TOPICS_BY_CONSUMER: self.consumer_admin.topics_of_group,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: self.consumer_admin.subscription_of_group,
            code.GET_ALL_PRODUCER_INFO: self.consumer_admin.all_producers,
            code.CLEAN_EXPIRED_CONSUMEQUEUE: self.cleaning.expired_queues,
            code.CLEAN_UNUSED_TOPIC: self.cleaning.unused_topics,
            code.DELETE_EXPIRED_COMMITLOG: self.cleaning.expired_log,
            code.GET_BROKER_CONFIG: self.admin.broker_config,
            code.GET_BROKER_RUNTIME_INFO: self.admin.runtime_info,
            TRANSFER_LEADERSHIP: self.transfer.transfer,
            **self.pop.requests(),
        }


def _waits(topic: str) -> bool:
    return topic in names.WAITING_TOPICS or topic == names.CHECKED_OUT_TOPIC


def wall_clock_ms() -> int:
    """Ms since the epoch: the clock of store times."""
    return time.time_ns() // 1_000_000
