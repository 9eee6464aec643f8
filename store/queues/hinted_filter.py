"""Filters with hints: patterns in the properties of every matching record, by which most other records can be skipped.

    units --- some hundred ---> rows of properties --- search for a hint ---> those who have it ---> the filter itself

A hint is a pattern that is found between two 0x02 in the row of each matching record (`property_rows`), and in others
by chance. Of several hints the one is used that lately let the fewest records through; none, if all let most through.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ledgermq.message.queue_unit import UNIT, UNIT_SIZE
from store.files.log_span import LogSpan
from store.queues.property_rows import ROWS_MIN, property_rows
from store.time_slice import TimeSlice

_USELESS: Final = 0.6
_FORGET: Final = 0.995
_LATELY: Final = 0.25
_LEAST_SHARE: Final = 1e-3
_SCAN_MIN, _SCAN_MAX = 64, 512


class HintedFilter:
    """A record filter with hints.

    Args:
        matches: whether a record matches.
        hints: sources of patterns of bytes; compiled when they are first used.
    """

    __slots__ = ("_hints", "_matches", "_patterns", "_shares")

    def __init__(self, matches: Callable[[memoryview], bool], hints: Sequence[bytes]) -> None:
        self._matches = matches
        self._hints = hints
        self._patterns: dict[int, re.Pattern[bytes]] = {}
        self._shares = [0.0] * len(hints)

    def __call__(self, record: memoryview) -> bool:
        return self._matches(record)

    def best(self) -> int:
        """Return the number of the hint to search for; -1 when none is worth it now."""
        shares = self._shares
        best = min(range(len(shares)), key=shares.__getitem__, default=-1)
        self._shares = [share * _FORGET for share in shares]  # so that each is tried again after some time
        return best if best >= 0 and shares[best] < _USELESS else -1

    def share(self, hint: int) -> float:
        """Return the share of the records, above 0, that has a hint, as far as is known."""
        return max(self._shares[hint], _LEAST_SHARE)

    def rows_with(self, hint: int, rows: bytes, width: int) -> list[int]:
        """Return the numbers of the rows that have a hint, rising."""
        pattern = self._patterns.get(hint)
        if pattern is None:
            pattern = self._patterns[hint] = re.compile(self._hints[hint])
        found = list(dict.fromkeys(match.start() // width for match in pattern.finditer(rows)))
        share, known = len(found) * width / len(rows), self._shares[hint]
        self._shares[hint] = known + (share - known) * _LATELY if known else max(share, _LEAST_SHARE)
        return found


class HintedScan:
    """Yields the numbers of the units whose records may match, rising; ends early when time or reader is done.

    Args:
        span_at: returns the file of a physical offset.
        units: of one queue.
        wanted: the filter with the hints; the reader applies it to each record.
        time_slice: checked between some hundred units.
        missing: returns how many records the reader still takes.

    Attributes:
        end: number of units that are finished once the numbers yielded so far are.
    """

    def __init__(
        self,
        span_at: Callable[[int], LogSpan | None],
        units: memoryview,
        wanted: HintedFilter,
        time_slice: TimeSlice,
        missing: Callable[[], int],
    ) -> None:
        self._span_at = span_at
        self._units = units
        self._count = len(units) // UNIT_SIZE
        self._wanted = wanted
        self._time_slice = time_slice
        self._missing = missing
        self.end = 0

    def __iter__(self) -> Iterator[int]:
        while self.end < self._count and (missing := self._missing()) > 0:
            if self.end and self._time_slice.is_over():
                return
            yield from self._next(missing)

    def _next(self, missing: int) -> Sequence[int]:
        start, wanted = self.end, self._wanted
        hint = wanted.best()
        if hint < 0 or self._count - start < ROWS_MIN:
            self.end = min(start + _SCAN_MIN, self._count)
            return range(start, self.end)
        likely = int(missing / wanted.share(hint))
        self.end = min(start + min(max(likely, _SCAN_MIN), _SCAN_MAX), self._count)
        units = self._units[start * UNIT_SIZE : self.end * UNIT_SIZE]
        span = self._span_at(UNIT.unpack_from(units)[0])
        rows = property_rows(span, units) if span is not None else None
        if rows is None:
            return range(start, self.end)
        self.end = start + rows.count
        return [start + row for row in wanted.rows_with(hint, rows.data, rows.width)]
