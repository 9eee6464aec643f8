"""The queue of connections that sent many requests at once: they share each turn of the loop, and others do not wait.

    a read of up to `FEW` requests      served at once
    a longer read                       served for `_SLICE_S`; the rest waits in line, and reading pauses
    full reads                          the same; in one turn of the loop such reads end `_SLICE_S` after the first
    a large read while `_MANY` wait, and any but a small read when this turn has begun `_REQUESTS_A_TURN` requests
                                        waits in line before it is parsed
    each turn of the loop               serves the line for `_TURN_S`, each connection for `_SLICE_S` at a time

Without it one connection could take a whole turn for long: the event loop reads up to 8 MiB of it at once. Times are
processor time, so that turns, and with them batches of the log, do not get small on a busy machine.

Reads that are not entirely served have a budget of bytes: above it no connection is read, above twice the budget the
last sender is closed. Requests are parsed `PIECE_BYTES` at a time, since parsed ones take up to five times the memory.

There is also one budget for all bytes held for connections: these, incomplete frames, and unread answers. Above it a
connection pauses after each read that is not small.
"""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from ledgermq.remoting.rate_limited_log import RateLimitedLog

FEW: Final = 64
PIECE_BYTES: Final = 64 << 10
SMALL_READ_BYTES: Final = 4 << 10
FULL_READ_BYTES: Final = 250_000
"""After a read of at least so many bytes the event loop may read again in the same turn, unless reading is paused."""

_READ_MAX_BYTES: Final = 256 << 10
_REQUESTS_A_TURN: Final = 1024
_MANY: Final = 8
_UNSERVED_MAX_BYTES: Final = 256 << 20
_SLICE_S: Final = 0.004
_TURN_S: Final = 0.01
_REST_S: Final = 0.01


class WaitingConnection(Protocol):
    """A connection in the line."""

    def serve_some(self) -> bool:
        """Serve at most `FEW` requests; return whether there are more that can be served now."""

    def read_on(self) -> None:
        """Read again, unless something else pauses reading."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class ServingLine:
    """The connections of one listener that wait to be served, in order. Use it on the loop's thread only.

    Args:
        held: returns the bytes held for connections beside unserved reads.
        budget_bytes: of these and the unserved ones. It is not below what is held otherwise for long, so that reading
            goes on when the line is served.

    Attributes:
        unserved_bytes: of reads that are not served entirely.
        closed_count: connections closed because there was too much of it.
    """

    def __init__(self, held: Callable[[], int] = lambda: 0, budget_bytes: int = sys.maxsize) -> None:
        self._held = held
        self._budget_bytes = budget_bytes
        self._waiting: dict[WaitingConnection, None] = {}
        self._to_read: dict[WaitingConnection, None] = {}
        self._read_ends: dict[WaitingConnection, float] = {}  # when full reads end, in this turn of the loop
        self._begun = 0  # requests begun in this turn outside of the line
        self._is_serving = False  # whether the line is being served
        self._is_resting = False  # whether the timer of `_let_read` runs
        self._refusals = RateLimitedLog(logging.getLogger(__name__))
        self.unserved_bytes = 0
        self.closed_count = 0

    @property
    def buffered_bytes(self) -> int:
        """All bytes held for connections."""
        return self.unserved_bytes + self._held()

    def pauses(self, size: int) -> bool:
        """Return whether a connection must pause after a read of so many bytes, since too much is held for all."""
        return size > SMALL_READ_BYTES and self.buffered_bytes > self._budget_bytes

    def takes(self, size: int) -> bool:
        """Return whether a read of so many bytes is parsed and served at once."""
        if size <= SMALL_READ_BYTES:
            return True
        return self._begun < _REQUESTS_A_TURN and (size <= PIECE_BYTES or len(self._waiting) < _MANY)

    def began(self, count: int) -> None:
        """Count requests that were parsed, to be served now or soon."""
        if self._is_serving:
            return
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._begun += count

    def join(self, connection: WaitingConnection) -> None:
        """Serve a connection from the next turn on; a waiting one keeps its place."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        self._waiting.setdefault(connection)

    def leave(self, connection: WaitingConnection) -> None:
        """Remove a connection that has ended."""
        self._waiting.pop(connection, None)
        self._to_read.pop(connection, None)
        self._read_ends.pop(connection, None)

    def count(self, connection: WaitingConnection, change: int) -> None:
        """Count the change of a connection's unserved bytes; close the connection if there are far too many in all."""
        self.unserved_bytes += change
        if change > 0 and self.unserved_bytes > 2 * _UNSERVED_MAX_BYTES:
            self.closed_count += 1
            self._refusals.warning("%d bytes wait to be served: closing one that sent more", self.unserved_bytes)
            connection.abort("too much waits to be served")

    def may_read(self, connection: WaitingConnection) -> bool:
        """Return whether the connection may read. If not, its `read_on` is called when there is room."""
        if self.unserved_bytes <= _UNSERVED_MAX_BYTES and self.buffered_bytes <= self._budget_bytes:
            return True
        self._to_read[connection] = None
        self._rest()
        return False

    def may_read_more(self, connection: WaitingConnection) -> bool:
        """Return whether a connection that has served a full read may read more in this turn of the loop."""
        now = time.thread_time()
        if not self._read_ends:
            asyncio.get_running_loop().call_soon(self._read_ends.clear)
        return now < self._read_ends.setdefault(connection, now + _SLICE_S)

    def _rest(self) -> None:
        if not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_later(_REST_S, self._let_read)

    def _let_read(self) -> None:
        """Let as many connections read as there is room for, those that wait longest first."""
        self._is_resting = False
        left = min(_UNSERVED_MAX_BYTES - self.unserved_bytes, self._budget_bytes - self.buffered_bytes)
        room = left // _READ_MAX_BYTES + 1  # at least one: the held bytes may stay for long
        for connection in list(islice(self._to_read, max(0, room))):
            del self._to_read[connection]
            connection.read_on()
        if self._to_read:
            self._rest()

    def _begin_turn(self) -> None:
        self._begun = 0

    def _turn(self) -> None:
        waiting, self._waiting = deque(self._waiting), {}
        ends = time.thread_time() + _TURN_S
        self._is_serving = True
        try:
            while waiting:
                connection = waiting.popleft()
                if serve_for_a_slice(connection):
                    waiting.append(connection)
                if time.thread_time() >= ends:
                    break
        finally:
            self._is_serving = False
        for connection in waiting:
            self.join(connection)


def serve_for_a_slice(connection: WaitingConnection) -> bool:
    """Serve a connection now; return whether there is more that can be served now."""
    ends = time.thread_time() + _SLICE_S
    while connection.serve_some():
        if time.thread_time() >= ends:
            return True
    return False
