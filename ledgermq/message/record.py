"""The commit-log record: the form of a message in the log, in the answer to a pull, and in the stream to slaves.

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

Big-endian. The hot path writes drafts (`RecordDraft.pieces`) and reads a few fields (`dispatch_fields`). Records from
outside are checked first, by `check_record` or `decode_record`.

Source: apache/rocketmq `store/MessageExtEncoder.java`, `store/CommitLog.java` (checkMessageAndReturnSize),
`common/message/MessageDecoder.java`.
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from ledgermq.message.buffers import Readable
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.hosts import Host, decode_host, encode_host
from ledgermq.message.ids import offset_message_id
from ledgermq.message.layout import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    BYTE,
    HEAD_SIZES,
    HEADS,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    PEEKS,
    RECORD_SIZE_MIN,
    SHORT,
    SYS_FLAG_AT,
    check_record,
    needs_v2,
    record_size,
)
from ledgermq.message.properties import KEYS, TAGS, UNIQ_KEY, decode_properties

__all__ = [
    "BLANK",
    "BLANK_MAGIC",
    "BLANK_SIZE_MIN",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_SIZE_MIN",
    "Record",
    "check_record",
    "decode_record",
    "decode_records",
    "dispatch_fields",
    "encode_record",
    "encoded_properties",
    "needs_v2",
    "record_size",
]

_PEEK_V4: Final = PEEKS[0]
_to_body_v4: Final = struct.Struct(">4xi28xi44xi").unpack_from
"""Magic, sysFlag and body length of a record whose hosts are IPv4."""

_HEAD_V4_SIZE: Final = HEAD_SIZES[0]


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record. `properties` are kept encoded, so that encoding the record gives the same bytes.

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
        """All properties, parsed once; do not change them."""
        if self._property_map is None:
            object.__setattr__(self, "_property_map", decode_properties(self.properties))
        return self._property_map or {}

    @property
    def tags(self) -> str | None:
        return self.property_map.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The user's keys, in order; empty if there are none."""
        return self.property_map.get(KEYS, "").split()

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave it; the same through all retries."""
        return self.property_map.get(UNIQ_KEY)

    @property
    def offset_message_id(self) -> str:
        """The id that tells the position of the record."""
        return offset_message_id(encode_host(self.store_host), self.physical_offset)


def encode_record(record: Record) -> bytes:
    """Return the encoded record, with the CRC and magic of this object.

    Raises:
        CorruptRecordError: `size` contradicts the other fields, or a value does not fit into its field; position is 0.
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
        raise CorruptRecordError(0, f"size {record.size}, but its fields take {size}")
    try:
        head = HEADS[index].pack(
            size, record.magic, record.body_crc, record.queue_id, record.flag, record.queue_offset,
            record.physical_offset, record.sys_flag, record.born_timestamp, hosts[0], record.store_timestamp, hosts[1],
            record.reconsume_times, record.prepared_transaction_offset, len(record.body),
        )  # fmt: skip
        topic_length = (SHORT if v2 else BYTE).pack(len(topic))
        properties_length = SHORT.pack(len(record.properties))
    except struct.error as error:
        raise CorruptRecordError(0, f"a field does not fit: {error}") from error
    return b"".join((head, record.body, topic_length, topic, properties_length, record.properties))


def dispatch_fields(buffer: Readable, position: int) -> tuple[int, int, int, int, int, int, bytes, bytes]:
    """Return the fields of the checked record at `position` that queues, the index and followers need.

    Returns:
        size, queue id, sysFlag, queue offset, physical offset, store timestamp (ms), topic, encoded properties.
    """
    fields = _PEEK_V4.unpack_from(buffer, position)
    start = position + _HEAD_V4_SIZE
    if fields[5] & HOST_MASK:
        index = (fields[5] >> 4) & 3
        fields = PEEKS[index].unpack_from(buffer, position)
        start = position + HEAD_SIZES[index]
    size, magic, queue_id, queue_offset, physical_offset, sys_flag, store_timestamp, body_length = fields
    start += body_length
    if magic == MAGIC_V1:
        topic_end = start + 1 + buffer[start]
        topic = bytes(buffer[start + 1 : topic_end])
    else:
        topic_end = start + 2 + SHORT.unpack_from(buffer, start)[0]
        topic = bytes(buffer[start + 2 : topic_end])
    properties = bytes(buffer[topic_end + 2 : position + size])
    return size, queue_id, sys_flag, queue_offset, physical_offset, store_timestamp, topic, properties


def encoded_properties(record: memoryview) -> bytes:
    """Return the encoded properties of a checked record, for filters."""
    magic, sys_flag, body_length = _to_body_v4(record)
    if sys_flag & HOST_MASK:
        return dispatch_fields(record, 0)[7]
    start = _HEAD_V4_SIZE + body_length
    start += 3 + record[start] if magic == MAGIC_V1 else 4 + SHORT.unpack_from(record, start)[0]
    return record[start:].tobytes()


def decode_record(
    buffer: bytes | memoryview, offset: int = 0, *, check_crc: bool = True, topic_errors: str = "strict"
) -> Record:
    """Return the record at `offset` of the buffer; bytes behind it are not read.

    Args:
        buffer: holds the record.
        offset: where it begins.
        check_crc: whether to compare the body with its CRC.
        topic_errors: with `replace` bytes of the topic that are not UTF-8 become U+FFFD, as in Java.

    Raises:
        CorruptRecordError: there is no valid record (a blank is not one), or its topic is not UTF-8.
    """
    size = check_record(buffer, offset, len(buffer), check_crc=check_crc)
    if size == BLANK:
        raise CorruptRecordError(offset, "a filler, which ends a file")
    return _decode_checked(bytes(buffer[offset : offset + size]), offset, topic_errors)


def decode_records(buffer: bytes | memoryview, *, check_crc: bool = True) -> list[Record]:
    """Return all records of a buffer that holds nothing else, such as the body of an answer to a pull.

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


def _decode_checked(raw: bytes, offset: int, topic_errors: str) -> Record:
    (sys_flag,) = INT.unpack_from(raw, SYS_FLAG_AT)
    index = (sys_flag >> 4) & 3
    (
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, _, born_timestamp, born_host,
        store_timestamp, store_host, reconsume_times, prepared_transaction_offset, body_length,
    ) = HEADS[index].unpack_from(raw)  # fmt: skip
    body_end = HEAD_SIZES[index] + body_length
    topic_start = body_end + (2 if magic == MAGIC_V2 else 1)
    topic_end = topic_start + int.from_bytes(raw[body_end:topic_start], "big")
    try:
        topic = raw[topic_start:topic_end].decode(errors=topic_errors)
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
        body=raw[HEAD_SIZES[index] : body_end],
        properties=raw[topic_end + 2 :],
        body_crc=body_crc,
        size=size,
        magic=magic,
    )
