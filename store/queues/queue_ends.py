"""Queue ends: where each consume queue begins and ends, so that a store of many queues starts without a look at each.

    queueEnds.ledgermq    part | part | ...
    a part                magic `LMQENDS3` | boot id, 36 bytes of ASCII, zeros after a clean stop | log's min offset,
                          dispatched offset, unit count i64 | units of a file, count i32 | queues | CRC-32 u32
    a queue               topic length i16, topic | queue id i32 | min offset, max offset i64 | changed i64
                          | size of held units i32, held units

`changed` is the time stamp (ns) of the queue's folder: files that were added or removed since then show in it. Held
units are the last ones below the max offset, which are in memory only. The first part holds all queues, each later one
those that changed since the one before. The unit count is the sum of the max offsets of all queues.

    a checkpoint           appends a part, which is not synced
    a clean stop           writes the file anew, durable
    queues that lose units (topics removed, cuts, trims): the file is removed first; the next checkpoint writes it anew

A start believes a part of a clean stop, or of the same boot of the machine: then only the process ended, and the log
still holds every record of which a queue may have a unit. After a power cut the log may have lost records of units
that are on disk, so each queue is looked through.

Big-endian. Java's broker does not know the file; `store.recovery.queue_trust` tells whether it ran since.
"""

import os
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from ledgermq.durable_files import write_synced
from store.directory.boot import boot_id
from store.files.disk import sync_directory

FILE_NAME = "queueEnds.ledgermq"
_MAGIC = b"LMQENDS3"
_HEAD = struct.Struct(">8s36sqqqii")
_TOPIC = struct.Struct(">h")
_QUEUE = struct.Struct(">iqqqi")
_CRC = struct.Struct(">I")
_GROWTH_BYTES = 1 << 20

Row = tuple[str, int, int, int, int, bytes]
"""Topic, queue id, min offset, max offset, time stamp (ns) of the folder (0 while it has no file), held units."""


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """A part of the file; the first one, and a part with which those before it were merged, has all queues.

    Attributes:
        log_min_offset: the log began here when the min offsets were set.
        dispatched_offset: every confirmed record below has its unit, and no one behind counts.
        unit_count: sum of the max offsets of all queues.
        file_units: units of a queue file.
        queues: those that the part names.
        boot: id of the boot of the machine in which it was written; empty after a clean stop.
    """

    log_min_offset: int
    dispatched_offset: int
    unit_count: int
    file_units: int
    queues: tuple[Row, ...]
    boot: str = ""


def encode_ends(ends: QueueEnds) -> bytes:
    """Return a part's bytes."""
    boot = ends.boot.encode("ascii").ljust(36, b"\0")
    offsets = (ends.log_min_offset, ends.dispatched_offset, ends.unit_count)
    parts = [_HEAD.pack(_MAGIC, boot, *offsets, ends.file_units, len(ends.queues))]
    for topic, queue_id, min_offset, max_offset, changed, held in ends.queues:
        name = topic.encode()
        bounds = _QUEUE.pack(queue_id, min_offset, max_offset, changed, len(held))
        parts += (_TOPIC.pack(len(name)), name, bounds, held)
    content = b"".join(parts)
    return content + _CRC.pack(crc32(content))


def decode_ends(content: bytes) -> list[QueueEnds]:
    """Return the parts up to the first damaged or incomplete one."""
    found: list[QueueEnds] = []
    start = 0
    while len(content) - start >= _HEAD.size + _CRC.size:
        magic, boot, log_min, dispatched, unit_count, file_units, count = _HEAD.unpack_from(content, start)
        if magic != _MAGIC:
            break
        try:
            queues, at = _decode_rows(content, start + _HEAD.size, count)
            (crc,) = _CRC.unpack_from(content, at)
            if crc != crc32(memoryview(content)[start:at]):
                break
        except (struct.error, UnicodeDecodeError):
            break
        start = at + _CRC.size
        boot_text = boot.rstrip(b"\0").decode("ascii", "replace")
        found.append(QueueEnds(log_min, dispatched, unit_count, file_units, tuple(queues), boot_text))
    return found


