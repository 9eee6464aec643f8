"""Scans one log file from its first byte to where its records end.

    record record XXXXXX record record | blank ......|     is_full: the log continues in the next file
                  ^ gap: records follow
    record record record | 0 0 0 0 0 0 0 0 0 0 0 0 0 |     the log's end, if no later file has records
    record record record | X X X X X | 0 0 0 0 0 0 0 |     used_end: a torn tail, or a gap if there are later records

The fast loops handle the common record (V1, both hosts IPv4, whole, with its CRC) and leave every other one to the slow
path. After a bad place the scan continues at the next record that has the physical offset of its place.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from dledger.log.entry import HEADER_SIZE, MAGIC
from doctor.check.columns import Collector, Columns
from doctor.check.numbering import is_folder_name, misnumbered
from doctor.read.directory import OffsetFile
from doctor.read.framing import COMMON, Blank, EntryFraming, Frame, RecordFraming, Unframed
from doctor.read.raw_file import FileWindow
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.record import MAGIC_V1, dispatch_fields

_CRC_PROPERTY = b"__CRC32#\x01"
_CRC_PROPERTY_SIZE = 20
_HEAD_SIZE = COMMON.size
_TAIL_SIZE_MIN = 3
_ENTRY = Struct(">ii qqq 8x Ii" + COMMON.format[1:])
_LIVE_TRIES = 5
_LIVE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes `[start, end)` of a file that are not records, with records after them in this or a later file."""

    start: int
    end: int
    detail: str


@dataclass(slots=True)
class FileScan:
    """The contents of one file; positions count from its first byte.

    Attributes:
        end: after the last record; the file's length when it is full.
        is_full: a filler ends the file, or nothing is left in it.
        blank_start: where that filler begins.
        used_end: after the last byte that is not zero; `end` when only zeros follow.
        detail: why no record begins at `end`.
        read_error: the error of the disk, if it could not read all bytes.
        damages: rows of damaged records, with what is wrong.
        misnumbered: rows whose queue offset was corrected in `columns`, with the one they had.
        nameless: rows that belong to no queue, since their topic cannot name a folder.
    """

    file: OffsetFile
    columns: Columns
    end: int = 0
    is_full: bool = False
    blank_start: int = 0
    blank_fault: str = ""
    used_end: int = 0
    detail: str = ""
    read_error: str | None = None
    gaps: list[Gap] = field(default_factory=list)
    damages: dict[int, str] = field(default_factory=dict)
    misnumbered: dict[int, int] = field(default_factory=dict)
    nameless: list[int] = field(default_factory=list)


