"""The two forms of JSON that RocketMQ's clients know: standard, and fastjson's, where numeric map keys stand bare.

    {"brokerAddrs":{"0":"host:port"}}   for clients since 4.9.4 and whoever asks
    {"brokerAddrs":{0:"host:port"}}     for all others; Go's old clients cut the text at commas: no blank anywhere

Source: apache/rocketmq `namesrv/.../processor/ClientRequestProcessor.java`, fastjson 1.2 as its tools use it.
"""

import json
from collections.abc import Mapping
from typing import Any

_STANDARD_SINCE_VERSION = 401  # V4_9_4


def wants_standard(version: int, accept_standard_json_only: bool) -> bool:
    """Whether a client of that version (ordinal of MQVersion) gets standard JSON for a route."""
    return accept_standard_json_only or version >= _STANDARD_SINCE_VERSION


def standard_json(value: Any) -> bytes:
    """Compact JSON with quoted keys, all of it ASCII."""
    return json.dumps(value, separators=(",", ":")).encode()


def java_json(value: Any) -> bytes:
    """Compact JSON in which a map's int keys stand unquoted."""
    return _write(value).encode()


def _write(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(key)}:{_write(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
