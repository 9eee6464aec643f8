"""Counts and histograms by labels, with a limit on the number of label sets of one metric.

A key is a tuple of label values (text or int) in the metric's own order. A new key beyond `limit` is counted under
`OVERFLOW`, as in OpenTelemetry, so that the sums stay true.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from telemetry.families import Buckets, Distribution

Key = tuple[str | int, ...]
OVERFLOW: Final[Key] = ()


class Counts:
    """Sums by key."""

    __slots__ = ("_limit", "_sums")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sums: dict[Key, int] = {}

    def add(self, key: Key, amount: int = 1) -> None:
        sums = self._sums
        if key in sums:
            sums[key] += amount
        else:
            place = key if len(sums) < self._limit else OVERFLOW
            sums[place] = sums.get(place, 0) + amount

    def items(self) -> Iterator[tuple[Key, int]]:
        """Yield keys and values, each as of the time when it is yielded."""
        for key in list(self._sums):
            if (found := self._sums.get(key)) is not None:
                yield key, found

    def forget(self, position: int, value: str) -> None:
        """Drop the keys with this label value at this position."""
        for key in [key for key in self._sums if len(key) > position and key[position] == value]:
            del self._sums[key]


class Distributions:
    """Histograms by key, all with the same bounds."""

    __slots__ = ("_bounds", "_by_key", "_limit")

    def __init__(self, bounds: Sequence[float], limit: int) -> None:
        self._bounds = bounds
        self._limit = limit
        self._by_key: dict[Key, Distribution] = {}

    def of(self, key: Key) -> Distribution:
        """Return the histogram of a key; it is made at the first call."""
        found = self._by_key.get(key)
        if found is None:
            place = key if len(self._by_key) < self._limit else OVERFLOW
            found = self._by_key.setdefault(place, Distribution(self._bounds))
        return found

    def items(self) -> Iterator[tuple[Key, Buckets]]:
        """Yield keys and values, each as of the time when it is yielded."""
        for key in list(self._by_key):
            if (found := self._by_key.get(key)) is not None:
                yield key, found.buckets()

    def forget(self, position: int, value: str) -> None:
        """Drop the keys with this label value at this position."""
        for key in [key for key in self._by_key if len(key) > position and key[position] == value]:
            del self._by_key[key]
