"""The dialect of fastjson that RocketMQ's clients expect where JSON proper has no form for a Java map.

Maps keyed by a number have the number unquoted (`{0:5}`), maps keyed by a queue have the queue's object as key
(`{{"brokerName":"b","queueId":0,"topic":"t"}:{...}}`). Always compact: old clients cut the text at commas.

Source: apache/rocketmq `remoting/.../protocol/RemotingSerializable.java` (fastjson 1.2).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson


class QueueId(NamedTuple):
    """One queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return orjson.dumps(value)


def number_map(table: Mapping[int, int]) -> bytes:
    """`{0:5,1:7}`, in the table's order."""
    return b"{" + b",".join(b"%d:%d" % item for item in table.items()) + b"}"


def text_map(items: Iterable[tuple[str, bytes]]) -> bytes:
    """An object whose values are encoded already."""
    return b"{" + b",".join(orjson.dumps(key) + b":" + value for key, value in items) + b"}"


def queue_map(items: Iterable[tuple[QueueId, Any]]) -> bytes:
    """A map with queues for keys."""
    return b"{" + b",".join(orjson.dumps(key.to_json()) + b":" + orjson.dumps(value) for key, value in items) + b"}"
