"""Requests about topics: create and change (17, 18), delete (215), show (21, 202, 305, 351).

A change is answered when it is committed and the nameservers have it.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java` (5.x).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from broker.context import BrokerContext
from broker.state import names
from broker.state.attributes import MESSAGE_TYPE, TOPIC_ATTRIBUTES, change_attributes, parse_change
from broker.state.settings import TopicConfig, check_extra
from broker.state.tables import ChangeDone
from broker.subsystem import AnswerParts, Steps
from ledgermq.message.pop_handle import retry_topic
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.fields import Fields, boolean, integer, text
from ledgermq.remoting.codec.java_json import dumps, queue_entry
from ledgermq.remoting.codec.lenient_json import listed_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import QUEUES_MAX
from store.queues.consume_queue import ConsumeQueue


class TopicRequests:
    """Changes and shows topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._identity = context.identity
        self._state = context.state
        self._metadata = context.metadata
        self._offsets = context.offsets
        self._role = context.role
        self._store = context.store
        self._announce = context.announce
        self._spawn = context.spawn

    def update_topic(self, connection: Connection, command: Command) -> None:
        """17: create a topic, or change its settings."""
        fields = command.ext
        self._role.check_writable()
        name = text(fields, "topic")
        names.check_topic_name(name, self._config.max_topic_length)
        if names.is_system_topic(name):
            raise Refusal(Cause.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        self._metadata.check_decided(name)
        before = self._metadata.topic(name)
        self._check_type(parse_change(fields.get("attributes", "")))
        topic = _topic_from(name, fields, before)
        if topic == before:
            connection.respond(command, ResponseCode.SUCCESS)
            return
        self._metadata.put_topic(topic, self._answer_after(connection, command))

    def update_topics(self, connection: Connection, command: Command) -> Steps:
        """18: create several topics, or change their settings; none if one is not allowed."""
        self._role.check_writable()
        topics = []
        for entry in listed_json(command, "topicConfigList", "topicName"):
            topics.append(self._listed_topic(entry))
            yield
        yield from self._metadata.put_topics(topics, self._answer_after(connection, command))

    def _listed_topic(self, entry: Any) -> TopicConfig:
        """Return one topic of the list; its attributes are changes, as with 17."""
        topic = TopicConfig.from_json(entry)
        names.check_topic_name(topic.name, self._config.max_topic_length)
        check_extra(topic)
        if names.is_system_topic(topic.name):
            raise Refusal(Cause.INVALID_PARAMETER, f"The topic[{topic.name}] is conflict with system topic.")
        self._check_type(topic.attributes)
        before = self._metadata.topic(topic.name)
        attributes = change_attributes(TOPIC_ATTRIBUTES, before.attributes if before else None, topic.attributes)
        return replace(topic, attributes=attributes)

    def _check_type(self, change: Mapping[str, str]) -> None:
        if change.get(f"+{MESSAGE_TYPE}") == "MIXED" and not self._config.mixed_types:
            raise Refusal(Cause.INVALID_PARAMETER, "MIXED message type is not supported.")

    def system_topics(self, connection: Connection, command: Command) -> None:
        """305: answer the topics that belong to the system."""
        topics = sorted(names.system_topics(self._identity.cluster, self._identity.name))
        connection.respond(command, ResponseCode.SUCCESS, body=dumps({"topicList": topics}))

    def delete_topic(self, connection: Connection, command: Command) -> None:
        """215: delete a topic, its queues and its offsets. An unknown topic is no error."""
        self._role.check_writable()
        name = text(command.ext, "topic")
        names.check_topic_name(name, names.RETRY_TOPIC_LENGTH_MAX)
        if names.is_system_topic(name):
            raise Refusal(Cause.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        self._metadata.check_decided(name)
        if self._metadata.topic(name) is None:
            connection.respond(command, ResponseCode.SUCCESS)
            return
        removed = [name, *(self._pop_retry_topics(name) if self._config.clear_retry_topics else ())]
        self._metadata.remove_topics(removed, self._answer_after(connection, command))

    def _pop_retry_topics(self, name: str) -> Iterator[str]:
        """Yield the retry topics of messages that groups took by POP and did not acknowledge."""
        for group in self._offsets.groups_of_topic(name):
            for is_v2 in (False, True):
                retries = retry_topic(name, group, is_v2=is_v2)
                if self._metadata.topic(retries) is not None:
                    yield retries

    def all_topics(self, connection: Connection, command: Command) -> Steps:
        """21: answer every topic's settings."""
        version = dumps(self.topic_version().to_json())
        mapping_version = dumps(DataVersion(state_version=self._role.generation).to_json())
        entries = AnswerParts()
        for name, topic in self._metadata.topics().items():
            entries.add(dumps(name) + b":" + dumps(topic.to_json()))
            yield
        body = (
            b'{"dataVersion":%b,"mappingDataVersion":%b,"topicConfigTable":{%b},'
            b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'
        ) % (version, mapping_version, entries.joined())
        connection.respond(command, ResponseCode.SUCCESS, {}, body)

    def topic_version(self) -> DataVersion:
        """Return the version of the topic table, with this node's term."""
        version = self._state.topic_version
        return DataVersion(version.counter, version.timestamp, self._role.generation)

    def topic_config(self, connection: Connection, command: Command) -> None:
        """351: answer one topic's settings."""
        name = text(command.ext, "topic")
        topic = self._metadata.topic(name)
        if topic is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(topic.to_json()))

    def topic_stats(self, connection: Connection, command: Command) -> Steps:
        """202: answer the bounds and the last store time of each of a topic's queues."""
        name = text(command.ext, "topic")
        topic = self._metadata.existing_topic(name)
        entries = AnswerParts()
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            queue = self._store.queues.find(name, queue_id)
            row = {
                "lastUpdateTimestamp": self._store_time(queue, queue.max_offset - 1) if queue else 0,
                "maxOffset": queue.max_offset if queue else 0,
                "minOffset": queue.min_offset if queue else 0,
            }
            entries.add(queue_entry(self._identity.queue(name, queue_id), row))
            yield
        body = b'{"offsetTable":{%b},"topicPutTps":0.0}' % entries.joined()
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def _answer_after(self, connection: Connection, command: Command) -> ChangeDone:
        def done(refusal: Refusal | None) -> None:
            if refusal is not None:
                connection.refuse(command, refusal)
            else:
                self._spawn(self._announce_and_answer(connection, command))

        return done

    async def _announce_and_answer(self, connection: Connection, command: Command) -> None:
        await self._announce()
        connection.respond(command, ResponseCode.SUCCESS)

    def _store_time(self, queue: ConsumeQueue, queue_offset: int) -> int:
        return max(0, self._store.reader.store_time(queue, queue_offset))


def _topic_from(name: str, fields: Fields, before: TopicConfig | None) -> TopicConfig:
    """Return the topic that a 17 describes; its attributes are changes to the present ones."""
    filter_type = fields.get("topicFilterType", "SINGLE_TAG")
    if filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise Refusal(
            Cause.MALFORMED_FIELD, f"field topicFilterType is {filter_type[:40]!r}, not SINGLE_TAG or MULTI_TAG"
        )
    return TopicConfig(
        name=name,
        read_queues=integer(fields, "readQueueNums", high=QUEUES_MAX),
        write_queues=integer(fields, "writeQueueNums", high=QUEUES_MAX),
        perm=integer(fields, "perm"),
        filter_type=filter_type,
        sys_flag=integer(fields, "topicSysFlag", 0),
        order=boolean(fields, "order"),
        attributes=_attributes_from(fields.get("attributes", ""), before),
        extra=before.extra if before is not None else {},
    )


def _attributes_from(change: str, before: TopicConfig | None) -> dict[str, str]:
    parsed = parse_change(change)
    return change_attributes(TOPIC_ATTRIBUTES, None if before is None else before.attributes, parsed)
