"""The session of a producer, a consumer or an admin: connections, nameservers, routes, calls, heartbeats.

Producer | Consumer | Admin
        Session ── Calls ── Routes ── Nameservers
           └────── Heartbeats    └─────── RemotingClient: one connection per address, requests pipelined
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ledgermq.client.core.address import local_address_towards, make_client_id, parse_addresses
from ledgermq.client.core.calls import Calls, FailedTry, OnRetry, OnTry
from ledgermq.client.core.checks import check_callable, check_seconds
from ledgermq.client.core.heartbeats import Heartbeats
from ledgermq.client.core.nameservers import Nameservers
from ledgermq.client.core.routes import OnLeader, OnRoute, Routes
from ledgermq.client.core.stall_watch import StallWatch
from ledgermq.client.errors import ClosedError, InvalidArgumentError
from ledgermq.remoting.client import NoRequests, RemotingClient
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.signature import Credentials
from ledgermq.remoting.tls import ClientTls, ContextSource

_log: Final = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S: Final = 4.0
"""Seconds; longer than brokers wait for replicas by default (`slaveTimeout`, 3 s), so that their answer arrives."""
DEADLINE_S: Final = 10.0
CONNECT_TIMEOUT_S: Final = 2.0

Content = Callable[[str], dict[str, Any]]
"""Returns the HeartbeatData of the client with the given client id, as JSON values."""

OnRequest = Callable[[Connection, Command], None]
"""Serves a request of a server: answers it on that connection, now or later, or raises Refusal."""

Tls = bool | ssl.SSLContext
"""False: plain connections; True: TLS with the system's authorities; a context: TLS as it says."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an open session."""

    remoting: RemotingClient
    nameservers: Nameservers
    routes: Routes
    calls: Calls
    watch: StallWatch
    heartbeats: Heartbeats | None


