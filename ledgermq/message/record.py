"""The commit-log record: what lies in the log, what a pull answer carries, what a slave receives.

| field | type | at (both hosts IPv4) |
|---|---|---|
| total size, itself included | i32 | 0 |
| magic: V1, V2, or BLANK (rest of the file is padding) | i32 | 4 |
| body CRC-32, masked to 31 bits | i32 | 8 |
| queue id | i32 | 12 |
| flag | i32 | 16 |
| queue offset | i64 | 20 |
| physical offset | i64 | 28 |
| sysFlag | i32 | 36 |
| born timestamp, ms | i64 | 40 |
| born host, 8 or 20 bytes by sysFlag 0x10 | bytes | 48 |
| store timestamp, ms | i64 | 56 |
| store host, 8 or 20 bytes by sysFlag 0x20 | bytes | 64 |
| reconsume times | i32 | 72 |
| prepared transaction offset | i64 | 76 |
| body length, body | i32, bytes | 84 |
| topic length, topic | V1 i8, V2 i16; bytes | 88 + body |
| properties length, properties | i16, bytes | |

Big-endian. The hot path writes drafts (`write_draft`) and peeks (`dispatch_fields`); everything from outside goes
through `check_record` or `decode_record` first.

Source: apache/rocketmq `store/MessageExtEncoder.java`, `store/CommitLog.java` (checkMessageAndReturnSize),
`common/message/MessageDecoder.java`.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from ledgermq.message.buffers import Readable, Writable
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.draft import RecordDraft
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.hosts import Host, decode_host, encode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.properties import KEYS, TAGS, UNIQ_KEY, decode_properties

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
BLANK_MAGIC: Final = -875286124

BLANK: Final = 0
"""What `check_record` answers at a blank: nothing but padding follows in this file."""

BLANK_SIZE_MIN: Final = 8
"""Every full file ends in a blank: its size as i32, then BLANK_MAGIC."""

TOPIC_LENGTH_V1_MAX: Final = 127

_SYS_FLAG_AT: Final = 36

_PREFIX: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_BYTE: Final = struct.Struct(">b")


def _head(born: int, store: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")


def _peek(born: int, store: int) -> struct.Struct:
    # size, magic, queue id, queue offset, physical offset, sysFlag, store timestamp, body length
    return struct.Struct(f">ii4xi4xqqi{8 + born}xq{store + 12}xi")


# by (sysFlag >> 4) & 3: bit 0 born host IPv6, bit 1 store host IPv6
_HEADS: Final = (_head(8, 8), _head(20, 8), _head(8, 20), _head(20, 20))
_HEAD_SIZES: Final = tuple(head.size for head in _HEADS)
_PEEKS: Final = (_peek(8, 8), _peek(20, 8), _peek(8, 20), _peek(20, 20))
_PEEK_V4: Final = _PEEKS[0]
_HEAD_V4_SIZE: Final = _HEAD_SIZES[0]

RECORD_SIZE_MIN: Final = _HEAD_V4_SIZE + 1 + 2
"""A V1 record with IPv4 hosts and nothing in it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record. `properties` are kept as they lay there, so that encoding gives the same bytes.

    `queue_offset` counts units of the queue; `physical_offset` bytes of the log; timestamps are ms. `body_crc` and
    `size` are the stored fields, whether or not they were checked.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    queue_offset: int
    physical_offset: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    body_crc: int
    size: int
    magic: int = MAGIC_V1
    _property_map: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def property_map(self) -> dict[str, str]:
        """All properties, parsed once; not to be changed."""
        if self._property_map is None:
            object.__setattr__(self, "_property_map", decode_properties(self.properties))
        return self._property_map or {}

    @property
    def tags(self) -> str | None:
        return self.property_map.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The user's keys, in order; empty when there are none."""
        return self.property_map.get(KEYS, "").split()

    @property
    def unique_id(self) -> str | None:
        """The id its producer gave it, the same through all retries."""
        return self.property_map.get(UNIQ_KEY)

    @property
    def offset_message_id(self) -> str:
        """The id that says where it lies."""
        return offset_message_id(encode_host(self.store_host), self.physical_offset)


