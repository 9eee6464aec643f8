"""Connections to servers: one for each address, made when it is first needed, and again after it was lost.

    answer = await client.request("10.0.0.1:10911", Command(RequestCode.GET_MAX_OFFSET, ext={...}), timeout_s=3)

Answers of any code are returned as they are; only a missing answer is an error. Requests that the server sends on the
same connection go to the handler.
"""

import asyncio
import ssl
from typing import Final

from ledgermq.remoting.addresses import split_address
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection, RequestHandler
from ledgermq.remoting.connection_set import ConnectionSet
from ledgermq.remoting.errors import ConnectError
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.outgoing_requests import Patience
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import Credentials
from ledgermq.remoting.tls import ContextSource

DEFAULT_TIMEOUT_S: Final = 3.0


class NoRequests:
    """A handler that refuses every request."""

    def on_connected(self, connection: Connection) -> None:
        """Do nothing: there is nothing to prepare."""

    def on_request(self, connection: Connection, command: Command) -> None:
        raise Refusal(Cause.NOT_SUPPORTED, f" request type {command.code} not supported")

    def on_closed(self, connection: Connection) -> None:
        """Do nothing: there is nothing to clean up."""


class RemotingClient:
    """A pool of connections by address (`host:port`, `[IPv6]:port`).

    A connection on which a request timed out while nothing at all was received is closed: the network may be dropping
    everything that is sent on it.

    Args:
        handler: serves the requests of servers; None refuses them with code 3.
        limits: limits of each connection.
        connect_timeout_s: seconds for one attempt to connect, name resolution and TLS handshake included.
        tls: returns the context for the next connection; None for plain connections.
        credentials: sign every request; None for unsigned requests.
    """

    def __init__(
        self,
        handler: RequestHandler | None = None,
        *,
        limits: Limits | None = None,
        connect_timeout_s: float = DEFAULT_TIMEOUT_S,
        tls: ContextSource | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._handler = handler or NoRequests()
        self._limits = limits or Limits()
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._sign = None if credentials is None else credentials.sign
        self._connections: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._all = ConnectionSet(self._limits)
        self._closed = False

    async def request(
        self, address: str, command: Command, timeout_s: float = DEFAULT_TIMEOUT_S, patience: Patience | None = None
    ) -> Command:
        """Send a request to the server at `address`; return its answer. The time-out includes connecting.

        `patience` is asked when the time for the answer is over, and may give it more.

        Raises:
            ConnectError: no connection; nothing was sent.
            ConnectionLostError, RequestTimeoutError: the request may or may not have been carried out.
        """
        connection = self.connected(address)
        if connection is not None:
            return await connection.request(command, timeout_s, patience)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(address)
        except TimeoutError:
            raise ConnectError(address, f"not within {timeout_s:g} s") from None
        return await connection.request(command, deadline - loop.time(), patience)

    async def oneway(self, address: str, command: Command) -> None:
        """Send a one-way request; return when it is queued.

        Raises:
            ConnectError: no connection; nothing was sent.
        """
        (await self.connection(address)).oneway(command)

    async def connection(self, address: str) -> Connection:
        """Return the open connection to `address`, made if there is none; for callers that use `Connection.call`.

        Concurrent callers share one attempt to connect.

        Raises:
            ConnectError: no listener there, no such host, the attempt was given up, or the client is closed.
        """
        connection = self.connected(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectError(address, "the client is closed")
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = self._attempts[address] = asyncio.ensure_future(self._connect(address))
            attempt.add_done_callback(lambda done: self._attempted(address, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():  # cancelled by `give_up` or `close`, not by the caller
                raise ConnectError(address, "the client is closed" if self._closed else "given up") from None
            raise

    def give_up(self, address: str) -> None:
        """End an attempt to connect, if one is under way."""
        attempt = self._attempts.get(address)
        if attempt is not None:
            attempt.cancel()

    def connected(self, address: str) -> Connection | None:
        """Return the open connection to `address`; None without one."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    async def close(self) -> None:
        """Close all connections; waiting requests fail with `ConnectionLostError`."""
        self._closed = True
        attempts = tuple(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        await self._all.close("the client closes")

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        context = None if self._tls is None else self._tls()
        connection = self._make_connection(address)
        is_connected = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(lambda: connection, host, port, ssl=context)
            is_connected = True
        except TimeoutError:
            raise ConnectError(address, f"not within {self._connect_timeout_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise ConnectError(address, f"its certificate is not accepted: {error.verify_message}") from error
        except (OSError, UnicodeError) as error:
            detail = str(error) or type(error).__name__
            if context is not None and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
                detail = f"the TLS handshake failed ({detail}): is it a port without TLS?"
            raise ConnectError(address, detail) from error
        finally:
            if not is_connected:
                # uvloop may have called `connection_made`; it then drops the socket without `connection_lost`
                connection.connection_lost(None)
        self._connections[address] = connection
        return connection

    def _attempted(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        del self._attempts[address]
        if not attempt.cancelled():
            attempt.exception()  # retrieves the exception, so that nothing is logged if nobody waits

    def _make_connection(self, address: str) -> Connection:
        return Connection(
            self._handler,
            self._limits,
            self._all.admit,
            lambda connection, reason: self._forget(address, connection, reason),
            close_when_silent=True,
            sign=self._sign,
        )

    def _forget(self, address: str, connection: Connection, reason: str) -> None:
        self._all.forget(connection, reason)
        if self._connections.get(address) is connection:
            del self._connections[address]
