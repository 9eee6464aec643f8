"""Tails: topics and properties (the bytes behind the bodies) of many records, joined, and columns of their values.

    | length of topic, i8 | topic | length of properties, i16 | name 0x01 value 0x02 name 0x01 value ... |  next tail

Rules of properties: `ledgermq.message.properties`; the last value that is not empty counts.

Java's string hash of many runs is computed at once, where they lie:

    h("ab#c") = h("ab#") * 31^1 + h("c")        h(text) = sum of unit[i] * 31^(n - 1 - i), modulo 2^32

The units are UTF-16; for ASCII they are the bytes. Other text is hashed one by one, by `ledgermq.message.hashing`.

Source: java.lang.String (hashCode); apache/rocketmq `store/.../index/IndexFile.java` (indexKeyHashMethod, 5.3.3).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Hashes = NDArray[np.int32]
Bools = NDArray[np.bool_]
RawHashes = NDArray[np.uint32]

_POWERS_COUNT = 1 << 15


def _powers() -> RawHashes:
    powers = np.full(_POWERS_COUNT, 31, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS = _powers()
"""31^n modulo 2^32; properties are at most 32,767 bytes."""


def hashes_of_runs(units: Bytes, starts: Longs, lengths: Longs) -> RawHashes:
    """Return Java's hash of each run `units[start : start + length]` of ASCII; lengths are 1 or more."""
    if not len(starts):
        return np.zeros(0, np.uint32)
    length = int(lengths[0])
    if (lengths == length).all():  # unique keys of one kind of client, one topic
        runs = units[starts[:, None] + np.arange(length)]
        product: RawHashes = runs.astype(np.uint32) @ _POWERS[length - 1 :: -1]
        return product
    ends = np.cumsum(lengths)
    behind = np.repeat(ends, lengths) - np.arange(1, ends[-1] + 1)  # units of the run behind each unit
    places = np.repeat(starts + lengths - 1, lengths) - behind
    return np.add.reduceat(units[places] * _POWERS[behind], ends - lengths, dtype=np.uint32)


def joined_hashes(prefixes: RawHashes, keys: RawHashes, lengths: Longs) -> Hashes:
    """Return the index hash of each `prefix + key`: 0 or more. Lengths are the keys', in units."""
    joined = prefixes * _POWERS[lengths] + keys
    hashes = np.abs(joined.view(np.int32))
    hashes[hashes < 0] = 0  # Java's abs of the smallest integer is itself
    return hashes


_WORD = 8
_PADDING = bytes(256 + _WORD)
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
        """Return those of which `which` is true."""
        return Values(self.numbers[which], self.starts[which], self.lengths[which])


class Tails:
    """The tails of many records, with columns of the values of their properties.

    Args:
        joined: all of them.
        sizes: bytes of each; 0 where a record's tail is left out.

    Attributes:
        is_whole: of each, whether there is one and its topic ends inside of it.
        is_plain: of each, whether it is whole, and all ASCII.
    """

    def __init__(self, joined: bytes, sizes: Longs) -> None:
        self._joined = joined
        self.units: Bytes = np.frombuffer(bytearray(joined + _PADDING), np.uint8)
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
        """Clear the lengths of properties, so that none is taken for a separator, or for text."""
        behind = self._properties[self.is_whole]
        self.units[behind - 1] = self.units[behind - 2] = 0

    def values(self, name: bytes) -> Values:
        """Return the values of a property, one a tail at most."""
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
        """Return for each value whether it contains a space."""
        return self._next(_SPACE, values.starts) < values.starts + values.lengths

    def topic_hashes(self) -> RawHashes:
        """Return Java's hash of `topic#` for each plain tail; for others the result is undefined."""
        hashes = np.zeros(len(self._starts), np.uint32)
        named = np.flatnonzero(self.is_plain & (self._topic_lengths > 0))
        hashes[named] = hashes_of_runs(self.units, self._starts[named] + 1, self._topic_lengths[named])
        return hashes * np.uint32(31) + np.uint32(_HASH_SIGN)

    def tags_codes(self) -> tuple[Longs, Bools]:
        """Return the tags code of each record, and whether it is known: not of a tag that is not all ASCII."""
        values = self.values(b"TAGS")
        codes = np.zeros(len(self._starts), np.int64)
        codes[values.numbers] = hashes_of_runs(self.units, values.starts, values.lengths).view(np.int32)
        known = self.is_whole.copy()
        known[values.numbers] &= self.is_plain[values.numbers]
        return codes, known

    def groups(self, queue_ids: Longs) -> tuple[Longs, Longs]:
        """Return the rows sorted by queue, in the log's order within each, and the index where each queue begins."""
        width = -(-(int(self._topic_lengths.max()) + 1) // _WORD) * _WORD
        words = windows(self.units, width)[self._starts]
        words[np.arange(width) > self._topic_lengths[:, np.newaxis]] = 0
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

    def are_of(self, topic: bytes) -> Bools:
        """Return for each tail whether it is of this topic."""
        found: Bools = self._topic_lengths == len(topic)
        numbers = np.flatnonzero(found)
        texts = windows(self.units, len(topic))[self._starts[numbers] + 1]
        found[numbers] = (texts == np.frombuffer(topic, np.uint8)).all(axis=1)
        return found

    def topics(self, numbers: Longs) -> list[bytes]:
        """Return the topics of some tails."""
        bounds = zip(self._starts[numbers].tolist(), self._properties[numbers].tolist(), strict=True)
        return [self._joined[start + 1 : behind - 2] for start, behind in bounds]

    def parts(self, number: int) -> tuple[bytes, bytes]:
        """Return topic and properties of one tail."""
        start, behind, end = (int(places[number]) for places in (self._starts, self._properties, self._ends))
        return self._joined[start + 1 : behind - 2], self._joined[behind:end]

    def _next(self, unit: int, starts: Longs) -> Longs:
        """Return the next position of this unit at or behind each start; the end of all tails if there is none."""
        places = np.append(np.flatnonzero(self.units == unit), len(self.units))
        return places[np.searchsorted(places, starts)]


def windows(data: Bytes, size: int) -> Bytes:
    """Return a view in which row n holds the `size` bytes from position n on; nothing is copied."""
    return np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1), writeable=False)


def slices(starts: Longs, count: int) -> Iterator[tuple[int, int]]:
    """Return `(start, end)` of each group, of `count` rows in all that are grouped from `starts` on."""
    bounds = [*starts.tolist(), count]
    return pairwise(bounds)
