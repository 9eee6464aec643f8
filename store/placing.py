"""Placing records in a classic log, and walking them.

    |record|record|...|record|blank| |record|record|...
     <------- one file ------------>  <----- next file

A record never spans two files. The end of a file that cannot take the next record is a blank: i32 bytes left, i32
BLANK_MAGIC, at least 8 bytes, the rest untouched.

Source: apache/rocketmq `store/.../CommitLog.java` (DefaultAppendMessageCallback, 5.3.3).
"""

import struct
from collections.abc import Iterator, Sequence

from ledgermq.message.draft import RecordDraft
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK_MAGIC, BLANK_SIZE_MIN, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, write_draft
from store.errors import RecordTooLargeError
from store.mapped_file import MappedFile
from store.mapped_file_queue import MappedFileQueue

_PREFIX = struct.Struct(">ii")


def place(queue: MappedFileQueue, drafts: Sequence[RecordDraft], timestamp: int, store_host: bytes) -> int:
    """Stamp and encode all drafts behind the last record; answer the new end of the log.

    Raises:
        RecordTooLargeError, DiskFullError, DiskFailedError, AllocationPendingError, struct.error: nothing was placed.
    """
    start = queue.max_offset
    file = queue.last()
    total = sum([draft.size for draft in drafts])
    fits = file is not None and file.write_position + total + BLANK_SIZE_MIN <= file.size_bytes
    queue.prepare(0 if fits else _count_rolls(queue, drafts))
    try:
        if fits and file is not None:
            file.write_position = _encode(file, drafts, timestamp, store_host)
        else:
            _place_rolling(queue, drafts, timestamp, store_host)
    except BaseException:
        _take_back(queue, start)
        raise
    return queue.max_offset


def walk_file(file: MappedFile, position: int, limit: int) -> Iterator[tuple[int, memoryview]]:
    """Yield `(physical_offset, record)` of the records in `[position, limit)` of one file.

    Raises:
        CorruptRecordError: something that is neither a record nor a blank.
    """
    base = file.start_offset
    view = file.view
    unpack = _PREFIX.unpack_from
    while limit - position >= BLANK_SIZE_MIN:
        size, magic = unpack(view, position)
        if magic == BLANK_MAGIC:
            return
        end = position + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN or end > file.write_position:
            raise CorruptRecordError(base + position, f"size {size}, magic {magic & 0xFFFFFFFF:#010x} in {file.path}")
        if end > limit:
            return
        yield base + position, view[position:end]
        position = end


def _encode(file: MappedFile, drafts: Sequence[RecordDraft], timestamp: int, store_host: bytes) -> int:
    base = file.start_offset
    buffer = file.buffer
    position = file.write_position
    for draft in drafts:
        draft.physical_offset = base + position
        draft.store_timestamp = timestamp
        write_draft(buffer, position, draft, store_host)
        position += draft.size
    return position


def _count_rolls(queue: MappedFileQueue, drafts: Sequence[RecordDraft]) -> int:
    """How many files the batch needs beyond the last one."""
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


def _place_rolling(queue: MappedFileQueue, drafts: Sequence[RecordDraft], timestamp: int, store_host: bytes) -> None:
    file = queue.last() or queue.roll()
    for draft in drafts:
        left = file.size_bytes - file.write_position
        if draft.size + BLANK_SIZE_MIN > left:
            _PREFIX.pack_into(file.buffer, file.write_position, left, BLANK_MAGIC)
            file = queue.roll()
        file.write_position = _encode(file, (draft,), timestamp, store_host)


def _take_back(queue: MappedFileQueue, start: int) -> None:
    """A draft could not be encoded in the middle of a batch: leave zeros behind the last whole batch."""
    file = queue.last()
    if file is not None:
        file.write_position = file.size_bytes  # how far it came is not known
        queue.truncate_to(start)
