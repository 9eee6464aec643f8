"""Frames of many records at once, by numpy: where records begin and end in a piece of a log, and their heads.

    records   size -> next record -> ...              8 bytes of each record are read; runs of equal sizes in one step
    entries   header, record -> next header -> ...    the same for a Raft log, whose records follow 48-byte headers
    heads     88 bytes of each record, side by side   all lengths and physical offsets are checked at once

Nothing here does I/O. Positions are bytes from the start of the view. Needs numpy, which a client does not.

Source: apache/rocketmq `store/.../CommitLog.java` (checkMessageAndReturnSize, 5.3.3).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from ledgermq.message.entry_header import FILLER, FILLER_MAGIC, FILLER_SIZE, HEADER_SIZE
from ledgermq.message.entry_header import MAGIC as ENTRY_MAGIC
from ledgermq.message.flags import HOST_MASK
from ledgermq.message.layout import (
    BLANK_MAGIC,
    BLANK_SIZE_MIN,
    HEAD_SIZES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
)

HEAD_SIZE: Final = HEAD_SIZES[0]
HEAD: Final = np.dtype(
    {
        "names": [
            "size", "magic", "crc", "queue_id", "flag", "queue_offset", "physical", "sys_flag", "born", "born_host",
            "stored", "store_host", "reconsumed", "prepared", "body",
        ],
        "formats": [
            ">i4", ">i4", ">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", "V8", ">i8", "V8", ">i4", ">i8", ">i4",
        ],
        "offsets": [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84],
        "itemsize": HEAD_SIZE,
    }
)  # fmt: skip
"""The head of a common record: V1, both hosts IPv4."""

ENTRY: Final = np.dtype(
    [
        ("magic", ">i4"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8"), ("position", ">i8"), ("channel", ">i4"),
        ("chain", ">i4"), ("crc", ">u4"), ("body", ">i4"),
    ]
)  # fmt: skip
"""The header of a DLedger entry."""

_LIKE_MIN: Final = 32
_PREFIX: Final = Struct(">ii")

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Structs = npt.NDArray[np.void]


class Stop(enum.Enum):
    """Why a chain ends: at the window's end (more may follow), at padding, or at what cannot be a frame."""

    WINDOW = enum.auto()
    PADDING = enum.auto()
    BAD = enum.auto()


@dataclass(slots=True)
class Chain:
    """Consecutive frames.

    Attributes:
        starts: where each record begins; in a Raft log 48 bytes behind its entry.
        ends: where each record ends.
        end: behind the last frame.
        stop: what is there.
    """

    starts: Sequence[int]
    ends: Sequence[int]
    end: int
    stop: Stop


def record_chain(view: memoryview, position: int, window_end: int, limit: int) -> Chain:
    """Follow the sizes of records from `position` on, until one begins at or behind `window_end`.

    Bytes up to `limit` may be read and belong to the log; `WINDOW` also means that fewer than 8 of them are left.
    """
    unpack = _PREFIX.unpack_from
    starts: list[int] = []
    last_size, patience, wait = 0, position, _LIKE_MIN
    last = min(window_end, limit - BLANK_SIZE_MIN + 1)
    while position < last:
        size, magic = unpack(view, position)
        end = position + size
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_SIZE_MIN or end > limit:
            stop = Stop.PADDING if magic == BLANK_MAGIC else Stop.BAD
            return Chain(starts, [*starts[1:], position] if starts else [], position, stop)
        starts.append(position)
        position = end
        if size == last_size and position >= patience:
            like = like_that(view, position, window_end, size, (size, magic))
            starts.extend(like)
            position += size * len(like)
            wait = _LIKE_MIN if len(like) >= _LIKE_MIN else 2 * wait  # sizes that are equal by chance
            patience = position + (0 if len(like) >= _LIKE_MIN else size * wait)
        last_size = size
    return Chain(starts, [*starts[1:], position] if starts else [], position, Stop.WINDOW)


def entry_chain(view: memoryview, position: int, window_end: int, limit: int) -> Chain:
    """Follow the sizes of entries from `position` on, until one begins at or behind `window_end`.

    Bytes up to `limit` may be read and belong to the log; `WINDOW` also means that the next entry does not end there.
    Only magic and size of each header are looked at.
    """
    unpack = FILLER.unpack_from
    starts: list[int] = []
    ends: list[int] = []
    last_size, patience = 0, position
    while position < window_end and limit - position >= FILLER_SIZE:
        magic, size = unpack(view, position)
        if magic == FILLER_MAGIC:
            return Chain(starts, ends, position, Stop.PADDING)
        if magic != ENTRY_MAGIC or size <= HEADER_SIZE:
            return Chain(starts, ends, position, Stop.BAD)
        if position + size > limit:
            break
        starts.append(position + HEADER_SIZE)
        position += size
        ends.append(position)
        if size == last_size and position >= patience:
            like = like_that(view, position, min(window_end, limit), size, (ENTRY_MAGIC, size))
            starts.extend(range(position + HEADER_SIZE, like.stop + HEADER_SIZE, size))
            ends.extend(range(position + size, like.stop + size, size))
            position = like.stop
            patience = position + (0 if len(like) >= _LIKE_MIN else size * _LIKE_MIN)
        last_size = size
    return Chain(starts, ends, position, Stop.WINDOW)


def like_that(view: memoryview, position: int, end: int, size: int, words: tuple[int, int]) -> range:
    """Return the positions of consecutive frames of `size` bytes from `position` on that begin with these two i32.

    All of them end by `end`.
    """
    count = max(end - position, 0) // size
    if not count:  # the view may end before `position`
        return range(position, position)
    heads: npt.NDArray[np.int32] = np.ndarray((count, 2), ">i4", view, position, (size, 4))
    differs = (heads[:, 0] != words[0]) | (heads[:, 1] != words[1])
    count = int(differs.argmax()) if differs.any() else count
    return range(position, position + count * size, size)


def structs_at(data: Bytes, at: Ints, layout: "np.dtype[np.void]") -> Structs:
    """Return what lies at each of these positions, copied side by side; each has `layout.itemsize` bytes of room."""
    size = layout.itemsize
    if not len(at):
        return np.zeros(0, layout)
    rows = np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1), writeable=False)
    return rows[at].view(layout)[:, 0]


def framed_records(
    data: Bytes, starts: Ints, ends: Ints, heads: Structs, common: Bools, base: int | None
) -> tuple[Bools, Ints]:
    """Return which common records have lengths that add up and their own physical offset, and where their tails begin.

    A tail is what follows the body: topic and properties. `base` is the physical offset of `data[0]`; None: the records
    come from different places of a log, and may say any offset.
    """
    room = ends - starts - RECORD_SIZE_MIN
    body = heads["body"].astype(np.int64)
    framed = common & (body >= 0) & (body <= room)
    if base is not None:
        framed &= heads["physical"] == starts + base
    tails = np.where(framed, starts + HEAD_SIZE + body, 0)
    topic = data[tails].astype(np.int64)
    framed &= (topic <= 127) & (body + topic <= room)
    properties_at = np.where(framed, tails + 1 + topic, 0)
    properties = data[properties_at].astype(np.int64) << 8 | data[properties_at + 1]
    framed &= (properties <= 0x7FFF) & (body + topic + properties == room)
    return framed, tails


def is_common(heads: Structs) -> Bools:
    """Return which heads are those of common records."""
    common: Bools = (heads["magic"] == MAGIC_V1) & (heads["sys_flag"] & HOST_MASK == 0)
    return common
