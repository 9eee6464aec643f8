"""Routes, as a nameserver answers them (request 105): read by clients, and by brokers that assign queues.

    topic ──> broker name ──> queues 0 … n−1 ──> addresses by broker id; id 0 leads: it alone takes sends

Source: apache/rocketmq `remoting/.../protocol/route/TopicRouteData.java`, and for which queues may be sent to or read
from `client/.../impl/factory/MQClientInstance.java` (topicRouteData2TopicPublishInfo, …SubscribeInfo).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

LEADER_ID = 0
"""The broker id that takes sends: RocketMQ's master, our leader."""
PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
QUEUE_ID_MAX = (1 << 31) - 1
QUEUES_MAX = 65_536  # of one topic at one broker; no working nameserver answers a larger number


class MessageQueue(NamedTuple):
    """One queue of a topic: messages are ordered within it, and it is read by one member of a group."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    def to_json(self) -> dict[str, Any]:
        """Return the queue as requests and answers have it."""
        return {"brokerName": self.broker, "queueId": self.queue_id, "topic": self.topic}


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker name (a Raft group, or a master with slaves) and the addresses of its members by broker id."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def leader(self) -> str | None:
        """Address of broker id 0; None while the broker has no leader."""
        return self.addresses.get(LEADER_ID)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of one topic.

    Attributes:
        topic: the topic's name.
        brokers: by broker name.
        write_queues: queues with write permission, sorted by broker name and queue id, led at this moment or not.
        read_queues: queues with read permission, in the same order.
    """

    topic: str
    brokers: Mapping[str, BrokerRoute]
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]

    def for_topic(self, topic: str, queue_count_max: int) -> "TopicRoute":
        """Return the route for a topic that the brokers of this route will create at the first message (TBW102)."""

        def lend(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
            return tuple(queue._replace(topic=topic) for queue in queues if queue.queue_id < queue_count_max)

        return TopicRoute(topic, self.brokers, lend(self.write_queues), lend(self.read_queues))


def parse_route(topic: str, body: bytes | memoryview) -> TopicRoute:
    """Parse the body of an answer to request 105 (standard JSON).

    Raises:
        ValueError: not JSON, or a member is missing or of another type; names the topic and the member.
    """
    try:
        document = orjson.loads(body)
        brokers = {data["brokerName"]: parse_broker(data) for data in document["brokerDatas"]}
        queue_datas = sorted(document["queueDatas"], key=lambda data: str(data["brokerName"]))
        write = tuple(queue for data in queue_datas for queue in _queues(topic, data, "writeQueueNums", PERM_WRITE))
        read = tuple(queue for data in queue_datas for queue in _queues(topic, data, "readQueueNums", PERM_READ))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"route of topic {topic!r}: {type(error).__name__}: {error}") from error
    return TopicRoute(topic, brokers, write, read)


def parse_broker(data: Mapping[str, object]) -> BrokerRoute:
    """Parse one member of `brokerDatas`; raises KeyError, TypeError or ValueError when it has another form."""
    addresses = data["brokerAddrs"]
    if not isinstance(addresses, dict):
        raise TypeError(f"brokerAddrs is {addresses!r}")
    return BrokerRoute(
        name=str(data["brokerName"]),
        cluster=str(data.get("cluster") or ""),
        addresses={int(broker_id): str(address) for broker_id, address in addresses.items()},
    )


def _queues(topic: str, data: Mapping[str, object], count_key: str, permission: int) -> list[MessageQueue]:
    perm, count = data["perm"], data[count_key]
    if not isinstance(perm, int) or not isinstance(count, int) or not 0 <= count <= QUEUES_MAX:
        raise ValueError(f"perm is {perm!r}, {count_key} is {count!r}")
    if not perm & permission:
        return []
    return [MessageQueue(topic, str(data["brokerName"]), queue_id) for queue_id in range(count)]


def parse_queue(data: Mapping[str, object]) -> MessageQueue:
    """Parse RocketMQ's MessageQueue in JSON; raises KeyError, TypeError or ValueError when it has another form."""
    return MessageQueue(str(data["topic"]), str(data["brokerName"]), int(str(data["queueId"])))
