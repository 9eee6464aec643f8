"""Finds the last bytes of a log's files, its last whole record, and the start of a record."""

from ha.core.handshake import TAIL_BYTES, Tail
from ha.core.record_ends import is_blank, last_record_end, record_start
from ledgermq.message.crc import crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import RECORD_SIZE_MIN
from store.files.mapped_file_queue import MappedFileQueue


def tail_of(queue: MappedFileQueue) -> Tail:
    """Return the last bytes of a log that ends with a whole record: at most `TAIL_BYTES`, of one file."""
    end = queue.max_offset
    if end == queue.min_offset:
        return Tail(start=end, end=end, crc=0)
    file = queue.file_at(end - 1)
    assert file is not None, "the byte before the end lies in a file"
    start = max(end - TAIL_BYTES, file.start_offset)
    return Tail(start=start, end=end, crc=crc32(queue.slice(start, end - start)))


def whole_records_end(queue: MappedFileQueue, position: int, end: int) -> int:
    """Return the end of the last record before `end`, from `position` on, where a record begins or the log ends.

    The blank at a file's end counts with the first record after it, as in a recovery: a log whose process was killed in
    between ends before the blank, and no slave may have reported more.

    Raises:
        CorruptRecordError: what follows `position` is no record; the error has the physical offset.
    """
    known = position
    while position < end and (file := queue.file_at(position)) is not None:
        base = file.start_offset
        limit = min(end, file.end_offset) - base
        file.ensure_readable(position - base, limit)
        try:
            found = last_record_end(file.view, position - base, limit, file.size_bytes)
        except CorruptRecordError as error:
            raise CorruptRecordError(base + error.position, error.detail) from error
        if base + found > position:
            known = position = base + found
        if is_blank(file.view, found, limit, file.size_bytes):
            position = file.end_offset
        elif position < file.end_offset:
            break
    return known


def record_start_at(queue: MappedFileQueue, offset: int, reach_bytes: int) -> int | None:
    """Return the start of the record that has the byte at `offset`; `offset` itself at the log's end.

    It is None if it is more than `reach_bytes` before `offset`. Raises `DiskReadError`.
    """
    end, file = queue.committed_offset, queue.file_at(offset)
    if offset == end or file is None:
        return offset
    base = file.start_offset
    position, written = offset - base, min(end, file.end_offset) - base
    for low in (position, max(position - reach_bytes, 0)):  # usually a record begins there
        file.ensure_readable(low, min(position + RECORD_SIZE_MIN, written))
        if (start := record_start(file.view, low, position, written, base, file.size_bytes)) is not None:
            return base + start
    return None
