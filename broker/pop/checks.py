"""Checks of POP requests, in RocketMQ's order: permission, topic, queue, group.

Source: apache/rocketmq `broker/.../processor/PopMessageProcessor.java`, `AckMessageProcessor.java`.
"""

from broker.context import BrokerContext
from broker.state import names
from broker.state.settings import TopicConfig
from ledgermq.remoting.codec.fields import Fields, integer, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import PERM_READ


class PopChecks:
    """Checks fields of POP requests against configuration and metadata."""

    def __init__(self, context: BrokerContext) -> None:
        self._identity = context.identity
        self._metadata = context.metadata

    def broker_is_readable(self, doing: str) -> None:
        """Check that the broker's permission allows reading; `doing` names the action in the remark.

        Raises:
            Refusal: NO_PERMISSION.
        """
        if not self._identity.may_be_read:
            raise Refusal(Cause.NO_PERMISSION, self._identity.complaint(f"{doing} is forbidden"))

    def readable_place(self, connection: Connection, fields: Fields) -> tuple[TopicConfig, str, int]:
        """Return topic, group and queue id (negative: any queue) of a request that reads.

        Raises:
            Refusal: NO_PERMISSION, TOPIC_NOT_EXIST, INVALID_PARAMETER or GROUP_NOT_EXIST.
        """
        topic = self._metadata.existing_topic(text(fields, "topic"))
        if not topic.perm & PERM_READ or names.is_internal_topic(topic.name):
            raise Refusal(Cause.NO_PERMISSION, f"the topic[{topic.name}] peeking message is forbidden")
        queue_id = integer(fields, "queueId", 0)
        if queue_id >= topic.read_queues:
            raise Refusal(Cause.INVALID_PARAMETER, _bad_queue(topic, queue_id, connection))
        group = text(fields, "consumerGroup")
        self._check_group(group, topic.name)
        return topic, group, queue_id

    def acked_queue(self, connection: Connection, fields: Fields) -> tuple[TopicConfig, int]:
        """Return the topic and queue id of a message that is acknowledged or gets a new invisible time.

        Raises:
            Refusal: TOPIC_NOT_EXIST or MESSAGE_ILLEGAL.
        """
        topic = self._metadata.existing_topic(text(fields, "topic"))
        queue_id = integer(fields, "queueId")
        if not 0 <= queue_id < topic.read_queues:
            raise Refusal(Cause.MESSAGE_ILLEGAL, _bad_queue(topic, queue_id, connection))
        return topic, queue_id

    def _check_group(self, name: str, topic: str) -> None:
        group = self._metadata.group_or_new(name)
        if group is None:
            raise Refusal(Cause.GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, apply first please!")
        if not group.consume_enable:
            raise Refusal(Cause.NO_PERMISSION, f"subscription group no permission, {name}")
        if self._metadata.is_read_forbidden(name, topic):
            raise Refusal(Cause.NO_PERMISSION, f"the consumer group[{name}] is forbidden for topic[{topic}]")


def _bad_queue(topic: TopicConfig, queue_id: int, connection: Connection) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}] "
        f"consumer:[{connection.address}]"
    )
