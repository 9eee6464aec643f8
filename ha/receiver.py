"""The slave's end of the stream: it dials the master, shakes hands, writes frames into its log, and reports.

    dial --> ours: OPENER, challenge, hello, welcome --> [begin anew: snapshot] --> stream --> closed --> dial again
       '---> RocketMQ's: a report -----------------------------------------------^      in 100 ms; refused: up to 1 s
       '---> RocketMQ's elected one: handshake, answer, a report ----------------^

One report answers everything that arrived in a turn of the loop. Bytes go from the receive buffer into the file.
"""

import asyncio
import contextlib
import enum
import random
from typing import Final, Protocol, cast

from ha.config import SlaveConfig
from ha.core.auto_switch import AUTO_SWITCH, MasterAnswer, SlaveHandshake, encode_handshake, read_answer
from ha.core.handshake import MasterWelcome, seal, unseal
from ha.core.stream import CLASSIC, FRAME_LIMIT_BYTES, OPENER, OURS, Dialect, Header, Report, SealedOurs
from ha.errors import DivergedLogError, HaError, HaProtocolError, NoProofError
from ha.sender import HANDSHAKE_S
from ledgermq.message.crc import crc32
from ledgermq.remoting.proof import DIALER, LISTENER, NONCE_SIZE, make_nonce, prove, proving_secret
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.lost_machine import watch
from store.errors import StoreError