class Session:
    """Connections, routes and calls of one client. A new session is closed; `open` starts it on the running event loop.

    Args:
        namesrv: addresses of nameservers, see `parse_addresses`.
        content: returns the content of heartbeats; None for a client that sends none.
        on_request: serves requests of servers, see `OnRequest`; None: all are refused.
        on_leader: called with broker name and address (or None) of each new leader.
        on_route: called with each new route.
        attempt_timeout_s: seconds for one try of a call.
        deadline_s: seconds for a whole call.
        tls: True for TLS with the system's authorities, or an `ssl.SSLContext`.
        credentials: sign every request; None for brokers that do not ask for them.
        instance: name of this client at its address, the same after a restart; None for a new, unique name.
        on_retry: called after each failed try that is followed by another; its exceptions are logged.
        on_try: called after each try. Must not raise.

    Raises:
        InvalidArgumentError: an address, a time, tls or the credentials are wrong; names it.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        *,
        content: Content | None = None,
        on_request: OnRequest | None = None,
        on_leader: OnLeader | None = None,
        on_route: OnRoute | None = None,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: Tls = False,
        credentials: Credentials | None = None,
        instance: str | None = None,
        on_retry: OnRetry | None = None,
        on_try: OnTry | None = None,
    ) -> None:
        self._addresses = parse_addresses(namesrv)
        check_seconds(attempt_timeout_s=attempt_timeout_s, deadline_s=deadline_s)
        check_callable(on_retry=on_retry)
        if not isinstance(tls, bool | ssl.SSLContext):
            raise InvalidArgumentError(f"tls is {tls!r}: neither True nor False nor an ssl.SSLContext")
        if credentials is not None and not isinstance(credentials, Credentials):
            raise InvalidArgumentError(f"credentials are {type(credentials).__name__}, not Credentials")
        self._content = content
        self._on_request = on_request or NoRequests().on_request
        self._on_leader = on_leader
        self._on_route = on_route or (lambda _: None)
        self._attempt_timeout_s = attempt_timeout_s
        self._deadline_s = deadline_s
        self._tls = tls
        self._credentials = credentials
        self._instance = instance
        self._on_retry = None if on_retry is None else _harmless(on_retry)
        self._on_try = on_try
        self._parts: _Parts | None = None
        self._is_opening = False
        self.own_address = ""
        self.client_id = ""

    async def open(self) -> None:
        """Make the parts, and start heartbeats and the watch for silent leaders.

        Raises:
            ClosedError: it is open already.
        """
        if self._is_opening or self._parts is not None:
            raise ClosedError("it is already open: use one `async with` at a time")
        self._is_opening = True
        try:
            await self._open()
        finally:
            self._is_opening = False

    async def _open(self) -> None:
        self.own_address = await asyncio.to_thread(local_address_towards, self._addresses[0])
        self.client_id = make_client_id(self.own_address, self._instance)
        remoting = RemotingClient(
            self,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            tls=_source(self._tls),
            credentials=self._credentials,
        )
        nameservers = Nameservers(remoting, self._addresses)
        routes = Routes(nameservers, self._leader_changed, self._on_route)
        calls = Calls(
            remoting,
            routes,
            attempt_timeout_s=self._attempt_timeout_s,
            deadline_s=self._deadline_s,
            on_retry=self._on_retry,
            on_try=self._on_try,
        )
        watch = StallWatch(remoting, routes, calls.under_way)
        content = self._content
        heartbeats = None
        if content is not None:
            heartbeats = Heartbeats(remoting, lambda: content(self.client_id), routes.addresses)
        self._parts = _Parts(remoting, nameservers, routes, calls, watch, heartbeats)
        watch.start()
        if heartbeats is not None:
            heartbeats.start()

    @property
    def is_open(self) -> bool:
        return self._parts is not None

    @property
    def remoting(self) -> RemotingClient:
        return self._opened().remoting

    @property
    def nameservers(self) -> Nameservers:
        return self._opened().nameservers

    @property
    def routes(self) -> Routes:
        return self._opened().routes

    @property
    def calls(self) -> Calls:
        return self._opened().calls

    @property
    def heartbeats(self) -> Heartbeats:
        heartbeats = self._opened().heartbeats
        assert heartbeats is not None, "asked only by clients with a heartbeat content"
        return heartbeats

    async def close(self, unregister: dict[str, str] | None = None) -> None:
        """Leave the group (`unregister` has the fields of request 35), then close everything.

        A second call does nothing.
        """
        parts, self._parts = self._parts, None
        if parts is None:
            return
        parts.calls.close()
        parts.watch.stop()
        async with contextlib.AsyncExitStack() as last:  # also when unregistering is cancelled
            last.push_async_callback(parts.remoting.close)
            last.push_async_callback(parts.routes.close)
            if parts.heartbeats is not None:
                await parts.heartbeats.close()
                if unregister is not None:
                    await parts.heartbeats.unregister(unregister)

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise ClosedError("not open: use it inside `async with`")
        return self._parts

    def _leader_changed(self, broker: str, leader: str | None) -> None:
        self.send_due_heartbeats()
        if self._parts is not None and leader is not None:
            self._parts.watch.leader_changed()
        if self._on_leader is not None:
            self._on_leader(broker, leader)

    def send_due_heartbeats(self) -> None:
        """Send heartbeats to brokers that do not know us yet, after a change of connections or routes."""
        if self._parts is not None and self._parts.heartbeats is not None:
            self._parts.heartbeats.send_due()

    # -- events of connections

    def on_connected(self, connection: Connection) -> None:
        """Send a heartbeat on a new connection, if its broker needs one."""
        self.send_due_heartbeats()

    def on_request(self, connection: Connection, command: Command) -> None:
        """Serve a request of a server."""
        self._on_request(connection, command)

    def on_closed(self, connection: Connection) -> None:
        """Do nothing: calls on the connection fail by themselves."""


def _source(tls: Tls) -> ContextSource | None:
    if tls is False:
        return None
    context = ClientTls().build() if tls is True else tls
    return lambda: context


def _harmless(on_retry: OnRetry) -> OnRetry:
    def report(retry: FailedTry) -> None:
        try:
            on_retry(retry)
        except Exception:
            _log.exception("on_retry failed")

    return report
