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
import sys
from collections.abc import Iterable
from typing import Final

from ledgermq.message.errors import MalformedBatchError
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX

_HEAD: Final = struct.Struct(">iiiii")
_FIELDS: Final = struct.Struct(">i8xii")
"""The fixed fields of a message that are read."""

_SHORT: Final = struct.Struct(">h")
_FIXED_SIZE: Final = _HEAD.size + _SHORT.size

Cut = tuple[int, int, int]
"""Flag of a message, and where its body starts and ends in the batch body."""


def encode_batch(messages: Iterable[tuple[int, bytes | memoryview, bytes]]) -> bytes:
    """Return the body of a batch request with these messages: flag, body and encoded properties of each.

    Raises:
        MalformedBatchError: properties longer than 32767 bytes; `position` is the message's number.
    """
    parts: list[bytes | memoryview] = []
    for number, (flag, body, properties) in enumerate(messages):
        if len(properties) > PROPERTIES_LENGTH_MAX:
            raise MalformedBatchError(
                number, f"{len(properties)} bytes of properties, the limit is {PROPERTIES_LENGTH_MAX}"
            )
        size = _FIXED_SIZE + len(body) + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties)
    return b"".join(parts)


def cut_batch(body: bytes | memoryview, most: int = sys.maxsize) -> tuple[list[Cut], list[bytes]]:
    """Return where the messages of a batch body lie in it, in order, and the encoded properties of each.

    One loop without Python calls, since this runs for each message. The body is copied to bytes first: slices of bytes
    cost half as much as slices of a view.

    Args:
        body: of a request.
        most: number of messages after which to stop.

    Raises:
        MalformedBatchError: the body ends within a message, or a message's lengths contradict its total size.
    """
    raw = bytes(body)
    unpack, unpack_short, head_size, least = _FIELDS.unpack_from, _SHORT.unpack_from, _HEAD.size, _FIXED_SIZE
    cuts: list[Cut] = []
    texts: list[bytes] = []
    position, limit = 0, len(raw)
    for _ in range(most):
        if position >= limit:
            return cuts, texts
        left = limit - position
        if left < least:
            raise MalformedBatchError(position, f"{left} bytes left, a message has at least {least}")
        size, flag, body_length = unpack(raw, position)
        if not least <= size <= left or not 0 <= body_length <= size - least:
            raise MalformedBatchError(position, f"size {size}, body length {body_length}, {left} bytes left")
        start = position + head_size
        body_end = start + body_length
        (length,) = unpack_short(raw, body_end)
        end = position + size
        if body_end + 2 + length != end:
            raise MalformedBatchError(position, f"size {size}, body length {body_length}, properties {length}")
        cuts.append((flag, start, body_end))
        texts.append(raw[body_end + 2 : end])
        position = end
    return cuts, texts
