"""Tails of a batch of records: topics and properties, which follow the bodies, read all at once by numpy.

    | topic's length 1 | topic | properties' length 2 | properties |  next record's | ...

The second byte of the properties' length is not needed and is overwritten with 0x02, so that each property, also the
first, follows a 0x02.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_TAGS = np.frombuffer(b"\x02TAGS\x01\0\0", np.uint64)[0]
_TAGS_SIZE = 6
_TAGS_MASK = np.frombuffer(b"\xff" * _TAGS_SIZE + b"\0\0", np.uint64)[0]
_WORD = 8
_TAG_BYTES_MAX = 64
_PADDING = bytes(256 + _WORD)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Tails:
    """The tails of some records.

    Args:
        parts: the bytes behind the body of each record, or a row of them each if all are equally long; not empty.
    """

    def __init__(self, parts: list[bytes] | npt.NDArray[np.uint8]) -> None:
        if isinstance(parts, list):
            self._data = np.frombuffer(bytearray().join([*parts, _PADDING]), np.uint8)
            sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        else:
            self._data = np.concatenate((parts.ravel(), np.frombuffer(_PADDING, np.uint8)))
            sizes = np.full(len(parts), parts.shape[1])
        self._ends = sizes.cumsum()
        self._starts = self._ends - sizes
        self._topic_sizes = self._data[self._starts].astype(np.int64)
        self._data[np.minimum(self._starts + self._topic_sizes + 2, self._ends)] = 2

    def topic(self, row: int) -> bytes:
        """Return the topic of a record."""
        start = int(self._starts[row]) + 1
        return self._data[start : start + int(self._topic_sizes[row])].tobytes()

    def groups(self, queue_ids: Ints) -> tuple[Ints, Ints]:
        """Return the rows sorted by queue, in the log's order within each, and the index where each queue begins."""
        width = -(-(int(self._topic_sizes.max()) + 1) // _WORD) * _WORD
        words = windows(self._data, width)[self._starts]
        words[np.arange(width) > self._topic_sizes[:, np.newaxis]] = 0
        columns = [column for column in (queue_ids, *words.view(np.uint64).T) if (column != column[0]).any()]
        if not columns:
            return np.arange(len(queue_ids)), np.zeros(1, np.int64)
        order = np.lexsort(columns)
        differs = np.zeros(len(order), np.bool_)
        differs[0] = True
        for column in columns:
            ordered = column[order]
            differs[1:] |= ordered[1:] != ordered[:-1]
        return order, np.flatnonzero(differs)

    def tags_codes(self) -> tuple[Ints, Bools]:
        """Return the tags code of each record and whether it is known.

        It is unknown if a tag is empty, longer than 64 bytes, not ASCII, or given twice.
        """
        codes = np.zeros(len(self._ends), np.int64)
        known = np.ones(len(self._ends), np.bool_)
        separators = np.flatnonzero(self._data == 2)
        words = windows(self._data, _WORD)[separators].view(np.uint64)[:, 0]
        found = np.flatnonzero(words & _TAGS_MASK == _TAGS)
        at = separators[found]
        rows = self._ends.searchsorted(at, "right")
        inside = (at > self._starts[rows] + self._topic_sizes[rows] + 1) & (at + _TAGS_SIZE <= self._ends[rows])
        found, at, rows = found[inside], at[inside] + _TAGS_SIZE, rows[inside]
        stops = np.append(separators, len(self._data))[found + 1]
        sizes = stops - at
        hashes, is_ascii = self._hashes(at, sizes)
        codes[rows] = hashes
        known[rows] = is_ascii & (sizes > 0) & (sizes <= _TAG_BYTES_MAX) & (stops < self._ends[rows])
        known[rows[1:][rows[1:] == rows[:-1]]] = False
        return codes, known

    def _hashes(self, at: Ints, sizes: Ints) -> tuple[Ints, Bools]:
        """Return Java's hash of the `sizes` bytes at each place, and whether they are ASCII; other hashes are wrong."""
        hashes = np.zeros(len(at), np.int32)
        is_ascii = np.ones(len(at), np.bool_)
        shared = int(sizes.min(initial=_TAG_BYTES_MAX))
        for index in range(min(int(sizes.max(initial=0)), _TAG_BYTES_MAX)):
            units = self._data[np.minimum(at + index, len(self._data) - 1)]
            longer = hashes * np.int32(31) + units.astype(np.int32)
            hashes = longer if index < shared else np.where(index < sizes, longer, hashes)
            is_ascii &= (units < 0x80) | (index >= sizes)
        return hashes.astype(np.int64), is_ascii


def windows(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return a view in which row n holds the `size` bytes from position n on; nothing is copied."""
    return np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1), writeable=False)


def slices(starts: Ints, count: int) -> Iterator[tuple[int, int]]:
    """Return `(start, end)` of each group, of `count` rows in all that are grouped from `starts` on."""
    bounds = [*starts.tolist(), count]
    return pairwise(bounds)
