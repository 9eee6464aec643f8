"""Counters by name and key as `viewBrokerStatsData` (315) shows them: sums, rates and averages of a minute, hour, day.

    counter.add(amount, times)           a sum, and the number of additions
    sample (every 10 s, in slices)  -->  7 samples 10 s apart, 7 ten minutes apart, 25 an hour apart

The samples of all counters are taken together, so a counter keeps only its sums, and `Statistics` the times of samples.
Names with a counter for each queue are tables (`broker.counting.rate_table`).
Only counters that were added to are visited: a missing sample equals the one before.

Source: apache/rocketmq `store/.../stats/BrokerStatsManager.java`, `common/.../stats/StatsItem.java`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.counting.rate_table import SPANS, RateTable, RateTableCounter

SAMPLE_SECONDS: Final = 10.0
SLICE_SECONDS: Final = 0.02
_SLICE_COUNTERS: Final = 400

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS: Final = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE: Final = "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS: Final = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE: Final = "QUEUE_GET_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
GROUP_GET_LATENCY: Final = "GROUP_GET_LATENCY"
GROUP_ACK_NUMS: Final = "GROUP_ACK_NUMS"
SEND_BACK_NUMS: Final = "SNDBCK_PUT_NUMS"
DEAD_LETTER_NUMS: Final = "DLQ_PUT_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"

_TIMES_OF: Final = {TOPIC_PUT_NUMS: TOPIC_PUT_SIZE, QUEUE_PUT_NUMS: QUEUE_PUT_SIZE}
"""Names without counters of their own: the additions to another name's counters are what they count."""

_OF_GROUPS: Final = frozenset(
    {QUEUE_GET_NUMS, QUEUE_GET_SIZE, GROUP_GET_NUMS, GROUP_GET_SIZE, GROUP_GET_LATENCY, GROUP_ACK_NUMS}
    | {SEND_BACK_NUMS, DEAD_LETTER_NUMS}
)
"""Names whose keys end with a group."""


_Sample = tuple[int, int, int]
"""The number of a span's sample, and the sums from that sample on until the next one kept."""


