"""One connection: frames in, answers out, requests both ways. The same class at both ends.

    received bytes -> FrameParser -> requests  -> handler.on_request (may answer at once or later)
                                  -> responses -> whoever waits for that opaque
    send / respond / answer -> queue -> one transport write at the end of the loop's turn

Back-pressure: above the output high-water mark nothing more is read, so that a peer that does not read cannot make us
work for it; above the hard limit it is closed. On the loop's thread only.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from ledgermq.message.errors import InvalidHostError
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.codes import ResponseCode, request_name
from ledgermq.remoting.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.errors import ConnectionLostError, FrameError, RemotingError, RequestTimeoutError
from ledgermq.remoting.frame import FrameParser, encode, encode_response_head
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.pending import PendingRequests, Settle, Waiting
from ledgermq.remoting.refusal import Cause, Refusal

_log: Final = logging.getLogger(__name__)

Buffer = bytes | memoryview
_OPAQUE_MASK: Final = 0x7FFFFFFF


class RequestHandler(Protocol):
    """What serves a connection's requests. Called on the loop's thread."""

    def on_connected(self, connection: "Connection") -> None:
        """The connection can be used."""

    def on_request(self, connection: "Connection", command: "Command") -> None:
        """Answer now or later, exactly once unless one-way: `respond`, `refuse`, or `answer` with an encoded frame.

        A raised `Refusal` is answered as such; any other exception with code 1 and its name.
        """

    def on_closed(self, connection: "Connection") -> None:
        """Nothing more will come or go. Called once for each `on_connected`."""


class Connection(asyncio.Protocol):
    """Made by `RemotingServer` and `RemotingClient`.

    Attributes:
        peer: address and port of the other end; an IPv4 address mapped into IPv6 is written as IPv4.
        peer_host: the same as records hold it, 8 or 20 bytes.
        local_address: `host:port` of this end.
        attributes: free for the handler.
        in_flight: requests received and not yet answered.
    """

    def __init__(
        self,
        handler: RequestHandler,
        limits: Limits,
        admit: Callable[["Connection"], str | None],
        on_lost: Callable[["Connection", str], None],
        *,
        close_when_silent: bool = False,
    ) -> None:
        """Set up one end; the transport comes with `connection_made`.

        Args:
            handler: serves what the other end asks.
            limits: see there.
            admit: asked once connected; a text is the reason to close at once.
            on_lost: told of the end of an admitted connection, with the reason.
            close_when_silent: close when a request times out and nothing at all came since it was sent.
        """
        self.peer: tuple[str, int] = ("", 0)
        self.peer_host = b""
        self.local_address = ""
        self.attributes: dict[str, Any] = {}
        self.in_flight = 0
        self._handler = handler
        self._limits = limits
        self._admit = admit
        self._on_lost = on_lost
        self._close_when_silent = close_when_silent
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(limits.frame_bytes, limits.header_bytes)
        self._out: list[Buffer] = []
        self._pending = PendingRequests()
        self._opaque = 0
        self._transport: asyncio.Transport | None = None
        self._admitted = False
        self._closed = False
        self._close_reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._last_input = self._last_move = self._loop.time()
        self._frame_since: float | None = None

    # -- state

    @property
    def address(self) -> str:
        """`host:port` of the other end."""
        return _text_address(self.peer)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more (it may still be sending what was queued)."""
        return self._closed

    @property
    def unsent_bytes(self) -> int:
        """Output that the operating system has not taken yet, without what this turn queued."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- sending

    def send(self, data: Buffer | Sequence[Buffer]) -> None:
        """Queue encoded frames (or consecutive pieces of them). Nothing happens when closed.

        All that one turn of the loop queues goes out as one write. A view is read at the end of the turn.
        """
        if self._closed:
            return
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        if isinstance(data, (bytes, memoryview)):
            out.append(data)
        else:
            out.extend(data)

    def answer(self, data: Buffer | Sequence[Buffer], count: int = 1) -> None:
        """Queue the encoded answers to `count` requests. The hot path: no command, no encoding here."""
        self.in_flight -= count
        self.send(data)

    def respond(
        self,
        command: Command,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
        remark: str | None = None,
    ) -> None:
        """Answer a request; nothing for a one-way one. A body in pieces is not joined before the write."""
        if command.flag & ONEWAY_FLAG:
            return
        self.in_flight -= 1
        pieces = [body] if isinstance(body, (bytes, memoryview)) else body
        length = sum(map(len, pieces))
        head = encode_response_head(command.opaque, code, ext, remark, length)
        self.send([head, *pieces] if length else head)

    def refuse(self, command: Command, refusal: Refusal) -> None:
        """Answer with a refusal's code, remark and hints."""
        self.respond(command, refusal.code, refusal.ext, remark=refusal.remark)

    def call(self, command: Command, timeout_s: float, settle: Settle) -> None:
        """Send a request; `settle` is called once, later: with the answer, or with the error that says why none.

        The command's opaque is overwritten. The cheap form of `request`: no future, no timer of its own.
        """
        if self._closed:
            self._loop.call_soon(settle, self._lost())
            return
        self._stamp(command)
        now = self._loop.time()
        deadline = now + timeout_s
        self._pending.add(command.opaque, Waiting(deadline, now, command.code, settle))
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        self.send(encode(command))

    async def request(self, command: Command, timeout_s: float) -> Command:
        """The answer to a request, whatever its code.

        Raises:
            RequestTimeoutError: no answer in `timeout_s`.
            ConnectionLostError: the connection closed first.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self.call(command, timeout_s, functools.partial(_settle_future, future))
        return await future

    def oneway(self, command: Command) -> None:
        """Send a request that is not answered; sets its flag and opaque."""
        command.flag |= ONEWAY_FLAG
        self._stamp(command)
        self.send(encode(command))

    def _stamp(self, command: Command) -> None:
        command.opaque = self._opaque
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK

    # -- closing

    def close(self, reason: str = "closed here") -> None:
        """Send what is queued, then close. Requests that wait for an answer fail when it has closed."""
        if self._closed:
            return
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; what is queued is dropped."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        self._closed = True
        self._out.clear()
        self._close_reason = self._close_reason or reason

    def check_times(self, now: float) -> None:
        """Close if nothing moved, or a frame is unfinished, for too long. The owner calls it now and then.

        A connection that is closing but whose peer does not take the rest is cut off the same way.
        """
        if now - self._last_move > self._limits.idle_s:
            self.abort(f"idle for {self._limits.idle_s:g} s")
        elif self._frame_since is not None and now - self._frame_since > self._limits.frame_s:
            self.abort(f"a frame unfinished after {self._limits.frame_s:g} s")

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer = _plain(transport.get_extra_info("peername"))
        self.local_address = _text_address(_plain(transport.get_extra_info("sockname")))
        try:
            self.peer_host = encode_host(Host(*self.peer))
        except InvalidHostError as error:
            self.abort(str(error))
            return
        high = self._limits.output_high_water_bytes
        self._transport.set_write_buffer_limits(high, high // 2)
        reason = self._admit(self)
        if reason is not None:
            self.abort(reason)
            return
        self._admitted = True
        try:
            self._handler.on_connected(self)
        except Exception:
            _log.exception("%s: on_connected failed", self.address)
            self.abort("handler failed")

    def data_received(self, data: bytes) -> None:
        """Serve every whole frame, then refuse what is none."""
        self._last_input = self._last_move = now = self._loop.time()
        error: FrameError | None = None
        try:
            commands = self._parser.feed(data)
        except FrameError as caught:
            commands, error = caught.parsed, caught
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                waiting = self._pending.take(command.opaque)
                if waiting is not None:
                    waiting.settle(command)
            elif not self._closed:
                self._serve(command)
        if error is not None:
            self._refuse_frame(error)
        elif not self._parser.held_bytes:
            self._frame_since = None
        elif commands or self._frame_since is None:
            self._frame_since = now

    def pause_writing(self) -> None:
        """Too much unsent: read no more, so that no more answers arise."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has read: go on."""
        self._last_move = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"broken: {exc}" if exc else "closed by the peer")
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._pending.take_all():
            waiting.settle(self._lost())
        if not self._admitted:
            return
        self._on_lost(self, self._close_reason)
        try:
            self._handler.on_closed(self)
        except Exception:
            _log.exception("%s: on_closed failed", self.address)

    # -- inside

    def _serve(self, command: Command) -> None:
        if not command.flag & ONEWAY_FLAG:
            self.in_flight += 1
            if self.in_flight > self._limits.in_flight:
                remark = f"[OVERLOAD]{self._limits.in_flight} requests of this connection are unanswered"
                self.refuse(command, Refusal(Cause.BUSY, remark, retry_after_ms=100))
                return
        try:
            self._handler.on_request(self, command)
        except Refusal as refusal:
            self.refuse(command, refusal)
        except Exception as error:
            _log.exception("%s: %r failed", self.address, command)
            remark = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
            self.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)

    def _refuse_frame(self, error: FrameError) -> None:
        _log.warning("%s: %s; closing", self.address, error)
        self.close(str(error))

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        data = out[0] if len(out) == 1 and type(out[0]) is bytes else b"".join(out)
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            self._last_move = self._loop.time()
        elif unsent + len(data) > self._limits.output_hard_bytes:
            _log.warning("%s: %d bytes unsent, the peer does not read; closing", self.address, unsent + len(data))
            self.abort(f"{unsent + len(data)} bytes unsent")
            return
        self._transport.write(data)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        for waiting in self._pending.take_expired(self._loop.time()):
            timeout_s = waiting.deadline - waiting.sent_at
            waiting.settle(RequestTimeoutError(self.address, request_name(waiting.code), timeout_s))
            if self._close_when_silent and self._last_input <= waiting.sent_at:
                self.abort(f"silent for {timeout_s:g} s")
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._set_timer(deadline)

    def _lost(self) -> ConnectionLostError:
        return ConnectionLostError(self.address, self._close_reason)


def _settle_future(future: asyncio.Future[Command], outcome: Command | RemotingError) -> None:
    if future.done():
        return
    if isinstance(outcome, RemotingError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _plain(name: tuple[str, int, int, int] | tuple[str, int] | None) -> tuple[str, int]:
    """Address and port of a socket name, without scope, without the IPv6 wrapping of an IPv4 address."""
    if name is None:  # closed before we looked
        return "", 0
    return name[0].partition("%")[0].removeprefix("::ffff:"), name[1]


def _text_address(host: tuple[str, int]) -> str:
    return str(Host(*host))
