"""Reads records of a Raft log in batches of thousands, for the recovery of its queues, as `walk_records` would."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dledger.log.entry import FILLER, FILLER_MAGIC, FILLER_SIZE, HEADER_SIZE, MAGIC
from dledger.log.reader import entry_position
from ledgermq.message.errors import CorruptRecordError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.queues.dispatch import unit_fields
from store.recovery.batch_fields import RecordSource
from store.recovery.record_batches import LIKE_MIN, RecordBatch, batch_at, like_that

_WINDOW_BYTES = 4 << 20


class EntryBatches(RecordSource):
    """The records of a Raft log.

    Args:
        data: its data files.
    """

    def __init__(self, data: MappedFileQueue) -> None:
        self._data = data

    def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        """See `RecordSource.batches`. Bodies are not checked here; a reader of a record has its CRC checked.

        Raises:
            CorruptRecordError: an entry is missing where one must be, or its record's fields cannot be read.
            DiskReadError: the disk cannot read it.
        """
        position: int | None = entry_position(self._data, start)
        while position is not None and position < end and (file := self._data.file_at(position)) is not None:
            found = _chain(file, position - file.start_offset, min(end - file.start_offset, file.write_position))
            batch = batch_at(file, found.starts, found.ends)
            count = _parsable(file, batch)
            if count:
                yield file, batch.until(count)
            if count < len(found.starts):
                raise CorruptRecordError(file.start_offset + found.starts[count], "its fields cannot be read")
            if found.fault is not None:
                raise found.fault
            position = found.goes_on_at


@dataclass(slots=True)
class _Chain:
    """Consecutive entries.

    Attributes:
        starts, ends: of their records, in the file.
        goes_on_at: absolute position of the next entry; None when none follows before the limit.
        fault: what was found instead of an entry.
    """

    starts: list[int]
    ends: list[int]
    goes_on_at: int | None = None
    fault: CorruptRecordError | None = None


def _chain(file: MappedFile, offset: int, limit: int) -> _Chain:
    """Return the entries from `offset` on that end by `limit`, some MiB of them.

    Raises:
        DiskReadError: the disk cannot read it.
    """
    window_end = min(offset + _WINDOW_BYTES, limit)
    readable = file.ensure_window(offset, limit, window_end)
    view, unpack = file.view, FILLER.unpack_from
    starts: list[int] = []
    ends: list[int] = []
    last_size, patience = 0, offset
    while offset + FILLER_SIZE <= limit:
        if offset >= window_end:
            return _Chain(starts, ends, file.start_offset + offset)
        if offset + FILLER_SIZE > readable:
            readable = file.ensure_window(offset, limit)
        magic, size = unpack(view, offset)
        if magic == FILLER_MAGIC:
            break
        after = offset + size
        if magic != MAGIC or size <= HEADER_SIZE or after > file.size_bytes:
            detail = f"magic {magic}, size {size}: expected an entry"
            return _Chain(starts, ends, fault=CorruptRecordError(file.start_offset + offset, detail))
        if after > limit:
            return _Chain(starts, ends)
        if after > readable:
            readable = file.ensure_window(offset, limit, after)
        starts.append(offset + HEADER_SIZE)
        ends.append(after)
        offset = after
        if size == last_size and offset >= patience:
            like = like_that(file, offset, min(readable, window_end), size, (MAGIC, size))
            starts.extend(range(offset + HEADER_SIZE, like.stop + HEADER_SIZE, size))
            ends.extend(range(offset + size, like.stop + size, size))
            offset = like.stop
            patience = offset if len(like) >= LIKE_MIN else offset + size * LIKE_MIN
        last_size = size
    return _Chain(starts, ends, file.end_offset)


def _parsable(file: MappedFile, batch: RecordBatch) -> int:
    """Return how many of the first records have readable fields; unusual records are decoded to find out."""
    for row in np.flatnonzero(~batch.common).tolist():
        start, end = int(batch.starts[row]), int(batch.ends[row])
        try:
            unit_fields(file.start_offset + start, file.view[start:end])
        except CorruptRecordError:
            return int(row)
    return len(batch.starts)
