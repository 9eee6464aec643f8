"""The subsystem of consumer groups and their clients: connections, offsets, queue locks.

ClientTable, QueueLocks <- ClientRequests             connected clients
ConsumerOffsets <- OffsetRequests, ConsumerAdmin      offsets of groups
Metadata <- GroupRequests                             the groups
"""

from collections.abc import Callable, Iterable, Mapping

from broker.context import BrokerContext
from broker.groups.client_requests import ClientRequests
from broker.groups.clients import ClientTable, ConsumerGroup, Gone
from broker.groups.consumer_admin import ConsumerAdmin
from broker.groups.group_requests import GroupRequests
from broker.groups.kept_offsets import KeptOffsets
from broker.groups.locks import GroupLocks
from broker.groups.offset_requests import OffsetRequests
from broker.groups.shared_locks import SharedLocks
from broker.subsystem import Serve, Subsystem
from ledgermq.remoting.codec.codes import RequestCode

_EXPIRE_SECONDS = 10.0
_HAND_OVER_SECONDS = 1.0


class GroupSubsystem(Subsystem):
    """Everything that serves groups and clients, except the messages themselves."""

    def __init__(self, context: BrokerContext) -> None:
        self._loop = context.loop
        self._turns = context.turns
        self._throttled = context.throttled
        self._role = context.role
        self.clients = ClientTable(context.loop.time, self._on_members_changed, self._on_consumer_gone)
        self.locks = GroupLocks(context.loop.time, context.config.lock_grace_ms / 1000)
        self.shared_locks = SharedLocks(self.locks, context.role)
        self._client_requests = ClientRequests(context, self.clients, self.locks)
        self._group_requests = GroupRequests(context)
        self._consumers = ConsumerAdmin(context, self.clients)
        self.kept_offsets = KeptOffsets(context.offsets, context.role, context.forwarding, context.spawn)
        self.offset_requests = OffsetRequests(context)

    def requests(self) -> Mapping[int, Serve]:
        """Return the handlers by request code."""
        return {**self._of_clients(), **self._of_groups(), **self._of_offsets()}

    @property
    def answer_group(self) -> Serve:
        """Return the function that answers how a group consumes (203)."""
        return self._client_requests.consumer_connections

    def _of_clients(self) -> Mapping[int, Serve]:
        code, clients = RequestCode, self._client_requests
        return {
            code.HEART_BEAT: clients.heartbeat,
            code.UNREGISTER_CLIENT: clients.unregister,
            code.GET_CONSUMER_LIST_BY_GROUP: clients.members,
            code.CHECK_CLIENT_CONFIG: clients.check_client_config,
            code.LOCK_BATCH_MQ: clients.lock,
            code.UNLOCK_BATCH_MQ: clients.unlock,
            code.GET_CONSUMER_CONNECTION_LIST: clients.consumer_connections,
            code.GET_PRODUCER_CONNECTION_LIST: clients.producer_connections,
            code.GET_CONSUMER_RUNNING_INFO: clients.running_info,
            code.CONSUME_MESSAGE_DIRECTLY: clients.consume_directly,
        }

    def _of_groups(self) -> Mapping[int, Serve]:
        code, groups, consumers = RequestCode, self._group_requests, self._consumers
        return {
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_group,
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_groups,
            code.DELETE_SUBSCRIPTIONGROUP: groups.delete_group,
            code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.all_groups,
            code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.group_config,
            code.UPDATE_AND_GET_GROUP_FORBIDDEN: groups.group_forbidden,
            code.GET_CONSUME_STATS: consumers.consume_stats,
            code.GET_BROKER_CONSUME_STATS: consumers.all_consume_stats,
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumers.consumer_status,
            code.QUERY_TOPIC_CONSUME_BY_WHO: consumers.topic_consumers,
            code.QUERY_CONSUME_TIME_SPAN: consumers.time_span,
            code.QUERY_CORRECTION_OFFSET: consumers.correction_offsets,
            code.QUERY_CONSUME_QUEUE: consumers.queue_units,
            code.QUERY_TOPICS_BY_CONSUMER: consumers.topics_of_group,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER: consumers.subscription_of_group,
            code.GET_ALL_PRODUCER_INFO: consumers.all_producers,
        }

    def _of_offsets(self) -> Mapping[int, Serve]:
        code, offsets = RequestCode, self.offset_requests
        return {
            code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
            code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
            code.GET_ALL_CONSUMER_OFFSET: offsets.all_consumer_offsets,
            code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
            code.GET_MAX_OFFSET: offsets.max_offset,
            code.GET_MIN_OFFSET: offsets.min_offset,
            code.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
            code.VIEW_MESSAGE_BY_ID: self._throttled.guard(offsets.view_message),
        }

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Forget clients and locks that are not renewed; give the master what a slave keeps for it."""
        return (_EXPIRE_SECONDS, self._expire), (_HAND_OVER_SECONDS, self.kept_offsets.hand_over)

    def _expire(self) -> None:
        self._turns.run_steps(self.clients.expire())
        self._turns.run_steps(self.locks.expire())

    def lead(self) -> None:
        """Wait for consumers that have locked queues and are connected neither to this node nor to a follower."""
        for group, client_id, _ in list(self.locks.held()):
            members = self.clients.consumer_group(group)
            if members is None or members.find(client_id) is None:
                self._on_consumer_gone(group, client_id, Gone.LOST)

    def follow(self) -> None:
        """Stop to judge the locks: another node gives them out. A slave that stood in for its master stops, too."""
        if self._role.is_in_election:
            self.locks.follow()
        else:
            self.locks.clear()

    def _on_members_changed(self, group: ConsumerGroup) -> None:
        """Notify the members, unless that is for another node: a leader knows the clients of all members."""
        if not self._is_for_another_node:
            self._client_requests.notify_members(group)

    @property
    def _is_for_another_node(self) -> bool:
        return self._role.is_in_election and self._role.leader_elsewhere is not None

    def _on_consumer_gone(self, group: str, client_id: str, why: Gone) -> None:
        if why is Gone.LEFT:
            self.locks.left(group, client_id)
        elif not self._is_for_another_node:
            grace_s = self.locks.lost(group, client_id, has_died=why is Gone.DIED)
            if grace_s is not None:
                self._loop.call_later(grace_s, self._tell_of_free_locks, group, client_id)

    def _tell_of_free_locks(self, group: str, client_id: str) -> None:
        """Notify the members that the locks of a client are free that did not come back: some ask every 20 s only."""
        left_s = self.locks.free_in(group, client_id)
        if left_s is None:
            return
        if left_s > 0:
            self._loop.call_later(left_s, self._tell_of_free_locks, group, client_id)
            return
        self.locks.left(group, client_id)
        members = self.clients.consumer_group(group)
        if members is not None:
            self._client_requests.notify_members(members)
