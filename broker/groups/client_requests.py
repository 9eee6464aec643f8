"""Requests by and about connected clients: 34, 35, 38, 41, 42, 46, 203, 204, 307, 309; and the notice 40 to consumers.

Source: apache/rocketmq `broker/.../processor/ClientManageProcessor.java`, `ConsumerManageProcessor.java`,
`AdminBrokerProcessor.java` (5.x).
"""

import asyncio
from collections.abc import Generator
from typing import Any

from broker.context import BrokerContext
from broker.groups.clients import (
    BROADCASTING,
    HEARTBEAT,
    Client,
    ClientTable,
    ConsumerGroup,
    Heartbeat,
    check_group_count,
)
from broker.groups.locks import GroupLocks
from broker.groups.subscription import Subscription, check_usable
from broker.state import names
from broker.state.system_records import visible_record
from broker.state.tables import when_all
from broker.subsystem import Steps
from ledgermq.message.errors import InvalidMessageIdError
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import text
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.lenient_json import check_count, check_keys, request_json, request_object
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError, RequestTimeoutError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import QUEUES_MAX, MessageQueue

FORWARD_TIMEOUT_SECONDS = 10.0
NOTIFY_AGAIN_SECONDS = 2.0
"""Java consumers assign queues at most once a second, and look for unknown routes when they do."""

_LEFT_MAX = 20
"""Most requests to leave groups that are kept with a heartbeat; a new leader removes further ones when they expire."""

_HEARTBEAT_AT_ONCE_BYTES = 16 * 1024
_HEARTBEAT_MAX_BYTES = 1 << 20
_NEW_GROUPS_MAX = 1000
"""Most consumer groups that one heartbeat creates; it is refused then, and the client's next one goes on."""

_QUEUES_A_STEP = 64

_ANSWERS_QUESTIONS = 62
"""First version of clients (3.1.8) that answers requests of brokers."""


