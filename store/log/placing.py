"""Placing records in a classic log, and walking them.

    |record|record|...|record|blank| |record|record|...
     <------- one file ------------>  <----- next file

A record never spans two files. The end of a file that cannot take the next record is a blank: i32 bytes left, i32
BLANK_MAGIC, at least 8 bytes, the rest untouched.

With `enabledAppendPropCRC` (off by default) a CRC-32 of the whole record ends its properties. Recovery, here and in
RocketMQ, checks the whole record by it; without it only the body has a CRC:

    |........ record ........|.. properties ..|__CRC32# 0x01 dddddddddd 0x02|
    |<----------- covered by the CRC -------->|<--------- 20 bytes -------->|

Source: apache/rocketmq `store/.../CommitLog.java` (DefaultAppendMessageCallback, appendMessage) and
`MessageExtEncoder.java` (5.3.3).
"""

import struct
from collections.abc import Iterator, Sequence

from ledgermq.message.buffers import Writable
from ledgermq.message.crc import CRC_MASK, CRC_PROPERTY_LENGTH, crc32, encode_crc_property
from ledgermq.message.draft import RecordDraft, singles_of
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.properties import PROPERTIES_LENGTH_MAX
from ledgermq.message.record import BLANK_MAGIC, BLANK_SIZE_MIN, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from store.errors import RecordTooLargeError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue

_PREFIX = struct.Struct(">ii")
_NAME = b"__CRC32#\x01"
_ROOM = bytes(CRC_PROPERTY_LENGTH)


class Placer:
    """Encodes batches behind the last record of a log, and writes each batch in one call.

    Args:
        queue: the log's files.
        store_host: this node's address as records hold it: 8 or 20 bytes.
        stamps_crc: end the properties of each record with a CRC of the whole record.
    """

    def __init__(self, queue: MappedFileQueue, store_host: bytes, *, stamps_crc: bool = False) -> None:
        self._queue = queue
        self._stamps_crc = stamps_crc
        self._store_host = store_host

    def place(self, drafts: Sequence[RecordDraft], timestamp: int) -> int:
        """Stamp drafts with physical offset and `timestamp` (ms), encode and write them; return the new end of the log.

        Raises:
            RecordTooLargeError, DiskFullError, DiskFailedError, AllocationPendingError, struct.error: nothing was
                placed.
        """
        queue = self._queue
        if self._stamps_crc:
            drafts = singles_of(drafts)
            for draft in drafts:
                _make_room(draft)
        file = queue.last()
        total = sum([draft.size for draft in drafts])
        if file is not None and file.write_position + total + BLANK_SIZE_MIN <= file.size_bytes:
            queue.prepare(0)
            start = file.start_offset + file.write_position
            self._write(file, drafts, timestamp)
            return start + total
        drafts = singles_of(drafts)
        queue.prepare(_count_rolls(queue, drafts))
        start = queue.max_offset
        try:
            self._place_rolling(drafts, timestamp)
        except BaseException:
            if queue.max_offset != start:
                queue.truncate_to(start)
            raise
        return queue.max_offset

    def _place_rolling(self, drafts: Sequence[RecordDraft], timestamp: int) -> None:
        file = self._queue.last() or self._queue.roll()
        for draft in drafts:
            left = file.size_bytes - file.write_position
            if draft.size + BLANK_SIZE_MIN > left:
                file.write(memoryview(_PREFIX.pack(left, BLANK_MAGIC)))
                file = self._queue.roll()
            self._write(file, (draft,), timestamp)

    def _write(self, file: MappedFile, drafts: Sequence[RecordDraft], timestamp: int) -> None:
        offset = start = file.start_offset + file.write_position
        store_host = self._store_host
        pieces: list[bytes | memoryview] = []
        for draft in drafts:
            draft.physical_offset = offset
            draft.store_timestamp = timestamp
            pieces += draft.pieces(store_host)
            offset += draft.size
        data = b"".join(pieces)
        written = memoryview(self._stamped(data, drafts, start) if self._stamps_crc else data)
        file.write(written)
        self._queue.placed = start, written

    def _stamped(self, data: bytes, drafts: Sequence[RecordDraft], start: int) -> bytearray:
        """Return encoded records with their CRCs; the first one lies at offset `start`."""
        stamped = bytearray(data)
        for draft in drafts:
            _stamp(stamped, draft.physical_offset - start, draft)
        return stamped


def walk_file(file: MappedFile, position: int, limit: int) -> Iterator[tuple[int, memoryview]]:
    """Yield `(physical_offset, record)` of the whole records in `[position, limit)` of one file, up to its blank.

    The bytes of a record are in memory when it is yielded. `position` and `limit` are bytes from the file's start.

    Raises:
        CorruptRecordError: there is something that is neither a record nor a blank.
        DiskReadError: the disk cannot read the file.
    """
    base = file.start_offset
    view = file.view
    unpack = _PREFIX.unpack_from
    readable = position
    while limit - position >= BLANK_SIZE_MIN:
        if position + BLANK_SIZE_MIN > readable:
            readable = file.ensure_window(position, limit)
        size, magic = unpack(view, position)
        if magic == BLANK_MAGIC:
            return
        end = position + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN or end > file.write_position:
            raise CorruptRecordError(base + position, f"size {size}, magic {magic & 0xFFFFFFFF:#010x} in {file.path}")
        if end > limit:
            return
        if end > readable:
            readable = file.ensure_window(position, limit, end)
        yield base + position, view[position:end]
        position = end


def _count_rolls(queue: MappedFileQueue, drafts: Sequence[RecordDraft]) -> int:
    """Return how many new files the batch needs. Raises RecordTooLargeError for a record longer than a file."""
    capacity = queue.file_size - BLANK_SIZE_MIN
    file = queue.last()
    left = capacity - file.write_position if file is not None else -1
    rolls = 0
    for draft in drafts:
        if draft.size > capacity:
            raise RecordTooLargeError(draft.size, capacity)
        if draft.size > left:
            rolls += 1
            left = capacity
        left -= draft.size
    return rolls


def _make_room(draft: RecordDraft) -> None:
    """End the draft's properties with room for the CRC, and remove a CRC property that the sender gave.

    Properties that would become too long are left unchanged; their record has no CRC of the whole.
    """
    properties = _without_crc(draft.properties)
    if properties and properties[-1] != 2:
        properties += b"\x02"
    properties += _ROOM
    if len(properties) <= PROPERTIES_LENGTH_MAX:
        draft.size += len(properties) - len(draft.properties)
        draft.properties = properties


def _stamp(buffer: Writable, position: int, draft: RecordDraft) -> None:
    """Write the CRC into the record at `position`, if `_make_room` left room for it."""
    if draft.properties.endswith(_ROOM):
        end = position + draft.size
        with memoryview(buffer) as view:
            crc = crc32(view[position : end - CRC_PROPERTY_LENGTH]) & CRC_MASK
        buffer[end - CRC_PROPERTY_LENGTH : end] = encode_crc_property(crc)


def _without_crc(properties: bytes) -> bytes:
    if properties.endswith(_ROOM):  # a draft that is tried again
        properties = properties[:-CRC_PROPERTY_LENGTH]
    if _NAME not in properties:
        return properties
    pairs = [pair for pair in properties.split(b"\x02") if not pair.startswith(_NAME)]
    return b"\x02".join(pairs)
