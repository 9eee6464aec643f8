"""The line of connections that sent much at once: they share each turn of the loop, and others wait for none of them.

    a read of up to `FEW` requests      served at once
    a longer or larger one              served for `_SLICE_S`, the rest in line; nothing more is read meanwhile
    a full one                          the same, and nothing more is read in this turn of the loop
    each turn of the loop               serves the line for `_TURN_S`, a connection for `_SLICE_S` at a time

Without it, one connection could take a turn for itself for long: the event loop reads up to 8 MiB of it at once. Times
are processor time, so that a busy machine does not make turns, and with them batches of the log, small.
"""

import asyncio
import time
from collections import deque
from typing import Final, Protocol

FEW: Final = 64
LARGE_READ_BYTES: Final = 64 << 10
FULL_READ_BYTES: Final = 250_000
"""The event loop may read on in the same turn behind a read of at least so much, unless reading is paused."""

_SLICE_S: Final = 0.004
_TURN_S: Final = 0.01


class Waiting(Protocol):
    """A connection with requests that wait."""

    def serve_some(self) -> bool:
        """Serve at most `FEW` of them; return whether there are more that can be served now."""


class ServingLine:
    """The connections of one listener that wait to be served, in order. Use it on the loop's thread only."""

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}

    def join(self, connection: Waiting) -> None:
        """Serve it from the next turn on; it keeps its place if it waits already."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.setdefault(connection)

    def _turn(self) -> None:
        waiting, self._waiting = deque(self._waiting), {}
        ends = time.thread_time() + _TURN_S
        while waiting:
            connection = waiting.popleft()
            if serve_for_a_slice(connection):
                waiting.append(connection)
            if time.thread_time() >= ends:
                break
        for connection in waiting:
            self.join(connection)


def serve_for_a_slice(connection: Waiting) -> bool:
    """Serve it now; return whether there is more that can be served now."""
    ends = time.thread_time() + _SLICE_S
    while connection.serve_some():
        if time.thread_time() >= ends:
            return True
    return False
