"""One connection: it parses frames, serves requests and completes waiting requests. Both ends use the same class.

    received bytes -> FrameParser -> requests  -> handler.on_request (may answer at once or later)
                                  -> responses -> the request with that opaque
    send / respond / answer -> queue -> one transport write at the end of the loop's turn

Back-pressure: while more than the output high-water mark is unsent, nothing is read or served, so that a peer that does
not read cannot cause work; above the hard limit the connection is closed. Nothing is read while a quota is used up
(`ledgermq.remoting.quotas`), or while earlier requests wait in line (`ledgermq.remoting.serving.line`).
Use it on the loop's thread only.
"""

import asyncio
import functools
import ipaddress
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

from ledgermq.message.errors import InvalidHostError
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.addresses import plain_host
from ledgermq.remoting.codec.codes import ResponseCode, request_name
from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode, encode_response_head
from ledgermq.remoting.errors import ConnectionLostError, FrameError, RemotingError
from ledgermq.remoting.limits import Limits, OutputBudget
from ledgermq.remoting.outgoing_requests import OutgoingRequests, Patience, Settle
from ledgermq.remoting.quotas import Quotas, address_block
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.line import (
    FEW,
    FULL_READ_BYTES,
    PIECE_BYTES,
    ServingLine,
    serve_for_a_slice,
)
from ledgermq.remoting.serving.lost_machine import acknowledges

_log: Final = logging.getLogger(__name__)

Buffer = bytes | memoryview
_REMARK_LENGTH_MAX: Final = 500
_REFUSAL_LENGTH_MAX: Final = 8192
_JOIN_MAX_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10
UNFINISHED_FREE_BYTES: Final = 64 * 1024
"""Bytes of an unfinished frame that every connection may hold without being counted."""


class RequestHandler(Protocol):
    """Serves a connection's requests; called on the loop's thread."""

    def on_connected(self, connection: "Connection") -> None:
        """Handle a new connection, which can be used from now on."""

    def on_request(self, connection: "Connection", command: "Command") -> None:
        """Answer now or later, exactly once unless one-way: `respond`, `refuse`, or `answer` with an encoded frame.

        A raised `Refusal` is sent as the answer; any other exception as code 1 with its name.
        """

    def on_closed(self, connection: "Connection") -> None:
        """Handle the end of a connection. Called once for each `on_connected`."""


@runtime_checkable
class AnswerWatcher(Protocol):
    """A request handler that is notified of every answer."""

    def on_answered(self, command: "Command", code: int) -> None:
        """Note an answer with `code` other than by `Connection.answer`; also called for one-way requests."""


