"""Recovers an entry log after a restart: scans it, decides about each bad place, and rebuilds the index.

    trusted (older files)          scanned, CRC checked                      the end
    |=============================|====================X=================C=====x.....
                                   damaged, index unit or header      committed  bad tail: cut
                                   still says what lay there: kept,
                                   to be fetched from a peer

A bad entry that is known to be committed is never cut if its index, term and size can be found out: it stays as a
`DamagedEntry`. Any other one is cut, with everything after it. If it is torn, a sector of it was never written, so no
sync returned, and nobody counted it. If it is not, or was committed, this node may have acknowledged it:
`RecoveredEntries.lost` says so, and the node must neither vote nor count until a leader has brought it up to date.

Source: openmessaging/dledger 0.3.1.2 `DLedgerMmapFileStore.java` (recover), which checks no body and cuts everything.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

from dledger.core.messages import NO_TERM, TermRun
from dledger.log.entry import (
    FILLER,
    FILLER_MAGIC,
    FILLER_SIZE,
    HEADER,
    HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    NEWER_MAGICS,
    EntryHeader,
    body_fault,
    header_fault,
    read_header,
)
from dledger.log.term_start import opened_term
from dledger.log.unit_index import UnitIndex
from ledgermq.message.crc import crc32
from ledgermq.message.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from store.errors import DiskReadError, StoreFormatError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue

_WINDOW_BYTES = 4 << 20
_SECTOR_BYTES = 512
_TYPE_PLACE = HEADER_SIZE + 39
"""Where the bits are that make a record one that opens a term: see `dledger.log.term_start`."""


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A bad entry whose place and term are known, so that a peer's copy can be put there.

    `file` and `file_offset` are for operators; `position` is absolute. `size_bytes` includes the header.
    """

    index: int
    term: int
    position: int
    size_bytes: int
    file: Path
    file_offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.file} at {self.file_offset}: entry {self.index} of term {self.term}: {self.detail}"


@dataclass(slots=True)
class RecoveredEntries:
    """The result of a scan.

    Attributes:
        last_index: newest entry kept, damaged or not; one before the scan's first when there is none.
        end_position: absolute end of that entry.
        term_runs: of the scanned entries.
        damages: in rising order of index.
        cut: the bad place at which the log was ended, or None when it ends in zeros.
        lost: entries `[first, last]` that are lost on this node, and that it has, or may have, acknowledged; or None.
    """

    last_index: int
    end_position: int
    term_runs: list[TermRun] = field(default_factory=list)
    damages: list[DamagedEntry] = field(default_factory=list)
    cut: DamagedEntry | None = None
    lost: tuple[int, int] | None = None