class ClientRequests:
    """Updates the client table from heartbeats, gives out queue locks, and passes requests on to clients."""

    def __init__(self, context: BrokerContext, clients: ClientTable, locks: GroupLocks) -> None:
        self._config = context.config
        self._identity = context.identity
        self._metadata = context.metadata
        self._new_topics = context.new_topics
        self._clients = clients
        self._locks = locks
        self._role = context.role
        self._store = context.store
        self._spawn = context.spawn

    # ---- heartbeats and members

    def heartbeat(self, connection: Connection, command: Command) -> Steps | None:
        """34: take a client's heartbeat with its groups.

        Unknown groups and their retry topics are created where allowed.

        The answer waits until a new retry topic has its route: consumers look for it next, and then not again for 20 s.
        A heartbeat of few groups is taken at once, since the pulls of the same client may be right behind it.
        """
        steps = self._take_heartbeat(connection, command, connection.user)
        if len(command.body) > _HEARTBEAT_AT_ONCE_BYTES:
            return steps
        for _ in steps:
            pass
        return None

    def _take_heartbeat(self, connection: Connection, command: Command, user: str | None) -> Steps:
        if len(command.body) > _HEARTBEAT_MAX_BYTES:
            remark = f"heartbeat: {len(command.body)} bytes, {_HEARTBEAT_MAX_BYTES} are the most"
            raise Refusal(Cause.INVALID_PARAMETER, remark)
        check_group_count(bytes(command.body).count(b'"groupName"'))  # before it is parsed
        beat = yield from Heartbeat.from_json(request_json(command))
        connection.attributes[HEARTBEAT] = (_kept(command),)
        for group in beat.producer_groups:
            self._clients.beat_producer(group, beat.client_id, connection, command.language, command.version, user)
            yield
        made = 0
        for data in beat.consumers:
            made += self._config.auto_create_group and self._metadata.group(data.group) is None
            if made > _NEW_GROUPS_MAX:
                remark = f"heartbeat: {_NEW_GROUPS_MAX} groups were created, the next one goes on"
                raise Refusal(Cause.BUSY, remark, retry_after_ms=1000)
            if self._metadata.group_or_new(data.group) is None:
                continue  # as upstream; the pull is refused later
            if data.message_model != BROADCASTING:
                self._ensure_retry_topic(data.group)
            self._locks.found(data.group, beat.client_id)
            self._clients.beat_consumer(data, beat.client_id, connection, command.language, command.version)
            yield
        new = [data.group for data in beat.consumers if names.retry_topic(data.group) in self._new_topics]
        fields = {"IS_SUB_CHANGE": "true", "IS_SUPPORT_HEART_BEAT_V2": "true"}
        if not new:
            connection.respond(command, ResponseCode.SUCCESS, fields)
            return
        done = when_all(len(new), lambda _: connection.respond(command, ResponseCode.SUCCESS, fields))
        for group in new:
            self._new_topics.then(names.retry_topic(group), lambda: done(None))
        self._spawn(self._notify_again(new))

    def unregister(self, connection: Connection, command: Command) -> None:
        """35: remove the client from these groups."""
        fields = command.ext
        if producer_group := fields.get("producerGroup"):
            self._clients.leave_producer(producer_group, connection)
        if consumer_group := fields.get("consumerGroup"):
            self._clients.leave_consumer(consumer_group, connection, has_left=True)
        kept = connection.attributes.get(HEARTBEAT, ())
        if 0 < len(kept) <= _LEFT_MAX:
            connection.attributes[HEARTBEAT] = (*kept, _kept(command))
        connection.respond(command, ResponseCode.SUCCESS, {})

    def members(self, connection: Connection, command: Command) -> None:
        """38: answer the ids of the group's consumers, which share its queues."""
        name = text(command.ext, "consumerGroup")
        group = self._clients.consumer_group(name)
        if group is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"no consumer for this group, {name}")
        connection.respond(command, ResponseCode.SUCCESS, {}, dumps({"consumerIdList": group.client_ids()}))

    def check_client_config(self, connection: Connection, command: Command) -> None:
        """46: check whether the broker can filter by a subscription."""
        subscription = request_object(command).get("subscriptionData") if command.body else None
        if subscription is not None:
            parsed = Subscription.from_json(subscription)
            check_usable(parsed, sql=self._config.property_filter, fault=Cause.SUBSCRIPTION_PARSE_FAILED)
        connection.respond(command, ResponseCode.SUCCESS)

    def notify_members(self, group: ConsumerGroup) -> None:
        """40: notify every member that members or topics have changed, so that queues are assigned again."""
        config = self._metadata.group(group.name)
        if group.message_model == BROADCASTING or (config is not None and not config.notify_consumer_ids_changed):
            return
        fields = {"consumerGroup": group.name}
        for member in group.one_by_one():
            member.connection.oneway(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext=fields))

    async def _notify_again(self, groups: list[str]) -> None:
        """Notify again: consumers that asked for the route of a new retry topic too early would wait 20 s."""
        await asyncio.sleep(NOTIFY_AGAIN_SECONDS)
        for name in groups:
            group = self._clients.consumer_group(name)
            if group is not None:
                self.notify_members(group)

    # ---- queue locks

    def lock(self, connection: Connection, command: Command) -> Steps:
        """41: lock queues for a client that consumes in order; answer those that it has now."""
        self._role.check_locks()
        group, client_id, listed = _lock_body(command)
        locked = []
        for queues in (yield from _queues(command, listed)):
            self._role.check_locks()  # it may have lost that since the last step
            if granted := self._locks.lock(group, client_id, queues):
                locked.append(dumps([queue.to_json() for queue in granted])[1:-1])
            yield
        connection.respond(command, ResponseCode.SUCCESS, body=b'{"lockOKMQSet":[%b]}' % b",".join(locked))

    def unlock(self, connection: Connection, command: Command) -> Steps:
        """42: unlock queues that this client has locked."""
        group, client_id, listed = _lock_body(command)
        for queues in (yield from _queues(command, listed)):
            self._locks.unlock(group, client_id, queues)
            yield
        connection.respond(command, ResponseCode.SUCCESS)

    # ---- who is connected

    def consumer_connections(self, connection: Connection, command: Command) -> None:
        """203: answer the members of a group and its subscriptions."""
        name = text(command.ext, "consumerGroup")
        group = self._clients.consumer_group(name)
        if group is None:
            connection.respond(
                command, ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online"
            )
            return
        body = dumps(
            {
                "connectionSet": [member.to_json() for member in group.one_by_one()],
                "consumeFromWhere": group.consume_from_where,
                "consumeType": group.consume_type,
                "messageModel": group.message_model,
                "subscriptionTable": {topic: entry.to_json() for topic, entry in group.subscriptions.items()},
            }
        )
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def producer_connections(self, connection: Connection, command: Command) -> None:
        """204: answer the producers of a group."""
        name = text(command.ext, "producerGroup")
        producers = self._clients.producers(name)
        if not producers:
            raise Refusal(Cause.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = dumps({"connectionSet": [producer.to_json() for producer in producers]})
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    # ---- questions for a client

    def running_info(self, connection: Connection, command: Command) -> None:
        """307: pass the request on to the client that it names."""
        client = self._member(command)
        self._spawn(self._forward(client, connection, command, dict(command.ext), b""))

    def consume_directly(self, connection: Connection, command: Command) -> None:
        """309: send one stored message to one client and answer with its result."""
        fields = command.ext
        client = self._member(command)
        message_id = text(fields, "msgId")
        try:
            _, offset = parse_offset_message_id(message_id)
        except InvalidMessageIdError as error:
            raise Refusal(Cause.MALFORMED_FIELD, f"field msgId: {error}") from error
        record = visible_record(self._store, offset)
        if record is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"can not find message by the offset, {offset} (msgId {message_id})")
        extended = {**fields, "brokerName": self._identity.name}
        if (topic := self._metadata.topic(fields.get("topic", ""))) is not None:
            extended["topicSysFlag"] = str(topic.sys_flag)
        if (group := self._metadata.group(fields.get("consumerGroup", ""))) is not None:
            extended["groupSysFlag"] = str(group.sys_flag)
        self._spawn(self._forward(client, connection, command, extended, bytes(record)))

    async def _forward(
        self, client: Client, connection: Connection, command: Command, fields: dict[str, str], body: bytes
    ) -> None:
        try:
            question = Command(command.code, ext=fields, body=body)
            answer = await client.connection.request(question, FORWARD_TIMEOUT_SECONDS)
        except RequestTimeoutError as error:
            connection.respond(
                command, ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"{_consumer(command)} Timeout: {error}"
            )
        except RemotingError as error:
            connection.respond(
                command, ResponseCode.SYSTEM_ERROR, remark=f"invoke {_consumer(command)} Exception: {error}"
            )
        else:
            fields = dict(answer.ext)
            connection.respond(command, answer.code, fields, bytes(answer.body), remark=answer.remark)

    def _member(self, command: Command) -> Client:
        group_name, client_id = text(command.ext, "consumerGroup"), text(command.ext, "clientId")
        group = self._clients.consumer_group(group_name)
        client = group.find(client_id) if group is not None else None
        if client is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online")
        if client.version < _ANSWERS_QUESTIONS:
            remark = f"The Consumer <{client_id}> Version <{client.version}> too low to finish"
            raise Refusal(Cause.SYSTEM_ERROR, f"{remark}, please upgrade it to V3_1_8_SNAPSHOT")
        return client

    def _ensure_retry_topic(self, group: str) -> None:
        config = self._metadata.group(group)
        if self._role.writable and config is not None and config.retry_queues > 0:
            self._metadata.topic_for_group(names.retry_topic(group), config.retry_queues)


