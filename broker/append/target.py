"""Targets of sends: the checks that depend only on topic and queue, done once and cached.

    (topic, queue id) as the client wrote them -> SendTarget        one dict look-up a message
                         '- not cached: names, permissions, auto-creation, queue range -> refused, or cached

The cache is cleared whenever a topic, a group or the role changes, or the log refuses a state record.

Source: apache/rocketmq `broker/.../processor/AbstractSendMessageProcessor.java` (msgCheck), 5.x.
"""

import random
from collections.abc import Callable, Mapping
from datetime import datetime

from broker.config import BrokerConfig
from broker.counting.arrivals import Arrivals
from broker.identity import BrokerIdentity
from broker.role import Role
from broker.state import names
from broker.state.metadata import Metadata
from broker.state.new_topics import NewTopics
from broker.state.settings import TopicConfig
from ledgermq.message.record import needs_v2, record_size
from ledgermq.remoting.codec.fields import integer, text
from ledgermq.remoting.codec.repeated_headers import RepeatedSend
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.compaction.compaction_store import is_compacted
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable


class SendTarget:
    """A queue that takes messages.

    Attributes:
        overhead: size of a record without body and properties, with IPv4 hosts.
        is_new: its topic was just created and nameservers may not know it; senders are answered when they do.
        needs_key: the topic is compacted by key.
        tally: of messages that are sent to the queue; None for messages of the broker itself.
    """

    __slots__ = ("is_new", "needs_key", "overhead", "queue", "queue_id", "tally", "topic")

    def __init__(self, queue: ConsumeQueue, tally: int | None = None) -> None:
        self.topic = queue.topic_bytes
        self.queue_id = queue.queue_id
        self.queue = queue
        self.tally = tally
        self.is_new = False
        self.needs_key = False
        self.overhead = record_size(0, len(self.topic), 0, 0, needs_v2(self.topic))


