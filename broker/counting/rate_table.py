"""Rate counters of one name in arrays: thousands are added to, and sampled, by a few calls.

    add(slots, amounts) ---> sums ---sample, at a span's samples---> the sums that changed since the sample before
                                                                        | older than the span
                                                                        '--> base: what they were when it began

Each counter behaves as a `RateCounter`; a sample holds only counters that changed, so idle ones take little.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broker.counting.slots import Slots, room_for

SPANS: Final = (("statsMinute", 1, 7), ("statsHour", 60, 7), ("statsDay", 360, 25))
"""Name, rounds between two samples, samples kept."""

Numbers = NDArray[np.int64]


class _Sample(NamedTuple):
    """Sums of the counters that changed before the sample of that number."""

    number: int
    slots: NDArray[np.int32]
    sums: Numbers


class _Span:
    """Samples of one span.

    Attributes:
        changed: counters that changed since the last sample.
        base: sums of each counter before the first sample.
    """

    def __init__(self, rounds: int, kept: int) -> None:
        self.rounds = rounds
        self.kept = kept
        self.changed = np.zeros(0, bool)
        self.base: Numbers = np.zeros((0, 2), np.int64)
        self.samples: list[_Sample] = []

    def sample(self, number: int, sums: Numbers) -> None:
        """Keep the present sums of changed counters as those of round `number`."""
        at = number // self.rounds
        slots = np.flatnonzero(self.changed).astype(np.int32)
        if len(slots):
            self.samples.append(_Sample(at, slots, sums[slots]))
            self.changed[:] = False
        while self.samples and self.samples[0].number <= at - self.kept + 1:
            oldest = self.samples.pop(0)
            self.base[oldest.slots] = oldest.sums

    def sums_at(self, slot: int, start: int) -> tuple[int, int]:
        """Return the sums of a counter in sample `start`, or in the last one before."""
        for sample in reversed([one for one in self.samples if one.number <= start]):
            at = int(np.searchsorted(sample.slots, slot))
            if at < len(sample.slots) and sample.slots[at] == slot:
                return int(sample.sums[at, 0]), int(sample.sums[at, 1])
        return int(self.base[slot, 0]), int(self.base[slot, 1])


class RateTable:
    """Counters by key.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._round = 0
        self._slots = Slots()
        self._by_key: dict[str, int] = {}
        self._sums: Numbers = np.zeros((0, 2), np.int64)  # total, times
        self._first_rounds: Numbers = np.zeros(0, np.int64)
        self._began = np.zeros(0, np.float64)
        self._spans = tuple(_Span(rounds, kept) for _, rounds, kept in SPANS)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def slots(self, keys: Sequence[str]) -> Numbers:
        """Return the slots of counters; those that are missing are made, all at once."""
        by_key = self._by_key
        missing = dict.fromkeys(key for key in keys if key not in by_key)
        if missing:
            by_key.update((key, self._slots.take()) for key in missing)
            self._begin(np.fromiter(map(by_key.__getitem__, missing), np.int64, len(missing)))
        return np.fromiter(map(by_key.__getitem__, keys), np.int64, len(keys))

    def find(self, key: str) -> "RateTableCounter | None":
        """Return a counter, or None."""
        slot = self._by_key.get(key)
        return None if slot is None else RateTableCounter(self, slot)

    def forget(self, key: str) -> None:
        """Drop a counter."""
        self._slots.free(self._by_key.pop(key))

    def add(self, slots: NDArray[Any], amounts: Numbers) -> None:
        """Add each amount to the counter of its slot, once each."""
        np.add.at(self._sums[:, 0], slots, amounts)
        np.add.at(self._sums[:, 1], slots, 1)
        for span in self._spans:
            span.changed[slots] = True

    def sample(self, number: int) -> None:
        """Keep the present sums as those of round `number`."""
        self._round = number
        for span in self._spans:
            if number % span.rounds == 0:
                span.sample(number, self._sums)

    def counted(self, slot: int) -> tuple[int, int, float]:
        """Return total and times of a counter, and when it began."""
        total, times = self._sums[slot].tolist()
        return total, times, float(self._began[slot])

    def oldest(self, slot: int, span_number: int, number: int) -> tuple[int, int, int]:
        """See `RateCounter.oldest`."""
        span = self._spans[span_number]
        taken = number // span.rounds - int(self._first_rounds[slot]) // span.rounds
        if taken < span.kept:
            return 0, 0, taken + 1
        return *span.sums_at(slot, number // span.rounds - span.kept + 1), span.kept

    def _begin(self, slots: Numbers) -> None:
        length = room_for(self._slots.end, len(self._began))
        if length > len(self._began):
            self._began = np.resize(self._began, length)
            self._first_rounds = np.resize(self._first_rounds, length)
            self._sums = grown(self._sums, length)
            for span in self._spans:
                span.base = grown(span.base, length)
                span.changed = np.concatenate((span.changed, np.zeros(length - len(span.changed), bool)))
        self._sums[slots] = 0
        self._began[slots] = self._clock()
        self._first_rounds[slots] = self._round
        for span in self._spans:
            span.changed[slots] = True  # the slots' former counters are in no later sample


class RateTableCounter:
    """One counter of a table, for reading."""

    __slots__ = ("_slot", "_table", "began", "times", "total")

    def __init__(self, table: RateTable, slot: int) -> None:
        self._table = table
        self._slot = slot
        self.total, self.times, self.began = table.counted(slot)

    def oldest(self, span: int, number: int) -> tuple[int, int, int]:
        """See `RateCounter.oldest`."""
        return self._table.oldest(self._slot, span, number)


def grown(array: Numbers, length: int) -> Numbers:
    """Return the array with zeros behind it up to this length; the array itself if it has that already."""
    if length == len(array):
        return array
    return np.concatenate((array, np.zeros((length - len(array), *array.shape[1:]), np.int64)))
