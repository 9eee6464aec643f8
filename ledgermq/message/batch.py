"""The body of a batch send: messages back to back, without topic, queue, times or hosts (the request has those).

| field | type |
|---|---|
| total size, itself included | i32 |
| magic, body CRC (0, not read) | i32, i32 |
| flag | i32 |
| body length, body | i32, bytes |
| properties length, properties | i16, bytes |

Source: apache/rocketmq `common/message/MessageDecoder.java` (encodeMessage, decodeMessage).
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from ledgermq.message.errors import MalformedBatchError
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX

_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")
_FIXED_SIZE: Final = _HEAD.size + _SHORT.size


class BatchMessage(NamedTuple):
    """One message inside a batch body; `properties` are encoded ones."""

    flag: int
    body: bytes | memoryview
    properties: bytes


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """The body of a batch request.

    Raises:
        MalformedBatchError: properties longer than 32767 bytes; `position` is the message's number.
    """
    parts: list[bytes | memoryview] = []
    for number, (flag, body, properties) in enumerate(messages):
        if len(properties) > PROPERTIES_LENGTH_MAX:
            raise MalformedBatchError(number, f"{len(properties)} bytes of properties, at most {PROPERTIES_LENGTH_MAX}")
        size = _FIXED_SIZE + len(body) + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties)
    return b"".join(parts)


def split_batch(body: bytes | memoryview) -> list[BatchMessage]:
    """The messages of a batch body, in order; their bodies are views of it.

    Raises:
        MalformedBatchError: it breaks off, or a message's lengths contradict its total size.
    """
    view = memoryview(body)
    messages = []
    position = 0
    while position < len(view):
        message, position = _split_one(view, position)
        messages.append(message)
    return messages


def _split_one(view: memoryview, position: int) -> tuple[BatchMessage, int]:
    left = len(view) - position
    if left < _FIXED_SIZE:
        raise MalformedBatchError(position, f"{left} bytes left, a message has at least {_FIXED_SIZE}")
    size, _, _, flag, body_length = _HEAD.unpack_from(view, position)
    if not _FIXED_SIZE <= size <= left or not 0 <= body_length <= size - _FIXED_SIZE:
        raise MalformedBatchError(position, f"size {size}, body length {body_length}, {left} bytes left")
    body_end = position + _HEAD.size + body_length
    (properties_length,) = _SHORT.unpack_from(view, body_end)
    end = position + size
    if body_end + _SHORT.size + properties_length != end:
        raise MalformedBatchError(position, f"size {size}, body length {body_length}, properties {properties_length}")
    body = view[position + _HEAD.size : body_end]
    return BatchMessage(flag, body, bytes(view[body_end + _SHORT.size : end])), end
