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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import BORN_HOST_V6
from ledgermq.message.frames import (
    HEAD,
    HEAD_SIZE,
    Bools,
    Ints,
    Stop,
    framed_records,
    is_common,
    record_chain,
    structs_at,
)
from ledgermq.message.layout import BLANK_SIZE_MIN, HEAD_SIZES, MAGIC_V2, check_record
from store.files.mapped_file import MappedFile

SECTOR_BYTES = 512
_WINDOW_BYTES = 4 << 20
_PHYSICAL_OFFSET = struct.Struct(">q")
_PHYSICAL_OFFSET_AT = 28
_STORED = struct.Struct(">q")
_STORED_AT = 56
_V6_LONGER_BYTES = 12


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

    def pieces(self, count: int) -> Iterator["RecordBatch"]:
        """Yield batches of `count` records; the last one may have fewer."""
        for first in range(0, len(self.starts), count):
            rows = slice(first, first + count)
            ends = self.ends[rows]
            yield RecordBatch(
                self.starts[rows], ends, self.tails[rows], self.heads[rows], self.common[rows], self.sound[rows],
                int(ends[-1]), self.is_end, self.is_blank,
            )  # fmt: skip


def read_batch(
    file: MappedFile,
    position: int,
    limit: int,
    *,
    check: bool,
    torn: bool = False,
    window_bytes: int = _WINDOW_BYTES,
) -> RecordBatch:
    """Return the records from `position` on that end by `limit` and hold their own physical offset.

    None begins `window_bytes` behind `position`, or later.
    With `check` the bodies are compared with their CRCs. With `torn` a record is not sound if a sector of its topic
    and properties is all zeros.

    Raises:
        DiskReadError: the disk cannot read a page.
    """
    window_end = min(position + window_bytes, limit)
    file.ensure_readable(position, min(window_end + BLANK_SIZE_MIN, file.size_bytes))
    chain = record_chain(file.view, position, window_end, limit)
    end, is_blank = chain.end, chain.stop is Stop.PADDING
    is_end = chain.stop is not Stop.WINDOW or limit - end < BLANK_SIZE_MIN
    file.ensure_readable(position, max(end, position + 1))
    data = np.frombuffer(file.view, np.uint8)
    at, ends = chain.starts, chain.ends
    heads = structs_at(data, at, HEAD)
    common = is_common(heads)
    framed, tails = framed_records(data, at, ends, heads, common, file.start_offset)
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


def batch_at(file: MappedFile, starts: Ints, ends: Ints) -> RecordBatch:
    """Return a batch of the records at these positions, which a log with a frame around each record knows.

    The pages must be readable. Records whose lengths and offset fit are common; others are not checked. All are sound.
    """
    data = np.frombuffer(file.view, np.uint8)
    heads = structs_at(data, np.minimum(starts, len(data) - HEAD_SIZE), HEAD)
    common = is_common(heads) & (heads["size"] == ends - starts)
    common, tails = framed_records(data, starts, ends, heads, common, file.start_offset)
    end, sound = int(ends[-1]) if len(ends) else 0, np.ones(len(starts), np.bool_)
    return RecordBatch(starts, ends, tails, heads, common, sound, end, is_end=False, is_blank=False)


def stored_at(file: MappedFile, batch: RecordBatch, index: int) -> int:
    """Return the store time (ms) of a record of a batch."""
    shift = _V6_LONGER_BYTES if batch.heads["sys_flag"][index] & BORN_HOST_V6 else 0
    (stored,) = _STORED.unpack_from(file.buffer, int(batch.starts[index]) + _STORED_AT + shift)
    return int(stored)


def _is_framed(file: MappedFile, position: int, end: int) -> bool:
    try:
        check_record(file.buffer, position, end, check_crc=False)
    except CorruptRecordError:
        return False
    (physical,) = _PHYSICAL_OFFSET.unpack_from(file.buffer, position + _PHYSICAL_OFFSET_AT)
    return bool(physical == file.start_offset + position)


def _check_bodies(file: MappedFile, batch: RecordBatch) -> None:
    view, crc_of = file.view, crc32
    bodies = np.where(batch.common, batch.starts + HEAD_SIZE, 0).tolist()
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
