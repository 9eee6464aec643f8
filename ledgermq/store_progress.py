"""LedgerMQ's part of a store's checkpoint file: offsets on which a restart, or a reader of the directory, can rely.

| bytes | field | |
|---|---|---|
| 0-7     | commit log timestamp, i64 | of RocketMQ's part |
| 64-71   | `LEDGERMQ`                | our part, which RocketMQ does not look at and leaves alone |
| 72-75   | version, i32 = 2          | in version 1 the CRC follows the unit count |
| 76-83   | commit log timestamp again, i64 | differs from the first as soon as RocketMQ has run on the directory |
| 84-91   | flushed offset, i64       | |
| 92-99   | dispatched offset, i64    | |
| 100-107 | unit count, i64           | |
| 108-115 | removed offset, i64       | |
| 116-119 | CRC-32 of bytes 64-115, u32 | |

Big-endian.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

CHECKPOINT_NAME: Final = "checkpoint"
CHECKPOINT_SIZE: Final = 4096

_TIMESTAMP: Final = struct.Struct(">q")
_OWN: Final = {1: struct.Struct(">8siqqqq"), 2: struct.Struct(">8siqqqqq")}
_HEAD: Final = struct.Struct(">8si")
_CRC: Final = struct.Struct(">I")
_OWN_AT: Final = 64
_MAGIC: Final = b"LEDGERMQ"
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a store in its checkpoint.

    Attributes:
        flushed_offset: the log is durable up to here; a record's end.
        dispatched_offset: every record below is confirmed and has its unit, durable.
        unit_count: sum of all queues' `max_offset` at the dispatched offset.
        removed_offset: physical offset of the last record by which queues were removed; -1 without one. A log that has
            lost this record has messages again of which no queue is left.
    """

    flushed_offset: int
    dispatched_offset: int
    unit_count: int
    removed_offset: int = -1


def pack_progress(page: bytearray, log_timestamp: int, progress: Progress) -> None:
    """Write our part into the bytes of a checkpoint."""
    fields = (progress.flushed_offset, progress.dispatched_offset, progress.unit_count, progress.removed_offset)
    _OWN[_VERSION].pack_into(page, _OWN_AT, _MAGIC, _VERSION, log_timestamp, *fields)
    end = _OWN_AT + _OWN[_VERSION].size
    _CRC.pack_into(page, end, crc32(page[_OWN_AT:end]))


def unpack_progress(page: bytes) -> Progress | None:
    """Return our part of a whole checkpoint; None if there is none, or RocketMQ has run since."""
    magic, version = _HEAD.unpack_from(page, _OWN_AT)
    if magic != _MAGIC or version not in _OWN:
        return None
    _, _, log_timestamp, *offsets = _OWN[version].unpack_from(page, _OWN_AT)
    end = _OWN_AT + _OWN[version].size
    is_whole = _CRC.unpack_from(page, end)[0] == crc32(page[_OWN_AT:end])
    return Progress(*offsets) if is_whole and log_timestamp == _TIMESTAMP.unpack_from(page)[0] else None


def read_progress(store: Path) -> Progress | None:
    """Return our part of the checkpoint of a store directory; None without one.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with (store / CHECKPOINT_NAME).open("rb") as file:
            page = file.read(CHECKPOINT_SIZE)
    except FileNotFoundError:
        return None
    return unpack_progress(page.ljust(CHECKPOINT_SIZE, b"\0"))
