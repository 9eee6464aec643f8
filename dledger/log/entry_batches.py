"""Reads records of a Raft log in batches of thousands, for the recovery of its queues, as `walk_records` would."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from dledger.log.entry import FILLER, FILLER_SIZE, HEADER_SIZE, body_fault, header_fault, read_header
from dledger.log.reader import entry_position
from ledgermq.message.crc import crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.frames import ENTRY, Chain, Stop, entry_chain, structs_at
from store.errors import DiskReadError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.queues.dispatch import unit_fields
from store.recovery.batch_fields import RecordSource
from store.recovery.record_batches import RecordBatch, batch_at


class EntryBatches(RecordSource):
    """The records of a Raft log.

    Args:
        data: its data files.
        verified_position: entries from there on were checked already.
        examine: see `LogIntegrity.examine_from`; None: nothing can be repaired.
    """

    def __init__(
        self, data: MappedFileQueue, verified_position: int = 0, examine: Callable[[int], int] | None = None
    ) -> None:
        self._data = data
        self._verified_position = verified_position
        self._examine = examine

    def goes_on_at(self, start: int) -> int | None:
        """See `RecordSource.goes_on_at`."""
        return None if self._examine is None else self._examine(start)

    def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        """See `RecordSource.batches`. The CRCs of entries that were not checked yet are checked here.

        Raises:
            CorruptRecordError: an entry is damaged, missing where one must be, or cannot be read.
        """
        with _unreadable_is_corrupt(start):
            position: int | None = entry_position(self._data, start)
        window_bytes = self.window_bytes
        while position is not None and position < end and (file := self._data.file_at(position)) is not None:
            offset, limit = position - file.start_offset, min(end - file.start_offset, file.write_position)
            window_end = min(offset + window_bytes, limit)
            try:
                file.ensure_window(offset, limit, min(window_end + FILLER_SIZE, limit))
                chain = entry_chain(file.view, offset, window_end, limit)
                file.ensure_window(offset, limit, chain.end)
            except DiskReadError as error:
                if window_bytes == 1:
                    raise CorruptRecordError(position, str(error)) from error
                window_bytes //= 2  # the entries before the bad page can be read, and no entry needs the padding
                continue
            batch = batch_at(file, chain.starts, chain.ends)
            count = _parsable(file, batch)
            if file.start_offset + offset < self._verified_position:
                count = min(count, _sound(file, batch))
            if count:
                yield file, batch.until(count)
            if count < len(chain.starts):
                at = file.start_offset + int(chain.starts[count])
                raise CorruptRecordError(at, "its entry is damaged, or its fields cannot be read")
            position = _goes_on_at(file, chain, window_end, limit)
            if position is None and file.start_offset + chain.end < self._verified_position:
                self._check_cut(file, chain.end)
            if position == file.end_offset:
                window_bytes = self.window_bytes

    def _check_cut(self, file: MappedFile, at: int) -> None:
        """Check the entry that does not end within the bounds: its size may be damaged.

        Raises:
            CorruptRecordError: it is damaged.
        """
        position = file.start_offset + at
        with _unreadable_is_corrupt(position):
            fault = _fault(file, at)
        if fault is not None:
            raise CorruptRecordError(position, fault)


@contextlib.contextmanager
def _unreadable_is_corrupt(position: int) -> Iterator[None]:
    try:
        yield
    except DiskReadError as error:
        raise CorruptRecordError(position, str(error)) from error


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


def _fault(file: MappedFile, at: int) -> str | None:
    """Return what is wrong with the header or body of the entry at `at`, if anything."""
    header = read_header(file.view, at)
    fault = header_fault(header, file.start_offset + at, file.size_bytes - at)
    if fault is None:
        file.ensure_readable(at, at + header.size)
        fault = body_fault(file.view, at, header, records=True)
    return fault


def _sound(file: MappedFile, batch: RecordBatch) -> int:
    """Return how many of the first entries are sound. Those that differ from the usual are looked at one by one."""
    view, at = file.view, batch.starts - HEADER_SIZE
    headers = structs_at(np.frombuffer(view, np.uint8), at, ENTRY)
    fits = (headers["position"] == at + file.start_offset) & (headers["body"] == batch.ends - batch.starts)
    fits &= (headers["channel"] == 0) & (headers["chain"] == 0)
    found = [crc32(view[start:end]) for start, end in zip(batch.starts.tolist(), batch.ends.tolist(), strict=True)]
    for row in np.flatnonzero(~fits | (headers["crc"] != found)).tolist():
        if _fault(file, int(at[row])) is not None:
            return int(row)
    return len(batch.starts)


def _parsable(file: MappedFile, batch: RecordBatch) -> int:
    """Return how many of the first records have readable fields; unusual records are decoded to find out."""
    for row in np.flatnonzero(~batch.common).tolist():
        start, end = int(batch.starts[row]), int(batch.ends[row])
        try:
            unit_fields(file.start_offset + start, file.view[start:end])
        except CorruptRecordError:
            return int(row)
    return len(batch.starts)
