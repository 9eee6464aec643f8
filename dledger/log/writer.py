"""Writes entries at the end of the data files: a leader's drafts, encoded, or the bytes that a leader sent.

    drafts --encode--> reused buffer --one write a batch--> data file                 index units alongside
    span's bytes ------------------------one write-------->                           as `check_span` made them

Writing a batch costs half as much as the page faults of storing it into fresh mapped pages. Both go to the same pages
of the page cache, and readers use views of the mapping.
"""

from collections.abc import Sequence

from dledger.core.messages import Span
from dledger.errors import EntryFormatError
from dledger.log.entry import FILLER, FILLER_MAGIC, FILLER_SIZE, HEADER, HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE, MAGIC
from dledger.log.unit_index import UnitIndex
from ledgermq.message.crc import crc32
from ledgermq.message.draft import RecordDraft
from store.errors import AllocationPendingError, DiskFullError, RecordTooLargeError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue


class LogWriter:
    """Writes behind the last entry. It knows files, and nothing of what is durable or committed.

    Args:
        data, units: of the log.
        store_host: this node's address for the store host field of records: 8 or 20 bytes.
    """

    def __init__(self, data: MappedFileQueue, units: UnitIndex, store_host: bytes) -> None:
        self._data = data
        self._units = units
        self._store_host = store_host

    def append_drafts(self, drafts: Sequence[RecordDraft], first_index: int, term: int, now_ms: int) -> None:
        """Encode and write the drafts, all or none, and set their times and physical offsets.

        Raises:
            RecordTooLargeError: one of them fits into no file.
            DiskFullError, DiskFailedError, AllocationPendingError: no room; nothing was changed.
        """
        file = self._prepare(drafts)
        start = self._data.max_offset
        try:
            self._encode(drafts, first_index, term, now_ms, file)
        except BaseException:
            self._undo(start)
            raise

    def append_span(self, span: Span, start: int, first_index: int, units: memoryview) -> None:
        """Write the bytes of `span` from absolute `start` on, which are the entries from `first_index` on.

        Raises:
            EntryFormatError: the span does not join the log, because the leader's files have another size.
            DiskFullError, DiskFailedError: no room, or not in time; nothing was changed.
        """
        end = self._data.max_offset
        try:
            self._units.prepare(span.last_index + 1 - first_index)
            self._file_for(span, start).write(memoryview(span.data)[start - span.start_position :])
        except AllocationPendingError as error:
            raise DiskFullError(error.file, self._data.file_size) from error
        except DiskFullError:
            self._undo(end)
            raise
        self._units.copy(first_index, units)

    def _undo(self, end: int) -> None:
        """Set the end back to `end`: part of a batch, or a filler, was written behind it before the write failed."""
        if self._data.max_offset != end:
            self._data.truncate_to(end)

    def _encode(self, drafts: Sequence[RecordDraft], index: int, term: int, now_ms: int, file: MappedFile) -> None:
        """Encode prepared drafts one after the other, with one write for each file."""
        units, at = self._units.slot(index)
        unit_buffer = units.buffer
        store_host, pack_header, pack_unit = self._store_host, HEADER.pack, INDEX_UNIT.pack_into
        position, limit = file.start_offset + file.write_position, file.end_offset - FILLER_SIZE
        pieces: list[bytes] = []
        for draft in drafts:
            body_size = draft.size
            size = HEADER_SIZE + body_size
            if position + size > limit:
                file = self._next_file(file, b"".join(pieces))
                position, limit = file.start_offset, file.end_offset - FILLER_SIZE
                pieces.clear()
            draft.store_timestamp = now_ms
            draft.physical_offset = position + HEADER_SIZE
            record = b"".join(draft.pieces(store_host))
            pieces += (
                pack_header(MAGIC, size, index, term, position, 0, 0, crc32(record), body_size),
                record,
            )
            if at == units.size_bytes:
                units, at = self._units.slot(index)
                unit_buffer = units.buffer
            pack_unit(unit_buffer, at, MAGIC, position, size, index, term)
            at += INDEX_UNIT_SIZE
            units.write_position = at
            position += size
            index += 1
        file.write(memoryview(b"".join(pieces)))

    def _prepare(self, drafts: Sequence[RecordDraft]) -> MappedFile:
        """Make room for all drafts; return the file for the first one."""
        size_bytes = sum([draft.size for draft in drafts]) + len(drafts) * HEADER_SIZE
        file = self._data.last()
        self._units.prepare(len(drafts))
        if file is not None and file.write_position + size_bytes + FILLER_SIZE <= file.size_bytes:
            file.ensure_allocated()
            return file
        limit = self._data.file_size - FILLER_SIZE
        position = limit if file is None else file.write_position
        rolls = 0
        for draft in drafts:
            size = draft.size + HEADER_SIZE
            if size > limit:
                raise RecordTooLargeError(draft.size, limit - HEADER_SIZE)
            if position + size > limit:
                rolls += 1
                position = 0
            position += size
        self._data.prepare(rolls)
        return file or self._data.roll()

    def _next_file(self, file: MappedFile, data: bytes) -> MappedFile:
        """Write `data` at the end of `file`, fill the rest, and return the next file, which is prepared."""
        if data:
            file.write(memoryview(data))
        left = file.size_bytes - file.write_position
        if left:
            file.write_over(file.write_position, memoryview(FILLER.pack(FILLER_MAGIC, left)))
        return self._data.roll()

    def _file_for(self, span: Span, start: int) -> MappedFile:
        """Return the file that takes the bytes of `span` from `start` on: the last one, or the next."""
        file = self._data.last()
        if file is not None and start == self._data.max_offset < file.end_offset:
            if span.end_position + FILLER_SIZE > file.end_offset:
                raise misfit(span, self._data)
            file.ensure_allocated()
            return file
        next_start = self._data.max_offset if file is None else file.end_offset
        if start != next_start or len(span.data) + FILLER_SIZE > self._data.file_size:
            raise misfit(span, self._data)
        self._data.prepare(1)
        return self._data.roll() if file is None else self._next_file(file, b"")


def misfit(span: Span, data: MappedFileQueue) -> EntryFormatError:
    """Return the error for a span that does not join the log."""
    return EntryFormatError(
        span.start_position,
        f"entries {span.first_index} to {span.last_index}, up to {span.end_position}, do not join a log that ends at "
        f"{data.max_offset}, in files of {data.file_size} bytes",
    )
