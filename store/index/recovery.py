"""Recovery of the index: how far its files can be trusted, and from which offset keys are entered again.

    entries  |============= covered by our checkpoint =============|..... cut, made again .....|
    log      |=====================================================^ resume offset ............| confirm offset

Our checkpoint says which entry belongs to which offset of the log, so that nothing is entered twice and nothing is
left out. Files without it are RocketMQ's, or our checkpoint is gone: after a clean stop they are taken as they are,
after any other stop their content is checked, and the last record is entered again. RocketMQ can lose entries when it
recovers; so the beginning and each border between files is compared with the log, and everything behind a gap is made
again.

Source: apache/rocketmq `store/.../index/IndexService.java` (load, 5.3.3), which deletes what may be incomplete.
"""

import logging
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.index_unit import FIRST_ENTRY, index_keys
from ledgermq.message.record import check_record, dispatch_fields
from store.directory.checkpoint import IndexProgress, StoreCheckpoint
from store.errors import StoreError
from store.index.file_set import ContentEnd, IndexFiles
from store.index.index_file import IndexFile
from store.replicated_log import ReplicatedLog

log = logging.getLogger(__name__)

_LOOK_RECORDS_MAX = 200_000
_CHECKED_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexStart:
    """What to do before entering keys.

    Attributes:
        cut: what is kept; None: everything, as it is.
        resume_offset: keys of records at or past it are to be entered: a record's start or end, or the log's start.
    """

    cut: ContentEnd | None
    resume_offset: int


def choose_start(files: IndexFiles, checkpoint: StoreCheckpoint, log_: ReplicatedLog, *, clean: bool) -> IndexStart:
    """Decide; reads the log and the files, changes nothing. Blocks, and may run in a thread.

    Raises:
        DiskReadError: an index file cannot be read.
    """
    start = _start_by_checkpoint(files, checkpoint.index, clean=clean)
    if start is None:
        start = _start_by_content(files, checkpoint, log_, clean=clean)
    return _bounded(start, files, log_)


def _bounded(start: IndexStart, files: IndexFiles, log_: ReplicatedLog) -> IndexStart:
    """Return the start, moved into the present bounds of the log: its end may be lost, its beginning deleted."""
    end, begin = log_.confirm_offset, log_.min_offset
    if start.resume_offset > end:
        log.warning(
            "the key index reaches %d, the log %d: index entries behind that are dropped", start.resume_offset, end
        )
        return IndexStart(files.cut_at(end, start.cut), end)
    return replace(start, resume_offset=max(start.resume_offset, begin))


def _start_by_checkpoint(files: IndexFiles, progress: IndexProgress | None, *, clean: bool) -> IndexStart | None:
    """Return the start according to our checkpoint; None if the checkpoint does not fit the files."""
    if progress is None:
        return None
    if progress.file_name == 0:
        return IndexStart(ContentEnd(0) if files.files else None, progress.dispatched_offset)
    for position, file in enumerate(files.files):
        if int(file.path.name) == progress.file_name and _holds(file, progress):
            is_last = position == len(files.files) - 1
            if clean and is_last and file.header.entry_count == progress.entry_count:
                return IndexStart(None, progress.dispatched_offset)
            cut = ContentEnd(position + 1, progress.entry_count, progress.end_timestamp)
            return IndexStart(cut, progress.dispatched_offset)
    return None


