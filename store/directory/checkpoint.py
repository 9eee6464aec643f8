"""Store checkpoint: up to where the files of a store are known to be durable. Without it recovery is only slower.

| bytes | field | |
|---|---|---|
| 0-7    | commit log timestamp, i64 | ms; store time of the last flushed record |
| 8-15   | queues timestamp, i64     | ms; store time of the last record in flushed queue files |
| 16-23  | index timestamp, i64      | ms; store time of the last record in flushed index files |
| 24-31  | master flushed offset, i64 | as request 908 set it at a slave |
| 32-39  | confirm offset, i64       | |
| 64-119  | our part | see `ledgermq.store_progress` |
| 128-135 | `LMQINDEX`               | the index's part, ours too |
| 136-139 | version, i32 = 1         | |
| 140-147 | commit log timestamp again, i64 | as above |
| 148-155 | indexed offset, i64      | keys of every record below are in the index, durable |
| 156-163 | index end timestamp, i64 | ms; store time of the last record entered |
| 164-171 | index file, i64          | name of the last index file as a number; 0: there is none |
| 172-175 | entry count, i32         | of that file: the next entry's number |
| 176-179 | CRC-32 of bytes 128-175, u32 | |

Big-endian, 4096 bytes. Source: apache/rocketmq `store/.../StoreCheckpoint.java` (5.3.3) for bytes 0-39.
"""

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from ledgermq.store_progress import CHECKPOINT_NAME, CHECKPOINT_SIZE, Progress, pack_progress, unpack_progress
from store.errors import StoreFormatError
from store.files.mapped_file import sync_directory

_SHARED = struct.Struct(">qqqqq")
_CRC = struct.Struct(">I")
_INDEX = struct.Struct(">8siqqqqi")
_INDEX_AT = 128
_INDEX_MAGIC = b"LMQINDEX"
_VERSION = 1
_SAFETY_MS = 3000


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The index's part: all entries of records below `dispatched_offset`, and only these, are below `entry_count`."""

    dispatched_offset: int
    end_timestamp: int
    file_name: int
    entry_count: int


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """The file's content. `progress` and `index` are None where they cannot be relied on."""

    log_timestamp: int = 0
    queues_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    progress: Progress | None = None
    index: IndexProgress | None = None

    @property
    def min_timestamp(self) -> int:
        """Records stored up to this time (ms) are flushed and in flushed queues, with RocketMQ's margin."""
        return max(0, min(self.log_timestamp, self.queues_timestamp) - _SAFETY_MS)

    def encode(self) -> bytes:
        """Return the bytes of the whole file."""
        page = bytearray(CHECKPOINT_SIZE)
        _SHARED.pack_into(
            page,
            0,
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        )
        if self.progress is not None:
            pack_progress(page, self.log_timestamp, self.progress)
        if self.index is not None:
            index = self.index
            parts = (index.dispatched_offset, index.end_timestamp, index.file_name, index.entry_count)
            _INDEX.pack_into(page, _INDEX_AT, _INDEX_MAGIC, _VERSION, self.log_timestamp, *parts)
            end = _INDEX_AT + _INDEX.size
            _CRC.pack_into(page, end, crc32(page[_INDEX_AT:end]))
        return bytes(page)


def decode_checkpoint(page: bytes) -> StoreCheckpoint:
    """Parse a checkpoint file; a short or empty one counts as zeros."""
    page = page.ljust(CHECKPOINT_SIZE, b"\0")
    checkpoint = StoreCheckpoint(*_SHARED.unpack_from(page))
    index = _decode_index(page, checkpoint.log_timestamp)
    return replace(checkpoint, index=index, progress=unpack_progress(page))


def _decode_index(page: bytes, shared_timestamp: int) -> IndexProgress | None:
    magic, version, log_timestamp, *parts = _INDEX.unpack_from(page, _INDEX_AT)
    end = _INDEX_AT + _INDEX.size
    is_ours = magic == _INDEX_MAGIC and version == _VERSION and log_timestamp == shared_timestamp
    is_whole = _CRC.unpack_from(page, end)[0] == crc32(page[_INDEX_AT:end])
    return IndexProgress(*parts) if is_ours and is_whole else None


class StoreCheckpointFile:
    """The file in a store directory.

    Raises:
        StoreFormatError: it is longer than a checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / CHECKPOINT_NAME
        content = self.path.read_bytes() if self.path.exists() else b""
        if len(content) > CHECKPOINT_SIZE:
            raise StoreFormatError(self.path, f"is {len(content)} bytes long, must be {CHECKPOINT_SIZE}")
        self.found = decode_checkpoint(content)

    def save(self, checkpoint: StoreCheckpoint) -> None:
        """Overwrite the file; durable when this returns. A torn write only costs the next start its short cut.

        Raises:
            OSError: not written.
        """
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, checkpoint.encode(), 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self.path.parent)
