"""A port for TLS and plain connections: the first byte, which is left unread, tells which of the two a client uses.

    accept -> wait for a byte -> 0x16, a TLS record "handshake" -> TLS handshake -> Connection
                              -> else, the top byte of a length -> plain Connection, or closed when TLS is enforced
                              -> a trusted proxy's header, which is read: the client's address -> wait for a byte

A plain frame begins with 0x00, so the two cannot be confused. Before the first byte only the socket is allocated; such
a connection counts as open, and is closed after the idle time. Afterwards a plain connection does not differ from one
of a listener without TLS. Until its handshake is done a connection counts among those of its address that wait.

Source: apache/rocketmq `remoting/.../netty/NettyRemotingServer.java` (TlsModeHandler).
"""

import asyncio
import errno
import functools
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from ledgermq.message.hosts import Host
from ledgermq.remoting.addresses import plain_host
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.serving.proxy_header import HEADER_MAX, ProxyHeaderError, read_proxy_header
from ledgermq.remoting.tls import ContextSource

_log: Final = logging.getLogger(__name__)

_TLS_HANDSHAKE: Final = 0x16
_HEADER_BEGINS: Final = (b"P", b"\r")
_ACCEPTS_MAX: Final = 128  # most accepts in one turn of the loop, so that they do not delay other connections
_PAUSE_S: Final = 1.0
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsListener:
    """Listens on one port with TLS.

    Args:
        make: makes the protocol of a connection, of the client that a trusted proxy names.
        context: returns the context for the next TLS connection; None: there are none.
        limits: its `handshake_s`, `idle_s`, `connections` and `proxies` are enforced here.
        takes_plain: whether connections without TLS are accepted.
        inside: returns the number of connections that this listener has passed on.
        has_room: whether an address may have one more connection beside so many that wait here.
        delay_s: counts a new connection of an address; returns for how many seconds not to read from it.
    """

    def __init__(
        self,
        make: Callable[[Host | None], asyncio.Protocol],
        context: ContextSource | None,
        limits: Limits,
        *,
        takes_plain: bool,
        inside: Callable[[], int],
        has_room: Callable[[str, int], bool],
        delay_s: Callable[[str], float],
    ) -> None:
        self._make = make
        self._context = context
        self._limits = limits
        self._refusals = RateLimitedLog(_log)
        self._takes_plain = takes_plain
        self._inside = inside
        self._has_room = has_room
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._waiting: dict[socket.socket, tuple[float, str]] = {}  # time of arrival and address, oldest first
        self._waiting_of = Counter[str]()
        self._clients: dict[socket.socket, Host | None] = {}  # clients named by trusted proxies, of waiting sockets
        self._entering: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port on which it listens; 0 when not listening."""
        return self._listeners[0].getsockname()[1] if self._listeners else 0

    async def start(self, host: str, port: int, backlog: int) -> None:
        """Listen on `host` (empty: every interface). Port 0 takes any free one.

        Raises:
            OSError: the address cannot be bound.
        """
        found = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._listeners.append(_listen(family, (address[0], port or self.port), backlog))
        except OSError:
            self._stop_listening()
            raise
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    async def close(self) -> None:
        """Accept no more connections, and close those that wait."""
        self._stop_listening()
        if self._sweep is not None:
            self._sweep.cancel()
        for visitor in tuple(self._waiting):
            self._send_away(visitor)
        entering = tuple(self._entering)
        for task in entering:
            task.cancel()
        await asyncio.gather(*entering, return_exceptions=True)

    # ---- before the first byte

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                visitor, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _log.error("new connections are not accepted for %g s: %s", _PAUSE_S, error)
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE_S, self._accept_again, listener)
                return
            self._welcome(visitor, plain_host(address).address)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _welcome(self, visitor: socket.socket, address: str) -> None:
        if self._inside() + len(self._waiting) + len(self._entering) >= self._limits.connections:
            self._refusals.warning("a connection is refused, %d are open", self._inside())
            visitor.close()
            return
        if not self._has_room(address, self._waiting_of[address]):
            visitor.close()
            return
        visitor.setblocking(False)
        self._waiting[visitor] = (self._loop.time(), address)
        self._waiting_of[address] += 1
        delay_s = 0.0 if self._is_trusted(address) else self._delay_s(address)  # the proxy's clients count instead
        if delay_s:
            self._loop.call_later(delay_s, self._watch, visitor)
        else:
            self._watch(visitor)
        if self._sweep is None:
            self._schedule_sweep()

    def _watch(self, visitor: socket.socket) -> None:
        if visitor in self._waiting:  # it may be closed meanwhile
            self._loop.add_reader(visitor, self._knocks, visitor)

    def _knocks(self, visitor: socket.socket) -> None:
        try:
            first = visitor.recv(1, socket.MSG_PEEK)
            if first in _HEADER_BEGINS and visitor not in self._clients and self._take_header(visitor):
                return
        except (BlockingIOError, InterruptedError):
            return
        except ProxyHeaderError as error:
            self._refusals.warning("%s: %s", self._waiting[visitor][1], error)
            first = b""
        except OSError:
            first = b""
        is_tls = self._context is not None and first[:1] == bytes([_TLS_HANDSHAKE])
        if not first or not (is_tls or self._takes_plain):
            if first:
                self._refusals.warning("a connection without TLS is refused: TLS is enforced")
            self._send_away(visitor)
            return
        client = self._clients.get(visitor)
        address = self._leave_door(visitor)
        task = self._loop.create_task(self._let_in(visitor, is_tls, client))
        self._entering.add(task)
        task.add_done_callback(lambda done: self._has_entered(done, visitor))
        if is_tls:
            self._waiting_of[address] += 1
            task.add_done_callback(lambda _: self._waits_no_more(address))

    def _is_trusted(self, address: str) -> bool:
        """Return whether the other end is a proxy whose header with the client's address is trusted."""
        return any(ipaddress.ip_address(address) in network for network in self._limits.proxies)

    def _take_header(self, visitor: socket.socket) -> bool:
        """Read a proxy's header, whose client counts for the limits from now on; return whether there was one."""
        if not self._is_trusted(self._waiting[visitor][1]):
            return False
        header = read_proxy_header(visitor.recv(HEADER_MAX, socket.MSG_PEEK))
        if header is None:
            return False
        visitor.recv(header.size)
        self._clients[visitor] = client = header.client
        if client is None:
            return True
        since, proxy = self._waiting[visitor]
        if not self._has_room(client.address, self._waiting_of[client.address]):
            self._send_away(visitor)
            return True
        self._waits_no_more(proxy)
        self._waiting[visitor] = (since, client.address)
        self._waiting_of[client.address] += 1
        if delay_s := self._delay_s(client.address):
            self._loop.remove_reader(visitor)
            self._loop.call_later(delay_s, self._watch, visitor)
        return True

    async def _let_in(self, visitor: socket.socket, is_tls: bool, client: Host | None) -> None:
        make = functools.partial(self._make, client)
        try:
            if is_tls and self._context is not None:
                limit_s = self._limits.handshake_s
                await self._loop.connect_accepted_socket(
                    make, visitor, ssl=self._context(), ssl_handshake_timeout=limit_s
                )
            else:
                await self._loop.connect_accepted_socket(make, visitor)
        except OSError as error:  # SSLError and time-outs are OSErrors
            self._refusals.warning("a connection ends in its TLS handshake: %s", error or type(error).__name__)
            visitor.close()

    def _has_entered(self, task: asyncio.Task[None], visitor: socket.socket) -> None:
        self._entering.discard(task)
        if task.cancelled():  # the server is closing, and the task may not have begun
            visitor.close()

    def _send_away(self, visitor: socket.socket) -> None:
        self._leave_door(visitor)
        visitor.close()

    def _leave_door(self, visitor: socket.socket) -> str:
        _, address = self._waiting.pop(visitor)
        self._clients.pop(visitor, None)
        self._loop.remove_reader(visitor)
        self._waits_no_more(address)
        return address

    def _waits_no_more(self, address: str) -> None:
        self._waiting_of[address] -= 1
        if not self._waiting_of[address]:
            del self._waiting_of[address]

    # ---- times, and the end

    def _schedule_sweep(self) -> None:
        self._sweep = self._loop.call_later(self._limits.idle_s / 4, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that have sent nothing for the idle time."""
        before = self._loop.time() - self._limits.idle_s
        for visitor in [visitor for visitor, (since, _) in self._waiting.items() if since < before]:
            self._send_away(visitor)
        self._sweep = None
        if self._waiting:
            self._schedule_sweep()

    def _stop_listening(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.remove_reader(listener)
            listener.close()


def _listen(family: int, address: tuple[str | int, int], backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen at {address[0]}:{address[1]}: {error.strerror}") from error
    return listener
