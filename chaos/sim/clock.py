"""Simulated time and the queue of future events.

Time is in microseconds and moves only from event to event. Events of one instant come in an order drawn from the
seed, so that no run relies on the order in which they were scheduled.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random


class SimClock:
    """The scheduler of one simulated run."""

    def __init__(self, rng: Random) -> None:
        self.now_us = 0
        self.event_count = 0
        self._rng = rng
        self._queue: list[tuple[int, float, int, Callable[[], None]]] = []
        self._scheduled_count = 0

    def call_in(self, delay_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` `delay_us` (0 or more) from now."""
        self.call_at(self.now_us + delay_us, callback)

    def call_at(self, time_us: int, callback: Callable[[], None]) -> None:
        """Run `callback` at `time_us`, which is not before now."""
        self._scheduled_count += 1
        heappush(self._queue, (time_us, self._rng.random(), self._scheduled_count, callback))

    def run_until(self, time_us: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Run events up to `time_us`; stop early, between two events, when `is_done`. Returns whether it was done."""
        queue = self._queue
        while queue and queue[0][0] <= time_us:
            self.now_us, _, _, callback = heappop(queue)
            self.event_count += 1
            callback()
            if is_done is not None and is_done():
                return True
        self.now_us = max(self.now_us, time_us)
        return False
