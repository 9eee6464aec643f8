"""Recovery of a classic commit log: finds the end of its records and clears what lies behind it.

    valid valid valid | valid-but-CRC valid valid | not a record
                                                  ^ end

A record is valid when its frame is whole, it holds its own physical offset, and its body has its CRC. A record that
fails only the CRC and is followed by a valid one is a damaged body inside the log: it is kept and reported. The log
ends before the first bytes that are no record, and is cleared from there. After a clean stop everything was durable, so
whole records behind such bytes mean damage: the log is refused and left unchanged.

Source: apache/rocketmq `store/.../CommitLog.java` (recoverNormally, recoverAbnormally, 5.3.3); RocketMQ also cuts the
log at a damaged body.
"""

import contextlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ledgermq.message.buffers import Readable
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK, MAGIC_V1, MAGIC_V2, check_record, dispatch_fields
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError, StoreFormatError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.recovery.record_batches import RecordBatch, read_batch, stored_at

_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28
_MAGIC_AT = 4
_MAGICS = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))
_PROBE_BYTES = 8
_ZEROS_LOOKED_AT_BYTES = 64 << 20
_HELD_RECORDS_MAX = 1 << 20

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LogScan:
    """Result of a scan.

    Attributes:
        start_offset: physical offset at which the scan began.
        end_offset: end of the last valid record; `start_offset` if there was none.
        last_timestamp: store time (ms) of that record, or 0.
        damaged: physical offsets of records inside the log whose bodies fail their CRC.
        held: batches with at most a million records in all, by the physical offset of their first record, so that
            the recovery of the queues need not read them again.
    """

    start_offset: int
    end_offset: int = -1
    last_timestamp: int = 0
    damaged: list[int] = field(default_factory=list)
    held: dict[int, RecordBatch] = field(default_factory=dict, repr=False)
    held_records: int = 0

    def hold(self, offset: int, batch: RecordBatch) -> None:
        """Keep a batch for the recovery of the queues, unless that makes more than a million records (about 120 MB)."""
        if self.held_records + len(batch.starts) <= _HELD_RECORDS_MAX:
            self.held_records += len(batch.starts)
            self.held[offset] = batch

    def __post_init__(self) -> None:
        self.end_offset = max(self.start_offset, self.end_offset)


def recover_log(queue: MappedFileQueue, checkpoint: StoreCheckpoint, *, clean: bool) -> LogScan:
    """Cut loaded files behind their last valid record. The kept records and the cut are durable on return.

    Raises:
        StoreFormatError: the log is damaged (see the module); nothing was changed.
        DiskFailedError: a sync failed.
    """
    progress = checkpoint.progress
    if progress is not None and queue.min_offset <= progress.flushed_offset <= queue.max_offset:
        start = progress.flushed_offset
    else:
        start = _scan_start(queue.files, clean=clean, min_timestamp=checkpoint.min_timestamp)
    scan = scan_log(queue.files, start, torn=not clean)
    _look_behind(queue, scan.end_offset, clean=clean)
    _leave_blank(queue, scan.end_offset)
    queue.truncate_to(scan.end_offset)
    if not clean:
        queue.rewrite(start)
    for file in queue.unflushed(start, queue.max_offset + 1):
        try:
            file.sync()
        except OSError as error:
            raise DiskFailedError(file.path, f"sync failed, and is not tried again: {error}") from error
    if not clean:
        queue.write_unwritten(start)
    queue.flushed_offset = queue.max_offset
    return scan


def _leave_blank(queue: MappedFileQueue, end_offset: int) -> None:
    """Set the write position of the last file to the end of what was ever written, so that only that much is cleared.

    The rest is zeros, and clearing it would free its blocks.
    """
    file = queue.file_at(end_offset)
    if file is not None and file is queue.files[-1]:
        position = end_offset - file.start_offset
        end = file.written_end(position)
        if end - position <= _ZEROS_LOOKED_AT_BYTES:  # pages that were only read count as written, too
            file.ensure_readable(position, max(end, position + 1))
            end = position + len(bytes(file.view[position:end]).rstrip(b"\0"))
        file.write_position = end


def scan_log(files: Sequence[MappedFile], start_offset: int, *, torn: bool = False) -> LogScan:
    """Scan the records from `start_offset` (a record's start or end, or a file's start) to their end.

    With `torn` the power may have been cut: any sector of what was written last may be lost.
    """
    scan = LogScan(start_offset)
    doubtful: list[int] = []
    for file in files:
        if file.end_offset <= start_offset:
            continue
        position = max(start_offset - file.start_offset, 0)
        if not _scan_file(file, position, scan, doubtful, torn):
            break
    return scan