class RateCounter:
    """One counter: its sum, and the number of additions.

    Args:
        began: seconds of the clock.
        number: the present round.
        changed: list to which the first `add` after a sample appends the counter.
    """

    __slots__ = ("_changed", "_first_round", "_is_changed", "_samples", "began", "times", "total")

    def __init__(self, began: float, number: int, changed: "list[RateCounter]") -> None:
        self.began = began
        self.total = 0
        self.times = 0
        self._first_round = number
        self._changed = changed
        self._is_changed = False
        self._samples: tuple[list[_Sample], ...] = ()

    def add(self, amount: int, times: int = 1) -> None:
        """Add `amount`, counted as `times` additions."""
        self.total += amount
        self.times += times
        if not self._is_changed:
            self._is_changed = True
            self._changed.append(self)

    def sample(self, number: int) -> None:
        """Keep the present sums as those of round `number`, until the counter is added to again."""
        self._is_changed = False
        if not self._samples:
            self._samples = tuple([] for _ in SPANS)
        for samples, (_, rounds, kept) in zip(self._samples, SPANS, strict=True):
            at = -(-number // rounds)  # the span's next sample shows these sums, unless they change before
            if samples and samples[-1][0] == at:
                samples.pop()
            samples.append((at, self.total, self.times))
            while len(samples) > 1 and samples[1][0] <= number // rounds - kept + 1:
                del samples[0]

    def oldest(self, span: int, number: int) -> tuple[int, int, int]:
        """Return the sums at the start of a span in round `number`, and how many samples ago that was (1: the last)."""
        _, rounds, kept = SPANS[span]
        taken = number // rounds - self._first_round // rounds
        if taken < kept:
            return 0, 0, taken + 1
        start = number // rounds - kept + 1
        found = [sample for sample in (self._samples[span] if self._samples else ()) if sample[0] <= start]
        return (*found[-1][1:], kept) if found else (0, 0, kept)


class Statistics:
    """All counters.

    Args:
        clock: seconds, monotonic.

    Attributes:
        before_reading: called before a counter is read, to add what was counted elsewhere.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.before_reading: Callable[[], object] = lambda: None
        self._counters: defaultdict[str, dict[str, RateCounter]] = defaultdict(dict)  # by name, then by key
        self._tables: dict[str, RateTable] = {}
        self._times: tuple[list[float], ...] = tuple([clock()] for _ in SPANS)
        self._round = 0
        self._due = clock() + SAMPLE_SECONDS
        self._changed: list[RateCounter] = []
        self._sampling: Iterator[RateCounter] | None = None

    def counter(self, name: str, key: str) -> RateCounter:
        """Return the counter; it is made at the first call."""
        counters = self._counters[name]
        found = counters.get(key)
        if found is None:
            found = counters[key] = RateCounter(self._clock(), self._round, self._changed)
        return found

    def table(self, name: str) -> RateTable:
        """Return the counters of a name, which is kept as a table from now on."""
        return self._tables.setdefault(name, RateTable(self._clock))

    def find(self, name: str, key: str) -> Mapping[str, Mapping[str, float]] | None:
        """Return a counter's spans, or None when nothing was counted under this name and key."""
        self.before_reading()
        found = self._found(name, key)
        if found is None or not found.times:
            return None
        is_times = name in _TIMES_OF
        return {span: self._span(found, number, is_times=is_times) for number, (span, _, _) in enumerate(SPANS)}

    def rate(self, name: str, key: str) -> float:
        """Return the rate per second over the last minute; 0 if the counter does not exist."""
        found = self._found(name, key)
        return self._span(found, 0, is_times=name in _TIMES_OF)["tps"] if found is not None else 0.0

    def keys(self, name: str) -> list[str]:
        """Return the keys under a name."""
        name = _TIMES_OF.get(name, name)
        return list(self._tables[name] if name in self._tables else self._counters.get(name, ()))

    def sample(self) -> None:
        """Call it every `SLICE_SECONDS`: a round begins every `SAMPLE_SECONDS`, and each call does a part of it."""
        if self._sampling is None:
            if self._clock() < self._due:
                return
            self._begin_round()
        left = _SLICE_COUNTERS
        for counter in self._sampling or ():
            counter.sample(self._round)
            left -= 1
            if not left:
                return
        self._sampling = None

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a topic that was removed."""
        for name, counters in self._counters.items():
            for key in [key for key in counters if topic in key and _is_of_topic(name, key, topic)]:
                del counters[key]
        for name, table in self._tables.items():
            for key in [key for key in table if topic in key and _is_of_topic(name, key, topic)]:
                table.forget(key)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a consumer group that was removed."""
        ending = f"@{group}"
        for name in _OF_GROUPS & self._counters.keys():
            counters = self._counters[name]
            for key in [key for key in counters if key.endswith(ending)]:
                del counters[key]

    def _found(self, name: str, key: str) -> RateCounter | RateTableCounter | None:
        name = _TIMES_OF.get(name, name)
        if (table := self._tables.get(name)) is not None:
            return table.find(key)
        counters = self._counters.get(name)
        return None if counters is None else counters.get(key)

    def _begin_round(self) -> None:
        now = self._clock()
        self._due = now + SAMPLE_SECONDS
        self._round += 1
        for times, (_, rounds, kept) in zip(self._times, SPANS, strict=True):
            if self._round % rounds == 0:
                times.append(now)
                if len(times) > kept:
                    del times[0]
        for table in self._tables.values():
            table.sample(self._round)
        self._sampling = iter(self._changed.copy())
        self._changed.clear()  # the counters know this list

    def _span(self, counter: RateCounter | RateTableCounter, number: int, *, is_times: bool) -> dict[str, float]:
        """Return the sum, rate and average since the span's first sample, or since the counter was made.

        With `is_times`, those of the number of additions.
        """
        total, step_count, back = counter.oldest(number, self._round)
        times = self._times[number]
        began = max(times[-back] if back <= len(times) else times[0], counter.began)
        steps, seconds = counter.times - step_count, self._clock() - began
        amount = steps if is_times else counter.total - total
        return {
            "avgpt": amount / steps if steps else 0.0,
            "sum": amount,
            "tps": amount / seconds if seconds > 0 else 0.0,
        }


def _is_of_topic(name: str, key: str, topic: str) -> bool:
    parts = key.split("@")
    return not name.startswith("BROKER_") and parts[len(parts) - 2 if name == GROUP_GET_LATENCY else 0] == topic
