"""Wakes requests that wait for a blocked queue (orderly POP) when the invisible time of its messages is over.

Source: apache/rocketmq `broker/.../offset/ConsumerOrderInfoLockManager.java`.
"""

import asyncio
from collections.abc import Callable


class OrderAlarms:
    """One timer for each pair of topic and group with waiting requests.

    Args:
        clock_ms: wall clock.
        wake: called with topic and group.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], int], wake: Callable[[str, str], None]
    ) -> None:
        self._loop = loop
        self._clock_ms = clock_ms
        self._wake = wake
        self._timers: dict[tuple[str, str], tuple[int, asyncio.TimerHandle]] = {}

    def set(self, topic: str, group: str, at_ms: int) -> None:
        """Wake at `at_ms` (ms since the epoch), or earlier if an earlier time is set already."""
        place = topic, group
        if place in self._timers:
            if self._timers[place][0] <= at_ms:
                return
            self._timers[place][1].cancel()
        delay_ms = max(0, at_ms - self._clock_ms())
        self._timers[place] = at_ms, self._loop.call_later(delay_ms / 1000, self._ring, place)

    def stop(self) -> None:
        """Cancel all timers."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, place: tuple[str, str]) -> None:
        del self._timers[place]
        self._wake(*place)