def _scan_file(file: MappedFile, position: int, scan: LogScan, doubtful: list[int], torn: bool) -> bool:
    """Scan one file into `scan`; return whether the log continues in the next file."""
    while True:
        batch = read_batch(file, position, file.size_bytes, check=True, torn=torn)
        scan.hold(file.start_offset + position, batch)
        sound = np.flatnonzero(batch.sound)
        bad = (batch.starts[~batch.sound] + file.start_offset).tolist()
        if len(sound):
            last = sound[-1]
            scan.end_offset = file.start_offset + int(batch.ends[last])
            scan.last_timestamp = stored_at(file, batch, int(last))
            doubtful += bad
            scan.damaged += [offset for offset in doubtful if offset < scan.end_offset]
            doubtful[:] = [offset for offset in doubtful if offset >= scan.end_offset]
        else:
            doubtful += bad
        if batch.is_end:
            return batch.is_blank
        position = batch.end


def _check(buffer: Readable, position: int, file: MappedFile, *, check_crc: bool) -> int:
    size = check_record(buffer, position, file.size_bytes, check_crc=check_crc)
    if size != BLANK:
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(buffer, position + _PHYSICAL_OFFSET_AT)
        if physical_offset != file.start_offset + position:
            raise CorruptRecordError(position, f"the record says physical offset {physical_offset}")
    return size


def _scan_start(files: Sequence[MappedFile], *, clean: bool, min_timestamp: int) -> int:
    """Return the start of the file from which a log without a trusted offset is scanned.

    After a clean stop it is the newest file that begins with a record. After any other stop it is the newest file whose
    first record was stored at or before `min_timestamp` (ms), since everything up to then is durable. If there is no
    such file, it is the oldest one.
    """
    for file in reversed(files):
        timestamp = _first_timestamp(file)
        if timestamp > 0 and (clean or timestamp <= min_timestamp):
            return file.start_offset
    return files[0].start_offset if files else 0


def _look_behind(queue: MappedFileQueue, end_offset: int, *, clean: bool) -> None:
    """Look for whole records behind the end of the log: refuse them after a clean stop, else warn that they are cut."""
    file = queue.file_at(end_offset)
    if file is None or not any(file.view[end_offset - file.start_offset :][:_PROBE_BYTES]):
        return
    found = find_record(queue.files, end_offset)
    if found is None:
        log.info("the log is cut at %d: what follows is a filler or an incomplete record", end_offset)
        return
    detail = f"no record at physical offset {end_offset}, but one at {found}"
    if clean:
        raise StoreFormatError(
            file.path,
            f"{detail}: damaged, although the last stop was clean (create the abort file to have the log cut there)",
        )
    log.warning("%s: the log is cut there", detail)


def find_record(files: Sequence[MappedFile], offset: int) -> int | None:
    """Return the offset of the first whole record behind `offset` that holds its own physical offset, or None.

    It is searched for in the rest of that file, and in later ones that do not begin with zeros.
    """
    for file in files:
        if file.end_offset <= offset:
            continue
        position = max(offset - file.start_offset, 0)
        if position == 0 and _first_timestamp(file) > 0:
            return file.start_offset
        if file.start_offset > offset and not any(file.view[:_PROBE_BYTES]):
            continue
        while (position := _next_magic(file, position + 1)) >= 0:
            with contextlib.suppress(CorruptRecordError):
                if _check(file.buffer, position, file, check_crc=True) != BLANK:
                    return file.start_offset + position
    return None


def _next_magic(file: MappedFile, position: int) -> int:
    """Return the position, from `position` on, of the next 8 bytes that end with a record's magic; -1 without one."""
    found = (file.buffer.find(magic, position + _MAGIC_AT) for magic in _MAGICS)
    return min((at - _MAGIC_AT for at in found if at >= 0), default=-1)


def _first_timestamp(file: MappedFile) -> int:
    """Return the store time (ms) of the record at the start of a file, or 0 if there is none."""
    try:
        if _check(file.buffer, 0, file, check_crc=False) == BLANK:
            return 0
    except CorruptRecordError:
        return 0
    return dispatch_fields(file.buffer, 0)[5]