class EntryScan:
    """One scan, from an entry to the end of the log. It writes index units and does not change data.

    Args:
        data, units: loaded files; units are written as entries are found.
        committed_index: entries up to here are known to be committed; -1 when unknown.
        intact: the page cache was not lost, so a bad entry before a good one is not torn but was damaged later.
        records: entry bodies are RocketMQ records.
        term_max: the node's term; None if it is not known.
    """

    def __init__(
        self,
        data: MappedFileQueue,
        units: UnitIndex,
        committed_index: int,
        *,
        intact: bool,
        records: bool,
        term_max: int | None,
    ) -> None:
        self._data = data
        self._units = units
        self._committed_index = committed_index
        self._intact = intact
        self._records = records
        self._term_max = term_max
        self._run_starts: list[int] = []

    def run(self, start_position: int, first_index: int, prev_term: int, known_runs: list[TermRun]) -> RecoveredEntries:
        """Scan from `start_position`, where the entry `first_index`, of `prev_term` or later, must be.

        `known_runs`: terms of committed entries by their index units, as far as those can be read.

        Raises:
            StoreFormatError: an entry of a newer DLedger, which this program cannot keep.
            DiskReadError: the disk cannot read an entry's header.
        """
        found = RecoveredEntries(first_index - 1, start_position)
        self._term = prev_term
        self._run_starts = [run.first_index for run in known_runs]
        for file in self._data.files:
            offset = max(start_position - file.start_offset, 0)
            if file.end_offset > start_position and not self._scan_file(file, offset, found):
                break
        if found.last_index < self._committed_index:
            found.lost = (found.last_index + 1, self._committed_index)
        return found

    def _scan_file(self, file: MappedFile, offset: int, found: RecoveredEntries) -> bool:
        """Add the entries of one file from `offset` on; return whether the log may continue in the next file.

        A filler does not move `found.end_position`: if no entry follows in the next file, the log ends where the filler
        starts. The crash came between the two writes, and the leader may put other entries there.
        """
        view = file.view
        while True:
            left = file.size_bytes - offset
            file.ensure_readable(offset, min(offset + HEADER_SIZE, file.size_bytes))
            magic, length = FILLER.unpack_from(view, offset) if left >= FILLER_SIZE else (0, 0)
            if magic == FILLER_MAGIC and length == left and offset:
                return True
            if left < HEADER_SIZE:
                return False
            header = read_header(view, offset)
            fault = self._fault(file, offset, header, found.last_index + 1)
            term = None if fault else self._wrong_term(file, offset, header, found.last_index + 1)
            if term is not None:
                fault = f"term is {header.term}, it was written as {term}"
                header = header._replace(term=term)
            if fault is None:
                self._take(found, header.term, file.start_offset + offset, header.size)
                offset = self._take_run(file, offset + header.size, found)
                continue
            size = self._judge(file, offset, header, fault, found)
            if size == 0:
                return False
            offset += size

    def _fault(self, file: MappedFile, offset: int, header: EntryHeader, index: int) -> str | None:
        fault = header_fault(header, file.start_offset + offset, file.size_bytes - offset)
        if fault is None and header.entry_index != index:
            fault = f"index is {header.entry_index}, expected {index}"
        if fault is None and header.term < self._term:
            fault = f"term is {header.term}, after an entry of term {self._term}"
        if fault is None:
            try:
                file.ensure_readable(offset, offset + header.size)
            except DiskReadError as error:
                return str(error)
            return body_fault(file.view, offset, header, records=self._records)
        if (
            header.magic in NEWER_MAGICS
            and header.entry_index == index
            and header.size == header.body_size + HEADER_SIZE
            and not header.body_crc  # DLedger never has one: an entry that has is ours, with a bit of its magic changed
        ):
            raise StoreFormatError(
                file.path, f"entry {index} at {offset} has magic {header.magic}: written by DLedger 0.4 or newer"
            )
        return fault

    def _wrong_term(self, file: MappedFile, offset: int, header: EntryHeader, index: int) -> int | None:
        """Return the true term of an entry that is sound but for the term in its header, which no CRC covers.

        A bit that changed in it would make later entries look like those of an older term, and end the log, or give the
        entry another term than it has on the peers. The first record of each term of our leaders says which one it
        opens, so the term of each of their entries is known without the header. Java's leaders open terms with any
        message (their entries have no CRC): there the index unit tells, but it proves nothing alone, since it may be
        older than the entry, or damaged itself.
        """
        start = offset + HEADER_SIZE
        opened = opened_term(file.view[start : offset + header.size]) if self._records else None
        is_ours = self._records and header.body_crc != 0
        if opened is not None or (is_ours and self._term != NO_TERM):
            term = self._term if opened is None else opened
            return None if term == header.term else term
        unit = self._units.find(index)
        if unit is None or unit[:2] != (header.position, header.size) or unit[2] in (header.term, NO_TERM):
            return None
        term, term_max = unit[2], self._term_max
        if term < self._term or (term_max is not None and term > term_max):
            return None
        goes_on = term == self._term and (
            index <= self._committed_index or self._is_followed_by(file, offset + header.size, index + 1, term)
        )
        is_too_high = term_max is not None and header.term > term_max
        return term if goes_on or is_too_high else None

    def _take(self, found: RecoveredEntries, term: int, position: int, size: int) -> None:
        index = found.last_index + 1
        runs = found.term_runs
        if not runs or runs[-1].term != term:
            runs.append(TermRun(term, index))
            self._term = term
        self._units.put(index, term, position, size)
        found.last_index = index
        found.end_position = position + size

    def _take_run(self, file: MappedFile, offset: int, found: RecoveredEntries) -> int:
        """Add good entries of the present term from `offset` on; return the offset of the first other one.

        Entries that need a closer look, and those at the edge of a window, are left to `_scan_file`.
        """
        window_end = min(offset + _WINDOW_BYTES, file.size_bytes)
        index = found.last_index + 1
        units = self._units.files.file_at(index * INDEX_UNIT_SIZE)
        if units is None or not _is_readable(file, offset, window_end):
            return offset
        view, base, term, limit = file.view, file.start_offset, self._term, window_end - FILLER_SIZE
        last_offset = min(window_end, file.size_bytes - _TYPE_PLACE) - HEADER_SIZE
        at, at_end, buffer = index * INDEX_UNIT_SIZE - units.start_offset, units.size_bytes, units.buffer
        run = bisect_left(self._run_starts, index)
        if run < len(self._run_starts):
            at_end = min(at_end, self._run_starts[run] * INDEX_UNIT_SIZE - units.start_offset)
        unpack, pack, crc_of = HEADER.unpack_from, INDEX_UNIT.pack_into, crc32
        while offset <= last_offset and at < at_end:
            magic, size, entry_index, entry_term, position, channel, chain_crc, crc, body_size = unpack(view, offset)
            end = offset + size
            if magic != MAGIC or entry_index != index or entry_term != term or position != base + offset:
                break
            if body_size <= 0 or size != body_size + HEADER_SIZE or end > limit:
                break
            if channel or chain_crc or not crc or view[offset + _TYPE_PLACE] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                break
            if crc_of(view[offset + HEADER_SIZE : end]) != crc:
                break
            pack(buffer, at, MAGIC, position, size, index, term)
            index, at, offset = index + 1, at + INDEX_UNIT_SIZE, end
        if index > found.last_index + 1:
            units.write_position = max(units.write_position, at)
            found.last_index, found.end_position = index - 1, base + offset
        return offset

    def _judge(self, file: MappedFile, offset: int, header: EntryHeader, fault: str, found: RecoveredEntries) -> int:
        """Return the size of the damaged entry that is kept at a bad place, or 0 if the log ends there."""
        index = found.last_index + 1
        position = file.start_offset + offset
        guess = self._guess(file, offset, header, index)
        keep = guess is not None and (
            index <= self._committed_index
            or (self._intact and self._is_followed_by(file, offset + guess[1], index + 1))
        )
        if keep and guess is not None:
            term, size = guess
            found.damages.append(DamagedEntry(index, term, position, size, file.path, offset, fault))
            self._take(found, term, position, size)
            return size
        if header.magic or header.size:
            found.cut = DamagedEntry(index, max(header.term, 0), position, 0, file.path, offset, fault)
            if not self._is_torn(file, offset, header):
                found.lost = (index, max(index, self._committed_index))
        return 0

    def _is_torn(self, file: MappedFile, offset: int, header: EntryHeader) -> bool:
        """Return whether a crash cut the bad entry, or filler, at `offset` short: one of its sectors was never written.

        An entry is written by one call, into zeros, so a sector that was not written reads as zeros from the entry on.
        A sector that the disk cannot read, or that has other bytes, is damaged and not torn.
        """
        view, left = file.view, file.size_bytes - offset
        is_plausible = header_fault(header, file.start_offset + offset, left) is None
        start = offset + 3  # the first bytes of the magic are zeros in any case
        end = offset + (header.size if is_plausible else HEADER_SIZE)
        if header.magic == FILLER_MAGIC or header.size == left:  # no entry is so long
            start, end = offset, offset + FILLER_SIZE
        try:
            file.ensure_readable(offset, end)
        except DiskReadError:
            return False
        if is_plausible and body_fault(view, offset, header, records=self._records) is None:
            return False
        while start < end:
            sector_end = start - start % _SECTOR_BYTES + _SECTOR_BYTES
            if not any(view[start:sector_end]):
                return True
            start = sector_end
        return False

    def _guess(self, file: MappedFile, offset: int, header: EntryHeader, index: int) -> tuple[int, int] | None:
        """Return term and size of the bad entry at `offset`, by its own header, its index unit or the next unit."""
        position = file.start_offset + offset
        room = file.size_bytes - offset - FILLER_SIZE
        is_plausible = header_fault(header, position, room + FILLER_SIZE) is None and header.entry_index == index
        is_plausible = is_plausible and (self._term_max is None or header.term <= self._term_max)
        if is_plausible and header.term >= self._term:
            return header.term, header.size
        unit = self._units.find(index)
        if unit is not None and unit[0] == position and HEADER_SIZE < unit[1] <= room and unit[2] >= self._term:
            return unit[2], unit[1]
        following = self._units.find(index + 1)
        if following is not None and following[2] == self._term and HEADER_SIZE < following[0] - position <= room:
            return self._term, following[0] - position
        return None

    def _is_followed_by(self, file: MappedFile, offset: int, index: int, term: int | None = None) -> bool:
        """Return whether a good header of entry `index`, and of `term` if one is given, is at `offset`."""
        if offset + HEADER_SIZE > file.size_bytes:
            return False
        file.ensure_readable(offset, offset + HEADER_SIZE)
        header = read_header(file.view, offset)
        return (
            header_fault(header, file.start_offset + offset, file.size_bytes - offset) is None
            and header.entry_index == index
            and term in (None, header.term)
        )


def _is_readable(file: MappedFile, start: int, end: int) -> bool:
    """Return whether the disk can read all of it; if not, each entry is read on its own."""
    try:
        file.ensure_readable(start, end)
    except DiskReadError:
        return False
    return True
