"""Counts stored messages by topic, queue and kind: noted once per committed batch, summed up later.

    committed batch -> draft.tally.append(draft.size)              per message: two look-ups, one append
    tick (SETTLE_SECONDS) -> sorted sizes -> counts, bytes, buckets of sizes -> `Statistics`, /metrics

A tally is a list of sizes in bytes that are not summed up yet. Where messages spread over thousands of queues, summing
up a tally for each message would cost more than placing it: a tick leaves tallies alone while they have few sizes, for
some seconds at most. Refused messages, and records that the broker writes for itself, are not counted.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java` (getMessageType), `store/.../BrokerStatsManager`.
"""

import enum
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from broker.counting.statistics import (
    BROKER_PUT_NUMS,
    QUEUE_PUT_SIZE,
    TOPIC_PUT_SIZE,
    RateCounter,
    Statistics,
)
from broker.state import names
from store.log.drafts import QueuedDraft
from telemetry.families import Buckets, Distribution

SETTLE_SECONDS: Final = 0.05
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
_SETTLE_MAX: Final = 1000
_SIZES_WORTH: Final = 8
"""Average number of sizes in a tally from which summing up is worth its cost."""

_SIZES_MAX: Final = 1 << 16
"""Number of sizes in all tallies from which some are summed up, however few each has."""

_TICKS_OF_ALL: Final = 100
"""After so many ticks, 5 s, every tally is summed up."""


class MessageKind(enum.StrEnum):
    """Kinds of messages, by their label values."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"


_WAITING_KINDS: Final = {
    names.HALF_TOPIC: MessageKind.TRANSACTION,
    names.SCHEDULE_TOPIC: MessageKind.DELAY,
    names.TIMER_TOPIC: MessageKind.DELAY,
}


Place = tuple[str, int, MessageKind]
"""Topic, queue id, kind of message."""


class SizeTally(list[int]):
    """Sizes in bytes of messages that one queue took, not summed up yet.

    Attributes:
        series: the distribution to which they are added.
        counters: of bytes, by topic and by queue.
        fifo: the tally of messages with a sharding key, once there was one.
    """

    __slots__ = ("counters", "fifo", "place", "series")

    def __init__(self, place: Place, series: Distribution, counters: tuple[RateCounter, ...]) -> None:
        super().__init__()
        self.place = place
        self.series = series
        self.counters = counters
        self.fifo: SizeTally | None = None


class Arrivals:
    """All tallies, and the sums by topic and kind.

    Args:
        statistics: gets sums by topic and queue.
        cluster: its name, under which `Statistics` keeps the broker's sum.
        limit: largest number of pairs of topic and kind that are counted apart.

    Attributes:
        messages, size_bytes: sums of everything.
    """

    def __init__(self, statistics: Statistics, cluster: str, limit: int) -> None:
        self._statistics = statistics
        self._broker_counter = statistics.counter(BROKER_PUT_NUMS, cluster)
        self._limit = limit
        self.messages = 0
        self.size_bytes = 0
        self._tallies: dict[Place, SizeTally] = {}
        self._series: dict[tuple[str, MessageKind] | None, Distribution] = {}
        self._open: list[SizeTally] = []
        self._waiting = 0  # sizes in open tallies
        self._ticks = 0
        self._due = 0  # open tallies that the next ticks sum up

    def tally(self, topic: str, queue_id: int) -> SizeTally:
        """Return the tally of messages that senders put into a queue."""
        return self.tally_of((topic, queue_id, _WAITING_KINDS.get(topic, MessageKind.NORMAL)))

    def fifo_tally(self, tally: SizeTally | None) -> SizeTally | None:
        """Return the tally of messages with a sharding key; for half messages, the tally that is given."""
        if tally is None:
            return None
        if tally.fifo is None:
            topic, queue_id, kind = tally.place
            is_half = kind is MessageKind.TRANSACTION
            tally.fifo = tally if is_half else self.tally_of((topic, queue_id, MessageKind.FIFO))
        return tally.fifo

    def tally_of(self, place: Place) -> SizeTally:
        """Return the tally of messages of one kind in one queue."""
        found = self._tallies.get(place)
        if found is None:
            found = self._tallies[place] = self._made(place)
        return found

    def count(self, drafts: Sequence[QueuedDraft]) -> int:
        """Count committed drafts; return how many messages more than drafts were counted. The hot path."""
        opened = self._open
        more = size_bytes = uncounted = 0
        for draft in drafts:
            tally = draft.tally
            if tally is None:
                uncounted += 1
                continue
            if not tally:
                opened.append(tally)
            if draft.messages == 1:
                size = draft.size
                tally.append(size)
            else:
                sizes = draft.sizes_of_records()
                tally += sizes
                size = sum(sizes)
                more += draft.messages - 1
            size_bytes += size
        if count := len(drafts) + more - uncounted:
            self._waiting += count
            self.messages += count
            self.size_bytes += size_bytes
            self._broker_counter.add(count, count)
        return more

    def tick(self) -> None:
        """Sum up some tallies, if that is worth the time; call it every `SETTLE_SECONDS`."""
        self._ticks += 1
        if self._ticks % _TICKS_OF_ALL == 0:
            self._due = len(self._open)
        if self._due or self._waiting >= min(_SIZES_WORTH * len(self._open), _SIZES_MAX):
            self._due = max(self._due - _SETTLE_MAX, 0)
            self.settle()

    def settle(self) -> bool:
        """Sum up at most `_SETTLE_MAX` tallies; return whether some are left."""
        opened, self._open = self._open[:_SETTLE_MAX], self._open[_SETTLE_MAX:]
        for tally in opened:
            count, size = len(tally), sum(tally)
            _add_sizes(tally.series, tally, size)
            tally.clear()
            self._waiting -= count
            for counter in tally.counters:
                counter.add(size, count)
        return bool(self._open)

    def series(self) -> Iterator[tuple[tuple[str, MessageKind] | None, Buckets]]:
        """Yield sizes by topic and kind, as of the time when they are yielded; None for topics beyond the limit."""
        for key in list(self._series):
            found = self._series.get(key)
            if found is not None and found.count:
                yield key, found.buckets()

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that was removed."""
        for pair in [key for key in self._tallies if key[0] == topic]:
            del self._tallies[pair]
        for kind in MessageKind:
            self._series.pop((topic, kind), None)

    def _made(self, place: Place) -> SizeTally:
        topic, queue_id, kind = place
        counter, key = self._statistics.counter, f"{topic}@{queue_id}"
        counters = counter(TOPIC_PUT_SIZE, topic), counter(QUEUE_PUT_SIZE, key)
        return SizeTally(place, self._distribution(topic, kind), counters)

    def _distribution(self, topic: str, kind: MessageKind) -> Distribution:
        found = self._series.get((topic, kind))
        if found is None:
            key = (topic, kind) if len(self._series) < self._limit else None
            found = self._series.setdefault(key, Distribution(SIZE_BOUNDS))
        return found


def _add_sizes(distribution: Distribution, sizes: SizeTally, total: int) -> None:
    distribution.sum += total
    if len(sizes) == 1:
        distribution.counts[bisect_right(SIZE_BOUNDS, sizes[0] - 1)] += 1
        return
    sizes.sort()
    before = 0
    for index, bound in enumerate(SIZE_BOUNDS):
        below = bisect_right(sizes, bound)
        distribution.counts[index] += below - before
        before = below
        if below == len(sizes):
            return
    distribution.counts[-1] += len(sizes) - before
