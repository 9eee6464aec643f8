"""Counts stored messages by topic, queue and kind: noted once per committed batch, summed up later.

    committed batch -> tallies and sizes of its messages                                per message: two appends
    tick (SETTLE_SECONDS) -> arrays of counts, bytes, buckets of sizes -> `Statistics`, /metrics

A tally is the number of a queue and kind. All messages of a tick are summed up by a few calls, over however many
queues they spread. Refused messages, and records that the broker writes for itself, are not counted.

Source: apache/rocketmq `broker/.../metrics/BrokerMetricsManager.java` (getMessageType), `store/.../BrokerStatsManager`.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from broker.counting.rate_table import Numbers, grown
from broker.counting.slots import Slots, room_for
from broker.counting.statistics import BROKER_PUT_NUMS, QUEUE_PUT_SIZE, TOPIC_PUT_SIZE, Statistics
from broker.state import names
from store.log.drafts import QueuedDraft
from telemetry.families import Buckets

SETTLE_SECONDS: Final = 0.05
SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
_NOTED_MAX: Final = 1 << 14
"""Messages that are summed up before the next tick."""

_NONE: Final = -1
_BOUNDS: Final = np.array(SIZE_BOUNDS)


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


class SizeSeries:
    """Distributions of sizes by topic and kind, in arrays.

    Args:
        limit: largest number of pairs of topic and kind that are counted apart.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots = Slots()
        self._by_key: dict[tuple[str, MessageKind] | None, int] = {}
        self._buckets: Numbers = np.zeros((0, len(SIZE_BOUNDS) + 1), np.int64)
        self._bytes: Numbers = np.zeros(0, np.int64)

    def slot(self, topic: str, kind: MessageKind) -> int:
        """Return the slot of a distribution; beyond the limit, that of all further ones."""
        key: tuple[str, MessageKind] | None = (topic, kind)
        if key not in self._by_key and len(self._by_key) >= self._limit:
            key = None
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = self._slots.take()
            length = room_for(self._slots.end, len(self._bytes))
            self._buckets, self._bytes = grown(self._buckets, length), grown(self._bytes, length)
            self._buckets[found] = self._bytes[found] = 0
        return found

    def add(self, slots: Numbers, sizes: Numbers) -> None:
        """Count sizes in the distributions of their slots."""
        np.add.at(self._buckets, (slots, np.searchsorted(_BOUNDS, sizes)), 1)
        np.add.at(self._bytes, slots, sizes)

    def rows(self) -> Iterator[tuple[tuple[str, MessageKind] | None, Buckets]]:
        """Yield distributions with sizes, as of the time when they are yielded; None for topics beyond the limit."""
        for key in list(self._by_key):
            slot = self._by_key.get(key)
            if slot is not None and (counts := self._buckets[slot].tolist()) and any(counts):
                yield key, Buckets(SIZE_BOUNDS, tuple(counts), float(self._bytes[slot]))

    def forget(self, topic: str) -> None:
        """Drop the distributions of a topic."""
        for kind in MessageKind:
            if (slot := self._by_key.pop((topic, kind), None)) is not None:
                self._slots.free(slot)


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
        self._topics = statistics.table(TOPIC_PUT_SIZE)
        self._queues = statistics.table(QUEUE_PUT_SIZE)
        self._broker_counter = statistics.counter(BROKER_PUT_NUMS, cluster)
        self._series = SizeSeries(limit)
        self.messages = 0
        self.size_bytes = 0
        self._tallies: dict[Place, int] = {}
        self._places: list[Place] = []
        self._slots = Slots()
        self._counters: Numbers = np.zeros((0, 3), np.int64)  # by tally: slots of topic, queue and series
        self._without: list[int] = []  # tallies that have no counters yet: `settle` finds them, many at once
        self._noted: list[int] = []  # tally of each message that is not summed up yet, and its size:
        self._sizes: list[int] = []

    def tally(self, topic: str, queue_id: int) -> int:
        """Return the tally of messages that senders put into a queue."""
        return self.tally_of((topic, queue_id, _WAITING_KINDS.get(topic, MessageKind.NORMAL)))

    def fifo_tally(self, tally: int | None) -> int | None:
        """Return the tally of messages with a sharding key; for half messages, the tally that is given."""
        if tally is None:
            return None
        topic, queue_id, kind = self._places[tally]
        return tally if kind is MessageKind.TRANSACTION else self.tally_of((topic, queue_id, MessageKind.FIFO))

    def tally_of(self, place: Place) -> int:
        """Return the tally of messages of one kind in one queue."""
        found = self._tallies.get(place)
        return found if found is not None else self._made(place)

    def count(self, drafts: Sequence[QueuedDraft]) -> int:
        """Count committed drafts; return how many messages more than drafts were counted. The hot path."""
        noted, sizes = self._noted, self._sizes
        before, more = len(noted), 0
        for draft in drafts:
            tally = draft.tally
            if tally is None:
                continue
            if draft.messages == 1:
                noted.append(tally)
                sizes.append(draft.size)
            else:
                own = draft.sizes_of_records()
                noted += [tally] * len(own)
                sizes += own
                more += draft.messages - 1
        if count := len(noted) - before:
            self.messages += count
            self.size_bytes += sum(sizes[before:])
            self._broker_counter.add(count, count)
            if len(noted) >= _NOTED_MAX:
                self.settle()
        return more

    def settle(self) -> None:
        """Sum up what is noted; call it every `SETTLE_SECONDS`."""
        if self._without:
            self._find_counters()
        if not self._noted:
            return
        tallies, sizes = np.array(self._noted), np.array(self._sizes)
        self._noted.clear()
        self._sizes.clear()
        rows = self._counters[tallies]
        if (rows[:, 0] == _NONE).any():  # of topics that were removed meanwhile
            kept = rows[:, 0] != _NONE
            rows, sizes = rows[kept], sizes[kept]
        self._topics.add(rows[:, 0], sizes)
        self._queues.add(rows[:, 1], sizes)
        self._series.add(rows[:, 2], sizes)

    def series(self) -> Iterator[tuple[tuple[str, MessageKind] | None, Buckets]]:
        """Yield sizes by topic and kind, as of the time when they are yielded; None for topics beyond the limit."""
        return self._series.rows()

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that was removed."""
        self.settle()
        for place in [place for place in self._tallies if place[0] == topic]:
            tally = self._tallies.pop(place)
            self._counters[tally] = _NONE
            self._slots.free(tally)
        self._series.forget(topic)

    def _made(self, place: Place) -> int:
        tally = self._tallies[place] = self._slots.take()
        if tally == len(self._places):
            self._places.append(place)
        self._places[tally] = place
        self._without.append(tally)
        return tally

    def _find_counters(self) -> None:
        tallies, self._without = self._without, []
        places = [self._places[tally] for tally in tallies]
        rows = np.empty((len(places), 3), np.int64)
        rows[:, 0] = self._topics.slots([topic for topic, _, _ in places])
        rows[:, 1] = self._queues.slots([f"{topic}@{queue_id}" for topic, queue_id, _ in places])
        rows[:, 2] = [self._series.slot(topic, kind) for topic, _, kind in places]
        self._counters = grown(self._counters, room_for(self._slots.end, len(self._counters)))
        self._counters[tallies] = rows