class Connection(asyncio.Protocol):
    """One end of a connection, made by `RemotingServer` and `RemotingClient`.

    Attributes:
        peer: address and port of the other end; an IPv4 address mapped into IPv6 is written as IPv4.
        peer_host: the same as encoded in records, 8 or 20 bytes.
        address: the same as text, `host:port`.
        local_address: `host:port` of this end.
        is_local: whether the other end, or a proxy for it, is on this machine.
        has_certificate: whether the other end showed a certificate that was asked for and verified.
        attributes: free for the handler.
        user: signer of the last request, set by the handler; None: it was not signed, or users are not checked.
        block: name under which the address is counted for quotas.
        in_flight: requests received and not yet answered.
    """

    is_relayed = False
    """Whether another server passes the requests of the other end on."""
    _is_held_back = False
    _paused_at: float | None = None  # when reading was paused
    _throttle: asyncio.Handle | None = None  # timer, runs while a quota pauses reading
    _throttled_until = 0.0  # kept here: uvloop's handle of a time that is nearly due does not tell it
    _unfinished_bytes = 0  # bytes reported to `unfinished`
    _frame_paused_s = 0.0  # seconds of ended pauses since the unfinished frame began
    _unserved_bytes = 0  # bytes of unserved reads, as reported to the line
    _malformed: FrameError | None = None  # the error after the requests of the backlog
    _close_reason = ""
    told_peer: Host | None = None
    """The other end, as named by a trusted proxy; set before the connection is made."""

    def __init__(
        self,
        handler: RequestHandler,
        limits: Limits,
        admit: Callable[["Connection"], str | None],
        on_lost: Callable[["Connection", str], None],
        *,
        close_when_silent: bool = False,
        sign: Callable[[Command], None] | None = None,
        unfinished: Callable[[int], None] | None = None,
        budget: OutputBudget | None = None,
        quotas: Quotas | None = None,
        line: ServingLine | None = None,
    ) -> None:
        """Make one end; `connection_made` sets the transport.

        Args:
            handler: serves the other end's requests.
            limits: limits for the other end.
            admit: called when connected; returns None, or a reason to close at once.
            on_lost: called with the reason when an admitted connection has ended.
            close_when_silent: whether to close when a request times out and nothing was received since it was sent.
            sign: signs each request that is sent.
            unfinished: called with the change, in bytes, of the unfinished frame beyond the free size.
            budget: counts what is unsent, with that of other connections.
            quotas: count what is received and sent, with that of other connections.
            line: queue for many requests that arrive at once; None: all are served at once.
        """
        self.peer: tuple[str, int] = ("", 0)
        self.peer_host = b""
        self.address = self.local_address = self.block = ""
        self.is_local = self.has_certificate = False
        self.attributes: dict[str, Any] = {}
        self.user: str | None = None
        self.in_flight = 0
        self._handler = handler
        self._watcher = handler if isinstance(handler, AnswerWatcher) else None
        self._serves_all = self._has_left_quotas = False
        self._limits = limits
        self._admit = admit
        self._on_lost = on_lost
        self._close_when_silent = close_when_silent
        self._sign = sign
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser(limits.frame_bytes, limits.header_bytes, limits.header_fields)
        self._unfinished = unfinished
        self._budget = budget
        self._quotas = quotas
        self._line = line
        self._out: list[Buffer] = []
        self._queued_bytes = 0  # bytes in `_out`
        self._high_water = limits.output_high_water_bytes
        self._serve_below = min(self._high_water, UNFINISHED_FREE_BYTES)  # no check below this size of `_out`
        self._backlog: list[Command] = []  # parsed requests that are not served yet
        self._unparsed: list[memoryview] = []  # unparsed reads after the backlog
        self._outgoing = OutgoingRequests(self._loop, lambda: self.address, self._timed_out)
        self._transport: asyncio.Transport | None = None
        self._admitted = self._closed = self._is_write_paused = False
        self._made_at = self._last_input = self._last_move = self._loop.time()
        self._frame_since: float | None = None

    def serve_by(self, handler: RequestHandler) -> None:
        """Pass the other end's requests to another handler from now on; `on_connected` is not called.

        It gets every one of them, in order: too many unanswered ones end the connection. Quotas hold as before.
        """
        self._serves_all = True
        self._handler = handler
        self._watcher = handler if isinstance(handler, AnswerWatcher) else None

    # -- state

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more; queued data may still be going out."""
        return self._closed

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the operating system has not taken yet, without those queued in this turn of the loop."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_standing(self) -> bool:
        """Whether it is open, and the other machine acknowledges what is sent."""
        return not self._closed and self._transport is not None and acknowledges(self._transport)

    @property
    def is_full(self) -> bool:
        """Whether no large answer should be begun for this peer now.

        That is so if this peer, or all peers together, leave too much unread, or this turn of the loop has sent enough.
        """
        if self._budget is not None:
            if self._budget.is_turn_full:
                return True
            if self._budget.is_over:
                return self.held_bytes > 0
        return self.held_bytes > self._high_water

    @property
    def held_bytes(self) -> int:
        """Bytes that were given to this connection and not yet to the operating system."""
        return self._queued_bytes + self.unsent_bytes

    @property
    def awaited(self) -> int:
        """Number of requests that were sent and are not answered yet."""
        return len(self._outgoing)

    @property
    def unfinished_since(self) -> float | None:
        """When the unfinished frame began (seconds of the loop's clock); None while it is within the free size."""
        return self._frame_since if self._unfinished_bytes else None

    # -- sending

    def send(self, data: Buffer | Sequence[Buffer], size: int | None = None) -> None:
        """Queue encoded frames, or consecutive pieces of them, of `size` bytes if that is known. No-op when closed.

        Everything queued in one turn of the loop is sent with one write. A view is read at the end of the turn.
        """
        if self._closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        pieces = (data,) if isinstance(data, (bytes, memoryview)) else data
        if size is None:
            size = sum(map(len, pieces))
        self._out += pieces
        self._queued_bytes += size
        if size > _SMALL_BYTES and self._budget is not None:
            self._budget.wrote(self, size)

    def answer(self, data: Buffer | Sequence[Buffer], count: int = 1, size: int | None = None) -> None:
        """Queue the encoded answers to `count` requests, as `send`; for the hot path, without a command or encoding."""
        self.in_flight -= count
        self.send(data, size)

    def respond(
        self,
        command: Command,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Buffer | Sequence[Buffer] = b"",
        remark: str | None = None,
    ) -> None:
        """Answer a request; does nothing for a one-way request. The pieces of a body are not joined here."""
        if self._watcher is not None:
            self._watcher.on_answered(command, code)
        if command.flag & ONEWAY_FLAG:
            return
        pieces = [body] if isinstance(body, (bytes, memoryview)) else body
        length = sum(map(len, pieces))
        head = encode_response_head(command.opaque, code, ext, remark, length, command.header_type)
        self.answer([head, *pieces] if length else head, size=len(head) + length)

    def refuse(self, command: Command, refusal: Refusal) -> None:
        """Answer with a refusal's code, remark and hints; of a long remark, which shows a value, with the beginning."""
        self.respond(command, refusal.code, refusal.ext, remark=refusal.remark[:_REFUSAL_LENGTH_MAX])

    def fail(self, command: Command, error: Exception) -> None:
        """Answer with the exception that serving the request raised; call it inside `except`."""
        if isinstance(error, Refusal):
            self.refuse(command, error)
            return
        # only the code is logged, since header fields may contain properties of messages
        _log.exception("%s: request %s failed", self.address, request_name(command.code))
        remark = f"{type(error).__name__}: {error}"[:_REMARK_LENGTH_MAX]
        self.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark.encode(errors="replace").decode())

    def call(self, command: Command, timeout_s: float, settle: Settle, patience: Patience | None = None) -> None:
        """Send a request; `settle` is called later, once, with the answer or with the error.

        `patience` is asked when the time is over, and may give it more. The command's opaque is overwritten. It is
        cheaper than `request`, since it makes neither a future nor a timer.
        """
        if self._closed:
            self._loop.call_soon(settle, self._lost())
            return
        command.opaque = self._outgoing.next_opaque()
        if self._sign is not None:
            self._sign(command)
        frame = encode(command)
        self._outgoing.add(command.opaque, command.code, timeout_s, settle, patience)
        self.send(frame)

    async def request(self, command: Command, timeout_s: float, patience: Patience | None = None) -> Command:
        """Send a request; return the answer, whatever its code. `patience` as in `call`.

        Raises:
            RequestTimeoutError: no answer in `timeout_s`.
            ConnectionLostError: the connection closed first.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self.call(command, timeout_s, functools.partial(_settle_future, future), patience)
        return await future

    def oneway(self, command: Command) -> None:
        """Send a one-way request; sets its flag and opaque."""
        command.flag |= ONEWAY_FLAG
        command.opaque = self._outgoing.next_opaque()
        if self._sign is not None:
            self._sign(command)
        self.send(encode(command))

    # -- quotas

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is to be read now because of a quota."""
        return self._throttle is not None

    def throttle(self, delay_s: float) -> None:
        """Read nothing for this time, since a quota is used up; what was received before is served.

        It has no effect after `leave_quotas`.
        """
        if delay_s <= 0 or self._closed or self._has_left_quotas:
            return
        now = self._loop.time()
        until = now + delay_s
        if self._throttle is not None:
            if self._throttled_until >= until:
                return
            self._throttle.cancel()
        self._throttle, self._throttled_until = self._loop.call_at(until, self._end_throttle), until
        self._last_move = max(self._last_move, until)
        self._pause_reading()

    @property
    def throttled_until(self) -> float:
        """When reading continues, in seconds of the loop's clock, if `is_throttled`."""
        return self._throttled_until

    def hold_back(self) -> None:
        """Read nothing and serve nothing that waits in line until `go_on`: the log has not taken what was served."""
        if not self._is_held_back:
            self._is_held_back = True
            self._pause_reading()

    def go_on(self) -> None:
        """Read again after `hold_back`."""
        if self._is_held_back:
            self._is_held_back = False
            self._last_move = self._loop.time()
            self._serve_on()

    def leave_quotas(self) -> None:
        """Count nothing more on this connection: the other end has proved to be a server of this cluster."""
        self._has_left_quotas = True
        if self._throttle is not None:
            self._throttle.cancel()
            self._end_throttle()

    def _end_throttle(self) -> None:
        self._throttle = None
        self.read_on()

    def _count_traffic(self, quotas: Quotas, size: int, requests: int) -> None:
        if not self._has_left_quotas:
            self.throttle(quotas.traffic(self.block, self.user, size, requests, self._loop.time()))

    # -- closing

    def close(self, reason: str = "closed here") -> None:
        """Send what is queued, then close. Waiting requests fail once it has closed."""
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
        self._backlog.clear()
        self._unparsed.clear()
        self._count_unserved(0)
        self._close_reason = self._close_reason or reason

    def give_way(self) -> None:
        """Close at once and free the unfinished frame, since all connections together hold too many bytes."""
        _log.warning(
            "%s: the incomplete frames of all connections together take too much memory; closing", self.address
        )
        self._count_unfinished(0)
        self._parser.forget()
        self.abort("too many unfinished frames")

    def check_times(self, now: float) -> None:
        """Close if nothing was received or sent, or a frame is unfinished, for too long. The owner calls it regularly.

        A closing connection whose peer does not read the rest is aborted in the same way. While the peer's requests
        are held back here no time counts, and none counts for a frame while nothing is read.
        """
        if not self._closed and (self._is_held_back or (self._has_unserved and not self._is_write_paused)):
            return
        if now - self._last_move > self._limits.idle_s:
            self.abort(f"idle for {self._limits.idle_s:g} s")
            return
        if self._frame_since is None:
            return
        read_s = now - self._frame_since - self._frame_paused_s - self._paused_s(now)
        if read_s > self._limits.frame_s:
            self.abort(f"a frame unfinished after {self._limits.frame_s:g} s")

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self.told_peer or plain_host(transport.get_extra_info("peername"))
        self.peer = (peer.address, peer.port)
        self.address = str(peer)
        here = plain_host(transport.get_extra_info("sockname"))
        self.local_address = str(here)
        try:
            self.peer_host = encode_host(peer)
        except InvalidHostError as error:
            self.abort(str(error))
            return
        is_near = peer.address == here.address or ipaddress.ip_address(peer.address).is_loopback
        self.is_local = is_near and self.told_peer is None  # a proxy's 127.0.0.1 is the proxy's own machine
        self.has_certificate = bool(transport.get_extra_info("peercert"))
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // 2)
        reason = self._admit(self)
        if reason is not None:
            self.abort(reason)
            return
        self._admitted = True
        if self._quotas is not None:
            self.block = address_block(peer.address)
        try:
            self._handler.on_connected(self)
        except Exception:
            _log.exception("%s: on_connected failed", self.address)
            self.abort("handler failed")

    def data_received(self, data: bytes) -> None:
        """Serve every whole frame, now or in line; then close if a frame is malformed."""
        self._last_input = self._last_move = self._loop.time()
        line, count, size = self._line, 0, len(data)
        if self._malformed is not None:
            return
        if line is None:
            count = self._serve_read(data, sys.maxsize)
        elif not self._has_unserved and line.takes(size):
            count = self._serve_read(data, FEW)
        else:
            self._unparsed.append(memoryview(data))
        if line is not None and (
            self._has_unserved or line.pauses(size) or (size >= FULL_READ_BYTES and not line.may_read_more(self))
        ):
            if self._has_unserved:
                self._count_unserved(self._unserved_bytes + size)
            line.join(self)
            self._pause_reading()
        if self._quotas is not None and self._quotas.limits_traffic:
            self._count_traffic(self._quotas, size, count)

    def pause_writing(self) -> None:
        """Stop reading, so that no further answers are made: too much is unsent."""
        self._is_write_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """Continue to serve and to read: the peer has read enough."""
        self._is_write_paused = False
        self._last_move = self._loop.time()
        self._serve_on()

    def serve_some(self) -> bool:
        """Serve a few of the requests that wait in line, and read again after the last one.

        Returns:
            Whether there are more that can be served now. If not, the rest joins the line again later.
        """
        if self._is_held_back or self._is_write_paused or (self._has_unserved and self._is_to_pause()):
            return False
        if not self._backlog and self._unparsed:
            self._parse_piece()
        few, self._backlog = self._backlog[:FEW], self._backlog[FEW:]
        others = len(self._backlog)
        self._take_or_end(few)
        if self._quotas is not None and self._quotas.limits_traffic:
            put_back = max(0, len(self._backlog) - others)
            self._count_traffic(self._quotas, 0, len(few) - put_back)
        if self._has_unserved:
            return True
        if self._malformed is not None:
            self._refuse_frame(self._malformed)
            return False
        self._count_unserved(0)
        self.read_on()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail open requests, and tell the owner and the handler; do nothing if not connected or already lost."""
        if self._transport is None:
            return
        while self._has_unserved and not self._closed:  # under TLS the end can come with the last requests
            if not self._backlog:
                self._parse_piece()
            backlog, self._backlog = self._backlog, []
            self._take_or_end(backlog)
        if self._line is not None:
            self._line.leave(self)
        self._count_unfinished(0)
        if self._budget is not None:
            self._budget.forget(self)
        if self._throttle is not None:
            self._throttle.cancel()
        self._transport = None  # breaks a reference cycle, so that buffers are freed without the garbage collector
        self._parser.forget()
        self._end(f"broken: {exc}" if exc else "closed by the peer")
        self._outgoing.fail_all(self._lost)
        if not self._admitted:
            return
        self._on_lost(self, self._close_reason)
        try:
            self._handler.on_closed(self)
        except Exception:
            _log.exception("%s: on_closed failed", self.address)

    def read_on(self) -> None:
        """Read again, unless something still pauses reading."""
        if self._has_unserved or self._is_write_paused or self._throttle is not None or self._is_held_back:
            return
        transport = self._open_transport()
        if transport is None or not (self._line is None or self._line.may_read(self)):
            return
        if self._paused_at is not None:
            self._frame_paused_s += self._paused_s(self._loop.time())
            self._paused_at = None
        transport.resume_reading()

    # -- internals

    @property
    def _has_unserved(self) -> bool:
        return bool(self._backlog or self._unparsed)

    def _parse(self, data: bytes) -> tuple[list[Command], FrameError | None]:
        """Parse whole frames; return them, and the error after them."""
        error: FrameError | None = None
        try:
            commands = self._parser.feed(data)
        except FrameError as caught:
            commands, error = caught.parsed, caught
        held_bytes = self._parser.held_bytes
        if not held_bytes:
            self._frame_since = None
        elif commands or self._frame_since is None:
            self._frame_since, self._frame_paused_s = self._last_input, 0.0
        if not self._unparsed and (self._unfinished_bytes or held_bytes > UNFINISHED_FREE_BYTES):
            self._count_unfinished(held_bytes)
        if self._line is not None:
            self._line.began(len(commands))
        return commands, error

    def _serve_read(self, data: bytes, at_once_max: int) -> int:
        """Serve a read; if it has over `at_once_max` requests, serve one slice and return 0, else the number served."""
        commands, error = self._parse(data)
        count = len(commands)
        if self._backlog:  # reading was paused just now
            self._backlog += commands
        elif count > at_once_max:
            self._backlog, self._malformed = commands, error
            serve_for_a_slice(self)
            return 0
        else:
            self._take(commands)
            if self._line is not None:
                count -= len(self._backlog)  # counted when they are served
        if error is not None:
            self._refuse_frame(error)
        return count

    def _parse_piece(self) -> None:
        """Parse some of the waiting reads, up to a malformed frame."""
        read = self._unparsed[0]
        piece, rest = bytes(read[:PIECE_BYTES]), read[PIECE_BYTES:]
        self._unparsed[:1] = [rest] if rest else []
        self._backlog, self._malformed = self._parse(piece)
        if self._malformed is not None:
            self._unparsed.clear()

    def _count_unserved(self, size: int) -> None:
        change, self._unserved_bytes = size - self._unserved_bytes, size
        if change and self._line is not None:
            self._line.count(self, change)

    def _take_or_end(self, commands: list[Command]) -> None:
        """Serve commands as `_take`, but let a failure end this connection: the caller serves others, too."""
        try:
            self._take(commands)
        except Exception:
            _log.exception("%s: a request or an answer that waited failed", self.address)
            self.abort("a request or an answer that waited failed")

    def _take(self, commands: list[Command]) -> None:
        """Serve the commands in order, until their answers exceed the high-water mark."""
        rest = iter(commands)
        for command in rest:
            if command.flag & RESPONSE_FLAG:
                self._outgoing.settle(command)
            elif not self._closed:
                self._serve(command)
                if self._queued_bytes > self._serve_below and self._is_to_pause():
                    self._backlog = [*rest, *self._backlog]  # this ends the loop
                    if self._backlog:
                        self._pause_reading()

    def _is_to_pause(self) -> bool:
        """Return whether this connection, or all together with a share of its own, leave too much unread."""
        if self._queued_bytes > self._high_water:
            return True
        return self._budget is not None and self._budget.is_over and self._queued_bytes > UNFINISHED_FREE_BYTES

    def _serve_on(self) -> None:
        """Serve the commands that were postponed, in line or at once, then read again."""
        if self._has_unserved and self._line is not None:
            self._line.join(self)
            return
        backlog, self._backlog = self._backlog, []
        self._take(backlog)
        self.read_on()

    def _paused_s(self, now: float) -> float:
        """Return the seconds of the pause under way, since the unfinished frame began."""
        if self._paused_at is None or self._frame_since is None:
            return 0.0
        return max(0.0, now - max(self._paused_at, self._frame_since))

    def _count_unfinished(self, held_bytes: int) -> None:
        counted = max(0, held_bytes - UNFINISHED_FREE_BYTES)
        change, self._unfinished_bytes = counted - self._unfinished_bytes, counted
        if self._unfinished is not None and change:
            self._unfinished(change)

    def _pause_reading(self) -> None:
        if self._paused_at is None:
            self._paused_at = self._loop.time()
        if transport := self._open_transport():
            transport.pause_reading()

    def _open_transport(self) -> asyncio.Transport | None:
        """Return the transport; None while it is closing, when uvloop's refuses to pause or resume."""
        return None if self._transport is None or self._transport.is_closing() else self._transport

    def _serve(self, command: Command) -> None:
        if not command.flag & ONEWAY_FLAG:
            self.in_flight += 1
            if self.in_flight > self._limits.in_flight:
                if self._serves_all:
                    self.abort(f"{self._limits.in_flight} requests are unanswered")
                    return
                busy = "[OVERLOAD]system busy, start flow control for a while"
                remark = f"{busy}: {self._limits.in_flight} requests of this connection are unanswered"
                self.refuse(command, Refusal(Cause.BUSY, remark, retry_after_ms=100))
                return
        try:
            self._handler.on_request(self, command)
        except Exception as error:
            self.fail(command, error)

    def _refuse_frame(self, error: FrameError) -> None:
        _log.warning("%s: %s; closing", self.address, error)
        self.close(str(error))

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        size = self._queued_bytes
        self._out = []
        self._queued_bytes = 0
        unsent = self._transport.get_write_buffer_size()
        if not unsent:
            self._last_move = self._loop.time()
        elif unsent + size > self._limits.output_hard_bytes:
            _log.warning("%s: %d bytes unsent, the peer does not read; closing", self.address, unsent + size)
            self.abort(f"{unsent + size} bytes unsent")
            return
        if size <= _JOIN_MAX_BYTES:
            self._transport.write(out[0] if len(out) == 1 and type(out[0]) is bytes else b"".join(out))
        else:
            for piece in _pieces(out):
                self._transport.write(piece)
        if unsent and self._budget is not None:
            self._budget.wrote(self, 0)
        if self._quotas is not None and self._quotas.limits_traffic:
            self._count_traffic(self._quotas, size, 0)
        if self._has_unserved and not self._is_write_paused:
            self._loop.call_soon(self._serve_on)

    def _timed_out(self, sent_at: float) -> None:
        if self._close_when_silent and self._last_input <= sent_at:
            self.abort("silent while a request waited for its time-out")

    def _lost(self) -> ConnectionLostError:
        was_heard = self._last_input > self._made_at
        hint = "" if was_heard else " (it never sent anything: is it another service, or one that expects TLS?)"
        return ConnectionLostError(self.address, self._close_reason + hint)


def _pieces(buffers: Sequence[Buffer]) -> Iterator[bytes]:
    """Yield the concatenated buffers in pieces of at most `_JOIN_MAX_BYTES`."""
    gathered: list[Buffer] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view):
            part = view[: _JOIN_MAX_BYTES - size]
            gathered.append(part)
            size += len(part)
            view = view[len(part) :]
            if size == _JOIN_MAX_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _settle_future(future: asyncio.Future[Command], outcome: Command | RemotingError) -> None:
    if future.done():
        return
    if isinstance(outcome, RemotingError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
