"""Property rows: the properties of many records in one array, to be searched together.

    rows   | other bytes of the record | 0x02 | name 0x01 value 0x02 ... | 0x02 |      all of one width
                                          ^ in place of a byte of the length    ^ in place of what follows the record

So each property, also the first and the last, lies between two 0x02. The bytes before short properties may look like
properties, so the caller checks the record itself after it finds a row.

Source: apache/rocketmq `store/.../CommitLog.java` (the record's layout, 5.3.3).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledgermq.message.flags import HOST_MASK
from ledgermq.message.layout import HEAD_SIZES, MAGIC_V1, RECORD_SIZE_MIN
from ledgermq.message.queue_unit import UNIT_SIZE
from store.errors import DiskReadError
from store.files.file_mapping import CHUNK_BYTES, CHUNK_SHIFT, FileMapping
from store.files.log_span import LogSpan

ROWS_MIN: Final = 24
"""For fewer records, reading them one by one is faster."""

ROWS_BYTES_MAX: Final = 64 << 10
_READ_MAX: Final = 32
_HEAD_SIZE: Final = HEAD_SIZES[0]
_MAGIC: Final = np.uint32(MAGIC_V1 & 0xFFFFFFFF)
_MAGIC_AT, _FLAGS_AT, _BODY_AT = 4, 36, 84
_SEPARATOR: Final = 2
_UNIT: Final = np.dtype({"names": ["at", "size"], "formats": [">i8", ">i4"], "offsets": [0, 8], "itemsize": UNIT_SIZE})

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PropertyRows:
    """Rows of the first of the requested records.

    Attributes:
        data: the rows, concatenated.
        width: bytes of each row.
        count: number of rows, at least 1.
    """

    data: bytes
    width: int
    count: int


def property_rows(span: LogSpan, units: memoryview) -> PropertyRows | None:
    """Return rows of the records of these queue units; of fewer if properties are long or are not in memory.

    None if a record is not in the span or not common (magic V1, IPv4 hosts), or if the first records are not in memory
    and cannot be read.
    """
    table = np.frombuffer(units, _UNIT)
    sizes = table["size"].astype(np.int64)
    if _least(sizes) < RECORD_SIZE_MIN or _most(sizes) > CHUNK_BYTES:
        return None
    starts = table["at"] - span.base
    ends = starts + sizes
    first = _least(starts)
    if first < span.start or _most(ends) > span.end:
        return None
    count = _readable(span.file, starts >> CHUNK_SHIFT)
    return _rows(span.file.view, first, starts[:count], ends[:count], sizes[:count]) if count >= ROWS_MIN else None


def _readable(file: FileMapping, chunks: Ints) -> int:
    """Read some missing chunks; return how many of the records that begin in these chunks are then in memory."""
    known = np.frombuffer(file.known, np.uint8)[chunks]
    if known.all():
        return len(chunks)
    try:
        for chunk in np.unique(chunks[known == 0])[:_READ_MAX].tolist():
            file.ensure_readable(chunk << CHUNK_SHIFT, (chunk << CHUNK_SHIFT) + 1)
    except DiskReadError:  # reading the records one by one raises the error for the right record
        return 0
    known = np.frombuffer(file.known, np.uint8)[chunks]
    return len(chunks) if known.all() else int(known.argmin())


def _rows(view: memoryview, first: int, starts: Ints, ends: Ints, sizes: Ints) -> PropertyRows | None:
    """Return rows of records; none of them begins before `first`."""
    words: npt.NDArray[np.uint32] = np.ndarray((len(view) - 3,), ">u4", view, 0, (1,))
    body_sizes = words[starts + _BODY_AT].astype(np.int64)
    is_uncommon = words[starts + _FLAGS_AT] & HOST_MASK
    is_uncommon |= words[starts + _MAGIC_AT] ^ _MAGIC
    if is_uncommon.any():
        return None
    tails = starts + body_sizes + _HEAD_SIZE
    topic_sizes = np.frombuffer(view, np.uint8).take(tails, mode="clip")  # a body longer than its record is met below
    lengths = sizes - RECORD_SIZE_MIN - body_sizes - topic_sizes
    width = _most(lengths) + 2
    count = min(len(starts), ROWS_BYTES_MAX // width) if width > 1 else 0
    if count < ROWS_MIN or _least(lengths) < 0 or first + RECORD_SIZE_MIN < width:
        return None
    return _cut(view, ends[:count], lengths[:count], width)


def _cut(view: memoryview, ends: Ints, lengths: Ints, width: int) -> PropertyRows | None:
    """Return rows that end one byte behind their records."""
    if _most(ends) >= len(view):
        return None
    windows: npt.NDArray[np.uint8] = np.ndarray((len(view) - width + 1, width), np.uint8, view, 0, (1, 1))
    rows = windows[ends + (1 - width)]
    rows[:, -1] = _SEPARATOR
    rows[np.arange(len(ends)), width - 2 - lengths] = _SEPARATOR
    return PropertyRows(rows.tobytes(), width, len(ends))


def _least(numbers: Ints) -> int:
    return int(np.minimum.reduce(numbers))


def _most(numbers: Ints) -> int:
    return int(np.maximum.reduce(numbers))
