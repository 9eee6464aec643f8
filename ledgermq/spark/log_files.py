"""The log of a store directory on disk: which files, of which kind, and where work can be divided. No broker is needed.

    STORE/commitlog/00000000000000000000 ...        classic: bare records
    STORE/dledger-*/data/00000000000000000000 ...   Raft: 48-byte entry headers before records
    STORE/consumequeue/TOPIC/QUEUE/...              queue units, 20 bytes each

A division at any byte looks for the next place that is a whole, sound record (or entry) that says its own position.
A body that imitates records could mislead it, so each reader of a part checks that its chain of frames ends exactly
where the next part begins, see `parts.read_part`.
"""

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.lock_holder import lock_holder
from ledgermq.message.entry_header import FILLER_SIZE, HEADER_SIZE, header_fault, read_header
from ledgermq.message.entry_header import MAGIC as ENTRY_MAGIC
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.layout import BLANK, MAGIC_V1, MAGIC_V2, check_record
from ledgermq.spark.errors import NotAStoreError, OptionError

CLASSIC: Final = "classic"
DLEDGER: Final = "dledger"

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NAME_DIGITS: Final = 20
_SEARCH_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_SEARCH_BYTES)
_RECORD_BYTES_MAX: Final = 64 << 20
_PHYSICAL: Final = struct.Struct(">q")
_PHYSICAL_AT: Final = 28
_MAGICS: Final = {
    CLASSIC: tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2)),
    DLEDGER: (struct.pack(">i", ENTRY_MAGIC),),
}
_MAGIC_AT: Final = {CLASSIC: 4, DLEDGER: 0}


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log. `start` is the physical offset of its first byte; `length` its bytes."""

    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A store directory.

    Attributes:
        root: what was asked for.
        kind: CLASSIC or DLEDGER.
        files: of the log, in order; at least one.
        is_live: a process has the store open, and may be writing.
        queues: folder of the consume queues; it may be missing.
    """

    root: str
    kind: str
    files: tuple[LogFile, ...]
    is_live: bool
    queues: str


def is_uri(path: str) -> bool:
    """Return whether only Spark knows how to open a path."""
    return _URI.match(path) is not None and not Path(path).exists()


def local_path(path: str) -> Path:
    """Return a path that is opened without Spark.

    Raises:
        OptionError: it is a URI, which would name a folder of this machine.
    """
    if is_uri(path):
        raise OptionError(f"{path}: is opened without Spark, so give a local or mounted path")
    return Path(path)


def open_store(path: str) -> StoreDirectory:
    """Find the log of a store directory.

    Raises:
        NotAStoreError: it is missing, no store, has no log file, has several members, or must not be read.
        OptionError: it is a URI.
    """
    root = local_path(path)
    try:
        return _open(root)
    except OSError as error:
        raise NotAStoreError(f"{error.filename or root}: {error.strerror or error}") from None


def _open(root: Path) -> StoreDirectory:
    if not root.is_dir():
        raise NotAStoreError(f"{root} is not a directory" if root.exists() else f"{root} does not exist")
    members = sorted(found for found in root.glob("dledger-*") if (found / "data").is_dir())
    if len(members) > 1:
        raise NotAStoreError(f"{root} holds several DLedger members ({', '.join(m.name for m in members)})")
    if members:
        kind, log_dir = DLEDGER, members[0] / "data"
    elif (root / "commitlog").is_dir():
        kind, log_dir = CLASSIC, root / "commitlog"
    elif (root / "store").is_dir() and root.name != "store":
        raise NotAStoreError(f"{root} is not a store; {root / 'store'} may be one")
    else:
        raise NotAStoreError(f"{root} is not a store: it has neither commitlog nor dledger-*/data")
    files = tuple(_with_records(_offset_files(log_dir)))
    if not files:
        raise NotAStoreError(f"{log_dir} has no log file")
    is_live = any(lock_holder(folder) is not None for folder in (root, *members))
    return StoreDirectory(str(root), kind, files, is_live, str(root / "consumequeue"))


