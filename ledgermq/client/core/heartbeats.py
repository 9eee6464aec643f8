"""Heartbeats: they tell brokers that this client exists, its groups and its subscriptions.

They go to every broker address of the routes in use, followers included, so that a new leader already knows the
members of a group: every 30 s, on every new connection, and when the content has changed.

Source: apache/rocketmq `client/.../impl/factory/MQClientInstance.java` (sendHeartbeatToAllBroker), HeartbeatData.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import orjson

from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError

_log: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 30.0
TICK_S: Final = 1.0
TIMEOUT_S: Final = 3.0
FAREWELL_TIMEOUT_S: Final = 1.0


class _Told(NamedTuple):
    """The connection over which a broker took our last heartbeat, and when (seconds of the loop's clock)."""

    connection: Connection
    at: float


class Heartbeats:
    """Sends heartbeats; a broker that does not answer delays none of the others.

    Args:
        content: returns the HeartbeatData of this moment, as JSON values.
        addresses: returns the addresses of all brokers to tell.
    """

    def __init__(
        self, remoting: RemotingClient, content: Callable[[], dict[str, Any]], addresses: Callable[[], Iterable[str]]
    ) -> None:
        self._remoting = remoting
        self._content = content
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()
        self._told: dict[str, _Told] = {}
        self._telling: dict[str, asyncio.Task[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, send those that are due every second."""
        self.look()
        self._timer = self._loop.call_later(TICK_S, self.start)

    def look(self) -> None:
        """Send heartbeats to the brokers that had none for 30 s, or none on their present connection."""
        for address in self._addresses():
            if not self.is_told(address):
                self._begin(address)

    async def tell(self, address: str) -> bool:
        """Send one broker a heartbeat now; returns whether the broker accepted it."""
        return await asyncio.shield(self._begin(address))

    async def tell_all(self) -> None:
        """Send every broker a heartbeat now; returns when each has accepted it or failed."""
        await asyncio.gather(*[self.tell(address) for address in self._addresses()])

    async def farewell(self, ext: dict[str, str]) -> None:
        """Unregister at every broker that knows us (35), for 1 s at most; others notice when heartbeats stop."""
        knowing = [told.connection for told in self._told.values() if not told.connection.is_closed]
        requests = [
            connection.request(Command(RequestCode.UNREGISTER_CLIENT, ext=ext), FAREWELL_TIMEOUT_S)
            for connection in knowing
        ]
        await asyncio.gather(*requests, return_exceptions=True)

    async def close(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._telling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_told(self, address: str) -> bool:
        told = self._told.get(address)
        if told is None or told.connection is not self._remoting.connected(address):
            return False
        return self._loop.time() < told.at + INTERVAL_S

    def _begin(self, address: str) -> asyncio.Task[bool]:
        task = self._telling.get(address)
        if task is None:
            task = self._telling[address] = self._loop.create_task(self._tell(address), name=f"heartbeat to {address}")
        return task

    async def _tell(self, address: str) -> bool:
        try:
            connection = await self._remoting.connection(address)
            command = Command(RequestCode.HEART_BEAT, ext={}, body=orjson.dumps(self._content()))
            answer = await connection.request(command, TIMEOUT_S)
        except RemotingError as error:
            _log.debug("heartbeat to %s: %s", address, error)
            return False
        finally:
            del self._telling[address]
        if answer.code != ResponseCode.SUCCESS:
            _log.debug("heartbeat to %s: answered %d %s", address, answer.code, answer.remark)
            return False
        self._told[address] = _Told(connection, self._loop.time())
        return True
