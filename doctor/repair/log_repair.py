"""Repairs the log's files: cuts tails, makes damaged places readable, and keeps the removed bytes aside.

    good good DAMAGED good good | torn tail    ->    good good [placeholder] good good | zeros
                                                     '-- same size, so that nothing moves --'

A record that can be read is never changed. A damaged entry of a LedgerMQ Raft node is left as it is, too: the node
fetches a copy from a peer when it starts, which is better than a placeholder.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dledger.log.entry import FILLER, FILLER_MAGIC, HEADER, HEADER_SIZE
from doctor.check.columns import QueueName
from doctor.check.log_check import LogShape, last_in_use
from doctor.check.run import scan_file
from doctor.read.directory import DLEDGER, OffsetFile, StoreLayout, open_layout
from doctor.read.queues import QUEUE_DIR, list_queues, open_queues
from doctor.read.raw_file import FileWindow
from doctor.read.scan import FileScan, Gap
from doctor.read.unit_files import BLANK_SIZE
from doctor.repair.gap_frames import Frames, fill_entries, fill_records
from doctor.repair.placeholders import Lost, filler, mended, placeholder, renumbered
from doctor.repair.side_file import SideFile
from ledgermq.durable_files import sync
from ledgermq.message.crc import crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.layout import HEAD_SIZES, INT, SYS_FLAG_AT
from ledgermq.message.record import BLANK_MAGIC, check_record


@dataclass(slots=True)
class LogRepair:
    """The result of a repair. `replaced` counts records and gaps that have placeholders now."""

    cut_records: int = 0
    replaced: int = 0
    not_repaired: list[str] = field(default_factory=list)


class LogRepairer:
    """Repairs the log of one store.

    Args:
        layout: the store to repair; no other process has it open.
        old: the store with the queues and index units before the repair; it may be the same.
        side: gets the bytes that are removed.
    """

    def __init__(self, layout: StoreLayout, old: StoreLayout, side: SideFile) -> None:
        self._layout = layout
        self._old = old
        self._side = side
        self.done = LogRepair()
        self._keeps_damages = layout.raft_dir is not None and (layout.raft_dir / "identity").exists()

    def run(self) -> StoreLayout:
        """Repair all files; return the layout as it is then."""
        self._set_lengths()
        layout = self._layout
        scans = [scan_file(layout, file) for file in layout.log_files]
        last = last_in_use([LogShape.of(scan) for scan in scans])
        for scan in scans[last + 1 :]:
            self._drop(scan)
        scans = scans[: last + 1]
        if scans:
            self._cut_tail(scans[-1])
        lost = self._find_lost(scans)
        before: FileScan | None = None
        for scan in scans:
            if before is not None:
                self._bridge(before, scan, lost)
            self._mend_file(scan, lost, is_last=scan is scans[-1])
            before = scan
        sync(layout.log_dir)
        return open_layout(layout.root, None if layout.kind == DLEDGER else layout.log_dir)

    def _set_lengths(self) -> None:
        """Give every file the length of the others; surplus bytes are kept aside."""
        layout = self._layout
        for file in layout.log_files:
            if file.length > layout.log_file_size:
                name = layout.name(file.path)
                self._side.keep(name, file.path, layout.log_file_size, file.length, "cut", "behind the file's length")
            if file.length != layout.log_file_size:
                os.truncate(file.path, layout.log_file_size)
        self._layout = open_layout(layout.root, None if layout.kind == DLEDGER else layout.log_dir)

    def _drop(self, scan: FileScan) -> None:
        """Remove a file behind the end of the log."""
        if scan.used_end > scan.end:
            self._keep(scan.file, scan.end, scan.used_end, "cut", scan.detail)
        scan.file.path.unlink()

    def _cut_tail(self, scan: FileScan) -> None:
        """Cut the last file after its last good record."""
        columns = scan.columns
        rows = len(columns)
        while rows and rows - 1 in scan.damages and not scan.is_full:
            rows -= 1
        end = scan.end
        if rows < len(columns):
            end = int(columns.physical_offsets[rows]) - scan.file.start - self._header
            detail = scan.damages[rows]
            self.done.cut_records += len(columns) - rows
            for row in range(rows, len(columns)):
                scan.damages.pop(row, None)
        else:
            detail = scan.detail
        used = max(scan.used_end, scan.end)
        if not scan.is_full and used > end:
            if self._keeps_damages and rows < len(columns):
                detail += "; the node fetches it again"
            self._keep(scan.file, end, used, "cut", detail)
            self._write(scan.file, end, bytes(used - end))
        if not scan.is_full:
            scan.end = end
            scan.gaps = [gap for gap in scan.gaps if gap.start < end]

    def _mend_file(self, scan: FileScan, lost: list[Lost], *, is_last: bool) -> None:
        for gap in scan.gaps:
            self._fill(scan, gap, lost)
        for row, detail in scan.damages.items():
            self._mend(scan, row, detail, lost)
        for row in scan.nameless:
            if row not in scan.damages:
                self._mend(scan, row, "its topic cannot name a folder", lost)
        for row, wrong in scan.misnumbered.items():
            if row not in scan.damages:
                self._renumber(scan, row, wrong)
        if scan.blank_fault or (not is_last and not scan.is_full):
            position = scan.blank_start if scan.is_full else scan.end
            if not scan.is_full and scan.used_end > position:
                self._keep(scan.file, position, scan.used_end, "replaced", scan.detail)
                self.done.replaced += 1
            self._close(scan.file, position)

    def _bridge(self, before: FileScan, scan: FileScan, lost: list[Lost]) -> None:
        """Create the files that are missing between two, and the entries that are missing at the end of the first."""
        layout = self._layout
        start = before.file.start + layout.log_file_size
        while start < scan.file.start:
            file = OffsetFile(layout.log_dir / f"{start:020d}", start, layout.log_file_size)
            with file.path.open("wb") as made:
                made.truncate(file.length)
            if layout.kind == DLEDGER:
                self.done.not_repaired.append(f"{layout.name(file.path)}: its entries are lost and cannot be replaced")
            self._close(file, 0)
            self.done.replaced += 1
            start += layout.log_file_size

    def _fill(self, scan: FileScan, gap: Gap, lost: list[Lost]) -> None:
        """Put records into a gap."""
        start, end = scan.file.start + gap.start, scan.file.start + gap.end
        timestamp = self._timestamp(scan, gap.start)
        inside = [item for item in lost if start <= item.physical_offset < end]
        frames = self._frames(scan, gap, inside, timestamp)
        if frames is None:
            name = self._layout.name(scan.file.path)
            self.done.not_repaired.append(f"{name} at {gap.start}: no record fits into the gap")
            return
        self._keep(scan.file, gap.start, gap.end, "replaced", gap.detail)
        for physical, data in frames:
            self._write(scan.file, physical - scan.file.start, data)
        self.done.replaced += 1

    def _frames(self, scan: FileScan, gap: Gap, inside: list[Lost], timestamp: int) -> Frames | None:
        start, end = scan.file.start + gap.start, scan.file.start + gap.end
        if self._layout.kind != DLEDGER:
            return fill_records(start, end, inside, timestamp)
        columns = scan.columns
        after = int(np.searchsorted(columns.physical_offsets, end))
        if not 0 < after < len(columns):
            return None
        first, last = int(columns.entry_indexes[after - 1]) + 1, int(columns.entry_indexes[after]) - 1
        return fill_entries(
            self._old, start, end, range(first, last + 1), int(columns.terms[after - 1]), inside, timestamp
        )

    def _mend(self, scan: FileScan, row: int, detail: str, lost: list[Lost]) -> None:
        """Make one framed but damaged record readable."""
        name = self._layout.name(scan.file.path)
        physical = int(scan.columns.physical_offsets[row])
        size = int(scan.columns.sizes[row])
        position = physical - scan.file.start
        if self._keeps_damages:
            place = f"{name} at {position - self._header}"
            self.done.not_repaired.append(f"{place}: {detail}; the node fetches a peer's copy")
            return
        with FileWindow(scan.file.path) as window:
            header = window.read(position - self._header, self._header)
            record = window.read(position, size)
        timestamp = self._timestamp(scan, position)
        data = self._replacement(record, physical, timestamp, lost, is_usable=row not in scan.nameless)
        if data is None:
            self.done.not_repaired.append(f"{name} at {position - self._header}: {detail}")
            return
        self._keep(scan.file, position - self._header, position + size, "replaced", detail)
        self._write(scan.file, position - self._header, _with_header(header, data))
        self.done.replaced += 1

    def _renumber(self, scan: FileScan, row: int, wrong: int) -> None:
        """Write the right queue offset into a record."""
        name = self._layout.name(scan.file.path)
        position = int(scan.columns.physical_offsets[row]) - scan.file.start
        if self._keeps_damages or not scan.columns.in_queue[row]:
            self.done.not_repaired.append(f"{name} at {position - self._header}: queue offset {wrong} is impossible")
            return
        start, size = position - self._header, self._header + int(scan.columns.sizes[row])
        with FileWindow(scan.file.path) as window:
            data = window.read(start, size)
        self._keep(scan.file, start, start + size, "replaced", f"queue offset {wrong}")
        record = renumbered(data[self._header :], int(scan.columns.queue_offsets[row]))
        self._write(scan.file, start, _with_header(data[: self._header], record))
        self.done.replaced += 1

    def _replacement(
        self, record: bytes, physical: int, timestamp: int, lost: list[Lost], *, is_usable: bool
    ) -> bytes | None:
        """Return what replaces a record; None for a body that is not a record."""
        if self._layout.is_bare:
            return None
        try:
            check_record(record, 0, len(record), check_crc=False)
        except CorruptRecordError:
            is_usable = False
        if not is_usable:
            known = next((item for item in lost if item.physical_offset == physical), None)
            size = len(record)
            return filler(physical, size, timestamp) if known is None else placeholder(known, size, timestamp)
        (flags,) = INT.unpack_from(record, SYS_FLAG_AT)
        (body_size,) = INT.unpack_from(record, HEAD_SIZES[(flags >> 4) & 3] - INT.size)
        return mended(record, body_size)

    def _find_lost(self, scans: list[FileScan]) -> list[Lost]:
        """Return what the old queues say about the places that will be filled."""
        ranges = [(scan.file.start + gap.start, scan.file.start + gap.end) for scan in scans for gap in scan.gaps]
        for scan in scans:
            rows = scan.columns.physical_offsets
            ranges += [(int(rows[row]), int(rows[row]) + 1) for row in (*scan.damages, *scan.nameless)]
        found: list[Lost] = []
        if not ranges or self._old.is_bare:
            return found
        queues = open_queues(self._old.root)
        for name in list_queues(self._old.root, QUEUE_DIR):
            units = queues.get(name)
            for number, piece in units.pieces(units.first, units.end):
                for low, high in ranges:
                    inside = (piece["physical"] >= low) & (piece["physical"] < high)
                    inside &= (piece["size"] > 0) & (piece["size"] != BLANK_SIZE)
                    found += [_lost(name, number + int(at), piece[at]) for at in np.flatnonzero(inside)]
        return sorted(found, key=lambda item: item.physical_offset)

    @property
    def _header(self) -> int:
        return HEADER_SIZE if self._layout.kind == DLEDGER else 0

    def _timestamp(self, scan: FileScan, position: int) -> int:
        """Return the store time (ms) of the record before a position of a file, or of the first one."""
        times = scan.columns.timestamps
        at = int(np.searchsorted(scan.columns.physical_offsets, scan.file.start + position)) - 1
        return int(times[max(at, 0)]) if len(times) else 0

    def _close(self, file: OffsetFile, position: int) -> None:
        """End a file with a filler."""
        left = self._layout.log_file_size - position
        if self._layout.kind == DLEDGER:
            self._write(file, position, FILLER.pack(FILLER_MAGIC, left) + bytes(max(left - FILLER.size, 0)))
        else:
            self._write(file, position, FILLER.pack(left, BLANK_MAGIC) + bytes(max(left - FILLER.size, 0)))

    def _keep(self, file: OffsetFile, start: int, end: int, kind: str, detail: str) -> None:
        self._side.keep(self._layout.name(file.path), file.path, start, end, kind, detail)

    def _write(self, file: OffsetFile, position: int, data: bytes) -> None:
        _write_durably(file.path, position, data)


def _with_header(header: bytes, record: bytes) -> bytes:
    """Return the record after its DLedger header, if there is one, with a new CRC."""
    if not header:
        return record
    fields = list(HEADER.unpack(header))
    fields[7] = crc32(record) if fields[7] else 0
    return HEADER.pack(*fields) + record


def _write_durably(path: Path, position: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _lost(name: QueueName, number: int, unit: np.void) -> Lost:
    return Lost(int(unit["physical"]), int(unit["size"]), name, number)
