"""Loop lag: how late the event loop runs timers, so that a node can tell its own stalls from a peer's silence.

    due      due + late
     |-----------|          a beat every `interval_s`; lateness above `tolerance_s` is a stall of this process
         stall             (a long callback, a paused process, a machine that gave the CPU to others)

To measure a peer's silence, read `stalled_s` at its begin and end and subtract the difference: time in which this loop
was stalled says nothing about the peer.
"""

import asyncio
import time
from collections.abc import Callable

from telemetry.metrics import Registry


class LoopLagMonitor:
    """Measures from `start()` to `close()`; costs one timer per `interval_s`.

    Args:
        registry: gets `ledgermq_loop_lag_seconds` and `ledgermq_loop_stalled_seconds_total`.
        interval_s: time between two beats.
        tolerance_s: lateness up to this is ordinary scheduling and not counted as a stall.
        clock: monotonic seconds. Not the loop's own: uvloop reads its clock once a turn, and a turn may be the stall.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        interval_s: float = 0.05,
        tolerance_s: float = 0.01,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._histogram = registry.histogram("ledgermq_loop_lag_seconds", "How late the event loop ran a due timer.")
        registry.counter("ledgermq_loop_stalled_seconds_total", "Time in which the event loop stood still.").function(
            lambda: self.stalled_s
        )
        self._interval_s = interval_s
        self._tolerance_s = tolerance_s
        self._clock = clock
        self._due: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._stall_s = 0.0
        self._stalled_s = 0.0

    def start(self) -> None:
        """Start to measure on the running loop."""
        loop = asyncio.get_running_loop()
        self._schedule(loop)

    def close(self) -> None:
        """Stop; the measured values remain."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None
        self._due = None

    @property
    def stall_ms(self) -> float:
        """The stall that this turn of the loop ends, or else the one the last beat measured; 0 when it was on time."""
        return 1000 * (self._overdue_s() or self._stall_s)

    @property
    def stalled_s(self) -> float:
        """All stalls so far, including one that ends in this turn; never falls."""
        return self._stalled_s + self._overdue_s()

    def _overdue_s(self) -> float:
        # Timers due in one turn run in the order of their deadlines: a caller may ask before this turn's beat.
        if self._due is None:
            return 0.0
        late = self._clock() - self._due
        return late if late > self._tolerance_s else 0.0

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._due is None:
            return
        self._histogram.observe(max(0.0, self._clock() - self._due))
        self._stall_s = self._overdue_s()
        self._stalled_s += self._stall_s
        self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._clock() + self._interval_s
        self._handle = loop.call_later(self._interval_s, self._beat, loop)