def needs_v2(topic: bytes) -> bool:
    """Whether a record of this topic needs V2's two-byte topic length.

    Java counts UTF-16 units and would write a negative V1 length for 128 or more bytes of fewer units; bytes are
    what the field counts. For ASCII topics, the only legal ones, the two rules agree.
    """
    return len(topic) > TOPIC_LENGTH_V1_MAX


def record_size(body_length: int, topic_length: int, properties_length: int, sys_flag: int, v2: bool) -> int:
    """Bytes of a whole record; lengths in bytes."""
    head = _HEAD_SIZES[(sys_flag >> 4) & 3]
    return head + body_length + (4 if v2 else 3) + topic_length + properties_length


def write_draft(buffer: Writable, position: int, draft: RecordDraft, store_host: bytes) -> None:
    """Encode a draft at `position`: the hot path, straight into the mapped file, nothing checked.

    `draft.size` bytes are written. `store_host` has the length that `draft.sys_flag` says (8 or 20).
    """
    body = draft.body
    topic = draft.topic
    properties = draft.properties
    topic_length = len(topic)
    body_length = len(body)
    index = (draft.sys_flag >> 4) & 3
    _HEADS[index].pack_into(
        buffer,
        position,
        draft.size,
        MAGIC_V1 if topic_length <= TOPIC_LENGTH_V1_MAX else MAGIC_V2,
        crc32(body) & CRC_MASK,
        draft.queue_id,
        draft.flag,
        draft.queue_offset,
        draft.physical_offset,
        draft.sys_flag,
        draft.born_timestamp,
        draft.born_host,
        draft.store_timestamp,
        store_host,
        draft.reconsume_times,
        draft.prepared_transaction_offset,
        body_length,
    )
    start = position + _HEAD_SIZES[index]
    end = start + body_length
    buffer[start:end] = body
    tail = _tail(topic, properties)
    buffer[end : end + len(tail)] = tail


def _tail(topic: bytes, properties: bytes) -> bytes:
    length = len(topic)
    encoded = length.to_bytes(1 if length <= TOPIC_LENGTH_V1_MAX else 2, "big")
    return encoded + topic + _SHORT.pack(len(properties)) + properties


def encode_record(record: Record) -> bytes:
    """The record's bytes, its CRC and magic as they are in it.

    Raises:
        CorruptRecordError: its size contradicts its parts, or a part does not fit its field; position is 0.
    """
    topic = record.topic.encode()
    hosts = encode_host(record.born_host), encode_host(record.store_host)
    index = (len(hosts[0]) == 20) + 2 * (len(hosts[1]) == 20)
    if index != (record.sys_flag >> 4) & 3:
        both = f"{record.born_host} and {record.store_host}"
        raise CorruptRecordError(0, f"sysFlag {record.sys_flag:#x} contradicts the hosts {both}")
    v2 = record.magic == MAGIC_V2
    size = record_size(len(record.body), len(topic), len(record.properties), record.sys_flag, v2)
    if size != record.size:
        raise CorruptRecordError(0, f"size {record.size} where its parts have {size}")
    try:
        head = _HEADS[index].pack(
            size, record.magic, record.body_crc, record.queue_id, record.flag, record.queue_offset,
            record.physical_offset, record.sys_flag, record.born_timestamp, hosts[0], record.store_timestamp, hosts[1],
            record.reconsume_times, record.prepared_transaction_offset, len(record.body),
        )  # fmt: skip
        topic_length = (_SHORT if v2 else _BYTE).pack(len(topic))
        properties_length = _SHORT.pack(len(record.properties))
    except struct.error as error:
        raise CorruptRecordError(0, f"a field does not fit: {error}") from error
    return b"".join((head, record.body, topic_length, topic, properties_length, record.properties))


