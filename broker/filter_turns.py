"""Reads through costly filters, shared out over the loop's turns: however many ask, the loop is held up for a slice.

    run(read) --- the slice of this turn has time left ---> read now
               '-- no: in line, behind those before -----> the next turns

A read itself ends within a slice (`store.queue_reader.FILTER_SLICE_S`), so a turn's reads take two at most.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from store.queue_reader import FILTER_SLICE_S

Read = Callable[[], None]


class FilterTurns:
    """The line of reads; first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[Read] = deque()
        self._is_turn = False
        self._turn_end = 0.0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def run(self, read: Read) -> None:
        """Read now, or in a later turn; what `read` raises is its caller's or the loop's."""
        if self._line or (self._is_turn and time.monotonic() > self._turn_end):
            self._line.append(read)
            return
        if not self._is_turn:
            self._begin_turn()
        read()

    def run_later(self, read: Read) -> None:
        """Read in a later turn, behind all that wait."""
        self._line.append(read)
        if not self._is_turn:
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._is_turn = True
        self._turn_end = time.monotonic() + FILTER_SLICE_S
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn = False
        if not self._line:
            return
        self._begin_turn()
        while self._line and time.monotonic() <= self._turn_end:
            self._line.popleft()()
