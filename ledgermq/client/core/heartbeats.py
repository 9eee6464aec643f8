"""Heartbeats: they tell brokers of this client, its groups and its subscriptions.

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
UNREGISTER_TIMEOUT_S: Final = 1.0


class _Accepted(NamedTuple):
    """The connection over which a broker accepted our last heartbeat, and when (seconds of the loop's clock)."""

    connection: Connection
    at: float


class Heartbeats:
    """Sends heartbeats; a broker that does not answer delays none of the others.

    Args:
        content: returns the HeartbeatData of this moment, as JSON values.
        addresses: returns the addresses of all brokers to send heartbeats to.
    """

    def __init__(
        self, remoting: RemotingClient, content: Callable[[], dict[str, Any]], addresses: Callable[[], Iterable[str]]
    ) -> None:
        self._remoting = remoting
        self._content = content
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()
        self._accepted: dict[str, _Accepted] = {}
        self._sending: dict[str, asyncio.Task[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send due heartbeats every second from now on."""
        self.send_due()
        self._timer = self._loop.call_later(TICK_S, self.start)

    def send_due(self) -> None:
        """Send heartbeats to the brokers that had none for 30 s, or none on their present connection."""
        for address in self._addresses():
            if not self.is_known_at(address):
                self._begin(address)

    async def send(self, address: str) -> bool:
        """Send one broker a heartbeat now; returns whether the broker accepted it."""
        return await asyncio.shield(self._begin(address))

    async def unregister(self, ext: dict[str, str]) -> None:
        """Send request 35 to every broker that knows us, for 1 s at most; others notice when heartbeats stop."""
        command = Command(RequestCode.UNREGISTER_CLIENT, ext=ext)
        open_ones = [last.connection for last in self._accepted.values() if not last.connection.is_closed]
        requests = [connection.request(command, UNREGISTER_TIMEOUT_S) for connection in open_ones]
        await asyncio.gather(*requests, return_exceptions=True)

    async def close(self) -> None:
        """Send no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_known_at(self, address: str) -> bool:
        """Return whether the broker has accepted a heartbeat on its present connection in the last 30 s."""
        last = self._accepted.get(address)
        if last is None or last.connection is not self._remoting.connected(address):
            return False
        return self._loop.time() < last.at + INTERVAL_S

    def _begin(self, address: str) -> asyncio.Task[bool]:
        task = self._sending.get(address)
        if task is None:
            task = self._sending[address] = self._loop.create_task(self._send(address), name=f"heartbeat to {address}")
        return task

    async def _send(self, address: str) -> bool:
        try:
            connection = await self._remoting.connection(address)
            command = Command(RequestCode.HEART_BEAT, ext={}, body=orjson.dumps(self._content()))
            answer = await connection.request(command, TIMEOUT_S)
        except RemotingError as error:
            _log.debug("heartbeat to %s: %s", address, error)
            return False
        finally:
            del self._sending[address]
        if answer.code != ResponseCode.SUCCESS:
            _log.debug("heartbeat to %s: answered %d %s", address, answer.code, answer.remark)
            return False
        self._accepted[address] = _Accepted(connection, self._loop.time())
        return True