def frame_head(file: LogFile, size_bytes: int = 1024) -> bytes:
    """Return the first bytes of a file, a KiB that differs between any two logs; empty if nothing is written there."""
    with Path(file.path).open("rb") as opened:
        head = opened.read(size_bytes)
    return head if any(head) else b""


def _with_records(files: list[LogFile]) -> list[LogFile]:
    """Leave out files at the log's end that are allocated ahead and empty; keep the first file."""
    while len(files) > 1 and not frame_head(files[-1], FILLER_SIZE):
        files = files[:-1]
    return files


def _offset_files(directory: Path) -> list[LogFile]:
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if len(entry.name) == _NAME_DIGITS and entry.name.isascii() and entry.name.isdigit() and entry.is_file():
                if not os.access(entry.path, os.R_OK):
                    raise NotAStoreError(f"{entry.path}: Permission denied")
                found.append(LogFile(entry.path, int(entry.name), entry.stat().st_size))
    return sorted((file for file in found if file.length), key=lambda file: file.start)


def queue_folders(directory: str) -> Iterator[tuple[str, int, str]]:
    """Yield topic, queue id and folder of each consume queue that lies under `directory`, in order."""
    root = Path(directory)
    if not root.is_dir():
        return
    for topic in sorted(path for path in root.iterdir() if path.is_dir()):
        queues = [path for path in topic.iterdir() if path.is_dir() and path.name.isascii() and path.name.isdigit()]
        for queue in sorted(queues, key=lambda path: int(path.name)):
            yield topic.name, int(queue.name), str(queue)


def offset_files(folder: str) -> list[LogFile]:
    """Return the files of a folder that are named by an offset, in order."""
    return _offset_files(Path(folder))


def next_frame(descriptor: int, file: LogFile, kind: str, position: int) -> int:
    """Return where the first sound frame at or behind `position` begins; the file's length without one.

    Sound: its lengths add up, it says its own position, and the CRC of its body is right.
    """
    patterns, back = _MAGICS[kind], _MAGIC_AT[kind]
    start = max(position + back, 0)
    while start < file.length:
        try:
            start = max(os.lseek(descriptor, start, os.SEEK_DATA), start)
        except OSError:
            break  # only a hole follows
        chunk = os.pread(descriptor, _SEARCH_BYTES, start)
        if chunk == _ZEROS:  # as behind the last record of a store whose copy has no holes
            start += len(chunk) - 3
            continue
        at = -1
        while (
            at := min((found for found in (chunk.find(p, at + 1) for p in patterns) if found >= 0), default=-1)
        ) >= 0:
            frame = start + at - back
            if frame >= position and frame_fault(descriptor, file, kind, frame) is None:
                return frame
        if len(chunk) < _SEARCH_BYTES:
            break
        start += len(chunk) - 3
    return file.length


def frame_fault(descriptor: int, file: LogFile, kind: str, position: int) -> str | None:
    """Return why the bytes at `position` are no sound frame; None if they are."""
    left = file.length - position
    if kind == DLEDGER:
        if left < HEADER_SIZE:
            return f"{left} bytes are left"
        header = read_header(os.pread(descriptor, HEADER_SIZE, position), 0)
        fault = header_fault(header, file.start + position, left)
        if fault is not None:
            return fault
        position, left = position + HEADER_SIZE, header.body_size
    if left < FILLER_SIZE:
        return f"{left} bytes are left"
    (size,) = struct.unpack(">i", os.pread(descriptor, 4, position))
    if not 0 < size <= min(left, _RECORD_BYTES_MAX):
        return f"size {size}, {left} bytes are left"
    record = os.pread(descriptor, size, position)
    try:
        if check_record(record, 0, len(record), check_crc=True) == BLANK:
            return "padding"
    except CorruptRecordError as error:
        return error.detail
    (physical,) = _PHYSICAL.unpack_from(record, _PHYSICAL_AT)
    if physical != file.start + position:
        return f"the record says physical offset {physical}, it lies at {file.start + position}"
    return None
