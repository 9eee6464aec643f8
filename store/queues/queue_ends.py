"""Queue ends: where each consume queue begins and ends, so that a store of many queues starts without a look at each.

    queueEnds.ledgermq    magic `LMQENDS1` | log's min offset, dispatched offset i64 | units of a file, count i32 |
                          queues | CRC-32 u32
    a queue               topic length i16, topic | queue id i32 | min offset, max offset i64 | changed i64

`changed` is the time stamp (ns) of the queue's folder: files that were added or removed since then show in it.

Big-endian. The file is written at a clean stop, after the queues are durable, and removed at the next start. That
start uses it if it agrees with the checkpoint; otherwise it looks through each queue.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from store.files.disk import sync_directory

FILE_NAME = "queueEnds.ledgermq"
_MAGIC = b"LMQENDS1"
_HEAD = struct.Struct(">8sqqii")
_TOPIC = struct.Struct(">h")
_QUEUE = struct.Struct(">iqqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """Content of the file. `queues`: topic, queue id, min offset, max offset, folder's time stamp (ns)."""

    log_min_offset: int
    dispatched_offset: int
    file_units: int
    queues: tuple[tuple[str, int, int, int, int], ...]

    @property
    def unit_count(self) -> int:
        """Sum of all max offsets."""
        return sum(queue[3] for queue in self.queues)


def encode_ends(ends: QueueEnds) -> bytes:
    """Return the content of the file."""
    parts = [_HEAD.pack(_MAGIC, ends.log_min_offset, ends.dispatched_offset, ends.file_units, len(ends.queues))]
    for topic, *fields in ends.queues:
        name = topic.encode()
        parts += (_TOPIC.pack(len(name)), name, _QUEUE.pack(*fields))
    content = b"".join(parts)
    return content + _CRC.pack(crc32(content))


def decode_ends(content: bytes) -> QueueEnds | None:
    """Parse the content of a file; return None if its CRC or magic is wrong."""
    if len(content) < _HEAD.size + _CRC.size or _CRC.unpack(content[-4:])[0] != crc32(content[:-4]):
        return None
    magic, log_min_offset, dispatched_offset, file_units, count = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        return None
    at = _HEAD.size
    queues = []
    for _ in range(count):
        (length,) = _TOPIC.unpack_from(content, at)
        at += _TOPIC.size
        queues.append((content[at : at + length].decode(), *_QUEUE.unpack_from(content, at + length)))
        at += length + _QUEUE.size
    return QueueEnds(log_min_offset, dispatched_offset, file_units, tuple(queues))


def save_ends(root: Path, ends: QueueEnds) -> None:
    """Write the file; it is durable on return.

    Raises:
        OSError, DiskFailedError: the file could not be written.
    """
    with (root / FILE_NAME).open("wb") as file:
        file.write(encode_ends(ends))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(root)


def read_ends(root: Path) -> QueueEnds | None:
    """Read the file; return None if it is missing or damaged."""
    try:
        return decode_ends((root / FILE_NAME).read_bytes())
    except FileNotFoundError:
        return None


def remove_ends(root: Path) -> None:
    """Remove the file, since the queues are about to change; the removal is durable on return.

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
