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


def encode_batch(messages: Iterable[tuple[int, bytes | memoryview, bytes]]) -> bytes:
    """The body of a batch request from `BatchMessage`s, or plain tuples like them.

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


def split_batch(body: bytes | memoryview) -> list[tuple[int, memoryview, bytes]]:
    """Flag, body and encoded properties of each message of a batch body, in order; the bodies are views of it.

    One loop without calls of our own: this runs per message.

    Raises:
        MalformedBatchError: it breaks off, or a message's lengths contradict its total size.
    """
    view = memoryview(body)
    unpack, unpack_short, head_size, least = _HEAD.unpack_from, _SHORT.unpack_from, _HEAD.size, _FIXED_SIZE
    messages = []
    position, limit = 0, len(view)
    while position < limit:
        left = limit - position
        if left < least:
            raise MalformedBatchError(position, f"{left} bytes left, a message has at least {least}")
        size, _, _, flag, body_length = unpack(view, position)
        if not least <= size <= left or not 0 <= body_length <= size - least:
            raise MalformedBatchError(position, f"size {size}, body length {body_length}, {left} bytes left")
        start = position + head_size
        body_end = start + body_length
        (length,) = unpack_short(view, body_end)
        end = position + size
        if body_end + 2 + length != end:
            raise MalformedBatchError(position, f"size {size}, body length {body_length}, properties {length}")
        messages.append((flag, view[start:body_end], view[body_end + 2 : end].tobytes()))
        position = end
    return messages
