"""The open connections of one server or client: counts them, closes idle ones, and closes all together."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits, OutputBudget
from ledgermq.remoting.quotas import address_block
from ledgermq.remoting.rate_limited_log import RateLimitedLog

_log: Final = logging.getLogger(__name__)
_CLOSE_GRACE_S: Final = 1.0
_HERE: Final = "this machine"


class ConnectionSet:
    """The open connections; pass `admit` and `forget` to each `Connection`.

    Args:
        limits: of each connection, and of all of them.
        beside: connections of another listener of this process, with which these share all limits of bytes.

    Attributes:
        refused_count: connections closed at once because there were too many.
        unfinished_bytes: bytes of incomplete frames beyond the free size, those of `beside` included.
        output: unread answers of all connections, those of `beside` included.
    """

    def __init__(self, limits: Limits, beside: "ConnectionSet | None" = None) -> None:
        self.refused_count = 0
        self._limits = limits
        self._unfinished_bytes = 0
        self._all: list[ConnectionSet] = [] if beside is None else beside._all
        self._all.append(self)
        self.output: OutputBudget = OutputBudget(limits.output_all_bytes) if beside is None else beside.output
        self._refusals = RateLimitedLog(_log)
        self._open: dict[Connection, None] = {}  # an ordered set, so that runs of a simulation are equal
        self._of_address: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._someone_left = asyncio.Event()

    @property
    def unfinished_bytes(self) -> int:
        return sum(connections._unfinished_bytes for connections in self._all)

    def held_bytes(self) -> int:
        """Return the bytes of unfinished frames and of unread answers."""
        return self.unfinished_bytes + self.output.spent_bytes

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> str | None:
        """Admit a connection: return None, or the reason to refuse it."""
        if len(self._open) >= self._limits.connections:
            self.refused_count += 1
            self._refusals.warning("%s: refused, %d connections are open", connection.address, len(self._open))
            return "too many connections"
        address = connection.peer[0]
        if not self.has_room(address, 0):
            return "too many connections from one address"
        self._of_address[_origin(address)] += 1
        self._open[connection] = None
        if self._sweep_timer is None:
            self._schedule()
        return None

    def has_room(self, address: str, waiting: int) -> bool:
        """Return whether `address` may have another connection beside `waiting` ones and those open; count refusals.

        The clients of this machine, those of a proxy included, may have three quarters of all connections, or as many
        as any other address if that is more.
        """
        origin, bound = _origin(address), self._limits.connections_per_address
        if origin == _HERE:
            bound = max(bound, self._limits.connections * 3 // 4)
        count = self._of_address[origin] + waiting
        if count < bound:
            return True
        self.refused_count += 1
        self._refusals.warning("%s: refused, %d connections are open from there", address, count)
        return False

    def forget(self, connection: Connection, reason: str) -> None:
        """Remove a connection that has ended."""
        _log.debug("%s: closed: %s", connection.address, reason)
        self._open.pop(connection, None)
        origin = _origin(connection.peer[0])
        self._of_address[origin] -= 1
        if self._of_address[origin] <= 0:
            del self._of_address[origin]
        self._someone_left.set()

    def count_unfinished(self, change: int) -> None:
        """Note that unfinished frames have grown, or shrunk, by `change` bytes.

        Above the limit the connections with the oldest unfinished frames are closed, so that one client does not block
        others. The age includes pauses of reading, since the frame takes memory then, too.
        """
        self._unfinished_bytes += change
        while change > 0 and self.unfinished_bytes > self._limits.unfinished_bytes:
            open_here = (one for connections in self._all for one in connections)
            begun = {one: since for one in open_here if (since := one.unfinished_since) is not None}
            if not begun:
                return
            min(begun, key=begun.__getitem__).give_way()

    async def close(self, reason: str) -> None:
        """Close all connections once their queues are sent; return when they have ended, after 2 s at most.

        After a second those whose peers do not read are aborted. Those that have not ended a second later are logged.
        """
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in self:
            connection.close(reason)
        if await self._all_left():
            return
        for connection in self:
            connection.abort(reason)
        if not await self._all_left():
            names = ", ".join(connection.address for connection in self)
            _log.warning("connections have not ended %g s after they were aborted: %s", _CLOSE_GRACE_S, names)

    async def _all_left(self) -> bool:
        """Wait until no connection is open, 1 s at most; return whether none is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_GRACE_S):
                while self._open:
                    self._someone_left.clear()
                    await self._someone_left.wait()
        return not self._open

    def _schedule(self) -> None:
        interval_s = min(self._limits.idle_s, self._limits.frame_s) / 4
        self._sweep_timer = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in self:
            connection.check_times(now)
        self._sweep_timer = None
        if self._open:
            self._schedule()


def _origin(address: str) -> str:
    """Return the name under which an address is counted: one for this machine, a 64-bit network for IPv6."""
    return _HERE if address in ("127.0.0.1", "::1") else address_block(address)