class SendTargets:
    """Finds the target of a send.

    Args:
        disk_full: returns why the store takes no messages, or None.

    Attributes:
        known: targets by the texts of topic and queue id in the header. Read by the hot path.
        repeated: the same by the bytes of queue id, then topic, of sends whose headers are not parsed as JSON.
    """

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        role: Role,
        queues: QueueTable,
        new_topics: NewTopics,
        arrivals: Arrivals,
        disk_full: Callable[[], str | None],
    ) -> None:
        self._config = config
        self._identity = BrokerIdentity(config)
        self._metadata = metadata
        self._role = role
        self._queues = queues
        self._new_topics = new_topics
        self._arrivals = arrivals
        self._disk_full = disk_full
        self._random = random.Random()
        self.known: dict[tuple[str | None, str | None], SendTarget] = {}
        self.repeated: dict[bytes, dict[bytes, SendTarget]] = {}
        self._checked: dict[str, TopicConfig] = {}  # topics of known targets

    def forget(self) -> None:
        """Clear the cache, since topics, groups or the role have changed."""
        self.known.clear()
        self.repeated.clear()
        self._checked.clear()

    def find(self, fields: Mapping[str, str]) -> SendTarget:
        """Return the target of a send with these (short) fields, after all checks; create its topic where allowed.

        Raises:
            Refusal: NOT_LEADER, NO_PERMISSION, INVALID_PARAMETER, TOPIC_NOT_EXIST, GROUP_NOT_EXIST or DISK_FULL.
        """
        self._role.check_writable()
        name = text(fields, "b")
        topic = self._checked.get(name) or self._topic(name, fields)
        target = self._target_in(topic, integer(fields, "e"))
        if self._keep_topic(target, topic):
            self.known[topic.name, str(target.queue_id)] = target
        return target

    def find_repeated(self, send: RepeatedSend) -> SendTarget:
        """Find a target as `find` does, for a send whose target is not in `repeated`: often the first of its queue."""
        self._role.check_writable()
        name, queue_id = send.topic.decode(), send.queue_id
        topic = self._checked.get(name) or self._topic(name, send.ext)
        target = self._target_in(topic, int(queue_id))
        if self._keep_topic(target, topic) and queue_id == b"%d" % target.queue_id:
            self.repeated.setdefault(queue_id, {})[target.topic] = target
        return target

    def _target_in(self, topic: TopicConfig, queue_id: int) -> SendTarget:
        target = self.target(topic.name, self._queue_id(topic, queue_id))
        target.is_new = topic.name in self._new_topics
        target.needs_key = is_compacted(topic.attributes)
        # here, so that consumer offsets, which share the batch, are not refused with it
        if (why := self._disk_full()) is not None:
            raise Refusal(Cause.DISK_FULL, why, retry_after_ms=1000)
        return target

    def _keep_topic(self, target: SendTarget, topic: TopicConfig) -> bool:
        """Keep the target's topic as checked; return False, and keep nothing, if it is new or a retry topic."""
        if target.is_new or topic.name.startswith(names.RETRY_PREFIX):
            return False
        self._checked[topic.name] = topic
        return True

    def target(self, topic: str, queue_id: int) -> SendTarget:
        """Return the target of a queue that is known to exist."""
        return SendTarget(self._queues.get(topic, queue_id), self._arrivals.tally(topic, queue_id))

    def target_after_waiting(self, topic: TopicConfig, queue_id: int) -> SendTarget:
        """Return the target of a message that has waited for a queue of the topic: that queue, while it is in use.

        If the topic has fewer queues now, the last one that is still written; a topic that takes no sends any more
        still gets messages that were accepted before, as upstream.
        """
        count = max(topic.write_queues, topic.read_queues)
        if 0 < count <= queue_id:
            queue_id = (topic.write_queues or count) - 1
        return self.target(topic.name, queue_id)

    def _topic(self, name: str, fields: Mapping[str, str]) -> TopicConfig:
        self._check_broker(name)
        names.check_topic_name(name, self._config.max_topic_length)
        if name in names.NOT_SENDABLE_TOPICS or names.is_internal_topic(name):
            raise Refusal(Cause.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        return self._metadata.topic(name) or self._created(name, fields)

    def _check_broker(self, name: str) -> None:
        """Check the broker's write permission; as in RocketMQ, without it only sends to ordered topics are refused."""
        config = self._config
        if config.accepts_sends_from_ms and wall_clock_ms() < config.accepts_sends_from_ms:
            until = datetime.fromtimestamp(config.accepts_sends_from_ms / 1000).isoformat(" ", "milliseconds")
            raise Refusal(Cause.SYSTEM_ERROR, f"broker unable to service, until {until.replace('.', ',')}")
        topic = self._metadata.topic(name)
        if not self._identity.may_be_written and topic is not None and topic.order:
            raise Refusal(Cause.NO_PERMISSION, self._identity.forbids("sending message"))

    def _created(self, name: str, fields: Mapping[str, str]) -> TopicConfig:
        if name.startswith(names.RETRY_PREFIX):
            self._check_retry_group(name)
            return self._metadata.topic_for_group(name, 1)
        count = integer(fields, "d", 4)
        topic = self._metadata.create_from_template(name, fields.get("c", names.TEMPLATE_TOPIC), count)
        if topic is None:
            raise Refusal(Cause.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        return topic

    def _check_retry_group(self, name: str) -> None:
        group = name.removeprefix(names.RETRY_PREFIX)
        if self._metadata.group_or_new(group) is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"subscription group not exist, {group}")

    def _queue_id(self, topic: TopicConfig, queue_id: int) -> int:
        count = topic.write_queues
        if queue_id >= max(count, topic.read_queues):
            raise Refusal(
                Cause.INVALID_PARAMETER, f"request queueId[{queue_id}] is illegal, {topic} has queues 0 to {count - 1}"
            )
        if queue_id >= 0:
            return queue_id
        if count <= 0:
            raise Refusal(Cause.INVALID_PARAMETER, f"request queueId[{queue_id}] asks for any queue, {topic} has none")
        return self._random.randrange(count)
