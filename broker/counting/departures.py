"""Counts messages delivered to consumers by topic, queue and group: once per answer.

    pull -> PullCounter of (topic, group, queue): counters of `Statistics`, sums for /metrics
    POP  -> the same, but queues are not counted apart

Source: apache/rocketmq `broker/.../processor/DefaultPullMessageResultHandler.java`, `PopMessageProcessor.java`,
`store/.../stats/BrokerStatsManager.java`.
"""

from broker.counting.statistics import (
    BROKER_GET_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    QUEUE_GET_NUMS,
    QUEUE_GET_SIZE,
    RateCounter,
    Statistics,
)
from broker.counting.tallies import Counts, Key
from broker.state import names


class PullCounter:
    """Counts the messages that one group gets from one queue.

    Attributes:
        next_offset: queue offset after the last message delivered.
    """

    __slots__ = ("_counters", "_departures", "_key", "_place", "next_offset")

    def __init__(self, departures: "Departures", place: tuple[str, str, int]) -> None:
        self._departures = departures
        self._place = place
        self._key: Key | None = None if names.is_retry_or_dead_letter(place[0]) else place[:2]
        # made with the first messages, since most queues of many topics are idle
        self._counters: tuple[RateCounter, ...] = ()
        self.next_offset = 0

    def add(self, count: int, size_bytes: int, next_offset: int, latency_ms: int) -> None:
        """Count an answer of `count` messages before `next_offset` that was read in `latency_ms`."""
        self.next_offset = next_offset
        departures = self._departures
        if not self._counters:
            self._counters = departures.counters(*self._place)
        of_group, of_queue, group_bytes, queue_bytes, latency = self._counters
        of_group.add(count)
        of_queue.add(count)
        group_bytes.add(size_bytes)
        queue_bytes.add(size_bytes)
        latency.add(latency_ms)
        departures.read_ms_max = max(departures.read_ms_max, latency_ms)
        departures.add_pulled(self._key, count, size_bytes)


class Departures:
    """Counts of all groups.

    Args:
        cluster: its name, under which `Statistics` keeps the broker's sum.
        limit: largest number of pairs of topic and group that are counted apart.

    Attributes:
        pulled, pulled_bytes: by topic and group; without pulls of retry topics and dead letters.
        read_ms_max: the longest time that a read for a pull took.
        popped, popped_bytes: by topic, group and whether it came from the retry topic.
    """

    def __init__(self, statistics: Statistics, cluster: str, limit: int) -> None:
        self._statistics = statistics
        self._broker = statistics.counter(BROKER_GET_NUMS, cluster)
        self._pull_counters: dict[tuple[str, str, int], PullCounter] = {}
        self.read_ms_max = 0
        self.pulled, self.pulled_bytes = Counts(limit), Counts(limit)
        self.popped, self.popped_bytes = Counts(limit), Counts(limit)

    def pull_counter(self, topic: str, group: str, queue_id: int) -> PullCounter:
        """Return the counter of pulls of one group from one queue."""
        place = topic, group, queue_id
        found = self._pull_counters.get(place)
        if found is None:
            found = self._pull_counters[place] = PullCounter(self, place)
        return found

    def counters(self, topic: str, group: str, queue_id: int) -> tuple[RateCounter, ...]:
        """Return the counters behind a `PullCounter`: messages of group and queue, their bytes, times of reads."""
        counter = self._statistics.counter
        by_group, by_queue = f"{topic}@{group}", f"{topic}@{queue_id}@{group}"
        return (
            counter(GROUP_GET_NUMS, by_group),
            counter(QUEUE_GET_NUMS, by_queue),
            counter(GROUP_GET_SIZE, by_group),
            counter(QUEUE_GET_SIZE, by_queue),
            counter(GROUP_GET_LATENCY, f"{queue_id}@{by_group}"),
        )

    def pulled_to(self, topic: str, group: str, queue_id: int) -> int:
        """Return the queue offset after the last message delivered to a group; 0 if this process delivered none."""
        found = self._pull_counters.get((topic, group, queue_id))
        return found.next_offset if found is not None else 0

    def add_pulled(self, key: Key | None, count: int, size_bytes: int) -> None:
        """Count a pull's answer; with the key None it counts only in the sums."""
        self._broker.add(count)
        if key is not None:
            self.pulled.add(key, count)
            self.pulled_bytes.add(key, size_bytes)

    def add_popped(self, topic: str, group: str, count: int, size_bytes: int, *, is_retry: bool) -> None:
        """Count the part of a POP answer that came from the topic, or from the group's retry topic."""
        self._broker.add(count)
        place = f"{topic}@{group}"
        self._statistics.counter(GROUP_GET_NUMS, place).add(count)
        self._statistics.counter(GROUP_GET_SIZE, place).add(size_bytes)
        key = topic, group, str(is_retry).lower()
        self.popped.add(key, count)
        self.popped_bytes.add(key, size_bytes)

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that was removed."""
        self._forget(0, topic)

    def forget_group(self, group: str) -> None:
        """Drop the counts of a consumer group that was removed."""
        self._forget(1, group)

    def _forget(self, position: int, name: str) -> None:
        for place in [place for place in self._pull_counters if place[position] == name]:
            del self._pull_counters[place]
        for counts in (self.pulled, self.pulled_bytes, self.popped, self.popped_bytes):
            counts.forget(position, name)