def _decode_rows(content: bytes, at: int, count: int) -> tuple[list[Row], int]:
    """Return the queues of a part and the position behind them."""
    rows: list[Row] = []
    name, topic = b"", ""
    for _ in range(count):
        (length,) = _TOPIC.unpack_from(content, at)
        at += _TOPIC.size
        if content[at : at + length] != name:
            name = content[at : at + length]
            topic = name.decode()
        at += length + _QUEUE.size
        *bounds, size = _QUEUE.unpack_from(content, at - _QUEUE.size)
        rows.append((topic, *bounds, content[at : at + size]))
        at += size
    return rows, at


def merge_ends(parts: Iterable[QueueEnds]) -> QueueEnds | None:
    """Return the last part with all queues; None if there is none, or the queues' units are not as many as it says."""
    rows: dict[tuple[str, int], Row] = {}
    last = None
    for last in parts:
        rows.update(((row[0], row[1]), row) for row in last.queues)
    if last is None or sum(row[3] for row in rows.values()) != last.unit_count:
        return None
    return replace(last, queues=tuple(rows.values()))


def read_ends(root: Path) -> list[QueueEnds]:
    """Return the parts of a store's file; none if it is missing."""
    try:
        return decode_ends((root / FILE_NAME).read_bytes())
    except FileNotFoundError:
        return []


def save_ends(root: Path, ends: QueueEnds) -> None:
    """Write the file with one part; it is durable on return.

    Raises:
        OSError, DiskFailedError: the file could not be written.
    """
    write_synced(root / FILE_NAME, encode_ends(ends))
    sync_directory(root)


def remove_ends(root: Path) -> None:
    """Remove the file; the removal is durable on return.

    Raises:
        OSError, DiskFailedError: the file cannot be removed.
    """
    path = root / FILE_NAME
    if path.exists():
        path.unlink()
        sync_directory(root)


def changed_at(directory: str) -> int:
    """Return the modification time (ns) of a queue's folder; 0 if the folder is missing."""
    try:
        return os.stat(directory).st_mtime_ns  # noqa: PTH116 - faster than a Path for each of ten thousand queues
    except FileNotFoundError:
        return 0


class EndsFile:
    """The file while the store is open. The loop's thread removes it, the checkpointer's thread writes it.

    Attributes:
        lineage: number of times that queues lost units; what was captured under an earlier number is not written.
        has_notes: it has held units.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / FILE_NAME
        self._lock = threading.Lock()
        self._first_bytes = 0  # of the part with all queues; 0: the next part must have all
        self._bytes = 0
        self._boot = boot_id()
        self.lineage = 0
        self.has_notes = False

    def take_over(self, ends: QueueEnds | None) -> None:
        """Begin the file with what the start believes of it, or remove it; durable on return.

        Raises:
            OSError, DiskFailedError: the disk refused.
        """
        remove_ends(self._path.parent)
        if ends is not None:
            save_ends(self._path.parent, replace(ends, boot=self._boot))
            self._first_bytes = self._bytes = self._path.stat().st_size
            self.has_notes = _has_notes(ends)

    def invalidate(self) -> None:
        """Remove the file, since queues are about to lose units. A crash of the process does not bring it back.

        Raises:
            OSError: it stays, and the next call tries again.
        """
        with self._lock:
            self.lineage += 1
            if self._first_bytes > 0:
                self._path.unlink(missing_ok=True)
                self._first_bytes = 0

    @property
    def wants_all(self) -> bool:
        """Return whether the next part must have all queues: there is no file, or it has grown several times."""
        return self._first_bytes == 0 or self._bytes > 3 * self._first_bytes + _GROWTH_BYTES

    def write(self, ends: QueueEnds, lineage: int, *, has_all: bool) -> None:
        """Append a part of this boot, or write the file anew with one that has all queues. Not synced.

        Raises:
            OSError: not written; the file is removed.
        """
        content = encode_ends(replace(ends, boot=self._boot))
        with self._lock:
            if lineage != self.lineage or not (has_all or self._first_bytes):
                return
            try:
                with self._path.open("wb" if has_all else "ab") as file:
                    file.write(content)
            except OSError:
                self._path.unlink(missing_ok=True)
                self._first_bytes = 0
                raise
            self.has_notes = _has_notes(ends) or (self.has_notes and not has_all)
            self._bytes = len(content) if has_all else self._bytes + len(content)
            self._first_bytes = self._bytes if has_all else self._first_bytes


def _has_notes(ends: QueueEnds) -> bool:
    return any(row[-1] for row in ends.queues)
