"""Record batches: thousands of records of a log file, checked together. Recovery checks all bytes past the checkpoint.

    chain     size -> next record -> ...                    8 bytes of each record; runs of equal sizes in one step
    heads     88 bytes of each record, side by side         numpy checks all lengths and physical offsets at once
    sound     CRC of each body, one call of isal a record   and no sector of zeros in topic and properties

Records with IPv6 hosts or magic V2 are checked one by one by `check_record`, by the same rules.

A sector that a power cut lost reads as zeros, since log files are zeros before they are written. The CRC finds it in a
body, and the lengths find it in a head. Topic and properties have no CRC, but as text they contain no sector of zeros.

Source: apache/rocketmq `store/.../CommitLog.java` (checkMessageAndReturnSize, 5.3.3).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import BORN_HOST_V6, HOST_MASK
from ledgermq.message.layout import (
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    HEAD_SIZES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    check_record,
)
from store.files.mapped_file import MappedFile

SECTOR_BYTES = 512
_WINDOW_BYTES = 4 << 20
LIKE_MIN = 32
_PREFIX = struct.Struct(">ii")
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28
_STORED = struct.Struct(">q")
_STORED_AT = 56
_V6_LONGER_BYTES = 12
_HEAD_SIZE = HEAD_SIZES[0]
_HEAD = np.dtype(
    {
        "names": ["size", "magic", "crc", "queue_id", "queue_offset", "physical", "sys_flag", "stored", "body"],
        "formats": [">i4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": _HEAD_SIZE,
    }
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class RecordBatch:
    """Consecutive records of one file. Positions are bytes from the start of the file.

    Attributes:
        starts: position of each record; `ends[i]` is `starts[i + 1]`.
        tails: position of the topic's length, behind the body; valid for common records only.
        heads: head of each record, with the layout of a common one (V1, IPv4 hosts).
        common: whether each record is common.
        sound: whether each record passes its checks; all true if they were not asked for.
        end: position behind the last record.
        is_end: no record follows.
        is_blank: a blank follows, and the log continues in the next file.
    """

    starts: Ints
    ends: Ints
    tails: Ints
    heads: npt.NDArray[np.void]
    common: Bools
    sound: Bools
    end: int
    is_end: bool
    is_blank: bool

    def until(self, count: int) -> "RecordBatch":
        """Return a batch of the first `count` records, at least one."""
        return RecordBatch(
            self.starts[:count], self.ends[:count], self.tails[:count], self.heads[:count], self.common[:count],
            self.sound[:count], int(self.ends[count - 1]), self.is_end, self.is_blank,
        )  # fmt: skip


def read_batch(file: MappedFile, position: int, limit: int, *, check: bool, torn: bool = False) -> RecordBatch:
    """Return the records from `position` on, some MiB, that end by `limit` and hold their own physical offset.

    With `check` the bodies are compared with their CRCs. With `torn` a record is not sound if a sector of its topic
    and properties is all zeros.

    Raises:
        DiskReadError: the disk cannot read a page.
    """
    starts, end, is_end, is_blank = _chain(file, position, limit)
    file.ensure_readable(position, max(end, position + 1))
    data = np.frombuffer(file.view, np.uint8)
    at = np.fromiter(starts, np.int64, len(starts))
    ends = np.append(at[1:], end)[: len(at)]
    heads = _heads_at(data, at)
    common = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & HOST_MASK == 0)
    framed, tails = _frames(data, at, ends, heads, common, file.start_offset)
    for index in np.flatnonzero(~common):
        framed[index] = _is_framed(file, int(at[index]), int(ends[index]))
    count = len(at) if framed.all() else int(framed.argmin())
    if count < len(at):
        end, is_end, is_blank = int(at[count]), True, False
    batch = RecordBatch(
        at[:count], ends[:count], tails[:count], heads[:count], common[:count], np.ones(count, np.bool_),
        end, is_end, is_blank,
    )  # fmt: skip
    if check:
        _check_bodies(file, batch)
    if torn:
        batch.sound[_has_lost_sector(data, batch)] = False
    return batch


def batch_at(file: MappedFile, starts: Sequence[int], ends: Sequence[int]) -> RecordBatch:
    """Return a batch of the records at these positions, which a log with a frame around each record knows.

    The pages must be readable. Records whose lengths and offset fit are common; others are not checked. All are sound.
    """
    data = np.frombuffer(file.view, np.uint8)
    at, until = np.array(starts, np.int64), np.array(ends, np.int64)
    heads = _heads_at(data, np.minimum(at, len(data) - _HEAD_SIZE))
    common = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & HOST_MASK == 0) & (heads["size"] == until - at)
    common, tails = _frames(data, at, until, heads, common, file.start_offset)
    end = ends[-1] if len(ends) else 0
    return RecordBatch(at, until, tails, heads, common, np.ones(len(at), np.bool_), end, is_end=False, is_blank=False)


def stored_at(file: MappedFile, batch: RecordBatch, index: int) -> int:
    """Return the store time (ms) of a record of a batch."""
    shift = _V6_LONGER_BYTES if batch.heads["sys_flag"][index] & BORN_HOST_V6 else 0
    (stored,) = _STORED.unpack_from(file.buffer, int(batch.starts[index]) + _STORED_AT + shift)
    return int(stored)


def _heads_at(data: npt.NDArray[np.uint8], at: Ints) -> npt.NDArray[np.void]:
    """Return the 88 bytes of the head at each of these positions."""
    if not len(at):
        return np.zeros(0, _HEAD)
    windows = np.lib.stride_tricks.as_strided(data, (len(data) - _HEAD_SIZE + 1, _HEAD_SIZE), (1, 1), writeable=False)
    return windows[at].view(_HEAD)[:, 0]


def _chain(file: MappedFile, position: int, limit: int) -> tuple[list[int], int, bool, bool]:
    """Follow the sizes of records; return their starts, their end, whether none follows, and whether a blank does."""
    window_end = min(position + _WINDOW_BYTES, limit)
    file.ensure_readable(position, min(window_end + BLANK_SIZE_MIN, file.size_bytes))
    buffer, unpack = file.buffer, _PREFIX.unpack_from
    starts: list[int] = []
    last_size, patience = 0, position
    while position < window_end and limit - position >= BLANK_SIZE_MIN:
        size, magic = unpack(buffer, position)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_SIZE_MIN <= size <= limit - position:
            return starts, position, True, bool(magic == BLANK_MAGIC)
        starts.append(position)
        position += size
        if size == last_size and position >= patience:
            like = like_that(file, position, window_end, size, (size, magic))
            starts.extend(like)
            position += size * len(like)
            patience = position if len(like) >= LIKE_MIN else position + size * LIKE_MIN
        last_size = size
    return starts, position, limit - position < BLANK_SIZE_MIN, False


def like_that(file: MappedFile, position: int, end: int, size: int, words: tuple[int, int]) -> range:
    """Return the positions of consecutive records of `size` bytes from `position` on that begin with these two i32.

    All of them end by `end`.
    """
    count = max(end - position, 0) // size
    heads: npt.NDArray[np.int32] = np.ndarray((count, 2), ">i4", file.view, position, (size, 4))
    differs = (heads[:, 0] != words[0]) | (heads[:, 1] != words[1])
    count = int(differs.argmax()) if differs.any() else count
    return range(position, position + count * size, size)


def _frames(
    data: npt.NDArray[np.uint8], at: Ints, ends: Ints, heads: npt.NDArray[np.void], common: Bools, base: int
) -> tuple[Bools, Ints]:
    """Return which common records have consistent lengths and their own offset, and where their tails begin."""
    room = ends - at - RECORD_SIZE_MIN
    body = heads["body"].astype(np.int64)
    framed = common & (heads["physical"] == at + base) & (body >= 0) & (body <= room)
    tails = np.where(framed, at + _HEAD_SIZE + body, 0)
    topic = data[tails].astype(np.int64)
    framed &= (topic <= 127) & (body + topic <= room)
    properties_at = np.where(framed, tails + 1 + topic, 0)
    properties = data[properties_at].astype(np.int64) << 8 | data[properties_at + 1]
    framed &= (properties <= 0x7FFF) & (body + topic + properties == room)
    return framed, tails


def _is_framed(file: MappedFile, position: int, end: int) -> bool:
    try:
        check_record(file.buffer, position, end, check_crc=False)
    except CorruptRecordError:
        return False
    (physical,) = _PHYSICAL_OFFSET.unpack_from(file.buffer, position + _PHYSICAL_OFFSET_AT)
    return bool(physical == file.start_offset + position)


def _check_bodies(file: MappedFile, batch: RecordBatch) -> None:
    view, crc_of = file.view, crc32
    bodies = np.where(batch.common, batch.starts + _HEAD_SIZE, 0).tolist()
    body_ends = np.where(batch.common, batch.tails, 0).tolist()
    found = [crc_of(view[start:end]) for start, end in zip(bodies, body_ends, strict=True)]
    crcs = np.array(found, np.int64) & CRC_MASK
    batch.sound &= (crcs == batch.heads["crc"]) | (batch.heads["body"] == 0) | ~batch.common
    for index in np.flatnonzero(~batch.common):
        try:
            check_record(file.buffer, int(batch.starts[index]), int(batch.ends[index]), check_crc=True)
        except CorruptRecordError:
            batch.sound[index] = False


def _has_lost_sector(data: npt.NDArray[np.uint8], batch: RecordBatch) -> list[int]:
    """Return the records that have a sector, or their part of it, of zeros in topic or properties."""
    lost = []
    at = np.where(batch.common, batch.tails, batch.starts) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES
    inside = np.flatnonzero(at < batch.ends)
    while len(inside):
        for index in inside[data[at[inside]] == 0].tolist():
            start, end = int(at[index]), min(int(at[index]) + SECTOR_BYTES, int(batch.ends[index]))
            if not data[start:end].any() and _is_text(data, batch, index, start, end):
                lost.append(index)
        at = at + SECTOR_BYTES
        inside = inside[at[inside] < batch.ends[inside]]
    return lost


def _is_text(data: npt.NDArray[np.uint8], batch: RecordBatch, index: int, start: int, end: int) -> bool:
    """Return whether `[start, end)` holds text of a record, and not only lengths, which may be zeros."""
    if batch.common[index]:
        topic_at = int(batch.tails[index]) + 1
    else:
        record = int(batch.starts[index])
        body_at = record + HEAD_SIZES[int(batch.heads["sys_flag"][index]) >> 4 & 3]
        body_size = int.from_bytes(data[body_at - 4 : body_at].tobytes(), "big")
        topic_at = body_at + body_size + (2 if batch.heads["magic"][index] == MAGIC_V2 else 1)
    if start < topic_at:
        return False
    topic_size = int(data[topic_at - 1])
    properties_at = topic_at + topic_size
    return start < properties_at or end > properties_at + 2
