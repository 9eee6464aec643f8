"""Reads records of a Raft log in batches of thousands, for the recovery of its queues, as `walk_records` would."""

from collections.abc import Iterator

import numpy as np

from dledger.log.entry import FILLER, FILLER_SIZE
from dledger.log.reader import entry_position
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.frames import Chain, Stop, entry_chain
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.queues.dispatch import unit_fields
from store.recovery.batch_fields import RecordSource
from store.recovery.record_batches import RecordBatch, batch_at


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
            offset, limit = position - file.start_offset, min(end - file.start_offset, file.write_position)
            window_end = min(offset + self.window_bytes, limit)
            file.ensure_window(offset, limit, min(window_end + FILLER_SIZE, limit))
            chain = entry_chain(file.view, offset, window_end, limit)
            file.ensure_window(offset, limit, chain.end)
            batch = batch_at(file, chain.starts, chain.ends)
            count = _parsable(file, batch)
            if count:
                yield file, batch.until(count)
            if count < len(chain.starts):
                raise CorruptRecordError(file.start_offset + int(chain.starts[count]), "its fields cannot be read")
            position = _goes_on_at(file, chain, window_end, limit)


def _goes_on_at(file: MappedFile, chain: Chain, window_end: int, limit: int) -> int | None:
    """Return the absolute position where the next entry may be; None if no further one ends by `limit`.

    Raises:
        CorruptRecordError: no entry is where one must be.
    """
    if chain.stop is Stop.PADDING or limit - chain.end < FILLER_SIZE:
        return file.end_offset
    if chain.end >= window_end:
        return file.start_offset + chain.end
    magic, size = FILLER.unpack_from(file.view, chain.end)
    if chain.stop is Stop.BAD or chain.end + size > file.size_bytes:
        detail = f"magic {magic}, size {size} where an entry must be"
        raise CorruptRecordError(file.start_offset + chain.end, detail)
    return None


def _parsable(file: MappedFile, batch: RecordBatch) -> int:
    """Return how many of the first records have readable fields; unusual records are decoded to find out."""
    for row in np.flatnonzero(~batch.common).tolist():
        start, end = int(batch.starts[row]), int(batch.ends[row])
        try:
            unit_fields(file.start_offset + start, file.view[start:end])
        except CorruptRecordError:
            return int(row)
    return len(batch.starts)
