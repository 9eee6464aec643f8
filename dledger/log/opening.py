"""Opens an entry log: loads its files, finishes what a crash interrupted, and scans the end of the log.

    load files -> finish a reset or deletion -> scan from the checkpoint, or as far back as Java does -> cut -> sync

Blocks on the disk: call it before the loop serves, or from a thread.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from dledger.core.messages import NO_TERM, TermRun
from dledger.log.commit_checkpoint import CommitCheckpoint
from dledger.log.entry import HEADER_SIZE, INDEX_UNIT_SIZE, EntryHeader, body_fault, header_fault, read_header
from dledger.log.hard_state import make_recovering
from dledger.log.recovery import EntryScan, RecoveredEntries
from dledger.log.start_file import EMPTY_LOG, LogStart, load_start
from dledger.log.unit_index import UnitIndex
from store.errors import DiskFailedError, StoreFormatError
from store.files.allocator import FileAllocator
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.files.mapping_limit import Mappings

_JAVA_FILES_BACK = 3


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The files of a log and what was found in them.

    Attributes:
        verified_from: entries from there on were checked against their CRCs.
        install_unfinished: an install was begun and not finished; the log is empty, and `start` is not written yet.
    """

    data: MappedFileQueue
    units: UnitIndex
    start: LogStart
    found: RecoveredEntries
    term_runs: list[TermRun]
    verified_from: int
    records: bool
    install_unfinished: bool = False


def open_log(
    directory: Path,
    *,
    data_file_size: int,
    index_file_size: int,
    allocator: FileAllocator | None,
    checkpoint: CommitCheckpoint,
    intact: bool,
    records: bool = True,
    term_max: int | None = None,
) -> OpenedLog:
    """Open `directory/data` and `directory/index`. On return the entries found are durable, and a bad tail is cut.

    Before that the hard state is made recovering if the tail may have counted.

    Args:
        directory: made if missing.
        data_file_size: bytes of each data file, as configured.
        index_file_size: bytes of each index file, as configured.
        allocator: makes files ahead; None: they are made when needed.
        checkpoint: the checkpoint that this node wrote last.
        intact: the machine did not crash since, so the files contain all that was written.
        records: entry bodies are RocketMQ records, checked as such where Java left no entry CRC.
        term_max: the node's term as its hard state says; None if it is not known.

    Raises:
        StoreFormatError: files of other lengths or names, gaps, or a newer format; nothing was changed.
        DiskFullError, DiskFailedError: the disk is full or failed.
    """
    data = MappedFileQueue(directory / "data", data_file_size, allocator, ahead_max=1)
    scattered = Mappings(reads_ahead=False)  # a store into a fresh page would wait for the pages read around it
    index = MappedFileQueue(directory / "index", index_file_size, allocator, mappings=scattered, ahead_max=1)
    data.load()
    index.load()
    units = UnitIndex(index)
    start = _settle_start(directory, data, units)
    start, install_unfinished = replace(start, installing=False), start.installing
    begin = whole = _Begin(start.start_position, start.first_index, start.prev_term)
    if units.covers(start.first_index):
        begin = _choose_begin(data, units, start, checkpoint) or whole
    else:
        units.reset(start.first_index)
    older = _term_runs(units, start.first_index, begin.entry_index)
    if older is None:
        begin, older = whole, []
    scan = EntryScan(data, units, checkpoint.committed_index, intact=intact, records=records, term_max=term_max)
    known_runs = _term_runs(units, begin.entry_index, checkpoint.committed_index + 1) or []
    found = scan.run(begin.position, begin.entry_index, begin.prev_term, known_runs)
    if found.lost is not None:
        make_recovering(directory)
    data.truncate_to(found.end_position)
    units.truncate_after(found.last_index)
    undurable = _undurable_from(units, start, begin, checkpoint)
    if not checkpoint.is_written_by_java:
        data.rewrite(undurable)
        index.rewrite(begin.entry_index * INDEX_UNIT_SIZE)
    _sync(data, undurable)
    _sync(index, begin.entry_index * INDEX_UNIT_SIZE)
    runs = older + [run for run in found.term_runs if not older or run.term != older[-1].term]
    return OpenedLog(data, units, start, found, runs, begin.entry_index, records, install_unfinished)


def _undurable_from(units: UnitIndex, start: LogStart, begin: "_Begin", checkpoint: CommitCheckpoint) -> int:
    """Return the position from which entries may be in the page cache only, left as clean by a failed sync.

    Entries behind the committed one may be younger than the checkpoint, after a truncation.
    """
    if checkpoint.durable_position < 0:
        return start.start_position
    committed = units.find(checkpoint.committed_index)
    positions = [begin.position, checkpoint.durable_position]
    return max(min(positions if committed is None else [*positions, committed[0]]), start.start_position)


