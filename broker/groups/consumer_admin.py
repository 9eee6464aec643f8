"""Requests about consumers and their offsets (208, 300, 303, 308, 317, 321, 343, 345) and about producers (328).

223, a group's own view of its offsets, is asked of its clients (221); the others are answered from this broker's
tables.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java`, `client/net/Broker2Client.java` (5.x).
"""

import functools
import time
from collections.abc import Iterator
from typing import Any, Final

from broker.context import BrokerContext
from broker.counting.statistics import GROUP_GET_NUMS
from broker.groups.clients import Client, ClientTable
from broker.state.settings import TopicConfig
from broker.subsystem import AnswerParts, Steps
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import I64_MAX, boolean, integer, long, text
from ledgermq.remoting.codec.java_json import QUEUE_KEY, dumps, number_map, queue_map, text_map
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import JsonError, RemotingError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue
from ledgermq.wall_clock import wall_clock_ms
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue

STATUS_TIMEOUT_SECONDS = 5.0
_UNITS_MAX = 1000
"""Largest number of queue units in one answer to 321."""

_PROGRESS: Final = QUEUE_KEY + b':{"brokerOffset":%d,"consumerOffset":%d,"lastTimestamp":%d,"pullOffset":%d}'
"""The progress of a group in one queue, as the maps of 208 and 317 have it."""


