"""The values that administration returns.

Source: apache/rocketmq `remoting/.../protocol/{admin,body,subscription}`, `common/.../TopicConfig.java`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.route import BrokerRoute, MessageQueue, parse_broker, parse_queue


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of a group in one queue.

    Attributes:
        queue: the queue.
        committed: offset that the group reads next; None when it has never committed one.
        end: one past the offset of the newest message.
    """

    queue: MessageQueue
    committed: int | None
    end: int

    @property
    def lag(self) -> int:
        """Number of offsets from the committed one to the end."""
        return self.end - (self.committed or 0)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic at one broker.

    Attributes:
        permission: 4 may be read, 2 may be written, 6 both.
        attributes: of RocketMQ 5: `message.type`, `cleanup.policy` and the like.
    """

    topic: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    is_ordered: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The messages that a queue holds: offsets [first, end).

    Attributes:
        queue: the queue.
        first: offset of the oldest message kept.
        end: one past the offset of the newest message.
        last_stored_ms: store time of the newest message in Unix milliseconds; 0 for an empty queue.
    """

    queue: MessageQueue
    first: int
    end: int
    last_stored_ms: int


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings of a consumer group at one broker.

    Attributes:
        may_consume: whether it may read at all.
        may_broadcast: whether it may use broadcasting.
        is_ordered: whether POP delivers messages to it in order.
        retry_max: tries before a message becomes a dead letter.
        retry_queue_count: queues of its retry topic; 0: messages that fail are dropped.
        attributes: of RocketMQ 5.
    """

    group: str
    may_consume: bool = True
    may_broadcast: bool = True
    is_ordered: bool = False
    retry_max: int = 16
    retry_queue_count: int = 1
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A client that is connected: a consumer, or a producer."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The connected members of a group, and what their heartbeats reported.

    Attributes:
        mode: CLUSTERING or BROADCASTING.
        start: RocketMQ's consumeFromWhere.
        subscriptions: the filter expression by topic.
    """

    members: tuple[GroupMember, ...]
    consume_type: str
    mode: str
    start: str
    subscriptions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of one consumer.

    Attributes:
        properties: its settings.
        commits: committed offset by queue of the consumer; -1 while unknown.
        rates: RocketMQ's ConsumeStatus by topic.
        stacks: stacks of its threads or tasks; None if they were not asked for.
    """

    properties: Mapping[str, str]
    commits: Mapping[MessageQueue, int]
    rates: Mapping[str, Mapping[str, float]]
    stacks: str | None


@dataclass(frozen=True, slots=True)
class HandledDirectly:
    """The outcome of a message that a consumer handled for an administrator.

    Attributes:
        result: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION and so on.
        remark: the exception that the handler raised, as text.
        spent_ms: milliseconds that the handler took.
    """

    result: str
    remark: str
    spent_ms: int


@dataclass(frozen=True, slots=True)
class User:
    """An account.

    Attributes:
        kind: Super or Normal.
        is_enabled: whether requests with this account are accepted.
    """

    name: str
    kind: str
    is_enabled: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """Actions that a subject (`User:alice`) may, or may not, carry out on a resource.

    Attributes:
        resource: `Topic:orders`, `Topic:*`, `Group:shop*`, `Cluster:*`.
        actions: Pub, Sub, Create, Update, Delete, Get, List, All.
        source_ips: client addresses or networks to which it applies; empty for all.
        is_allowed: True: the actions are allowed; False: they are denied.
    """

    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...] = ()
    is_allowed: bool = True


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """All registered brokers.

    Attributes:
        brokers: by broker name.
        clusters: broker names by cluster name.
    """

    brokers: Mapping[str, BrokerRoute]
    clusters: Mapping[str, tuple[str, ...]]

    def leaders(self) -> dict[str, str]:
        """Return addresses of leaders by broker name; names without a leader are left out."""
        return {name: broker.leader for name, broker in self.brokers.items() if broker.leader is not None}


# -- from JSON; all raise KeyError, TypeError, ValueError or AttributeError for another shape


def parse_queue_key(key: str) -> MessageQueue:
    """Parse a map's key that is a queue as JSON."""
    return parse_queue(loads(key))


def parse_topic_config(data: Any) -> TopicConfig:
    """Return RocketMQ's TopicConfig."""
    return TopicConfig(
        topic=str(data["topicName"]),
        read_queue_count=int(data["readQueueNums"]),
        write_queue_count=int(data["writeQueueNums"]),
        permission=int(data["perm"]),
        is_ordered=bool(data.get("order")),
        attributes=_texts(data.get("attributes")),
    )


def parse_group_config(data: Any) -> GroupConfig:
    """Return RocketMQ's SubscriptionGroupConfig."""
    return GroupConfig(
        group=str(data["groupName"]),
        may_consume=bool(data["consumeEnable"]),
        may_broadcast=bool(data["consumeBroadcastEnable"]),
        is_ordered=bool(data.get("consumeMessageOrderly")),
        retry_max=int(data["retryMaxTimes"]),
        retry_queue_count=int(data["retryQueueNums"]),
        attributes=_texts(data.get("attributes")),
    )


def parse_members(data: Any) -> tuple[GroupMember, ...]:
    """Return a connectionSet."""
    members = (
        GroupMember(str(one["clientId"]), str(one["clientAddr"]), str(one["language"]), int(one["version"]))
        for one in data["connectionSet"]
    )
    return tuple(sorted(members, key=lambda member: member.client_id))


def parse_connections(data: Any) -> GroupConnections:
    """Return RocketMQ's ConsumerConnection."""
    return GroupConnections(
        members=parse_members(data),
        consume_type=str(data["consumeType"]),
        mode=str(data["messageModel"]),
        start=str(data["consumeFromWhere"]),
        subscriptions={str(topic): str(one["subString"]) for topic, one in data["subscriptionTable"].items()},
    )


def parse_consumer_state(data: Any) -> ConsumerState:
    """Return RocketMQ's ConsumerRunningInfo."""
    return ConsumerState(
        properties=_texts(data["properties"]),
        commits={parse_queue_key(key): int(one["commitOffset"]) for key, one in data["mqTable"].items()},
        rates={
            str(topic): {str(name): float(rate) for name, rate in one.items()}
            for topic, one in data["statusTable"].items()
        },
        stacks=None if data.get("jstack") is None else str(data["jstack"]),
    )


def parse_policies(data: Any) -> tuple[Policy, ...]:
    """Return the entries of RocketMQ's AclInfo."""
    return tuple(
        Policy(
            resource=str(entry["resource"]),
            actions=tuple(map(str, entry.get("actions") or ())),
            source_ips=tuple(map(str, entry.get("sourceIps") or ())),
            is_allowed=str(entry["decision"]).lower() == "allow",
        )
        for policy in data["policies"]
        for entry in policy["entries"]
    )


def parse_cluster_info(data: Any) -> ClusterInfo:
    """Return RocketMQ's ClusterInfo."""
    brokers = {str(name): parse_broker(one) for name, one in data["brokerAddrTable"].items()}
    clusters = {str(name): tuple(map(str, names)) for name, names in data["clusterAddrTable"].items()}
    return ClusterInfo(brokers, clusters)


def parse_names(key: str) -> Callable[[Any], set[str]]:
    """Returns a parser of the names in the list, or the keys in the map, under `key`."""
    return lambda data: set(map(str, data[key]))


def parse_table(data: Any) -> dict[str, str]:
    """Return RocketMQ's KVTable."""
    return _texts(data["table"])


def _texts(data: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in (data or {}).items()}
