"""Requests about offsets and messages: 14, 15, 43 (consumer offsets), 29 to 33 (a queue's bounds, times, messages).

Source: apache/rocketmq `broker/.../processor/ConsumerManageProcessor.java`, `AdminBrokerProcessor.java`,
`QueryMessageProcessor.java` (5.x).
"""

import os

from broker.context import BrokerContext
from broker.state.system_records import visible_record
from broker.state.tables import OFFSET_KEY_SEPARATOR
from broker.subsystem import Steps
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.fields import Fields, boolean, integer, long, text
from ledgermq.remoting.codec.java_json import dumps, number_map, text_map
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import QUEUES_MAX
from store.queues.consume_queue import ConsumeQueue

_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_MEMORY_SHARE = 0.4
"""RocketMQ's accessMessageInMemoryMaxRatio."""


class OffsetRequests:
    """Serves requests about positions of groups, queues and messages."""

    def __init__(self, context: BrokerContext) -> None:
        self._metadata = context.metadata
        self._offsets = context.offsets
        self._role = context.role
        self._store = context.store

    def query_consumer_offset(self, connection: Connection, command: Command) -> None:
        """14: answer a group's offset; for a group that never stored one, 0 while the queue's start is still there."""
        fields = command.ext
        group, topic, queue_id = text(fields, "consumerGroup"), text(fields, "topic"), integer(fields, "queueId")
        offset = self._offsets.get(topic, group, queue_id)
        if offset is None:
            offset = self._first_boot_offset(topic, queue_id, fields)
        connection.respond(command, ResponseCode.SUCCESS, {"offset": str(offset)})

    def update_consumer_offset(self, connection: Connection, command: Command) -> None:
        """15: set the offset up to which a group has consumed; one lower than before is accepted, too.

        A request that waits for its answer gets success when the offset is committed, so that no failover takes it
        back. A slave keeps the offset, and sends it to the master as soon as that is back.
        """
        fields = command.ext
        group, topic, queue_id = text(fields, "consumerGroup"), text(fields, "topic"), integer(fields, "queueId")
        offset = long(fields, "commitOffset")
        if not self._role.is_slave:
            self._role.check_writable()
        if self._metadata.topic(topic) is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if not group or self._metadata.group(group) is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"Group {group} not exist!")
        if not self._offsets.has_room(topic, group, queue_id):
            raise Refusal(Cause.INVALID_PARAMETER, f"group {group} has offsets of {QUEUES_MAX} queues of topic {topic}")
        if self._role.is_slave:
            self._offsets.keep(topic, group, queue_id, offset)
            connection.respond(command, ResponseCode.SUCCESS, {})
            return
        if command.is_oneway:
            self._offsets.commit(topic, group, queue_id, offset)
            return

        def answer(refusal: Refusal | None) -> None:
            if refusal is None:
                connection.respond(command, ResponseCode.SUCCESS, {})
            else:
                connection.refuse(command, refusal)

        self._offsets.commit_and_tell(topic, group, {queue_id: offset}, answer)

    def all_consumer_offsets(self, connection: Connection, command: Command) -> Steps:
        """43: answer the whole table, with unquoted numeric keys."""
        offsets = self._offsets.all()
        topics_of: dict[str, list[str]] = {}
        entries = []
        for key, queues in offsets.items():
            topic, _, group = key.rpartition(OFFSET_KEY_SEPARATOR)
            topics_of.setdefault(group, []).append(topic)
            entries.append((key, number_map(queues)))
            yield
        version = dumps(DataVersion(state_version=self._role.generation).to_json())
        body = b'{"dataVersion":%b,"groupTopicMap":%b,"offsetTable":%b}' % (
            version,
            dumps(topics_of),
            text_map(entries),
        )
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def max_offset(self, connection: Connection, command: Command) -> None:
        """30: answer the next queue offset; 0 for a queue that does not exist."""
        queue = self._queue(command.ext)
        self._answer_offset(connection, command, queue.max_offset if queue else 0)

    def min_offset(self, connection: Connection, command: Command) -> None:
        """31: answer the first readable queue offset; for an unknown queue 0, or -1 if it is a batch queue."""
        topic = text(command.ext, "topic")
        queue = self._queue(command.ext)
        missing = -1 if self._store.queues.kinds.is_batch(topic) else 0
        self._answer_offset(connection, command, self._store.reader.min_offset(queue) if queue else missing)

    def search_offset(self, connection: Connection, command: Command) -> None:
        """29: answer the first queue offset at or after a time (LOWER), or the last one at or before it (UPPER)."""
        fields = command.ext
        boundary = fields.get("boundaryType", "LOWER").upper()
        if boundary not in ("LOWER", "UPPER"):
            raise Refusal(Cause.INVALID_PARAMETER, f"field boundaryType is {boundary[:20]!r}, not LOWER or UPPER")
        timestamp = long(fields, "timestamp")
        queue = self._queue(fields)
        offset = self._store.reader.offset_by_time(queue, timestamp, upper=boundary == "UPPER") if queue else 0
        self._answer_offset(connection, command, offset)

    def earliest_store_time(self, connection: Connection, command: Command) -> None:
        """32: answer the store time (ms) of the queue's first message; -1 when it is empty."""
        queue = self._queue(command.ext)
        timestamp = self._store.reader.earliest_store_time(queue) if queue else -1
        connection.respond(command, ResponseCode.SUCCESS, {"timestamp": str(timestamp)})

    def view_message(self, connection: Connection, command: Command) -> None:
        """33: answer the record at a physical offset."""
        offset = long(command.ext, "offset")
        record = visible_record(self._store, offset)
        if record is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        connection.respond(command, ResponseCode.SUCCESS, body=bytes(record))

    def _first_boot_offset(self, topic: str, queue_id: int, fields: Fields) -> int:
        if "setZeroIfNotFound" in fields and not boolean(fields, "setZeroIfNotFound"):
            raise Refusal(Cause.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first")
        queue = self._store.queues.find(topic, queue_id)
        if queue is not None and not self.is_start_at_hand(queue):
            raise Refusal(Cause.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
        return 0

    def is_start_at_hand(self, queue: ConsumeQueue) -> bool:
        """Return whether offset 0 is still there, and so near the log's end that it is probably in memory."""
        first = queue.unit(0)
        if first is None:
            return queue.min_offset == 0 or self._store.reader.min_offset(queue) < queue.min_offset
        return self._store.log.confirm_offset - first[0] <= _MEMORY_BYTES * _MEMORY_SHARE

    def _queue(self, fields: Fields) -> ConsumeQueue | None:
        return self._store.queues.find(text(fields, "topic"), integer(fields, "queueId"))

    def _answer_offset(self, connection: Connection, command: Command, offset: int) -> None:
        connection.respond(command, ResponseCode.SUCCESS, {"offset": str(offset)})
