"""The open connections of one server or client: counted, swept for idle ones, closed together."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits

_log: Final = logging.getLogger(__name__)
_CLOSE_GRACE_S: Final = 1.0


class ConnectionSet:
    """Give `admit` and `forget` to each `Connection`.

    Attributes:
        refused_count: connections closed at once because there were too many.
    """

    def __init__(self, limits: Limits) -> None:
        self.refused_count = 0
        self._limits = limits
        self._open: set[Connection] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._someone_left = asyncio.Event()

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection) -> str | None:
        """Take it in, or say why not."""
        if len(self._open) >= self._limits.connections:
            self.refused_count += 1
            _log.warning("%s: refused, %d connections are open", connection.address, len(self._open))
            return "too many connections"
        self._open.add(connection)
        if self._sweep_timer is None:
            self._schedule()
        return None

    def forget(self, connection: Connection, reason: str) -> None:
        """It has ended."""
        _log.debug("%s: closed: %s", connection.address, reason)
        self._open.discard(connection)
        self._someone_left.set()

    async def close(self, reason: str) -> None:
        """Close all once their queues are sent; after a second cut off whoever does not take it."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in self:
            connection.close(reason)
        try:
            async with asyncio.timeout(_CLOSE_GRACE_S):
                await self._all_left()
        except TimeoutError:
            for connection in self:
                connection.abort(reason)
            await self._all_left()

    async def _all_left(self) -> None:
        while self._open:
            self._someone_left.clear()
            await self._someone_left.wait()

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