class Scanner:
    """Scans one file.

    Args:
        file: of the log.
        framing: the kind of frames in this log.
        is_live: another process writes to it: a place that cannot be read may be half written, and is tried again.
        on_progress: called with the bytes scanned since the last call.
    """

    def __init__(
        self,
        file: OffsetFile,
        framing: RecordFraming | EntryFraming,
        *,
        is_live: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self._file = file
        self._framing = framing
        self._tries = _LIVE_TRIES if is_live else 1
        self._on_progress = on_progress
        self._told = 0
        self._taken = Collector()
        self._damages: dict[int, str] = {}

    def run(self, start: int = 0) -> FileScan:
        """Scan from position `start`, where a record begins or the log ends."""
        result = FileScan(self._file, Collector().columns(), end=start, used_end=start, damages=self._damages)
        try:
            with FileWindow(self._file.path) as window:
                self._scan(window, start, result)
        except OSError as error:
            result.read_error = error.strerror or str(error)
        result.columns = columns = self._taken.columns()
        self._judge_names(columns, result)
        for row, right in misnumbered(columns).items():
            result.misnumbered[row] = int(columns.queue_offsets[row])
            columns.queue_offsets[row] = max(right, 0)
            columns.in_queue[row] = right >= 0
        return result

    def _judge_names(self, columns: Columns, result: FileScan) -> None:
        """Take records out of queues whose topic cannot name a folder."""
        bad = [number for number, name in enumerate(columns.names) if not is_folder_name(name.topic)]
        if bad and self._framing.has_records:
            rows = np.flatnonzero(np.isin(columns.queues, bad) & columns.in_queue)
            columns.in_queue[rows] = False
            result.nameless = [int(row) for row in rows]

    def _scan(self, window: FileWindow, position: int, result: FileScan) -> None:
        while True:
            result.end = position = self._run_fast(window, position)
            try:
                position += self._take(self._frame_at(window, position), position)
            except Blank as blank:
                result.is_full, result.blank_start, result.blank_fault = True, position, blank.detail
                result.end = result.used_end = window.length
                return
            except Unframed as bad:
                index, term = self._expected()
                found = self._framing.find(window, position + 1, index, term)
                if found is None:
                    result.detail = bad.detail
                    result.is_full = position >= window.length
                    result.blank_start = position
                    result.used_end = window.used_end(position)
                    return
                result.gaps.append(Gap(position, found, bad.detail))
                self._taken.jump()
                position = found

    def _run_fast(self, window: FileWindow, position: int) -> int:
        """Add common records as far as the window shows them; return where this stopped."""
        if not self._framing.has_records or position >= window.length:
            return position
        if not window.start <= position < window.start + len(window.data) - _ENTRY.size:
            window.move(position)
            if self._on_progress is not None:
                self._on_progress(position - self._told)
                self._told = position
        offset = self._file.start + window.start
        at = position - window.start
        if self._framing.is_dledger:
            return window.start + self._run_entries(window.data, at, offset)
        return window.start + self._run_records(window.data, at, offset)

    def _run_records(self, data: bytes, at: int, offset: int) -> int:
        """Run the fast loop of a classic log. `offset` is that of `data[0]` in the log."""
        unpack, take, view, last = COMMON.unpack_from, self._taken.take, memoryview(data), len(data) - _HEAD_SIZE
        while at <= last:
            size, magic, crc, queue_id, queue_offset, physical, flags, timestamp, body_size = unpack(data, at)
            end = at + size
            body = at + _HEAD_SIZE
            tail = body + body_size
            if (
                magic != MAGIC_V1
                or flags & HOST_MASK
                or physical != offset + at
                or end > len(data)
                or not body <= tail <= end - _TAIL_SIZE_MIN
                or crc32(view[body:tail]) & CRC_MASK != crc
                or data.startswith(_CRC_PROPERTY, end - _CRC_PROPERTY_SIZE)
                or not take(physical, size, queue_id, queue_offset, flags, timestamp, data[tail:end])
            ):
                break
            at = end
        return at

    def _run_entries(self, data: bytes, at: int, offset: int) -> int:
        """Run the fast loop of a DLedger log."""
        unpack, take, view, last = _ENTRY.unpack_from, self._taken.take, memoryview(data), len(data) - _ENTRY.size
        add_index, add_term = self._taken.entry_indexes.append, self._taken.terms.append
        next_index, term = self._expected()
        while at <= last:
            (
                entry_magic, entry_size, index, entry_term, position, entry_crc, entry_body, size, magic, crc,
                queue_id, queue_offset, physical, flags, timestamp, body_size,
            ) = unpack(data, at)  # fmt: skip
            start = at + HEADER_SIZE
            end = start + size
            body = start + _HEAD_SIZE
            tail = body + body_size
            if (
                entry_magic != MAGIC
                or position != offset + at
                or entry_size != size + HEADER_SIZE
                or entry_body != size
                or (index != next_index and next_index >= 0)
                or entry_term < term
                or magic != MAGIC_V1
                or flags & HOST_MASK
                or physical != offset + start
                or end > len(data)
                or not body <= tail <= end - _TAIL_SIZE_MIN
                or crc32(view[body:tail]) & CRC_MASK != crc
                or (entry_crc and crc32(view[start:end]) != entry_crc)
                or not take(physical, size, queue_id, queue_offset, flags, timestamp, data[tail:end])
            ):
                break
            add_index(index)
            add_term(entry_term)
            next_index, term = index + 1, entry_term
            at = end
        return at

    def _expected(self) -> tuple[int, int]:
        """Return the index of the next DLedger entry, -1 where any may come, and the term it is not below."""
        taken = self._taken
        if not taken.entry_indexes:
            return -1, -1
        return (-1 if taken.has_jumped else taken.entry_indexes[-1] + 1), taken.terms[-1]

    def _frame_at(self, window: FileWindow, position: int) -> Frame:
        """Return the frame there; try again while another process may be writing it.

        Raises:
            Unframed, Blank.
        """
        for is_last in [False] * (self._tries - 1) + [True]:
            try:
                frame = self._framing.frame_at(window, position, *self._expected())
                if frame.fault is None or is_last:
                    return frame
            except Unframed:
                if is_last:
                    raise
            time.sleep(_LIVE_PAUSE_S)
            window.move(position)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _take(self, frame: Frame, position: int) -> int:
        """Add a record that the fast loop does not handle; return its size."""
        taken = self._taken
        row = len(taken.sizes)
        if frame.fault is not None:
            self._damages[row] = frame.fault
            taken.damaged.append(row)
        record = frame.record
        physical = self._file.start + position + (HEADER_SIZE if self._framing.is_dledger else 0)
        if self._framing.has_records and record:
            size, queue_id, flags, queue_offset, _, timestamp, topic, properties = dispatch_fields(record, 0)
            taken.add(physical, size, topic, queue_id, queue_offset, flags, timestamp, properties)
        else:
            taken.add_opaque(physical, frame.size - HEADER_SIZE)
        if self._framing.is_dledger:
            taken.entry_indexes.append(frame.entry_index)
            taken.terms.append(frame.term)
            taken.has_jumped = False
        return frame.size