_AWAY_S: Final = 0.1
"""Longest pause before a master is dialled again that was not reached, or whose stream has ended."""
_REFUSED_S: Final = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Longest pauses after a stream that the master or this slave has refused, by the number of refusals in a row."""
_BUFFER_BYTES: Final = FRAME_LIMIT_BYTES + (1 << 20)
_SNAPSHOT_LIMIT_BYTES: Final = 1 << 30
_CONNECT_S: Final = 3.0
_PAUSE_S: Final = 0.005


class CopiedLog(Protocol):
    """The interface of the slave to its receiver."""

    config: SlaveConfig
    dialect: Dialect
    is_learner: bool

    def hello(self, nonce: bytes) -> bytes:
        """Return this slave's encoded hello.

        Raises:
            StoreError: the disk refused to drop an incomplete record.
        """

    def agree(self, answer: MasterAnswer) -> None:
        """Check with the answer of RocketMQ's elected master that this log is a beginning of the master's.

        Raises:
            HaError: it is not, or it was cut and has to be compared again.
            StoreError, OSError: the disk refused to cut it.
        """

    def check_welcome(self, welcome: MasterWelcome) -> None:
        """Check that the master is of this group. Raises `WrongGroupError`."""

    def begin(self, welcome: MasterWelcome | None, snapshot: bytes) -> None:
        """Begin the stream; if it does not begin at this log's end, the log is dropped and begins anew.

        Raises:
            StoreError, OSError, ValueError: it could not.
        """

    def take(self, header: Header, data: memoryview) -> None:
        """Append the bytes of one frame.

        Raises:
            Refusal: the disk refused it.
            HaError: it does not begin where the log ends.
        """

    def report(self) -> Report:
        """Return the report of this log."""

    def resolve(self, error: DivergedLogError) -> bool:
        """Handle logs that differ: drop records that are not confirmed here; return whether to dial again at once.

        Raises:
            StoreError, OSError: the disk refused to drop it.
        """

    def lost(self, error: Exception | None) -> None:
        """Handle the end of the stream."""


class Receiver:
    """Keeps a stream from the master. `address` may be changed at any time."""

    def __init__(self, slave: CopiedLog, loop: asyncio.AbstractEventLoop) -> None:
        self._slave = slave
        self._loop = loop
        self._address = slave.config.master_address
        self._task: asyncio.Task[None] | None = None
        self._stream: _Stream | None = None
        self._wake = asyncio.Event()

    @property
    def address(self) -> str:
        """`host:port` of the master's listener; empty while it is not known."""
        return self._address

    @address.setter
    def address(self, address: str) -> None:
        if address != self._address:
            self._address = address
            self.dial_again()

    def dial_again(self) -> None:
        """End the present stream, since the master or its dialect is another one."""
        self._wake.set()
        if self._stream is not None:
            self._stream.close()

    def start(self) -> None:
        """Dial until `close`."""
        self._task = self._loop.create_task(self._run(), name="follow the master")

    async def close(self) -> None:
        """Close the stream."""
        if self._task is not None:
            self._task.cancel()
            # asyncio logs a failure, which must not keep the log from being closed
            await asyncio.wait([self._task])
            self._task = None

    def report(self) -> None:
        """Report that the durable end of the log has changed."""
        if self._stream is not None:
            self._stream.report()

    async def _run(self) -> None:
        refusals = 0
        while True:
            self._wake.clear()
            if not self._address:
                await self._wake.wait()
                continue
            refusals = refusals + 1 if await self._follow() else 0
            pause_s = _longest_pause_s(refusals) * random.uniform(0.5, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _follow(self) -> bool:
        """Run one stream to its end; return whether it was refused, as it probably will be again."""
        stream, address = _Stream(self._slave, self._loop), self._address
        host, _, port = address.rpartition(":")
        error: Exception | None = None
        self._stream = stream
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._loop.create_connection(lambda: stream, host.strip("[]"), int(port))
            error = await stream.ended
        except (OSError, TimeoutError, ValueError) as failure:
            error = failure
        finally:
            self._stream = None
            stream.close()
        try:
            # after a change of address another master, perhaps this node, decides what is cut
            if isinstance(error, DivergedLogError) and address == self._address and self._slave.resolve(error):
                return False
        except (StoreError, OSError) as failure:
            error = failure
        self._slave.lost(error)
        return stream.was_connected and (not stream.has_begun or isinstance(error, Refusal | StoreError | HaError))


def _longest_pause_s(refusals: int) -> float:
    return _REFUSED_S[min(refusals, len(_REFUSED_S)) - 1] if refusals else _AWAY_S


class _Phase(enum.Enum):
    ANSWER = enum.auto()
    CHALLENGE = enum.auto()
    WELCOME = enum.auto()
    SNAPSHOT = enum.auto()
    STREAM = enum.auto()


_FIRST_PHASE: Final[dict[Dialect, _Phase]] = {
    CLASSIC: _Phase.STREAM,
    AUTO_SWITCH: _Phase.ANSWER,
    OURS: _Phase.CHALLENGE,
}


class _Stream(asyncio.BufferedProtocol):
    """One connection to the master. `ended` gets the error that ended it, or None."""

    def __init__(self, slave: CopiedLog, loop: asyncio.AbstractEventLoop) -> None:
        self._slave = slave
        self._loop = loop
        self._dialect = dialect = slave.dialect
        self._phase = _FIRST_PHASE[dialect]
        self._nonce = make_nonce()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # received bytes that are not handled yet
        self._welcome: MasterWelcome | None = None
        self._snapshot = bytearray()
        self._header: Header | None = None  # header of the incomplete frame
        self._is_checked = False  # bytes of the incomplete frame
        self._transport: asyncio.Transport | None = None
        self._reported: Report | None = None
        self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[Exception | None] = loop.create_future()
        self.was_connected = self.has_begun = False

    # ---- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first bytes."""
        self.was_connected = True
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        watch(transport)
        self._heard_s = self._loop.time()
        if self._phase is _Phase.STREAM:
            self._begin(b"")
        else:
            who = SlaveHandshake(self._slave.config.group.broker_id, self._slave.is_learner)
            transport.write(encode_handshake(who) if self._phase is _Phase.ANSWER else OPENER)
            self._timer = self._loop.call_later(HANDSHAKE_S, self._no_answer)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free room after the received bytes."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle all whole messages and frames; an error ends the stream."""
        self._end += nbytes
        self._heard_s = self._loop.time()
        self._take()

    def _take(self) -> None:
        if self._transport is None:
            return
        try:
            while self._step():
                pass
        except Refusal as refusal:
            if refusal.cause is not Cause.BUSY:
                self.close(refusal)
                return
            self._transport.pause_reading()  # the next file is being allocated
            self._loop.call_later(_PAUSE_S, self._go_on)
        except (HaError, StoreError, OSError, ValueError) as error:
            self.close(error)
            return
        if self.has_begun:
            self.report()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self._transport = None
        self.close(error)

    # ---- for the receiver

    def close(self, error: Exception | None = None) -> None:
        """End the stream."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self.ended.done():
            self.ended.set_result(error)

    def report(self) -> None:
        """Tell the master how far the log is, if that has changed."""
        if self._transport is None:
            return
        if self._phase is _Phase.SNAPSHOT and self._welcome is not None:
            start = self._welcome.start
            # only shows that this slave is alive; once the snapshot is restored, the log is durable up to there
            report = Report(start, 0)
        elif self.has_begun:
            report = self._slave.report()
        else:
            return
        if report != self._reported:
            self._reported = report
            self._transport.write(self._dialect.report(report))

    # ---- internals

    def _step(self) -> bool:
        """Take one message or frame; False when none is whole."""
        if self._transport is None:
            return False
        data = self._view[self._start : self._end]
        if self._phase is _Phase.STREAM:
            return self._take_frame(data)
        if self._phase is _Phase.SNAPSHOT:
            return self._take_snapshot(data)
        if self._phase is _Phase.ANSWER:
            return self._take_answer(data)
        message = unseal(data)
        if message is None:
            return False
        size, proof, content = message
        self._start += size
        if self._phase is _Phase.CHALLENGE:
            self._say_hello(content)
        else:
            self._take_welcome(content, proof)
        return True

    def _take_answer(self, data: memoryview) -> bool:
        answer = read_answer(data)
        if answer is None:
            return False
        size, said = answer
        self._start += size
        self._slave.agree(said)
        self._begin(b"")
        return True

    def _say_hello(self, challenge: bytes) -> None:
        assert self._transport is not None
        if len(challenge) != NONCE_SIZE:
            raise HaProtocolError(f"a challenge of {len(challenge)} bytes")
        if secret := self._slave.config.group.secret:
            self._dialect = SealedOurs(secret, self._nonce, challenge)
        content = self._slave.hello(self._nonce)
        self._transport.write(seal(content, prove(secret, DIALER, challenge, content)))
        self._phase = _Phase.WELCOME

    def _take_welcome(self, content: bytes, proof: bytes) -> None:
        group = self._slave.config.group
        if proving_secret(group.secrets, LISTENER, self._nonce, content, proof) is None:
            raise NoProofError("the master does not prove the secret, or will not have this slave")
        welcome = MasterWelcome.decode(content)
        self._slave.check_welcome(welcome)
        if welcome.snapshot_size > _SNAPSHOT_LIMIT_BYTES:
            raise HaProtocolError(f"a snapshot of {welcome.snapshot_size} bytes")
        self._welcome = welcome
        self._phase = _Phase.SNAPSHOT
        if welcome.snapshot_size == 0:
            self._begin(b"")
        else:  # restoring may take long; from now on the master must not be silent
            self._arm()

    def _take_snapshot(self, data: memoryview) -> bool:
        assert self._welcome is not None
        missing, seal_size = self._welcome.snapshot_size - len(self._snapshot), self._dialect.seal_size
        if missing or len(data) < seal_size:
            piece = data[:missing]
            self._snapshot += piece
            self._start += len(piece)
            return len(piece) > 0
        snapshot = bytes(self._snapshot)
        self._dialect.check(snapshot, data[:seal_size])
        self._start += seal_size
        self._begin(snapshot)
        self._snapshot.clear()
        return True

    def _begin(self, snapshot: bytes) -> None:
        self._slave.begin(self._welcome, snapshot)
        self._phase = _Phase.STREAM
        self.has_begun = True
        self._arm()
        self.report()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._slave.config.group.heartbeat_s, self._beat)

    def _go_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
            self._take()

    def _take_frame(self, data: memoryview) -> bool:
        dialect = self._dialect
        if self._header is None:
            if len(data) < dialect.header_size:
                return False
            self._header = dialect.read_header(data)
            self._start += dialect.header_size
            return True
        header = self._header
        size = header.size + dialect.seal_size if header.size else 0
        if len(data) < size:
            return False
        body = data[: header.size]
        if not self._is_checked:
            dialect.check(body, data[header.size : size])
            if header.crc is not None and crc32(body) != header.crc:
                raise HaProtocolError(f"the CRC of {header.size} bytes at {header.offset} does not fit")
            self._is_checked = True  # not checked again if `take` was refused for a moment
        self._slave.take(header, body)
        self._header, self._is_checked = None, False
        self._start += size
        return True

    def _beat(self) -> None:
        """Report again, even without a change; close the stream of a silent master."""
        group = self._slave.config.group
        silent_s = self._loop.time() - self._heard_s
        if silent_s > group.idle_limit_s:
            self.close(HaProtocolError(f"the master has been silent for {silent_s:.1f} s"))
            return
        self._arm()
        self._reported = None
        self.report()

    def _no_answer(self) -> None:
        detail = "it does not answer as a master of LedgerMQ does (for one of RocketMQ set haMasterProtocol=rocketmq)"
        if self._phase is _Phase.ANSWER:
            detail = "it does not answer as an elected master of RocketMQ does"
        self.close(HaProtocolError(detail))
