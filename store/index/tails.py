"""Tails: what follows the bodies of many records, one behind the other, and where in it the keys are.

    | length of topic, i8 | topic | length of properties, i16 | name 0x01 value 0x02 name 0x01 value ... |  next tail

Rules of properties: `ledgermq.message.properties`; the last value that is not empty counts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.index.hashing import Bytes, Longs, RawHashes, hashes_of_runs

Bools = NDArray[np.bool_]

_SEPARATOR = 2
_SPACE = 32
_HASH_SIGN = ord("#")
_ASCII_END = 128


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one property: the numbers of their tails, rising; where they start; their lengths, 1 or more."""

    numbers: Longs
    starts: Longs
    lengths: Longs

    def only(self, which: Bools) -> "Values":
        """Those of which `which` is true."""
        return Values(self.numbers[which], self.starts[which], self.lengths[which])


class Tails:
    """Many tails.

    Args:
        joined: all of them.
        sizes: bytes of each; 0 where a record's tail is left out.

    Attributes:
        is_whole: of each, whether there is one and its topic ends inside of it.
        is_plain: of each, whether it is whole, and all ASCII.
    """

    def __init__(self, joined: bytes, sizes: Longs) -> None:
        self._joined = joined
        self.units: Bytes = np.frombuffer(bytearray(joined + b"\0\0\0"), np.uint8)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._topic_lengths = self.units[self._starts].astype(np.int64)
        self._properties = self._starts + self._topic_lengths + 3
        self.is_whole = (sizes > 0) & (self._properties <= self._ends)
        self.is_plain = self.is_whole.copy()
        self._clear_lengths()
        if bool((self.units >= _ASCII_END).any()):
            others = np.flatnonzero(self.units >= _ASCII_END)
            self.is_plain[np.searchsorted(self._starts, others, "right") - 1] = False

    def _clear_lengths(self) -> None:
        """So that no length of properties is taken for a separator, or for text."""
        behind = self._properties[self.is_whole]
        self.units[behind - 1] = self.units[behind - 2] = 0

    def values(self, name: bytes) -> Values:
        """The values of a property, one a tail at most."""
        needle = name + b"\x01"
        between = self._joined.split(needle)
        starts = np.cumsum(np.fromiter(map(len, between), np.int64, len(between)) + len(needle))[:-1]
        begins = starts - len(needle)
        numbers = np.searchsorted(self._starts, begins, "right") - 1
        first = self._properties[numbers]
        is_one = (begins == first) | ((begins > first) & (self.units[begins - 1] == _SEPARATOR))
        lengths = np.minimum(self._next(_SEPARATOR, starts), self._ends[numbers]) - starts
        found = Values(numbers, starts, lengths).only(is_one & (lengths > 0) & self.is_whole[numbers])
        is_last = np.ones(len(found.numbers), np.bool_)
        np.not_equal(found.numbers[1:], found.numbers[:-1], out=is_last[:-1])
        return found.only(is_last)

    def has_space(self, values: Values) -> Bools:
        """Of each value, whether a space is in it."""
        return self._next(_SPACE, values.starts) < values.starts + values.lengths

    def topic_hashes(self) -> RawHashes:
        """Java's hash of `topic#` of each tail that is plain; of others anything."""
        hashes = np.zeros(len(self._starts), np.uint32)
        named = np.flatnonzero(self.is_plain & (self._topic_lengths > 0))
        hashes[named] = hashes_of_runs(self.units, self._starts[named] + 1, self._topic_lengths[named])
        return hashes * np.uint32(31) + np.uint32(_HASH_SIGN)

    def parts(self, number: int) -> tuple[bytes, bytes]:
        """Topic and properties of one tail."""
        start, behind, end = (int(places[number]) for places in (self._starts, self._properties, self._ends))
        return self._joined[start + 1 : behind - 2], self._joined[behind:end]

    def _next(self, unit: int, starts: Longs) -> Longs:
        """Where this unit comes next, at or behind each start; the end of all without one."""
        places = np.append(np.flatnonzero(self.units == unit), len(self.units))
        return places[np.searchsorted(places, starts)]
