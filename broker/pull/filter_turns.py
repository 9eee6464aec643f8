"""Spreads reads with costly filters over turns of the loop, so that all of them together block it for one slice.

    run(read) --- the slice of this turn has time left ---> read now
              '-- no: queued behind earlier ones      -----> the next turns

A read ends within a slice (`queue_reader.FILTER_SLICE_S`); none is started when a quarter of one is used.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from store.queues.queue_reader import FILTER_SLICE_S
from store.time_slice import TimeSlice

_TURN_S: Final = FILTER_SLICE_S / 4

Read = Callable[[], None]


class FilterTurns:
    """The queue of waiting reads, first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Read] = deque()
        self._turn: TimeSlice | None = None

    def __len__(self) -> int:
        """Return the number of waiting reads."""
        return len(self._line)

    def run(self, read: Read) -> None:
        """Read now, or in a later turn. Exceptions of `read` reach the caller, or the loop in a later turn."""
        if self._line or (self._turn is not None and self._turn.is_over()):
            self._line.append(read)
            return
        if self._turn is None:
            self._begin_turn()
        read()

    def run_later(self, read: Read) -> None:
        """Read in a later turn, after all that wait."""
        self._line.append(read)
        if self._turn is None:
            self._begin_turn()

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