def check_record(buffer: Readable, position: int, limit: int, *, check_crc: bool) -> int:
    """The size of the valid record at `position`, or `BLANK`. `limit` is where readable bytes end.

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
    (sys_flag,) = _INT.unpack_from(buffer, position + _SYS_FLAG_AT)
    head_size = _HEAD_SIZES[(sys_flag >> 4) & 3]
    topic_field = _SHORT if magic == MAGIC_V2 else _BYTE
    room = size - head_size - topic_field.size - _SHORT.size  # for body, topic and properties
    if room < 0:
        raise CorruptRecordError(position, f"size {size} is too small for sysFlag {sys_flag:#x}")
    body_start = position + head_size
    (body_length,) = _INT.unpack_from(buffer, body_start - _INT.size)
    if not 0 <= body_length <= room:
        raise CorruptRecordError(position, f"body length {body_length} in a record of {size}")
    body_end = body_start + body_length
    (topic_length,) = topic_field.unpack_from(buffer, body_end)
    if not 0 <= topic_length <= room - body_length:
        raise CorruptRecordError(position, f"topic length {topic_length} in a record of {size}")
    (properties_length,) = _SHORT.unpack_from(buffer, body_end + topic_field.size + topic_length)
    if body_length + topic_length + properties_length != room:
        raise CorruptRecordError(position, f"properties length {properties_length} in a record of {size}")
    if check_crc and body_length:
        _check_body(buffer, position, body_start, body_end)


def _check_body(buffer: Readable, position: int, start: int, end: int) -> None:
    (expected,) = _INT.unpack_from(buffer, position + 8)
    with memoryview(buffer) as whole, whole[start:end] as body:
        actual = crc32(body) & CRC_MASK
    if actual != expected:
        raise CorruptRecordError(position, f"body CRC {actual}, the record says {expected}")


def dispatch_fields(buffer: Readable, position: int) -> tuple[int, int, int, int, int, int, bytes, bytes]:
    """What a consume queue, an index or a watcher needs of the checked record at `position`, as cheap as possible.

    Returns:
        size, queue id, sysFlag, queue offset, physical offset, store timestamp (ms), topic, encoded properties.
    """
    fields = _PEEK_V4.unpack_from(buffer, position)
    start = position + _HEAD_V4_SIZE
    if fields[5] & HOST_MASK:
        index = (fields[5] >> 4) & 3
        fields = _PEEKS[index].unpack_from(buffer, position)
        start = position + _HEAD_SIZES[index]
    size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, body_length = fields
    start += body_length
    if magic == MAGIC_V1:
        topic_end = start + 1 + buffer[start]
        topic = bytes(buffer[start + 1 : topic_end])
    else:
        topic_end = start + 2 + _SHORT.unpack_from(buffer, start)[0]
        topic = bytes(buffer[start + 2 : topic_end])
    properties = bytes(buffer[topic_end + 2 : position + size])
    return size, queue_id, sys_flag, queue_offset, physical_offset, store_timestamp, topic, properties


def decode_record(buffer: bytes | memoryview, offset: int = 0, *, check_crc: bool = True) -> Record:
    """The record at `offset` of the buffer; bytes behind it are not looked at.

    Raises:
        CorruptRecordError: no valid record there (a blank is none), or its topic is not UTF-8.
    """
    size = check_record(buffer, offset, len(buffer), check_crc=check_crc)
    if size == BLANK:
        raise CorruptRecordError(offset, "a blank, which fills the end of a file")
    return _decode_checked(bytes(buffer[offset : offset + size]), offset)


def decode_records(buffer: bytes | memoryview, *, check_crc: bool = True) -> list[Record]:
    """All records of a buffer that holds nothing else, such as the body of a pull answer.

    Raises:
        CorruptRecordError: see `decode_record`.
    """
    records = []
    offset = 0
    while offset < len(buffer):
        record = decode_record(buffer, offset, check_crc=check_crc)
        records.append(record)
        offset += record.size
    return records


def _decode_checked(raw: bytes, offset: int) -> Record:
    (sys_flag,) = _INT.unpack_from(raw, _SYS_FLAG_AT)
    index = (sys_flag >> 4) & 3
    (
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, _, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body_length,
    ) = _HEADS[index].unpack_from(raw)  # fmt: skip
    body_end = _HEAD_SIZES[index] + body_length
    topic_start = body_end + (2 if magic == MAGIC_V2 else 1)
    topic_end = topic_start + int.from_bytes(raw[body_end:topic_start], "big")
    try:
        topic = raw[topic_start:topic_end].decode()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(offset, f"topic {raw[topic_start:topic_end]!r} is not UTF-8") from error
    return Record(
        topic=topic,
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_timestamp=born_timestamp,
        born_host=decode_host(born_host),
        store_timestamp=store_timestamp,
        store_host=decode_host(store_host),
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body=raw[_HEAD_SIZES[index] : body_end],
        properties=raw[topic_end + 2 :],
        body_crc=body_crc,
        size=size,
        magic=magic,
    )
