"""CRC stamping: a sum over the whole record, appended to its properties (enabledAppendPropCRC).

    |........ record ........|.. properties ..|__CRC32# 0x01 dddddddddd 0x02|
    |<------------- what the sum covers ----->|<--------- 20 bytes -------->|

Off by default. Recovery, here and in RocketMQ, knows by it that a record is whole, and not only its body.

Source: apache/rocketmq `store/.../CommitLog.java` (appendMessage) and `MessageExtEncoder.java` (5.3.3).
"""

from ledgermq.message.buffers import Writable
from ledgermq.message.crc import CRC_MASK, CRC_PROPERTY_LENGTH, crc32, encode_crc_property
from ledgermq.message.draft import RecordDraft
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX
from ledgermq.message.record import write_draft

_NAME = b"__CRC32#\x01"
_ROOM = bytes(CRC_PROPERTY_LENGTH)


def make_room(draft: RecordDraft) -> None:
    """Let the draft's properties end with room for the sum, in place of one that the sender gave.

    Properties that would become too long stay as they are: their record has no sum.
    """
    properties = _without_sum(draft.properties)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    properties += _ROOM
    if len(properties) <= PROPERTIES_LENGTH_MAX:
        draft.size += len(properties) - len(draft.properties)
        draft.properties = properties


def write_stamped(buffer: Writable, position: int, draft: RecordDraft, store_host: bytes) -> None:
    """As `write_draft`, with the sum where `make_room` left room for it."""
    write_draft(buffer, position, draft, store_host)
    if draft.properties.endswith(_ROOM):
        end = position + draft.size
        with memoryview(buffer) as view:
            crc = crc32(view[position : end - CRC_PROPERTY_LENGTH]) & CRC_MASK
        buffer[end - CRC_PROPERTY_LENGTH : end] = encode_crc_property(crc)


def _without_sum(properties: bytes) -> bytes:
    if properties.endswith(_ROOM):  # a draft that is tried again
        properties = properties[:-CRC_PROPERTY_LENGTH]
    if _NAME not in properties:
        return properties
    pairs = [pair for pair in properties.split(b"\x02") if not pair.startswith(_NAME)]
    return b"\x02".join(pairs)
