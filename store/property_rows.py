"""Properties of many records side by side, for a search that goes through all of them at once.

    rows   | other bytes of the record | 0x02 | name 0x01 value 0x02 ... | 0x02 |      all of one width
                                          ^ in place of a byte of the length    ^ in place of what follows the record

So each property stands between two 0x02, the first and the last one too. What stands in front of shorter properties
may look like some: whoever finds a row here reads the record itself before he believes it.

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
from store.file_mapping import CHUNK_BYTES, CHUNK_SHIFT, FileMapping
from store.log_span import LogSpan

ROWS_MIN: Final = 24
"""Fewer records are read faster one by one."""

ROWS_BYTES_MAX: Final = 128 << 10
_READ_MAX: Final = 32
_HEAD_SIZE: Final = HEAD_SIZES[0]
_MAGIC_AT, _FLAGS_AT, _BODY_AT = 4, 36, 84
_SEPARATOR: Final = 2
_UNIT: Final = np.dtype({"names": ["at", "size"], "formats": [">i8", ">i4"], "offsets": [0, 8], "itemsize": UNIT_SIZE})

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PropertyRows:
    """Rows of the first records that were asked for.

    Attributes:
        data: the rows, one behind the other.
        width: bytes of each.
        count: of rows; one at least.
    """

    data: bytes
    width: int
    count: int


def property_rows(span: LogSpan, units: memoryview) -> PropertyRows | None:
    """Rows of the records that these units of a queue name; fewer where properties are long or had to be read in.

    None when one of them is not in the span or not of the common form (magic V1, IPv4 hosts), or the first are not
    in memory and cannot be brought there.
    """
    table = np.frombuffer(units, _UNIT)
    sizes = table["size"].astype(np.int64)
    if sizes.min() < RECORD_SIZE_MIN or sizes.max() > CHUNK_BYTES:
        return None
    starts = table["at"] - span.base
    ends = starts + sizes
    if starts.min() < span.start or ends.max() > span.end:
        return None
    count = _readable(span.file, starts >> CHUNK_SHIFT)
    return _rows(span.file.view, starts[:count], ends[:count], sizes[:count]) if count >= ROWS_MIN else None


def _readable(file: FileMapping, chunks: Ints) -> int:
    """How many of the records that begin in these chunks may be touched; some chunks are brought into memory first."""
    known = np.frombuffer(file.known, np.uint8)[chunks]
    if known.all():
        return len(chunks)
    try:
        for chunk in np.unique(chunks[known == 0])[:_READ_MAX].tolist():
            file.ensure_readable(chunk << CHUNK_SHIFT, (chunk << CHUNK_SHIFT) + 1)
    except DiskReadError:  # who reads one by one is told which
        return 0
    known = np.frombuffer(file.known, np.uint8)[chunks]
    return len(chunks) if known.all() else int(known.argmin())


def _rows(view: memoryview, starts: Ints, ends: Ints, sizes: Ints) -> PropertyRows | None:
    words: npt.NDArray[np.int32] = np.ndarray((len(view) - 3,), ">i4", view, 0, (1,))
    body_sizes = words[starts + _BODY_AT].astype(np.int64)
    room = sizes - RECORD_SIZE_MIN - body_sizes
    is_common = (words[starts + _MAGIC_AT] == MAGIC_V1) & (words[starts + _FLAGS_AT] & HOST_MASK == 0)
    if not is_common.all() or body_sizes.min() < 0 or room.min() < 0:
        return None
    topic_sizes = np.ndarray((len(view),), np.uint8, view)[starts + body_sizes + _HEAD_SIZE]
    lengths = room - topic_sizes
    longest = int(lengths.max())
    width = longest + 2
    count = min(len(starts), ROWS_BYTES_MAX // width)
    if count < ROWS_MIN or lengths.min() < 0:
        return None
    return _cut(view, ends[:count], lengths[:count], width)


def _cut(view: memoryview, ends: Ints, lengths: Ints, width: int) -> PropertyRows | None:
    """Rows that end one byte behind their records."""
    first = ends + 1 - width
    if first.min() < 0 or ends.max() >= len(view):
        return None
    windows: npt.NDArray[np.uint8] = np.ndarray((len(view) - width + 1, width), np.uint8, view, 0, (1, 1))
    rows = windows[first]
    rows[:, -1] = _SEPARATOR
    rows[np.arange(len(ends)), width - 2 - lengths] = _SEPARATOR
    return PropertyRows(rows.tobytes(), width, len(ends))