class ConsumerAdmin:
    """Shows the offsets, subscriptions and members of groups."""

    def __init__(self, context: BrokerContext, clients: ClientTable) -> None:
        self._config, self._identity = context.config, context.identity
        self._metadata = context.metadata
        self._offsets = context.offsets
        self._clients = clients
        self._store = context.store
        self._statistics, self._departures = context.counting.statistics, context.counting.departures
        self._spawn = context.spawn

    # ---- asking clients

    def consumer_status(self, connection: Connection, command: Command) -> None:
        """223: answer each client's own view of its offsets."""
        fields = command.ext
        topic, name, wanted = text(fields, "topic"), text(fields, "group"), fields.get("clientAddr") or ""
        group = self._clients.consumer_group(name)
        if group is None:
            raise Refusal(Cause.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name}]")
        members = [member for member in group.members.values() if wanted in ("", member.client_id)]
        self._spawn(self._gather_status(connection, command, {"topic": topic, "group": name}, members))

    async def _gather_status(
        self, connection: Connection, command: Command, fields: dict[str, str], members: list[Client]
    ) -> None:
        tables = []
        for member in members:
            question = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext=dict(fields))
            try:
                answer = await member.connection.request(question, STATUS_TIMEOUT_SECONDS)
                if answer.code == ResponseCode.SUCCESS and answer.body:
                    tables.append((member.client_id, queue_map(_status_rows(loads(answer.body)))))
            except (RemotingError, JsonError):
                continue  # as upstream: a client that does not answer is left out
        body = b'{"consumerTable":%b,"messageQueueTable":{}}' % text_map(tables)
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    # ---- showing

    def topic_consumers(self, connection: Connection, command: Command) -> None:
        """300: answer the groups that subscribe to a topic, or have offsets in it."""
        topic = text(command.ext, "topic")
        groups = {group.name for group in self._clients.consumer_groups() if topic in group.subscriptions}
        groups.update(self._offsets.groups_of_topic(topic))
        connection.respond(command, ResponseCode.SUCCESS, body=dumps({"groupList": sorted(groups)}))

    def topics_of_group(self, connection: Connection, command: Command) -> None:
        """343: answer the topics in which a group has offsets."""
        topics = sorted(self._offsets.topics_of_group(command.ext.get("group", "")))
        connection.respond(
            command, ResponseCode.SUCCESS, body=dumps({"brokerAddr": self._config.address, "topicList": topics})
        )

    def subscription_of_group(self, connection: Connection, command: Command) -> None:
        """345: answer the subscription of a connected group to a topic."""
        name, topic = text(command.ext, "group"), text(command.ext, "topic")
        group = self._clients.consumer_group(name)
        subscription = group.subscriptions.get(topic) if group is not None else None
        body: dict[str, Any] = {"group": name, "topic": topic}
        if subscription is not None:
            body["subscriptionData"] = subscription.to_json()
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(body))

    def time_span(self, connection: Connection, command: Command) -> Steps:
        """303: answer first, last and consumed store time of each queue, and how long the next message waits (ms)."""
        name, group = text(command.ext, "topic"), command.ext.get("group", "")
        topic = self._metadata.topic(name)
        if topic is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        spans = AnswerParts()
        for queue_id in range(topic.write_queues):
            spans.add(dumps(self._span(name, group, queue_id)))
            yield
        connection.respond(command, ResponseCode.SUCCESS, body=b'{"consumeTimeSpanSet":[%b]}' % spans.joined())

    def _span(self, topic: str, group: str, queue_id: int) -> dict[str, Any]:
        first = last = consumed = -1
        delay = 0
        queue = self._store.queues.find(topic, queue_id)
        if queue is not None:
            offset = self._offsets.get(topic, group, queue_id) or 0
            first = self._store.reader.earliest_store_time(queue)
            last = self._store.reader.store_time(queue, queue.max_offset - 1)
            consumed = self._store.reader.store_time(queue, offset - 1) if offset > 0 else first
            if offset < queue.max_offset:
                delay = wall_clock_ms() - self._store.reader.store_time(queue, offset)
        return {
            "consumeTimeStamp": consumed,
            "consumeTimeStampStr": _day_and_time(consumed),
            "delayTime": delay,
            "maxTimeStamp": last,
            "maxTimeStampStr": _day_and_time(last),
            "messageQueue": self._identity.queue(topic, queue_id).to_json(),
            "minTimeStamp": first,
            "minTimeStampStr": _day_and_time(first),
        }

    def correction_offsets(self, connection: Connection, command: Command) -> None:
        """308: answer the least offset of all but some groups in each queue; none where a group is behind it."""
        fields = command.ext
        topic, compared = fields.get("topic", ""), fields.get("compareGroup", "")
        left_out = set(filter(None, (fields.get("filterGroups") or "").split(",")))
        least: dict[int, int] = {}
        for group in set(self._offsets.groups_of_topic(topic)) - left_out:
            for queue_id, offset in self._offsets.queues(topic, group).items():
                least[queue_id] = min(offset, least.get(queue_id, I64_MAX))
        for queue_id, offset in self._offsets.queues(topic, compared).items():
            if least.get(queue_id, I64_MAX) > offset:
                least[queue_id] = I64_MAX
        body = b'{"correctionOffsets":' + number_map(least) + b"}"
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def consume_stats(self, connection: Connection, command: Command) -> Steps:
        """208: answer the progress of a group in each queue of its topics."""
        group = text(command.ext, "consumerGroup")
        listed = (command.ext.get("topicList") or "").split(";")
        asked = [name for name in (listed if any(listed) else [command.ext.get("topic")]) if name]
        entries = AnswerParts()
        rate = 0.0
        for name in asked or self._offsets.topics_of_group(group):
            topic = self._metadata.topic(name)
            if topic is not None and self._clients.is_subscribed(group, name):
                for entry, _ in self._group_entries(group, topic):
                    entries.add(entry)
                    yield
                rate += self._statistics.rate(GROUP_GET_NUMS, f"{name}@{group}")
        body = b'{"consumeTps":%b,"offsetTable":{%b}}' % (dumps(rate), entries.joined())
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def all_consume_stats(self, connection: Connection, command: Command) -> Steps:
        """317: answer the progress of every group, with the number of messages not consumed."""
        is_order = boolean(command.ext, "isOrder")
        groups, total = AnswerParts(), 0
        topics = self._offsets.topics_by_group()
        for group in sorted(self._metadata.groups()):
            stats = AnswerParts()
            for name in topics.get(group, ()):
                topic = self._metadata.topic(name)
                if topic is None or (is_order and not topic.order) or not self._clients.is_subscribed(group, name):
                    continue
                entries = AnswerParts()
                for entry, behind in self._group_entries(group, topic):
                    total += behind
                    entries.add(entry)
                    yield
                rate = self._statistics.rate(GROUP_GET_NUMS, f"{name}@{group}")
                stats.add(b'{"consumeTps":%b,"offsetTable":{%b}}' % (dumps(rate), entries.joined()))
            groups.add(b"{" + dumps(group) + b":[" + stats.joined() + b"]}")
            yield
        body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":0}' % (
            dumps(self._config.address),
            groups.joined(),
            total,
        )
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def _group_entries(self, group: str, topic: TopicConfig) -> Iterator[tuple[bytes, int]]:
        """Yield the entry of each queue in an answer's table, with the number of messages not consumed.

        An entry holds what is true of its queue at its step: a topic may be removed and made again between two steps.
        """
        names = dumps(self._identity.name), dumps(topic.name)
        for queue_id in range(topic.read_queues):
            queue = self._store.queues.find(topic.name, queue_id)
            offset = max(self._offsets.get(topic.name, group, queue_id) or 0, 0)
            end = queue.max_offset if queue else 0
            last_time = max(0, self._store.reader.store_time(queue, offset - 1)) if queue else 0
            pulled_to = max(offset, self._departures.pulled_to(topic.name, group, queue_id))
            yield _PROGRESS % (names[0], queue_id, names[1], end, offset, last_time, pulled_to), end - offset

    def queue_units(self, connection: Connection, command: Command) -> None:
        """321: answer units of a consume queue."""
        fields = command.ext
        topic, queue_id = text(fields, "topic"), integer(fields, "queueId", 0)
        index, count = long(fields, "index", 0), integer(fields, "count", 0)
        queue = self._store.queues.find(topic, queue_id)
        # RocketMQ answers a negative id like an empty queue, by its recorded answers
        if queue is None and queue_id >= 0:
            raise Refusal(Cause.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        group_name = fields.get("consumerGroup")
        if group_name is not None:
            group = self._clients.consumer_group(group_name)
            subscription = group.subscriptions.get(topic) if group is not None else None
            if subscription is None:
                body["filterData"] = f"{group_name}@{topic} is not online!"
            else:
                body |= {"filterData": "null", "subscriptionData": subscription.to_json()}
        remark = None
        if queue is not None and low <= index < high:
            body["queueData"] = _units(queue, index, max(0, min(count, _UNITS_MAX)))
        else:
            remark = f"Index {index} of {queue_id}@{topic} is not exist!"
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(body), remark=remark)

    def all_producers(self, connection: Connection, command: Command) -> Steps:
        """328: answer every connected producer by group."""
        entries = AnswerParts()
        for group, members in self._clients.all_producers().items():
            entries.add(dumps(group) + b":" + dumps([_producer(member) for member in members]))
            yield
        connection.respond(command, ResponseCode.SUCCESS, body=b'{"data":{%b}}' % entries.joined())


