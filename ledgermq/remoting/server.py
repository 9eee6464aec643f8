"""A listener: accepts connections and passes their requests to one handler."""

import asyncio
import logging
import resource
from dataclasses import replace
from typing import Final

from ledgermq.message.hosts import Host
from ledgermq.remoting.connection import Connection, RequestHandler
from ledgermq.remoting.connection_set import ConnectionSet
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.quotas import Quotas, address_block
from ledgermq.remoting.serving.line import ServingLine
from ledgermq.remoting.tls import ContextSource
from ledgermq.remoting.tls_listener import TlsListener

_BACKLOG: Final = 1024
_ACCEPT_TURNS: Final = 3
"""Turns of the loop in which an accepted socket becomes a connection."""
_FOR_FILES: Final = 256
_log: Final = logging.getLogger(__name__)


class RemotingServer:
    """Serves RocketMQ's remoting protocol on one port.

    Args:
        handler: serves the requests of every connection.
        limits: limits of each connection.
        tls: the context for the next TLS connection; without it the port takes plain connections only.
        takes_plain: with `tls`, whether plain connections are taken, too.
        listeners: number of such servers in this process, which share its descriptors equally.
        quotas: quotas of this process's clients; None: no quotas.
        beside: another listener of this process, with which it shares the limits of bytes and the serving line.

    Attributes:
        connections: those open now.
        line: connections that sent many requests at once.
    """

    def __init__(
        self,
        handler: RequestHandler,
        *,
        limits: Limits | None = None,
        tls: ContextSource | None = None,
        takes_plain: bool = True,
        listeners: int = 1,
        quotas: Quotas | None = None,
        beside: "RemotingServer | None" = None,
    ) -> None:
        self._handler = handler
        self._limits = _within_descriptors(limits or Limits(), listeners)
        self.connections: ConnectionSet = ConnectionSet(self._limits, None if beside is None else beside.connections)
        self._tls = tls
        self._takes_plain = takes_plain
        self._quotas = quotas
        budget_bytes = self._limits.unfinished_bytes + self._limits.output_all_bytes
        self.line: ServingLine = (
            ServingLine(self.connections.held_bytes, budget_bytes) if beside is None else beside.line
        )
        self._server: asyncio.Server | None = None
        self._door: TlsListener | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` (empty: every interface). Port 0 takes any free one, see `port`.

        Raises:
            OSError: the address cannot be bound.
        """
        if self._tls is not None or self._limits.proxies:
            self._door = TlsListener(
                self._make_connection,
                self._tls,
                self._limits,
                takes_plain=self._takes_plain,
                inside=self.connections.__len__,
                has_room=self.connections.has_room,
                delay_s=self._delay_s,
            )
            await self._door.start(host, port, _BACKLOG)
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_connection, host or None, port, backlog=_BACKLOG)

    def _delay_s(self, address: str) -> float:
        """Count a new connection of this address; return for how many seconds not to read from it."""
        if self._quotas is None:
            return 0.0
        return self._quotas.connected(address_block(address), asyncio.get_running_loop().time())

    def _admit(self, connection: Connection) -> str | None:
        reason = self.connections.admit(connection)
        if reason is None and self._door is None and (delay_s := self._delay_s(connection.peer[0])):
            asyncio.get_running_loop().call_soon(connection.throttle, delay_s)  # uvloop begins to read after this call
        return reason

    @property
    def port(self) -> int:
        """The port on which it listens; 0 when not listening."""
        if self._door is not None:
            return self._door.port
        port: int = self._server.sockets[0].getsockname()[1] if self._server and self._server.sockets else 0
        return port

    async def close(self) -> None:
        """Stop listening, send what is queued, close every connection."""
        if self._door is not None:
            door, self._door = self._door, None
            await door.close()
            await self.connections.close("the server shuts down")
        if self._server is None:
            return
        server, self._server = self._server, None
        # asyncio (3.11) drops accepted sockets that are not connections yet when the server closes
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        await _until_accepted_are_connections()
        server.close()
        await _until_accepted_are_connections()
        await self.connections.close("the server shuts down")
        await server.wait_closed()

    def _make_connection(self, client: Host | None = None) -> Connection:
        connection = Connection(
            self._handler,
            self._limits,
            self._admit,
            self.connections.forget,
            unfinished=self.connections.count_unfinished,
            budget=self.connections.output,
            quotas=self._quotas,
            line=self.line,
        )
        connection.told_peer = client
        return connection


async def _until_accepted_are_connections() -> None:
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)


def _within_descriptors(limits: Limits, listeners: int) -> Limits:
    """Return the limits of one of the listeners: all together leave a quarter of this process's descriptors for files.

    Connections beyond it are refused one by one; without it, idle ones could take the last descriptor, and no file
    could be opened any more.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(1, min(descriptors * 3 // 4, descriptors - _FOR_FILES) // listeners)
    if descriptors == resource.RLIM_INFINITY or limits.connections <= room:
        return limits
    _log.warning("maxConnections is %d here: this process may have %d descriptors (ulimit -n)", room, descriptors)
    return replace(limits, connections=room)
