"""Spreads long work over turns of the loop, so that all of it together blocks the loop for one slice at a time.

    run(work) --- the slice of this turn has time left ---> done now
              '-- no: queued behind earlier work      -----> the next turns

Reads with costly filters and the slices of long requests end within a slice by themselves (`FILTER_SLICE_S`); none is
started when a quarter of one is used.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from store.queues.queue_reader import FILTER_SLICE_S
from store.time_slice import TimeSlice

_TURN_S: Final = FILTER_SLICE_S / 4

Work = Callable[[], None]


class TurnQueue:
    """The queue of work that waits for its turn; first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Work] = deque()
        self._turn: TimeSlice | None = None

    def __len__(self) -> int:
        """Return how much work waits."""
        return len(self._line)

    def run(self, work: Work) -> None:
        """Run the work now, or in a later turn. Exceptions of `work` reach the caller, or the loop in a later turn."""
        if self._line or (self._turn is not None and self._turn.is_over()):
            self._line.append(work)
            return
        if self._turn is None:
            self._begin_turn()
        work()

    def run_later(self, work: Work) -> None:
        """Run the work in a later turn, after all that waits."""
        self._line.append(work)
        if self._turn is None:
            self._begin_turn()

    def run_after(self, seconds: float, work: Work) -> None:
        """Run the work in a later turn, after a pause."""
        self._loop.call_later(seconds, self.run_later, work)

    def run_steps(self, steps: Iterator[None]) -> None:
        """Take a slice of the steps now or in a later turn, and the others in later turns."""
        self.run(partial(self._take_steps, steps))

    def _take_steps(self, steps: Iterator[None]) -> None:
        time_slice = TimeSlice(FILTER_SLICE_S)
        for _ in steps:
            if time_slice.is_over():
                self.run_later(partial(self._take_steps, steps))
                return

    def _begin_turn(self) -> TimeSlice:
        self._turn = TimeSlice(_TURN_S)
        self._loop.call_soon(self._next_turn)
        return self._turn

    def _next_turn(self) -> None:
        self._turn = None
        if not self._line:
            return
        turn = self._begin_turn()
        while self._line and not turn.is_over():
            self._line.popleft()()
