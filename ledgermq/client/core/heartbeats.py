"""Heartbeats: what tells brokers that this client is there, in which groups, and what it subscribes to.

Sent to every broker address of the routes in use, followers too, so that a new leader knows the members of a group
already: every 30 s, on every new connection, and when the content has changed.

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
    """A broker that knows us: over which connection it was told, and when (loop time, s)."""

    connection: Connection
    at: float


class Heartbeats:
    """Tells whoever has not been told; a broker that does not answer holds up no other.

    Args:
        content: the HeartbeatData of this moment, as JSON values.
        addresses: all brokers to tell.
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
        """Look every second from now on."""
        self.look()
        self._timer = self._loop.call_later(TICK_S, self.start)

    def look(self) -> None:
        """Begin to tell those brokers that were not told lately, or not on their present connection."""
        for address in self._addresses():
            if not self.is_told(address):
                self._begin(address)

    async def tell(self, address: str) -> bool:
        """Tell one broker now; whether it has taken it."""
        return await asyncio.shield(self._begin(address))

    async def tell_all(self) -> None:
        """Tell every broker now; returns when each has taken it or failed."""
        await asyncio.gather(*[self.tell(address) for address in self._addresses()])

    async def farewell(self, ext: dict[str, str]) -> None:
        """Tell every broker that knows us that we leave (35); whoever does not answer finds out by itself."""
        knowing = [told.connection for told in self._told.values() if not told.connection.is_closed]
        requests = [
            connection.request(Command(RequestCode.UNREGISTER_CLIENT, ext=ext), FAREWELL_TIMEOUT_S)
            for connection in knowing
        ]
        await asyncio.gather(*requests, return_exceptions=True)

    async def close(self) -> None:
        """Stop."""
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
