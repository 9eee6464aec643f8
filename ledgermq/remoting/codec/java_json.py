"""JSON for clients: standard, and the dialect of fastjson, which has a form for every Java map.

    {"brokerAddrs":{"0":"host:port"}}                                   standard
    {"brokerAddrs":{0:"host:port"}}                                     a number as key is not quoted
    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}                  a queue as key is its object

Always compact, without blanks: old clients split the text at commas. Reading is in `lenient_json`.

Source: apache/rocketmq `remoting/.../protocol/RemotingSerializable.java` (fastjson 1.2).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson


class QueueId(NamedTuple):
    """A queue in requests and answers."""

    topic: str
    broker_name: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def dumps(value: Any) -> bytes:
    """Return standard JSON, UTF-8; keys are text."""
    return orjson.dumps(value)


def standard_json(value: Any) -> bytes:
    """Return standard JSON, all of it ASCII; numbers as keys are quoted."""
    return json.dumps(value, separators=(",", ":")).encode()


def java_json(value: Any) -> bytes:
    """Return JSON in which a mapping's int keys are not quoted."""
    return _write(value).encode()


def number_map(table: Mapping[int, int]) -> bytes:
    """Return `{0:5,1:7}`, in the table's order."""
    return b"{" + b",".join(b"%d:%d" % item for item in table.items()) + b"}"


def text_map(items: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an object whose values are encoded already."""
    return b"{" + b",".join(orjson.dumps(key) + b":" + value for key, value in items) + b"}"


def queue_map(items: Iterable[tuple[QueueId, Any]]) -> bytes:
    """Return a map with queues as keys."""
    return b"{" + b",".join(orjson.dumps(key.to_json()) + b":" + orjson.dumps(value) for key, value in items) + b"}"


def _write(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_write(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
