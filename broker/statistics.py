"""Counters by name and key as `viewBrokerStatsData` (315) shows them: sums, rates and averages of a minute, hour, day.

What is put is read off the consume queues, ten seconds apart, so that sending pays nothing; what is given is counted
once a pull.

Source: apache/rocketmq `store/.../stats/BrokerStatsManager.java`, `common/.../stats/StatsItem.java`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from store.consume_queue import ConsumeQueue

SAMPLE_SECONDS: Final = 10.0
_MINUTE: Final = 6
_HOUR: Final = 360
_DAY: Final = 8640
"""Samples in each span."""

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SEND_BACK_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"


class _Sample(NamedTuple):
    time: float
    total: int
    times: int


class Counter:
    """One counter: what was counted in all, and in how many steps."""

    __slots__ = ("_hourly", "_recent", "_samples", "times", "total")

    def __init__(self, now: float) -> None:
        self.total = 0
        self.times = 0
        self._recent: deque[_Sample] = deque([_Sample(now, 0, 0)], maxlen=_MINUTE + 1)
        self._hourly: deque[_Sample] = deque(self._recent, maxlen=_DAY // _MINUTE + 1)
        self._samples = 0

    def add(self, amount: int, times: int = 1) -> None:
        self.total += amount
        self.times += times

    def sample(self, now: float) -> None:
        """Called every `SAMPLE_SECONDS`."""
        sample = _Sample(now, self.total, self.times)
        self._recent.append(sample)
        self._samples += 1
        if self._samples % _MINUTE == 0:
            self._hourly.append(sample)

    def spans(self, now: float) -> dict[str, dict[str, float]]:
        """Sum, rate per second and average of a step, over the last minute, hour and day."""
        newest = _Sample(now, self.total, self.times)
        hour = list(self._hourly)[-(_HOUR // _MINUTE) - 1 :]
        return {
            "statsDay": _span(self._hourly[0], newest),
            "statsHour": _span(hour[0], newest),
            "statsMinute": _span(self._recent[0], newest),
        }

    def rate(self, now: float) -> float:
        """Per second, over the last minute."""
        return _span(self._recent[0], _Sample(now, self.total, self.times))["tps"]


def _span(oldest: _Sample, newest: _Sample) -> dict[str, float]:
    amount, times = newest.total - oldest.total, newest.times - oldest.times
    seconds = newest.time - oldest.time
    return {
        "avgpt": amount / times if times else 0.0,
        "sum": amount,
        "tps": amount / seconds if seconds > 0 else 0.0,
    }


class Statistics:
    """All counters.

    Args:
        clock: seconds, monotonic.
        queues: the store's queues at present.
    """

    def __init__(self, clock: Callable[[], float], queues: Callable[[], Iterable[ConsumeQueue]]) -> None:
        self._clock = clock
        self._queues = queues
        self._counters: dict[tuple[str, str], Counter] = {}
        self._seen = {queue: queue.max_offset for queue in queues()}

    def counter(self, name: str, key: str) -> Counter:
        """The counter, made when it is new."""
        found = self._counters.get((name, key))
        if found is None:
            found = self._counters[name, key] = Counter(self._clock())
        return found

    def find(self, name: str, key: str) -> Mapping[str, Mapping[str, float]] | None:
        """A counter's spans, or None when nothing has been counted under this name and key."""
        self._count_puts()
        found = self._counters.get((name, key))
        return found.spans(self._clock()) if found is not None else None

    def rate(self, name: str, key: str) -> float:
        """Per second, over the last minute; 0 for a counter that is not there."""
        found = self._counters.get((name, key))
        return found.rate(self._clock()) if found is not None else 0.0

    def sample(self) -> None:
        """To be called every `SAMPLE_SECONDS`."""
        self._count_puts()
        now = self._clock()
        for counter in self._counters.values():
            counter.sample(now)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone; so are its counters."""
        self._seen = {queue: offset for queue, offset in self._seen.items() if queue.topic != topic}
        ended = [pair for pair in self._counters if pair[1].partition("@")[0] == topic]
        for pair in ended:
            del self._counters[pair]

    def _count_puts(self) -> None:
        for queue in self._queues():
            count = queue.max_offset - self._seen.get(queue, 0)
            if count > 0:
                self.counter(TOPIC_PUT_NUMS, queue.topic).add(count, count)
            if count:
                self._seen[queue] = queue.max_offset
