"""JSON files as RocketMQ writes them: fastjson's pretty format, in which numeric map keys are not quoted.

    {
    <tab>"offsetTable":{
    <tab><tab>"TopicTest@G":{0:123,1:45      no line between the entries of a map with numeric keys,
    <tab><tab>}                              but one before its end
    <tab>}
    }

`dumps` returns the bytes that Java writes for the same members in the same order. `loads` reads both that and standard
JSON, of any length.

Source: apache/rocketmq `common/.../ConfigManager.java`, fastjson 1.2 with PrettyFormat, as measured.
"""

import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Final

import orjson

from ledgermq.remoting.errors import JsonError

_TEXT_OR_BARE_KEY: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|([{,]\s*)(-?\d+)(?=\s*:)', re.DOTALL)


def dumps(value: Any) -> bytes:
    """Return the value in the format of the files, without a line end. Int keys of a mapping are not quoted."""
    return _write(value, 0).encode()


def loads(data: bytes) -> Any:
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


def _write(value: Any, depth: int) -> str:
    if type(value) is str:  # the two most frequent kinds first: files of thousands of topics are written often
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
        return "{" + ",".join(f"{key}:{_write(member, depth + 1)}" for key, member in value.items()) + end + "}"
    start = end + "\t"
    deeper = depth + 1
    members = [f"{start}{_write(key, 0)}:{_write(member, deeper)}" for key, member in value.items()]
    return "{" + ",".join(members) + end + "}"


def _write_list(value: list[Any] | tuple[Any, ...], depth: int) -> str:
    if not any(isinstance(member, Mapping) for member in value):
        return "[" + ",".join(_write(member, depth) for member in value) + "]"
    end = "\n" + "\t" * depth
    return "[" + ",".join(f"{end}\t{_write(member, depth + 1)}" for member in value) + end + "]"