@dataclass(frozen=True, slots=True)
class _Begin:
    """Start of a scan: a position, the index of the entry there, and a lower bound of its term."""

    position: int
    entry_index: int
    prev_term: int


def _settle_start(directory: Path, data: MappedFileQueue, units: UnitIndex) -> LogStart:
    """Return where the log starts, after finishing an interrupted deletion and dropping an unfinished install."""
    start = load_start(directory)
    if start is not None and start.installing:
        data.reset_to(0)
        units.reset(0)
        return replace(EMPTY_LOG, installing=True)
    if start is None or (data.files and start.start_position < data.min_offset):
        return _infer_start(data)  # a directory of Java's, or files were deleted by hand
    if not data.files or start.start_position >= data.max_offset:
        data.reset_to(start.start_position)
        units.reset(start.first_index)
    data.delete_before(start.start_position)
    return start


def _infer_start(data: MappedFileQueue) -> LogStart:
    if data.min_offset == 0:
        return EMPTY_LOG
    file = data.files[0]
    header = read_header(file.view, 0)
    fault = header_fault(header, file.start_offset, file.size_bytes)
    if fault is not None:
        raise StoreFormatError(file.path, f"the oldest entry kept cannot be read, so its index is not known: {fault}")
    return LogStart(header.entry_index, file.start_offset, NO_TERM)


def _choose_begin(
    data: MappedFileQueue, units: UnitIndex, start: LogStart, checkpoint: CommitCheckpoint
) -> _Begin | None:
    """Return the committed entry of our checkpoint, else the start of the third last whole file; None: neither.

    The entry must be whole, and no damage before it may wait for a copy. The file's start is behind no entry which our
    own checkpoint does not call durable, and behind none that it does not call committed: such entries may have been
    replaced since, and the index units of the new ones were perhaps not synced.
    """
    if checkpoint.durable_position >= 0 and checkpoint.committed_index >= start.first_index:
        unit = units.find(checkpoint.committed_index)
        file = None if unit is None else data.file_at(unit[0])
        if unit is not None and file is not None and unit[0] < checkpoint.durable_position:
            begin = _whole_entry(file, unit[0], units)
            if begin is not None and begin.entry_index == checkpoint.committed_index:
                return begin
    is_java = checkpoint.durable_position < 0
    in_use = [file for file in data.files if any(file.view[:INDEX_UNIT_SIZE])]
    for file in reversed(in_use[: max(len(in_use) - _JAVA_FILES_BACK + 1, 0)]):
        if 0 <= checkpoint.durable_position < file.start_offset:
            continue  # what lies before this file may be lost by a power cut
        begin = _whole_entry(file, file.start_offset, units)
        is_covered = begin is not None and (begin.entry_index <= checkpoint.committed_index + 1 or is_java)
        if begin is not None and begin.entry_index > start.first_index and is_covered:
            return begin
    return None


def _whole_entry(file: MappedFile, position: int, units: UnitIndex) -> _Begin | None:
    """Return the entry at `position`, if its header, its body and its index unit agree."""
    offset = position - file.start_offset
    if offset + HEADER_SIZE > file.size_bytes:
        return None
    header: EntryHeader = read_header(file.view, offset)
    if header_fault(header, position, file.size_bytes - offset) is not None:
        return None
    if units.find(header.entry_index) != (position, header.size, header.term):
        return None
    if body_fault(file.view, offset, header, records=False) is not None:
        return None
    return _Begin(position, header.entry_index, header.term)


def _term_runs(units: UnitIndex, first_index: int, end_index: int) -> list[TermRun] | None:
    """Return the runs of the entries `[first_index, end_index)` from the index alone; None when a unit is missing."""
    runs: list[TermRun] = []
    at = first_index
    while at < end_index:
        unit = units.find(at)
        if unit is None:
            return None
        term = unit[2]
        runs.append(TermRun(term, at))
        low, high = at + 1, end_index
        while low < high:
            middle = (low + high) // 2
            unit = units.find(middle)
            if unit is None or unit[2] < term:
                return None
            if unit[2] == term:
                low = middle + 1
            else:
                high = middle
        at = low
    return runs


def _sync(queue: MappedFileQueue, offset: int) -> None:
    """Make everything from `offset` on durable: after a crash of the process it may only be in the page cache.

    So are the zeros in place of a cut tail, also in a file of which nothing is left.
    """
    for file in queue.unflushed(offset, queue.max_offset + 1):
        try:
            file.sync()
        except OSError as error:
            raise DiskFailedError(file.path, f"sync failed at start: {error}") from error
        file.flush_position = file.write_position
    queue.write_unwritten(offset)
    queue.flushed_offset = queue.max_offset
