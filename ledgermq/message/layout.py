"""Positions of the fields of a commit-log record, and a check of its bytes. The byte table is in `record`.

Source: apache/rocketmq `store/CommitLog.java` (checkMessageAndReturnSize), `store/MessageExtEncoder.java`.
"""

import struct
from typing import Final

from ledgermq.message.buffers import Readable
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.errors import CorruptRecordError

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
BLANK_MAGIC: Final = -875286124

BLANK: Final = 0
"""Returned by `check_record` at a blank: only padding follows in this file."""

BLANK_SIZE_MIN: Final = 8
"""Every full file ends in a blank: its size as i32, then BLANK_MAGIC."""

TOPIC_LENGTH_V1_MAX: Final = 127

SYS_FLAG_AT: Final = 36

_PREFIX: Final = struct.Struct(">ii")
INT: Final = struct.Struct(">i")
SHORT: Final = struct.Struct(">h")
BYTE: Final = struct.Struct(">b")


def _head(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")


def _peek(born: int, store: int) -> struct.Struct:
    # size, magic, queue id, queue offset, physical offset, sysFlag, store timestamp, body length
    return struct.Struct(f">ii4xi4xqqi{8 + born}xq{store + 12}xi")


# by (sysFlag >> 4) & 3: bit 0 born host IPv6, bit 1 store host IPv6
HEADS: Final = (_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20))
HEAD_SIZES: Final = tuple(head.size for head in HEADS)
PEEKS: Final = (_peek(8, 8), _peek(20, 8), _peek(8, 20), _peek(20, 20))

RECORD_SIZE_MIN: Final = HEAD_SIZES[0] + 1 + 2
"""Size of a V1 record with IPv4 hosts and no body, topic and properties."""


def needs_v2(topic: bytes) -> bool:
    """Return whether a record of this topic needs V2's two-byte topic length.

    The field counts bytes. Java counts UTF-16 units, and would write a negative V1 length for a topic of 128 or more
    bytes and fewer units. For ASCII topics, the only legal ones, the two rules agree.
    """
    return len(topic) > TOPIC_LENGTH_V1_MAX


def record_size(body_length: int, topic_length: int, properties_length: int, sys_flag: int, v2: bool) -> int:
    """Return the size of a whole record; all lengths in bytes."""
    head = HEAD_SIZES[(sys_flag >> 4) & 3]
    return head + body_length + (4 if v2 else 3) + topic_length + properties_length


def check_record(buffer: Readable, position: int, limit: int, *, check_crc: bool) -> int:
    """Return the size of the valid record at `position`, or `BLANK`. `limit` is the end of the readable bytes.

    Valid means: known magic, every length inside the record and adding up to its size, and, if asked, the body's CRC.
    A zeroed tail (size 0, magic 0) is not valid.

    Raises:
        CorruptRecordError: anything else.
    """
    if limit - position < BLANK_SIZE_MIN:
        raise CorruptRecordError(position, f"{limit - position} bytes left")
    size: int
    size, magic = _PREFIX.unpack_from(buffer, position)
    if magic == BLANK_MAGIC:
        return BLANK
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecordError(position, f"magic {magic & 0xFFFFFFFF:#010x}")
    if not RECORD_SIZE_MIN <= size <= limit - position:
        raise CorruptRecordError(position, f"size {size}, {limit - position} bytes left")
    _check_parts(buffer, position, size, magic, check_crc)
    return size


def _check_parts(buffer: Readable, position: int, size: int, magic: int, check_crc: bool) -> None:
    (sys_flag,) = INT.unpack_from(buffer, position + SYS_FLAG_AT)
    head_size = HEAD_SIZES[(sys_flag >> 4) & 3]
    topic_field = SHORT if magic == MAGIC_V2 else BYTE
    room = size - head_size - topic_field.size - SHORT.size  # for body, topic and properties
    if room < 0:
        raise CorruptRecordError(position, f"size {size} is too small for sysFlag {sys_flag:#x}")
    body_start = position + head_size
    (body_length,) = INT.unpack_from(buffer, body_start - INT.size)
    if not 0 <= body_length <= room:
        raise CorruptRecordError(position, f"body length {body_length} in a record of {size}")
    body_end = body_start + body_length
    (topic_length,) = topic_field.unpack_from(buffer, body_end)
    if not 0 <= topic_length <= room - body_length:
        raise CorruptRecordError(position, f"topic length {topic_length} in a record of {size}")
    (properties_length,) = SHORT.unpack_from(buffer, body_end + topic_field.size + topic_length)
    if body_length + topic_length + properties_length != room:
        raise CorruptRecordError(position, f"properties length {properties_length} in a record of {size}")
    if check_crc and body_length:
        _check_body(buffer, position, body_start, body_end)


def _check_body(buffer: Readable, position: int, start: int, end: int) -> None:
    (expected,) = INT.unpack_from(buffer, position + 8)
    with memoryview(buffer) as whole, whole[start:end] as body:
        actual = crc32(body) & CRC_MASK
    if actual != expected:
        raise CorruptRecordError(position, f"body CRC {actual}, the record says {expected}")
