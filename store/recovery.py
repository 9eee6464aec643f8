"""Recovery of a classic commit log: where its records end. Pure functions over mapped bytes.

    valid valid valid | valid-but-CRC valid valid | not a record
                                                  ^ end

A record counts when its frame is whole, it says its own physical offset, and its body has its CRC. One that fails
only by its CRC and is followed by a good one is a damaged body inside the log, not a torn tail: it stays, and is
reported. What cannot be framed ends the log.

Source: apache/rocketmq `store/.../CommitLog.java` (recoverNormally, recoverAbnormally, 5.3.3), which cuts at a damaged
body too.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledgermq.message.buffers import Readable
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK, check_record, dispatch_fields
from store.mapped_file import MappedFile

_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28


@dataclass(slots=True)
class LogScan:
    """What a scan found.

    Attributes:
        end_offset: end of the last record that counts.
        last_timestamp: its store time (ms), or 0 when none was seen.
        damaged: physical offsets of records inside the log whose bodies fail their CRC.
    """

    end_offset: int
    last_timestamp: int = 0
    damaged: list[int] = field(default_factory=list)


def scan_log(files: Sequence[MappedFile], start_offset: int) -> LogScan:
    """Walk the records from `start_offset` (a record's start or end, or a file's start) to where they end."""
    scan = LogScan(start_offset)
    doubtful: list[int] = []
    for file in files:
        if file.end_offset <= start_offset:
            continue
        position = max(start_offset - file.start_offset, 0)
        if not _scan_file(file, position, scan, doubtful):
            break
    return scan


def _scan_file(file: MappedFile, position: int, scan: LogScan, doubtful: list[int]) -> bool:
    """Scan one file into `scan`; answer whether the log goes on in the next one."""
    while True:
        try:
            size = _check(file.buffer, position, file, check_crc=True)
            is_good = True
        except CorruptRecordError:
            try:
                size = _check(file.buffer, position, file, check_crc=False)
            except CorruptRecordError:
                return False
            is_good = False
        if size == BLANK:
            return True
        if is_good:
            scan.damaged += doubtful
            doubtful.clear()
            scan.last_timestamp = dispatch_fields(file.buffer, position)[5]
            scan.end_offset = file.start_offset + position + size
        else:
            doubtful.append(file.start_offset + position)
        position += size


def _check(buffer: Readable, position: int, file: MappedFile, *, check_crc: bool) -> int:
    size = check_record(buffer, position, file.size_bytes, check_crc=check_crc)
    if size != BLANK:
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(buffer, position + _PHYSICAL_OFFSET_AT)
        if physical_offset != file.start_offset + position:
            raise CorruptRecordError(position, f"the record says physical offset {physical_offset}")
    return size


def scan_start(files: Sequence[MappedFile], *, clean: bool, min_timestamp: int) -> int:
    """Start of the file from which a log without a trusted offset is scanned.

    After a clean stop that is the newest file that begins with a record; after another one, the newest whose first
    record was stored at or before `min_timestamp` (ms), as everything up to then is durable; else the oldest file.
    """
    for file in reversed(files):
        timestamp = first_store_timestamp(file)
        if timestamp > 0 and (clean or timestamp <= min_timestamp):
            return file.start_offset
    return files[0].start_offset if files else 0


def first_store_timestamp(file: MappedFile) -> int:
    """Store time (ms) of the first record of a file, or 0 when it begins with none."""
    try:
        if _check(file.buffer, 0, file, check_crc=False) == BLANK:
            return 0
    except CorruptRecordError:
        return 0
    return dispatch_fields(file.buffer, 0)[5]
