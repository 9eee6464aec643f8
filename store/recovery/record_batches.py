"""Records of a log file by the thousand: recovery looks at every byte behind the checkpoint.

    chain     size -> next record -> ...                    one look at 8 bytes a record; at many as long, in one go
    heads     88 bytes of each record, side by side         all lengths and places checked at once, by numpy
    sound     body CRCs, one call of isal a record          and no sector of zeros in what no CRC covers

A record with IPv6 hosts, or of magic V2, is checked on its own, by `check_record`; the rules are the same.

A sector that a power cut lost reads as zeros (log files are zeros before they are written). In a body the CRC finds
it, in a head the lengths do. In topic and properties, which are text and have no CRC, it is found as what it is.

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
    """Some records of one file, one behind the other.

    Attributes:
        starts: position in the file of each; `ends[i]` is `starts[i + 1]`.
        tails: where the topic's length stands, behind the body; of common records only.
        heads: what lies at the beginning of each, as a common record (V1, IPv4 hosts) has it.
        common: which of them are such.
        sound: their bodies have their CRCs; all true when that was not asked for.
        end: position behind the last one.
        is_end: what follows is not a record; `is_blank`: it is a blank, and the log goes on in the next file.
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
        """The first `count` of them, one at least."""
        return RecordBatch(
            self.starts[:count], self.ends[:count], self.tails[:count], self.heads[:count], self.common[:count],
            self.sound[:count], int(self.ends[count - 1]), self.is_end, self.is_blank,
        )  # fmt: skip


def read_batch(file: MappedFile, position: int, limit: int, *, check: bool, torn: bool = False) -> RecordBatch:
    """The records from `position` on, some MiB of them, that have their frame below `limit` and name their place.

    `check` compares the bodies with their CRCs. With `torn`, a sector of topic and properties must not be all zeros.

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
    """What is said to be records, by a log that has a frame of its own around each, and is readable there.

    Common are those that fit their places; nothing is known of the others. All count as sound.
    """
    data = np.frombuffer(file.view, np.uint8)
    at, until = np.array(starts, np.int64), np.array(ends, np.int64)
    heads = _heads_at(data, np.minimum(at, len(data) - _HEAD_SIZE))
    common = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & HOST_MASK == 0) & (heads["size"] == until - at)
    common, tails = _frames(data, at, until, heads, common, file.start_offset)
    end = ends[-1] if len(ends) else 0
    return RecordBatch(at, until, tails, heads, common, np.ones(len(at), np.bool_), end, is_end=False, is_blank=False)


def stored_at(file: MappedFile, batch: RecordBatch, index: int) -> int:
    """Store time (ms) of a record of a batch."""
    shift = _V6_LONGER_BYTES if batch.heads["sys_flag"][index] & BORN_HOST_V6 else 0
    (stored,) = _STORED.unpack_from(file.buffer, int(batch.starts[index]) + _STORED_AT + shift)
    return int(stored)


def _heads_at(data: npt.NDArray[np.uint8], at: Ints) -> npt.NDArray[np.void]:
    """88 bytes from each of the positions, which are those of records."""
    if not len(at):
        return np.zeros(0, _HEAD)
    windows = np.lib.stride_tricks.as_strided(data, (len(data) - _HEAD_SIZE + 1, _HEAD_SIZE), (1, 1), writeable=False)
    return windows[at].view(_HEAD)[:, 0]


def _chain(file: MappedFile, position: int, limit: int) -> tuple[list[int], int, bool, bool]:
    """Starts of what look like records, where they end, and whether the file has no more, or ends in a blank."""
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
    """Places from `position` on of things of `size` bytes, one behind the other, that begin with these two i32.

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
    """Of common records: which have lengths that add up and name their place; and where their tails begin."""
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
    """Records in whose topic or properties a sector, as far as it is theirs, is all zeros."""
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
    """Whether `[start, end)` has more of a record's topic and properties than their lengths, which may be zeros."""
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