def _kept(command: Command) -> Command:
    """Return a copy of a request that does not keep the rest of what was received with it in memory."""
    copy = Command(command.code, ext=command.ext, body=bytes(command.body))
    copy.language, copy.version, copy.header_type = command.language, command.version, command.header_type
    return copy


def _consumer(command: Command) -> str:
    """Return the id of the client that a request names."""
    return f"consumer <{command.ext.get('consumerGroup', '')}> <{command.ext.get('clientId', '')}>"


def _lock_body(command: Command) -> tuple[str, str, list[Any]]:
    check_keys(command, "mqSet", "queueId", QUEUES_MAX)
    body = request_json(command)
    try:
        asked = str(body["consumerGroup"]), str(body["clientId"]), list(body["mqSet"])
    except (KeyError, TypeError) as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: the body has no good {error}") from error
    check_count(command, "mqSet", len(asked[2]), QUEUES_MAX)
    return asked


def _queues(command: Command, listed: list[Any]) -> Generator[None, None, list[list[MessageQueue]]]:
    """Return the queues in pieces of a step each."""
    pieces = []
    try:
        for start in range(0, len(listed), _QUEUES_A_STEP):
            piece = listed[start : start + _QUEUES_A_STEP]
            pieces.append([MessageQueue(str(mq["topic"]), str(mq["brokerName"]), int(mq["queueId"])) for mq in piece])
            yield
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"{command.name}: the body has no good {error}") from error
    return pieces
