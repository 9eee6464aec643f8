"""The subsystem of the counters."""

from collections.abc import Callable, Iterable

from broker.counting.arrivals import SETTLE_SECONDS
from broker.counting.counting import Counting
from broker.counting.statistics import SLICE_SECONDS
from broker.subsystem import Subsystem


class CountingSubsystem(Subsystem):
    """Sums up counts, and drops the counts of removed topics and groups."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def periodic(self) -> Iterable[tuple[float, Callable[[], None]]]:
        """Sample rates and sum up counts."""
        return (SLICE_SECONDS, self._counting.statistics.sample), (SETTLE_SECONDS, self._counting.tick)

    def forget_topic(self, topic: str) -> None:
        """Drop its counters."""
        self._counting.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Drop its counters."""
        self._counting.forget_group(group)
