"""Frames of many records at once, by numpy: where records begin and end in a piece of a log, and their heads.

    records   size -> next record -> ...              8 bytes of each record are read; runs of equal sizes in one step,
                                                      others from many places at once
    entries   header, record -> next header -> ...    the same for a Raft log, whose records follow 48-byte headers
    heads     88 bytes of each record, side by side   all lengths and physical offsets are checked at once

Nothing here does I/O. Positions are bytes from the start of the view. Needs numpy, which a client does not.

Source: apache/rocketmq `store/.../CommitLog.java` (checkMessageAndReturnSize, 5.3.3).
"""

import enum
import re
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ledgermq.message.entry_header import FILLER_MAGIC, FILLER_SIZE, HEADER_SIZE
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

QUEUE_UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
"""A unit of a consume queue, see `ledgermq.message.queue_unit`."""

_LIKE_MIN: Final = 32
_TRIED_BYTES: Final = 16 << 10
_LANES_MIN: Final = 16
_LANES_SQUARED: Final = 4
"""Cost of one step of all lanes, relative to the cost of beginning one."""

_PREFIX: Final = Struct(">ii")

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Structs = npt.NDArray[np.void]


class Stop(enum.Enum):
    """Why a run of frames ends: at the window's end (more may follow), at padding, or at bytes that are not a frame."""

    WINDOW = enum.auto()
    PADDING = enum.auto()
    BAD = enum.auto()


@dataclass(slots=True)
class Chain:
    """Consecutive frames.

    Attributes:
        starts: where each record begins; in a Raft log 48 bytes behind its entry.
        ends: where each record ends.
        end: position behind the last frame.
        stop: what is at `end`.
    """

    starts: Ints
    ends: Ints
    end: int
    stop: Stop


class _Kind(NamedTuple):
    """The beginning of a kind of frame: size and magic, 4 bytes each.

    Attributes:
        magics: magics of frames.
        pattern: finds the first magic.
        padding: magic of the padding at a file's end.
        size_min: smallest size of a frame.
        header: bytes of a frame before its record.
        is_size_first: the size comes before the magic.
        may_be_cut: whether a frame that passes the limit is incomplete rather than bad.
    """

    magics: tuple[int, ...]
    pattern: re.Pattern[bytes]
    padding: int
    size_min: int
    header: int
    is_size_first: bool
    may_be_cut: bool


def _pattern(magic: int) -> re.Pattern[bytes]:
    return re.compile(re.escape(magic.to_bytes(4, "big", signed=True)))


_RECORDS: Final = _Kind(
    (MAGIC_V1, MAGIC_V2), _pattern(MAGIC_V1), BLANK_MAGIC, RECORD_SIZE_MIN, 0, is_size_first=True, may_be_cut=False
)
_ENTRIES: Final = _Kind(
    (ENTRY_MAGIC,), _pattern(ENTRY_MAGIC), FILLER_MAGIC, HEADER_SIZE + 1, HEADER_SIZE, is_size_first=False,
    may_be_cut=True,
)  # fmt: skip


def record_chain(view: memoryview, position: int, window_end: int, limit: int) -> Chain:
    """Follow the sizes of records from `position` on, until one begins at or behind `window_end`.

    Bytes up to `limit` may be read and belong to the log; `WINDOW` also means that fewer than 8 of them are left.
    """
    return _chain(view, position, min(window_end, limit - BLANK_SIZE_MIN + 1), limit, _RECORDS)


def entry_chain(view: memoryview, position: int, window_end: int, limit: int) -> Chain:
    """Follow the sizes of entries from `position` on, until one begins at or behind `window_end`.

    Bytes up to `limit` may be read and belong to the log; `WINDOW` also means that the next entry does not end there.
    Only magic and size of each header are looked at.
    """
    return _chain(view, position, min(window_end, limit - FILLER_SIZE + 1), limit, _ENTRIES)


