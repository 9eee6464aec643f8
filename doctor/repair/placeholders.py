"""Records that replace lost bytes inside a log, so that every reader finds the records after them.

    placeholder   a whole record of the lost one's topic, queue and queue offset, its body a sentence: where some queue
                  unit still points at the lost record; consumers get that sentence instead of an endless error
    filler        a rolled-back record of a system topic, which is in no queue and no index: where nothing is known

Both have exactly the size that is asked for.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

from doctor.check.columns import QueueName
from ledgermq.message.crc import CRC_MASK, CRC_PROPERTY_LENGTH, crc32, decode_crc_property, encode_crc_property
from ledgermq.message.draft import RecordDraft
from ledgermq.message.flags import (
    COMPRESSED,
    COMPRESSION_MASK,
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_ROLLBACK,
)
from ledgermq.message.layout import HEAD_SIZES, INT, RECORD_SIZE_MIN, SYS_FLAG_AT
from ledgermq.message.record import needs_v2, record_size

SENTENCE: Final = b"This message was damaged and is lost; `ledgermq store repair` wrote what was left of it to a file."
FILLER_TOPIC: Final = b"rmq_sys_ledgermq_gap"
FILLER_SIZE_MIN: Final = RECORD_SIZE_MIN + 1
_HOST: Final = bytes(8)
_NUMBER: Final = Struct(">q")
_NUMBER_AT: Final = 20


@dataclass(frozen=True, slots=True)
class Lost:
    """A record at which a queue still points. `size` is in bytes."""

    physical_offset: int
    size: int
    queue: QueueName
    queue_offset: int


def placeholder_size_min(topic: bytes) -> int:
    """Return the smallest size of a placeholder of a topic."""
    return record_size(0, len(topic), 0, 0, needs_v2(topic))


def placeholder(lost: Lost, size: int, timestamp: int) -> bytes:
    """Return a record in the place of `lost`, stored at `timestamp` (ms)."""
    return _record(lost.physical_offset, size, lost.queue.topic, lost.queue.queue_id, lost.queue_offset, timestamp, 0)


def filler(physical_offset: int, size: int, timestamp: int) -> bytes:
    """Return a record that belongs to no queue; `size` is FILLER_SIZE_MIN or more."""
    topic = FILLER_TOPIC[: size - RECORD_SIZE_MIN]
    return _record(physical_offset, size, topic, 0, 0, timestamp, TRANSACTION_ROLLBACK)


def mended(record: bytes, body_size: int) -> bytes:
    """Return the damaged but framed `record` with a body that says so, and CRCs that fit; otherwise unchanged."""
    data = bytearray(record)
    (flags,) = INT.unpack_from(data, SYS_FLAG_AT)
    index = (flags >> 4) & 3
    start = HEAD_SIZES[index]
    body = memoryview(record)[start : start + body_size]
    (crc,) = INT.unpack_from(data, 8)
    if crc32(body) & CRC_MASK != crc:
        data[start : start + body_size] = _text(body_size)
        INT.pack_into(data, 8, crc32(data[start : start + body_size]) & CRC_MASK)
        INT.pack_into(data, SYS_FLAG_AT, flags & ~(COMPRESSED | COMPRESSION_MASK | NEED_UNWRAP | INNER_BATCH))
    return _with_crc_property(bytes(data))


def renumbered(record: bytes, queue_offset: int) -> bytes:
    """Return the record with another queue offset."""
    return _with_crc_property(record[:_NUMBER_AT] + _NUMBER.pack(queue_offset) + record[_NUMBER_AT + _NUMBER.size :])


def _with_crc_property(record: bytes) -> bytes:
    """Return the record with the right value of its appended CRC, if it has one."""
    if decode_crc_property(record) is None:
        return record
    covered = record[: len(record) - CRC_PROPERTY_LENGTH]
    return covered + encode_crc_property(crc32(covered) & CRC_MASK)


def _record(
    physical_offset: int, size: int, topic: bytes, queue_id: int, queue_offset: int, timestamp: int, flags: int
) -> bytes:
    body = _text(size - record_size(0, len(topic), 0, flags, needs_v2(topic)))
    draft = RecordDraft().fill(topic, queue_id, body, born=(timestamp, _HOST), sys_flag=flags)
    draft.store_timestamp, draft.queue_offset, draft.physical_offset = timestamp, queue_offset, physical_offset
    return b"".join(draft.pieces(_HOST))


def _text(size: int) -> bytes:
    return SENTENCE[:size].ljust(size)
