"""Writes JSON for clients and files: the standard form, and that of fastjson, which can write every Java map.

    {"brokerAddrs":{"0":"host:port"}}                                   standard
    {"brokerAddrs":{0:"host:port"}}                                     a number as key is not quoted
    {{"brokerName":"b","queueId":0,"topic":"t"}:{...}}                  a queue as key is its object

JSON for clients has no blanks, since old clients split it at commas. `lenient_json` reads JSON.

RocketMQ keeps files in fastjson's pretty format, in which numeric map keys are not quoted either:

    {
    <tab>"offsetTable":{
    <tab><tab>"TopicTest@G":{0:123,1:45      no line between the entries of a map with numeric keys,
    <tab><tab>}                              but one before its end
    <tab>}
    }

Source: apache/rocketmq `remoting/.../protocol/RemotingSerializable.java`, `common/.../ConfigManager.java` (fastjson
1.2, PrettyFormat as measured).
"""

import json
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

import orjson

from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.route import MessageQueue

_TEXT_OR_BARE_KEY: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)

QUEUE_KEY: Final = b'{"brokerName":%b,"queueId":%d,"topic":%b}'
"""Format of a queue as key of a map; both names are JSON already."""


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


def queue_map(items: Iterable[tuple[MessageQueue, Any]]) -> bytes:
    """Return a map with queues as keys."""
    return b"{" + b",".join(queue_entry(key, value) for key, value in items) + b"}"


def queue_entry(key: MessageQueue, value: Any) -> bytes:
    """Return one entry of a map with queues as keys."""
    return orjson.dumps(key.to_json()) + b":" + orjson.dumps(value)


def _write(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_write(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)


def file_json(value: Any) -> bytes:
    """Return the value in the pretty format of files, without a line end. Int keys of a mapping are not quoted."""
    return _write_pretty(value, 0).encode()


def load_json(data: bytes) -> Any:
    """Return the value in `data`; object keys are always text.

    Raises:
        JsonError: not JSON in either form; the position is the byte, the detail has line and column.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(_TEXT_OR_BARE_KEY.sub(_quoted, data))
    except orjson.JSONDecodeError as error:
        detail = f"{error.msg.partition(':')[0]} (line {error.lineno} column {error.colno})"
        raise JsonError(error.pos, detail) from error


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] is None else b'%b"%b"' % (match[1], match[2])


def _write_pretty(value: Any, depth: int) -> str:
    if type(value) is str:  # the two most frequent kinds come first: large files are written often
        return encode_basestring(value)
    if type(value) is int:
        return str(value)
    if isinstance(value, Mapping):
        return _write_mapping(value, depth) if value else "{}"
    if isinstance(value, list | tuple):
        return _write_list(value, depth)
    return json.dumps(value, ensure_ascii=False)


def _write_mapping(value: Mapping[Any, Any], depth: int) -> str:
    end = "\n" + "\t" * depth
    if isinstance(next(iter(value)), int):
        return "{" + ",".join(f"{key}:{_write_pretty(member, depth + 1)}" for key, member in value.items()) + end + "}"
    start = end + "\t"
    deeper = depth + 1
    members = [f"{start}{_write_pretty(key, 0)}:{_write_pretty(member, deeper)}" for key, member in value.items()]
    return "{" + ",".join(members) + end + "}"


def _write_list(value: list[Any] | tuple[Any, ...], depth: int) -> str:
    if not any(isinstance(member, Mapping) for member in value):
        return "[" + ",".join(_write_pretty(member, depth) for member in value) + "]"
    end = "\n" + "\t" * depth
    return "[" + ",".join(f"{end}\t{_write_pretty(member, depth + 1)}" for member in value) + end + "]"
