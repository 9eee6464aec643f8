"""Moves a group's offsets: to a time or an offset (222), or to those of another group (314).

    222 reset -> the group's offsets are set; its next pull of each queue is answered "moved" with the new offset

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java`, `client/net/Broker2Client.java` (5.x).
"""

from typing import Final

from broker.context import BrokerContext
from broker.groups.clients import ClientTable
from broker.pull.held_pulls import HeldPulls
from broker.state.tables import parts_of, when_all
from broker.subsystem import Steps, answer_after
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import boolean, integer, long, text
from ledgermq.remoting.codec.java_json import QUEUE_KEY, dumps
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

_NO_GROUP: Final = "null"
"""The group of a request that names none, as RocketMQ writes it into the keys of offsets."""

_QUEUES_A_STEP: Final = 64
_MOVED: Final = QUEUE_KEY + b":%d"


class OffsetMoves:
    """Moves the offsets of groups.

    Args:
        held_pulls: pulls of the moved queues are answered at once, so that clients learn of the move.
    """

    def __init__(self, context: BrokerContext, clients: ClientTable, held_pulls: HeldPulls) -> None:
        self._identity = context.identity
        self._metadata = context.metadata
        self._offsets = context.offsets
        self._clients = clients
        self._role = context.role
        self._store = context.store
        self._held_pulls = held_pulls

    def reset_offset(self, connection: Connection, command: Command) -> Steps:
        """222: set a group's offsets in a topic to a time, to the end (timestamp -1), or in one queue to an offset."""
        fields = command.ext
        self._role.check_writable()
        name, group = text(fields, "topic"), text(fields, "group")
        queue_id, timestamp = integer(fields, "queueId", -1), long(fields, "timestamp", 0)
        topic = self._metadata.topic(name)
        if topic is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"Topic {name} does not exist")
        if self._metadata.group(group) is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"Group {group} does not exist")
        offset = long(fields, "offset", -1)
        if queue_id >= topic.read_queues:
            raise Refusal(Cause.INVALID_PARAMETER, f"queueId {queue_id} is not one of {topic.read_queues} of {name}")
        if queue_id >= 0 and offset != -1:
            self._check_in_queue(name, queue_id, offset)
            table = {queue_id: offset}
        else:
            table = {}
            for number in range(topic.read_queues) if queue_id < 0 else [queue_id]:
                table[number] = self._offset_at(name, number, timestamp)
                yield
        if not table:
            raise Refusal(Cause.SYSTEM_ERROR, f"No queues to reset in {name}.")
        entries: list[bytes] = []

        def body() -> bytes:
            return b'{"offsetTable":{%b}}' % b",".join(entries)

        broker, in_json = dumps(self._identity.name), dumps(name)
        parts = list(parts_of(table.items(), _QUEUES_A_STEP))
        done = when_all(len(parts), answer_after(connection, command, body))
        for part in parts:
            entries += [_MOVED % (broker, number, in_json, offset) for number, offset in part.items()]
            self._offsets.reset(name, group, part, done)
            yield
        self._held_pulls.release(self._store.queues.of_topic(name))

    def _check_in_queue(self, topic: str, queue_id: int, offset: int) -> None:
        queue = self._store.queues.find(topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        if not low <= offset <= high:
            raise Refusal(Cause.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{low}-{high}]")

    def _offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        queue = self._store.queues.find(topic, queue_id)
        if queue is None:
            return 0
        return queue.max_offset if timestamp < 0 else self._store.reader.offset_by_time(queue, timestamp)

    def clone_offsets(self, connection: Connection, command: Command) -> Steps:
        """314: give one group the offsets of another, in one topic or in all topics in which that has offsets."""
        fields = command.ext
        self._role.check_writable()
        source, target = fields.get("srcGroup", _NO_GROUP), fields.get("destGroup", _NO_GROUP)
        is_offline = boolean(fields, "offline")
        found: list[tuple[str, dict[int, int]]] = []
        topics = [fields["topic"]] if fields.get("topic") else self._offsets.topics_of_group(source)
        for name in topics:
            topic = self._metadata.topic(name)
            if topic is None or (not is_offline and not self._clients.is_subscribed(source, name)):
                continue
            queues = self._offsets.queues(name, source)
            known = ((number, queues[number]) for number in range(topic.read_queues) if number in queues)
            for part in parts_of(known, _QUEUES_A_STEP):
                found.append((name, part))
                yield
        if not found:
            connection.respond(command, ResponseCode.SUCCESS)
            return

        done = when_all(len(found), answer_after(connection, command))
        for name, part in found:
            self._offsets.commit_and_tell(name, target, part, done)
            yield