def _units(queue: ConsumeQueue, index: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for _, (physical_offset, size, tags_code) in queue.iterate(index, min(index + count, queue.max_offset)):
        if size != BLANK_SIZE:
            rows.append({"eval": False, "physicOffset": physical_offset, "physicSize": size, "tagsCode": tags_code})
    return rows


def _producer(member: Client) -> dict[str, Any]:
    host, port = member.connection.peer
    return {
        "clientId": member.client_id,
        "language": member.language,
        "lastUpdateTimestamp": wall_clock_ms(),
        "remoteIP": f"/{host}:{port}",
        "version": member.version,
    }


def _status_rows(body: Any) -> Iterator[tuple[MessageQueue, int]]:
    """Yield the queues of a client's answer to 221, whose keys are queues."""
    table = body.get("messageQueueTable") if isinstance(body, dict) else None
    for key, offset in table.items() if isinstance(table, dict) else ():
        queue = loads(key)
        if isinstance(queue, dict) and isinstance(queue.get("queueId"), int) and isinstance(offset, int):
            yield MessageQueue(str(queue.get("topic")), str(queue.get("brokerName")), queue["queueId"]), offset


def _day_and_time(milliseconds: int) -> str:
    """Return a time as RocketMQ writes it, in the machine's zone: 2026-11-21#10:05:30:904."""
    seconds, rest = divmod(milliseconds, 1000)
    return f"{_second(seconds)}:{rest:03}"


@functools.lru_cache(1024)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%d#%H:%M:%S", time.localtime(seconds))
