"""A listener: accepts connections and hands their requests to one handler."""

import asyncio
from typing import Final

from ledgermq.remoting.connection import Connection, RequestHandler
from ledgermq.remoting.connection_set import ConnectionSet
from ledgermq.remoting.limits import Limits

_BACKLOG: Final = 1024


class RemotingServer:
    """Serves RocketMQ's remoting protocol on one port.

    Attributes:
        connections: those open now.
    """

    def __init__(self, handler: RequestHandler, *, limits: Limits | None = None) -> None:
        self._handler = handler
        self._limits = limits or Limits()
        self.connections = ConnectionSet(self._limits)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen on `host` (empty: every interface). Port 0 takes any free one, see `port`.

        Raises:
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_connection, host or None, port, backlog=_BACKLOG)

    @property
    def port(self) -> int:
        """The port listened at; 0 when not listening."""
        port: int = self._server.sockets[0].getsockname()[1] if self._server and self._server.sockets else 0
        return port

    async def close(self) -> None:
        """Stop listening, send what is queued, close every connection."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        await self.connections.close("the server shuts down")
        await server.wait_closed()

    def _make_connection(self) -> Connection:
        return Connection(self._handler, self._limits, self.connections.admit, self.connections.forget)
