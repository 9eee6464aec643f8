"""Reads records from the entry log without a copy: one by its physical offset, or one after the other.

The physical offset of a record is the position of its entry + 48. The next entry starts where the record ends, or,
behind a filler, in the next file.
"""

import contextlib
from collections.abc import Iterator

from dledger.log.entry import FILLER, FILLER_MAGIC, FILLER_SIZE, HEADER_SIZE, MAGIC, read_header
from dledger.log.entry_log import EntryLog
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import MAGIC_V1, MAGIC_V2
from store.errors import DiskReadError, StoreFormatError
from store.files.mapped_file_queue import MappedFileQueue


def walk_records(data: MappedFileQueue, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Yield `(physical_offset, record)` of each record at or after `start` that ends by `end`.

    `start` is the start or end of a record, or the position of a file's first entry.

    Raises:
        CorruptRecordError: there is no entry header where one must be.
        DiskReadError: the disk cannot read it.
    """
    unpack = FILLER.unpack_from
    position = entry_position(data, start)
    while position < end and (file := data.file_at(position)) is not None:
        view, base = file.view, file.start_offset
        offset, limit = position - base, min(end - base, file.write_position)
        readable = offset
        while offset + FILLER_SIZE <= limit:
            if offset + FILLER_SIZE > readable:
                readable = file.ensure_window(offset, limit)
            magic, size = unpack(view, offset)
            if magic == FILLER_MAGIC:
                break
            after = offset + size
            if magic != MAGIC or size <= HEADER_SIZE or after > file.size_bytes:
                raise CorruptRecordError(base + offset, f"magic {magic}, size {size}: expected an entry")
            if after > limit:
                return
            if after > readable:
                readable = file.ensure_window(offset, limit, after)
            yield base + offset + HEADER_SIZE, view[offset + HEADER_SIZE : after]
            offset = after
        position = file.end_offset


def entry_position(data: MappedFileQueue, start: int) -> int:
    """Return the position of the entry at or behind `start`.

    A record starts with its size, then a magic that no entry has at that place.
    """
    file = data.file_at(start)
    if file is None or file.end_offset - start < FILLER_SIZE:
        return start
    offset = start - file.start_offset
    file.ensure_readable(offset, offset + FILLER_SIZE)
    _, second = FILLER.unpack_from(file.view, offset)
    return start - HEADER_SIZE if second in (MAGIC_V1, MAGIC_V2) else start


def is_sound(log: EntryLog, physical_offset: int) -> bool:
    """Return whether the entry of this record, which this process did not write, passes its CRC."""
    index = _index_at(log, physical_offset - HEADER_SIZE)
    return index is not None and log.integrity.is_sound(index)


def _index_at(log: EntryLog, position: int) -> int | None:
    """Return the index of the entry that begins there: by its header, or by the index units if that is damaged."""
    file = log.data.file_at(position)
    if file is None or file.end_offset - position < HEADER_SIZE:
        return None
    offset = position - file.start_offset
    with contextlib.suppress(DiskReadError, StoreFormatError):
        file.ensure_readable(offset, offset + HEADER_SIZE)
        index = read_header(file.view, offset).entry_index
        if not _begins_at(log, index, position) and log.first_index <= index <= log.last_index:
            log.integrity.is_sound(index, position)  # mends the index unit, if that is the damaged one
        if _begins_at(log, index, position):
            return index
    with contextlib.suppress(StoreFormatError):
        before = log.units.last_ending_by(log.first_index, log.last_index, position)
        return next((index for index in (before, before + 1) if _begins_at(log, index, position)), None)
    return None


def _begins_at(log: EntryLog, index: int, position: int) -> bool:
    unit = log.units.find(index)
    return unit is not None and unit[0] == position