def _holds(file: IndexFile, progress: IndexProgress) -> bool:
    """Return whether the file has the entries that the progress names; the last one must have the time named there."""
    if not FIRST_ENTRY < progress.entry_count <= file.header.entry_count:
        return False
    (last,) = file.entries(progress.entry_count - 1, progress.entry_count)
    is_first = progress.entry_count == FIRST_ENTRY + 1  # its seconds count from what the file took over
    return is_first or int(last["seconds"]) == max((progress.end_timestamp - file.header.begin_timestamp) // 1000, 0)


def _start_by_content(
    files: IndexFiles, checkpoint: StoreCheckpoint, log_: ReplicatedLog, *, clean: bool
) -> IndexStart:
    """Return the start according to the files and the log."""
    if not files.files:
        return IndexStart(None, log_.min_offset)
    gap = _first_gap(files, log_)
    if gap is not None:
        return gap
    _, end_offset = files.last_update()
    if not clean:
        return _start_by_entries(files, checkpoint.index_timestamp, end_offset)
    behind = _record_end(log_, end_offset)
    if behind is None or not _is_whole(files, log_, end_offset):
        return IndexStart(files.cut_at(end_offset), end_offset)
    return IndexStart(None, behind)


def _start_by_entries(files: IndexFiles, synced_timestamp: int, end_offset: int) -> IndexStart:
    """Return the start for files that were not synced: all entries are checked, and the last record's made again."""
    for position, file in enumerate(files.files):
        if file.header.end_timestamp > synced_timestamp and (good := _good_entries(file)) < file.header.entry_count:
            log.warning("%s: entries from number %d on are damaged", file.path, good)
            if good <= FIRST_ENTRY:
                last = files.files[position - 1].header.end_offset if position else 0
                return IndexStart(ContentEnd(position), last)
            last = file.offset_of(good - 1)
            return IndexStart(files.cut_at(last, ContentEnd(position + 1, good)), last)
    return IndexStart(files.cut_at(end_offset), end_offset)


def _good_entries(file: IndexFile) -> int:
    """Return the first invalid entry's number: its offset is below that of the one before, or it is all zeros."""
    last_offset = -1
    for start in range(FIRST_ENTRY, file.header.entry_count, _CHECKED_ENTRIES):
        some = file.entries(start, min(start + _CHECKED_ENTRIES, file.header.entry_count))
        numbers = np.arange(start, start + len(some))
        falls = np.diff(some["offset"].astype(np.int64), prepend=last_offset) < 0
        bad = falls | (some["hash"] < 0) | (some["seconds"] < 0)
        bad |= (some["previous"] < 0) | (some["previous"] >= numbers)
        bad |= (some["offset"] == 0) & (some["hash"] == 0)
        if bad.any():
            return start + int(np.argmax(bad))
        last_offset = int(some["offset"][-1])
    return file.header.entry_count


def _first_gap(files: IndexFiles, log_: ReplicatedLog) -> IndexStart | None:
    """Return the start at the first place where files lack keys that the log has; None without such a place."""
    known = [file for file in files.files if file.header.entry_count > FIRST_ENTRY]
    try:
        first = _first_keyed(log_, log_.min_offset)
        if first is not None and (not known or known[0].header.begin_offset > first):
            log.warning("the key index does not have the log's first key at %d: it is built again", first)
            return IndexStart(ContentEnd(0), log_.min_offset)
        for before, after in pairwise(known):
            end = before.header.end_offset
            if end < log_.min_offset or after.header.begin_offset == end:
                continue
            behind = _record_end(log_, end)
            follows = None if behind is None else _first_keyed(log_, behind)
            if behind is not None and follows is not None and after.header.begin_offset > follows:
                log.warning("the key index lacks the key at %d: it is built again from there", follows)
                return IndexStart(files.cut_at(end), end)  # the last record before the gap may be there in part
    except (CorruptRecordError, StoreError) as error:
        log.warning("the key index cannot be compared with the log and is used as it is: %s", error)
    return None


def _first_keyed(log_: ReplicatedLog, start: int) -> int | None:
    """Return the position of the first record with a key at or behind `start`; None when none is near."""
    for physical_offset, record in islice(log_.walk(start, log_.confirm_offset), _LOOK_RECORDS_MAX):
        if _key_count(record):
            return physical_offset
    return None


def _is_whole(files: IndexFiles, log_: ReplicatedLog, physical_offset: int) -> bool:
    """Return whether the last indexed record has entries for all its keys, or is deleted from the log."""
    if physical_offset < log_.min_offset:
        return True
    try:
        counts = [_key_count(record) for _, record in islice(log_.walk(physical_offset, log_.confirm_offset), 1)]
    except (CorruptRecordError, StoreError):
        return False
    return counts == [files.count_last(physical_offset)]


def _key_count(record: memoryview) -> int:
    """Return how many entries a record has in the index."""
    check_record(record, 0, len(record), check_crc=False)
    _, _, sys_flag, _, _, _, _, properties = dispatch_fields(record, 0)
    return sum(1 for _ in index_keys(sys_flag, properties))


def _record_end(log_: ReplicatedLog, physical_offset: int) -> int | None:
    """Return the end of the record that starts at an offset; the min offset for one below it; else None."""
    if physical_offset < log_.min_offset:
        return log_.min_offset
    try:
        for offset, record in log_.walk(physical_offset, log_.confirm_offset):
            return offset + len(record) if offset == physical_offset else None
    except (CorruptRecordError, StoreError):
        return None
    return None
