"""The line of connections that sent much at once: they share each turn of the loop, and others wait for none of them.

    a read of up to `FEW` requests      served at once
    a longer or larger one              its first requests at once, the others in line; nothing more is read meanwhile
    each turn of the loop               serves the line for `_TURN_S`, a connection for `_SLICE_S` at a time

Without it, one connection could take a turn for itself for long: the event loop reads up to 8 MiB of it at once.
"""

import asyncio
import time
from collections import deque
from typing import Final, Protocol

FEW: Final = 64
LARGE_READ_BYTES: Final = 64 << 10
_SLICE_S: Final = 0.001
_TURN_S: Final = 0.005


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
        ends = time.monotonic() + _TURN_S
        while waiting:
            connection = waiting.popleft()
            slice_ends = time.monotonic() + _SLICE_S
            while is_more := connection.serve_some():
                if time.monotonic() >= slice_ends:
                    break
            if is_more:
                waiting.append(connection)
            if time.monotonic() >= ends:
                break
        for connection in waiting:
            self.join(connection)
