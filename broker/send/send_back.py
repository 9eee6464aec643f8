"""CONSUMER_SEND_MSG_BACK (36): a consumer could not handle a message, which is delivered again later, or never.

    record at `offset` -> reconsume times < max: %RETRY%group, through the delay queue of its level
                       -> otherwise, or level < 0: %DLQ%group

Source: apache/rocketmq `broker/.../processor/AbstractSendMessageProcessor.java` (consumerSendMsgBack), 5.x.
"""

import random

from broker.append.target import SendTarget
from broker.context import BrokerContext
from broker.counting.statistics import DEAD_LETTER_NUMS, SEND_BACK_NUMS
from broker.delay.levels import LEVEL_MAX, delayed_properties, due_ms
from broker.send.fields import TELLS_MAX_RECONSUME_TIMES
from broker.state import names
from broker.state.settings import GroupConfig
from broker.state.system_records import visible_record
from ledgermq.message.hosts import encode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT,
    decode_properties,
)
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import PERM_WRITE
from store.replicated_log import AppendReceipt

_FIRST_RETRY_LEVEL = 3


class SendBack:
    """Puts messages into retry and dead-letter topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._identity = context.identity
        self._metadata = context.metadata
        self._role = context.role
        self._store = context.store
        self._targets = context.targets
        self._drafts = context.drafts
        self._appender = context.appender
        self._new_topics = context.new_topics
        self._counting = context.counting
        self._random = random.Random()

    def send_back(self, connection: Connection, command: Command) -> None:
        """36: store the message in its retry or dead-letter topic; answered when it is committed there."""
        fields = command.ext
        self._role.check_writable()
        name = text(fields, "group")
        group = self._metadata.group_or_new(name)
        if group is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        if not self._identity.may_be_written:
            raise Refusal(Cause.NO_PERMISSION, self._identity.complaint("sending message is forbidden"))
        level = integer(fields, "delayLevel")
        if group.retry_queues <= 0:
            connection.respond(command, ResponseCode.SUCCESS)
            return
        record = self._record(long(fields, "offset"))
        limit = group.retry_max_times
        if command.version >= TELLS_MAX_RECONSUME_TIMES:
            limit = integer(fields, "maxReconsumeTimes", limit)
        is_dead = level < 0 or record.reconsume_times >= limit
        topic = names.dead_letter_topic(name) if is_dead else names.retry_topic(name)
        self._metadata.topic_for_group(topic, 1 if is_dead else group.retry_queues)
        level = -1 if is_dead else level or _FIRST_RETRY_LEVEL + record.reconsume_times
        self._new_topics.then(topic, lambda: self._place(connection, command, group, record, level))

    def _place(self, connection: Connection, command: Command, group: GroupConfig, record: Record, level: int) -> None:
        """Append the message, now that its topic exists; level -1 means the dead-letter topic."""
        try:
            target, properties = self._dead_letter(group, record) if level < 0 else self._retry(group, record, level)
            self._append(connection, command, group, record, target, properties)
        except Refusal as refusal:
            connection.refuse(command, refusal)

    def _append(
        self,
        connection: Connection,
        command: Command,
        group: GroupConfig,
        record: Record,
        target: SendTarget,
        properties: dict[str, str],
    ) -> None:
        draft = self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times + 1)
        if DELAY in properties:
            draft.tags_code = due_ms(int(properties[DELAY]))

        def done(outcome: AppendReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal):
                connection.refuse(command, outcome)
            else:
                self._count(group.name, properties.get(RETRY_TOPIC, ""), is_dead=DELAY not in properties)
                connection.respond(command, ResponseCode.SUCCESS)

        self._appender.add(draft, done)

    def _count(self, group: str, origin: str, *, is_dead: bool) -> None:
        """Count a message that was sent back, under its first topic, if that is known: senders choose the property."""
        topic = origin if self._metadata.topic(origin) is not None else names.retry_topic(group)
        statistics = self._counting.statistics
        if is_dead:
            self._counting.events.dead_letters.add((topic, group))
            statistics.counter(DEAD_LETTER_NUMS, f"{topic}@{group}").add(1)
        else:
            statistics.counter(SEND_BACK_NUMS, f"{topic}@{group}").add(1)

    def _record(self, offset: int) -> Record:
        found = visible_record(self._store, offset)
        if found is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return decode_record(found)

    def _dead_letter(self, group: GroupConfig, record: Record) -> tuple[SendTarget, dict[str, str]]:
        topic = names.dead_letter_topic(group.name)
        self._metadata.topic_for_group(topic, 1)
        properties = self._properties(record)
        properties.setdefault(DLQ_ORIGIN_TOPIC, properties[RETRY_TOPIC])
        properties.setdefault(DLQ_ORIGIN_MESSAGE_ID, properties[ORIGIN_MESSAGE_ID])
        return self._targets.target(topic, 0), properties

    def _retry(self, group: GroupConfig, record: Record, level: int) -> tuple[SendTarget, dict[str, str]]:
        name = names.retry_topic(group.name)
        topic = self._metadata.topic_for_group(name, group.retry_queues)
        if not topic.perm & PERM_WRITE:
            raise Refusal(Cause.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        queue_id = self._random.randrange(max(1, group.retry_queues))
        level = min(level, LEVEL_MAX)
        properties = delayed_properties(self._properties(record), name, queue_id, level)
        return self._targets.target(names.SCHEDULE_TOPIC, level - 1), properties

    def _properties(self, record: Record) -> dict[str, str]:
        properties = decode_properties(record.properties)
        properties.pop(DELAY, None)
        properties.setdefault(RETRY_TOPIC, record.topic)
        origin = offset_message_id(encode_host(record.store_host), record.physical_offset)
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties[WAIT] = "false"
        return properties