def _chain(view: memoryview, position: int, last: int, limit: int, kind: _Kind) -> Chain:
    """Follow frames until one begins at or behind `last`: some one by one, then many at once if their sizes differ."""
    tried, end, stop = _one_by_one(view, position, min(last, position + _TRIED_BYTES), limit, kind)
    found = [tried]
    if stop is Stop.WINDOW and len(tried) > 1 and np.ptp(np.diff(tried)):
        more, end = _in_lanes(view, end, last, limit, (end - position) // len(tried), kind)
        found.append(more)
    if stop is Stop.WINDOW and end < last:
        more, end, stop = _one_by_one(view, end, last, limit, kind)
        found.append(more)
    starts = np.concatenate(found)
    return Chain(starts + kind.header, np.append(starts[1:], end) if len(starts) else starts, end, stop)


def _one_by_one(view: memoryview, position: int, last: int, limit: int, kind: _Kind) -> tuple[Ints, int, Stop]:
    """Return where frames begin, behind the last of them, and what is there; runs of equal sizes are one step."""
    unpack = _PREFIX.unpack_from
    magics, _, padding, size_min, _, is_size_first, may_be_cut = kind
    starts: list[int] = []
    stop, last_size, patience, wait = Stop.WINDOW, 0, position, _LIKE_MIN
    while position < last:
        words = unpack(view, position)
        size, magic = words if is_size_first else words[::-1]
        if magic not in magics or size < size_min:
            stop = Stop.PADDING if magic == padding else Stop.BAD
            break
        if position + size > limit:
            stop = Stop.WINDOW if may_be_cut else Stop.BAD
            break
        starts.append(position)
        position += size
        if size == last_size and position >= patience:
            like = equally_sized(view, position, last, size, words)
            starts.extend(like)
            position += size * len(like)
            wait = _LIKE_MIN if len(like) >= _LIKE_MIN else 2 * wait  # sizes may be equal by chance
            patience = position + (0 if len(like) >= _LIKE_MIN else size * wait)
        last_size = size
    return np.array(starts, np.int64), position, stop


def _in_lanes(view: memoryview, position: int, last: int, limit: int, usual_size: int, kind: _Kind) -> tuple[Ints, int]:
    """Follow the sizes of frames from many places at once; return where frames begin, and behind the last of them.

        lane 0 ---> --> ---> | lane 1 --> ---> -> | lane 2 ---> ...

    A lane begins at a magic that is searched for, which may lie in a body. So nothing is returned unless each lane ends
    exactly where the next one begins, and all are frames.
    """
    nothing = np.zeros(0, np.int64), position
    begins = _lane_begins(view, position, last, usual_size, kind)
    if len(begins) < _LANES_MIN:
        return nothing
    sizes, magics = (_words(view, last, place) for place in ((0, 4) if kind.is_size_first else (4, 0)))
    at, until, lane = begins, np.append(begins[1:], last), np.arange(len(begins))
    ends = np.zeros(len(begins), np.int64)
    found = []
    for _ in range(int((until - begins).max()) // kind.size_min + 1):
        found.append(at)
        at = at + sizes[at].astype(np.int64)
        goes_on = at < until
        if not goes_on.all():
            ends[lane[~goes_on]] = at[~goes_on]
            at, until, lane = at[goes_on], until[goes_on], lane[goes_on]
            if not len(at):
                break
    starts = np.sort(np.concatenate(found))
    are_frames = (sizes[starts] >= kind.size_min) & np.isin(magics[starts], np.array(kind.magics, ">i4").view(">u4"))
    is_one_chain = not (ends[:-1] != begins[1:]).any() and 0 < ends[-1] <= limit
    return (starts, int(ends[-1])) if is_one_chain and are_frames.all() else nothing


def _lane_begins(view: memoryview, position: int, last: int, usual_size: int, kind: _Kind) -> Ints:
    """Return `position` and places of later magics, of about the number that costs least in all."""
    count = int((_LANES_SQUARED * max(last - position, 0) / usual_size) ** 0.5)
    search, back = kind.pattern.search, 4 if kind.is_size_first else 0
    begins = [position]
    for number in range(1, count):
        wanted = position + (last - position) * number // count
        found = search(view, wanted, min(wanted + 4 * usual_size, last))
        if found is not None and found.start() - back > begins[-1]:
            begins.append(found.start() - back)
    return np.array(begins, np.int64)


def _words(view: memoryview, count: int, offset: int) -> "npt.NDArray[np.uint32]":
    """Return the 4 bytes `offset` bytes after each of the first `count` bytes."""
    return np.ndarray((count,), ">u4", view, offset, (1,))


def equally_sized(view: memoryview, position: int, end: int, size: int, words: tuple[int, int]) -> range:
    """Return the positions of consecutive frames of `size` bytes, from `position` on, that begin with these two i32.

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
    """Return copies of the bytes at each of these positions, as an array of `layout`."""
    size = layout.itemsize
    if not len(at):
        return np.zeros(0, layout)
    rows = np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1), writeable=False)
    return rows[at].view(layout)[:, 0]


def framed_records(
    data: Bytes, starts: Ints, ends: Ints, heads: Structs, common: Bools, base: int | None
) -> tuple[Bools, Ints]:
    """Return which common records have consistent lengths and their own physical offset, and where tails begin.

    A tail is what follows the body: topic and properties. `base` is the physical offset of `data[0]`; None: the records
    come from different places of a log, and their physical offsets are not compared.
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
