"""Counts stored messages by topic, queue and kind: noted once per committed batch, summed up later.

    committed batch -> draft.tally.append(draft.size)              per message: two look-ups, one append
    tick (SETTLE_SECONDS) -> sorted sizes -> counts, bytes, buckets of sizes -> `Statistics`, /metrics

A tally is a list of sizes in bytes that are not summed up yet. Refused messages, and records that the broker writes for
itself, are not counted.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java` (getMessageType), `store/.../BrokerStatsManager`.
"""

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from broker.counting.statistics import (
    BROKER_PUT_NUMS,
    QUEUE_PUT_NUMS,
    QUEUE_PUT_SIZE,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    RateCounter,
    Statistics,
)
from broker.counting.tallies import Distribution
from broker.state import names
from store.log.drafts import QueuedDraft
from telemetry.families import Buckets

SETTLE_SECONDS: Final = 0.05
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
_SETTLE_MAX: Final = 1000


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
        counters: of numbers and of bytes, by topic and by queue.
        fifo: the tally of messages with a sharding key, once there was one.
    """

    __slots__ = ("counters", "fifo", "place", "series")

    def __init__(
        self, place: Place, series: Distribution, counters: tuple[tuple[RateCounter, RateCounter], ...]
    ) -> None:
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
        messages, size_bytes: sums of everything, as of the last `settle`.
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

    def count(self, drafts: Iterable[QueuedDraft]) -> int:
        """Count committed drafts; return how many messages more than drafts were counted. The hot path."""
        opened = self._open
        more = 0
        for draft in drafts:
            tally = draft.tally
            if tally is not None:
                if not tally:
                    opened.append(tally)
                if draft.messages == 1:
                    tally.append(draft.size)
                else:
                    tally += draft.sizes_of_records()
                    more += draft.messages - 1
        return more

    def settle(self) -> bool:
        """Sum up at most `_SETTLE_MAX` tallies; return whether some are left."""
        opened, self._open = self._open[:_SETTLE_MAX], self._open[_SETTLE_MAX:]
        for tally in opened:
            count, size = len(tally), sum(tally)
            _add_sizes(tally.series, tally, size)
            tally.clear()
            for nums, sizes in tally.counters:
                nums.add(count, count)
                sizes.add(size, count)
            self._broker_counter.add(count, count)
            self.messages += count
            self.size_bytes += size
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
        by_topic = counter(TOPIC_PUT_NUMS, topic), counter(TOPIC_PUT_SIZE, topic)
        by_queue = counter(QUEUE_PUT_NUMS, key), counter(QUEUE_PUT_SIZE, key)
        return SizeTally(place, self._distribution(topic, kind), (by_topic, by_queue))

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
