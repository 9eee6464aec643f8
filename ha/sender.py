"""The master's end of a slave's connection: the handshake, then frames to the slave and reports from it.

    connected --OPENER--> challenged --hello, proof--> streaming       a node of ours
             '--report of a host that may speak plainly--> streaming   RocketMQ's slave
             '--handshake of such a host--> agreeing --report--> streaming   RocketMQ's slave of an elected master

Bytes of the log go to the socket without a copy in Python: those of the batch placed last, or the file's mapping. The
bytes that wait for the slave are bounded by the window of its `Copy` and the socket's buffer; a slave that does not
read, or is silent, is dropped.
"""

import asyncio
import enum
from collections import deque
from typing import Final, Protocol, cast

from ha.config import MasterConfig
from ha.core.auto_switch import AUTO_SWITCH, OPENING, MasterAnswer, SlaveHandshake, encode_answer, read_handshake
from ha.core.copies import Copy
from ha.core.epochs import Epochs, part_at
from ha.core.handshake import SlaveHello, join_offset, refusal, seal, unseal
from ha.core.stream import CLASSIC, OPENER, OPENER_SIZE, OURS, Dialect, Header, Report, SealedOurs
from ha.errors import DivergedLogError, HaError, HaProtocolError, NoProofError, WrongGroupError
from ha.log_ends import record_start_at, whole_records_end
from ledgermq.message.crc import crc32
from ledgermq.message.errors import CorruptRecordError
from ledgermq.remoting.proof import DIALER, LISTENER, make_nonce, prove, proving_secret
from ledgermq.remoting.serving.lost_machine import watch
from store.errors import DiskReadError
from store.files.mapped_file_queue import MappedFileQueue

HANDSHAKE_S: Final = 3.0
_SOCKET_BUFFER_BYTES: Final = 4 << 20
_TURN_BYTES: Final = 2 << 20
_MARKS_MAX: Final = 4096


class SlaveLinkOwner(Protocol):
    """The interface of the master to its links."""

    config: MasterConfig
    epoch: int
    epochs: Epochs

    @property
    def queue(self) -> MappedFileQueue:
        """The files of the log."""

    @property
    def confirm_offset(self) -> int:
        """Confirm offset of the log."""

    @property
    def sendable_offset(self) -> int:
        """Offset up to which slaves may be sent the log."""

    def snapshot(self) -> bytes:
        """Return the state of the broker, for a slave that begins in the middle of the log."""

    def admit(self, link: "SlaveLink") -> None:
        """Handle a new connection."""

    def joined(self, link: "SlaveLink", copy: Copy) -> None:
        """Add a slave whose handshake is done; its stream begins."""

    def reported(self, link: "SlaveLink") -> None:
        """Handle a report that has changed the slave's copy, which may have room for more."""

    def newer_epoch(self, link: "SlaveLink") -> None:
        """Handle a slave that knows of a newer master from the controllers."""

    def complain(self, link: "SlaveLink", error: Exception) -> None:
        """Count and log the error for which a connection is closed."""

    def closed(self, link: "SlaveLink") -> None:
        """Handle the end of a connection."""

    def observe_lag(self, seconds: float) -> None:
        """Note that a slave has reported bytes that could be sent `seconds` ago."""


class _Phase(enum.Enum):
    CONNECTED = enum.auto()
    CHALLENGED = enum.auto()
    AGREEING = enum.auto()
    STREAMING = enum.auto()
    CLOSED = enum.auto()


class SlaveLink(asyncio.Protocol):
    """One connection to the master's port for slaves.

    Attributes:
        copy: what the slave has; None before the handshake is done.
        host: host of the other end.
        hello: the slave's hello; None for RocketMQ's slave.
    """

    def __init__(self, owner: SlaveLinkOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.copy: Copy | None = None
        self.host = self.address = "?"
        self.hello: SlaveHello | None = None
        self._owner = owner
        self._loop = loop
        self._phase = _Phase.CONNECTED
        self._dialect: Dialect = OURS
        self._nonce = make_nonce()
        self._input = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_writable = True
        self._is_going_on = False
        self._is_restoring = False  # the slave has not reported yet that it has restored the snapshot
        self._handshake: SlaveHandshake | None = None  # handshake of RocketMQ's slave of an elected master
        self._record_end = 0  # end of the slave's last whole record
        self._sent_confirm = -1
        self._sent_s = 0.0
        self._marks: deque[tuple[int, float]] = deque(maxlen=_MARKS_MAX)
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        name = transport.get_extra_info("peername")
        if name:
            self.host, self.address = str(name[0]), f"{name[0]}:{name[1]}"
        transport.set_write_buffer_limits(high=_SOCKET_BUFFER_BYTES)
        watch(transport)
        config = self._owner.config
        # RocketMQ's slave may wait for its heartbeat's time before it reports anything
        patience_s = config.group.idle_limit_s if config.may_speak_plainly(self.host) else HANDSHAKE_S
        self._timer = self._loop.call_later(patience_s, self._time_out)
        self._owner.admit(self)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; an error of the protocol, or a log that cannot be read, closes the connection."""
        self._input += data
        try:
            self._take()
        except (HaError, DiskReadError) as error:
            self.close(error)

    def pause_writing(self) -> None:
        """Send no more: the socket's buffer is full."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """Send again: the socket's buffer has room."""
        self._is_writable = True
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        self._phase = _Phase.CLOSED
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._owner.closed(self)

    # ---- for the master

    def close(self, error: Exception | None = None) -> None:
        """Close now; `error` is logged."""
        if self._phase is _Phase.CLOSED:
            return
        if error is not None:
            self._owner.complain(self, error)
        self._phase = _Phase.CLOSED
        if self._transport is not None:
            self._transport.abort()

    def mark(self) -> None:
        """Note the end of the log and the time: the slave's lag is counted from here."""
        copy, end, marks = self.copy, self._owner.queue.committed_offset, self._marks
        if copy is not None and end > (marks[-1][0] if marks else copy.sent):
            marks.append((end, self._loop.time()))

    def send(self) -> bool:
        """Send bytes of the log as the window allows, a bounded part in each turn, with the confirm offset.

        Returns:
            Whether bytes of the log were sent.
        """
        copy, transport = self.copy, self._transport
        if copy is None or transport is None or self._phase is not _Phase.STREAMING or self._is_restoring:
            return False
        queue, end, budget = self._owner.queue, self._owner.sendable_offset, _TURN_BYTES
        self.mark()
        try:
            while self._is_writable and budget > 0 and (size := copy.next_size(self._part_end(end), queue.file_size)):
                self._write(transport, copy, queue.fresh_slice(copy.sent, size))
                budget -= size
        except DiskReadError as error:
            self.close(error)
            return False
        if budget <= 0 and not self._is_going_on:
            self._is_going_on = True
            self._loop.call_soon(self._go_on)
        if self._sent_confirm < 0:
            self.tell(0.0)
        return budget < _TURN_BYTES

    def tell(self, quiet_s: float) -> bool:
        """Send the confirm offset if it is new and all of the log is sent, in a frame of its own.

        Returns:
            Whether to send it later, since something was sent within `quiet_s`: the next bytes may carry it.
        """
        copy, transport = self.copy, self._transport
        if copy is None or transport is None or self._phase is not _Phase.STREAMING or self._is_restoring:
            return False
        is_new = self._dialect.tells_confirmed and self._owner.confirm_offset > self._sent_confirm
        if not is_new or copy.sent != self._owner.sendable_offset:
            return False
        if self._loop.time() - self._sent_s < quiet_s:
            return True
        self._write(transport, copy, memoryview(b""))
        return False

    def beat(self, now_s: float) -> None:
        """Send a heartbeat if nothing was sent for a while, and drop a slave that is stuck; call it regularly."""
        copy, transport, group = self.copy, self._transport, self._owner.config.group
        if copy is None or transport is None or self._phase is not _Phase.STREAMING:
            return
        queue, durable = self._owner.queue, self._owner.config.rules.counts_durable
        copy.look(queue.flushed_offset if durable else queue.committed_offset, durable=durable)
        if now_s - copy.reported_s > group.idle_limit_s:
            self.close(HaProtocolError(f"no report for {group.idle_limit_s:g} s"))
        elif (waiting := copy.sent - copy.acked(durable=durable)) > 0 and now_s - copy.moved_s > group.idle_limit_s:
            self.close(HaProtocolError(f"it has taken none of {waiting} bytes for {group.idle_limit_s:g} s"))
        elif now_s - self._sent_s >= group.heartbeat_s and self._is_writable:
            self._write(transport, copy, memoryview(b""))

    # ---- internals

    def _go_on(self) -> None:
        self._is_going_on = False
        self.send()

    def _write(self, transport: asyncio.Transport, copy: Copy, data: memoryview) -> None:
        dialect = self._dialect
        confirm = self._sent_confirm = self._owner.confirm_offset
        crc = crc32(data) if dialect.has_crc else None
        header = Header(copy.sent, len(data), self._owner.epoch, confirm, crc)
        if dialect is AUTO_SWITCH:
            (epoch, start), _ = part_at(self._owner.epochs, copy.sent)
            header = header._replace(epoch=epoch, epoch_start=start)
        transport.writelines((dialect.header(header), data, dialect.seal(data)))
        self._sent_s = self._loop.time()
        copy.on_sent(len(data))

    def _take(self) -> None:
        if self._phase is _Phase.CONNECTED and len(self._input) >= OPENER_SIZE:
            self._open()
        if self._phase is _Phase.CHALLENGED and (message := unseal(memoryview(bytes(self._input)))) is not None:
            size, proof, content = message
            del self._input[:size]
            self._greet(content, proof)
        if self._phase is _Phase.AGREEING and len(self._input) >= AUTO_SWITCH.report_size:
            self._agree()
        if self._phase is _Phase.STREAMING:
            self._take_reports()

    def _part_end(self, end: int) -> int:
        """Return the largest end of the next frame: the end of the epoch in a dialect whose frames lie in one epoch."""
        assert self.copy is not None
        part_end = part_at(self._owner.epochs, self.copy.sent)[1] if self._dialect is AUTO_SWITCH else None
        return end if part_end is None else min(end, part_end)

    def _open(self) -> None:
        assert self._transport is not None
        if self._input.startswith(OPENER):
            del self._input[:OPENER_SIZE]
            self._phase = _Phase.CHALLENGED
            self._transport.write(seal(self._nonce))
            return
        if not self._owner.config.may_speak_plainly(self.host):
            raise WrongGroupError("haPlainSlaves", f"{self.host} speaks RocketMQ's dialect, and is not among them")
        if self._owner.epochs:
            self._shake_hands()
            return
        self._dialect = CLASSIC
        with memoryview(self._input) as view:
            first = CLASSIC.read_report(view).received
        queue = self._owner.queue
        if first > queue.max_offset or 0 < first < queue.min_offset:
            bounds = f"the master has {queue.min_offset} to {queue.max_offset}"
            raise DivergedLogError("longer" if first else "behind", f"a first report of {first}, and {bounds}")
        # one slave for each host, since RocketMQ's slave sends no identity
        self._begin(f"plain-{self.host}", first or queue.min_offset)

    def _shake_hands(self) -> None:
        """Send RocketMQ's slave the epochs; it cuts its log where that differs before it asks for more."""
        assert self._transport is not None
        if not self._input.startswith(OPENING):
            raise HaProtocolError("no handshake, and this master was elected: its slaves are told epochs")
        found = read_handshake(memoryview(bytes(self._input)))
        if found is None:
            return
        size, self._handshake = found
        del self._input[:size]
        self._dialect, self._phase = AUTO_SWITCH, _Phase.AGREEING
        end = self._owner.queue.committed_offset
        self._transport.write(encode_answer(MasterAnswer(end, self._owner.epochs)))

    def _agree(self) -> None:
        """Begin at the slave's first report, which may be inside a record if its last connection ended there."""
        assert self._handshake is not None
        with memoryview(self._input) as view:
            first = AUTO_SWITCH.read_report(view).received
        queue = self._owner.queue
        if first > queue.committed_offset or 0 < first < queue.min_offset:
            bounds = f"the master has {queue.min_offset} to {queue.committed_offset}"
            raise DivergedLogError("longer" if first else "behind", f"a first report of {first}, and {bounds}")
        start = first or queue.min_offset
        if not first and self._handshake.wants_last_file:
            start = max(start, queue.max_offset - queue.max_offset % queue.file_size)
        record = record_start_at(queue, start, self._owner.config.window_bytes)
        if record is None:
            raise HaProtocolError(f"it asks for the log from {start} on, where no record is found")
        self._record_end = record
        self._begin(f"{self._owner.config.group.name}/{self._handshake.broker_id}", start, has=record)

    def _whole_records(self, report: Report) -> Report:
        """Return a report of RocketMQ's slave, cut to whole records, since the confirm offset is a record's end."""
        assert self.copy is not None
        if not self._record_end <= report.received <= self.copy.sent:
            return report  # an impossible report
        try:
            self._record_end = whole_records_end(self._owner.queue, self._record_end, report.received)
        except CorruptRecordError as error:
            raise HaProtocolError(f"the log here cannot be compared with its report: {error}") from error
        return Report(self._record_end, self._record_end)

    def _greet(self, content: bytes, proof: bytes) -> None:
        assert self._transport is not None
        group = self._owner.config.group
        secret = proving_secret(group.secrets, DIALER, self._nonce, content, proof)
        if secret is None or (not secret and self._owner.config.needs_proof(self.host)):
            stranger = NoProofError("no proof of the secret")
            self._refuse(stranger, b"", b"")
            raise stranger
        hello = SlaveHello.decode(content)
        nonce = bytes.fromhex(hello.nonce)
        queue, epoch, epochs = self._owner.queue, self._owner.epoch, self._owner.epochs
        if hello.epoch > epoch:
            self._owner.newer_epoch(self)
        if hello.epoch != epoch:
            raise HaError(f"it follows the master of epoch {hello.epoch}, and this one has epoch {epoch}")
        try:
            group.welcome(self._nonce, 0, 0, wants_durable=False).check(hello)
            start = join_offset(hello, queue.min_offset, queue.committed_offset, self._crc_of, epochs)
        except (WrongGroupError, DivergedLogError) as error:
            self._refuse(error, nonce, secret)
            raise
        snapshot = self._owner.snapshot() if start == queue.min_offset != 0 else b""
        wants_durable = self._owner.config.rules.counts_durable
        welcome = group.welcome(
            self._nonce, start, len(snapshot), wants_durable=wants_durable, epoch=epoch, epochs=epochs
        ).encode()
        if secret:
            self._dialect = SealedOurs(secret, nonce, self._nonce)
        self._transport.write(seal(welcome, prove(secret, LISTENER, nonce, welcome)))
        self._transport.writelines((snapshot, self._dialect.seal(snapshot)))
        self.hello, self.address = hello, hello.client_address
        self._is_restoring = bool(snapshot)
        self._begin(f"{hello.name}/{hello.broker_id}", start)

    def _refuse(self, error: WrongGroupError | DivergedLogError, nonce: bytes, secret: bytes) -> None:
        """Send the reason with a proof, so that only a master can make a slave cut its log. The caller raises it."""
        assert self._transport is not None
        content = refusal(error)
        self._transport.write(seal(content, prove(secret, LISTENER, nonce, content)))
        self._transport.close()
        self._transport = None  # closed, not aborted, so that the reason is sent

    def _begin(self, name: str, start: int, *, has: int | None = None) -> None:
        """Stream from `start` on to a slave that has whole records up to `has`, or to `start`."""
        if self._timer is not None:
            self._timer.cancel()
        config = self._owner.config
        self.copy = Copy(
            name,
            self.address,
            start if has is None else has,
            self._loop.time(),
            window_bytes=config.window_bytes,
            batch_bytes=config.batch_bytes,
            is_learner=self._handshake is not None and self._handshake.is_learner,
            serves_at="" if self.hello is None else self.hello.inside_address or self.hello.client_address,
            broker_id=-1 if self.hello is None else self.hello.broker_id,
        )
        self.copy.sent = start
        self._phase = _Phase.STREAMING
        self._owner.joined(self, self.copy)
        self.send()

    def _take_reports(self) -> None:
        copy, dialect, size = self.copy, self._dialect, self._dialect.report_size
        assert copy is not None
        count = len(self._input) // size
        if not count:
            return
        now_s, counts_durable = self._loop.time(), self._owner.config.rules.counts_durable
        with memoryview(self._input) as view:
            for number in range(count):
                report = dialect.read_report(view[number * size :])
                if dialect is AUTO_SWITCH:
                    report = self._whole_records(report)
                self._is_restoring = self._is_restoring and report.durable < copy.sent
                if self._is_restoring:
                    copy.reported_s = copy.moved_s = now_s
                elif report.received or self.hello is not None:
                    copy.on_report(report, self._owner.queue.committed_offset, now_s, durable=counts_durable)
                else:  # RocketMQ's slave has no bytes yet
                    copy.reported_s = now_s
        del self._input[: count * size]
        marks = self._marks
        while marks and marks[0][0] <= copy.received:
            self._owner.observe_lag(now_s - marks.popleft()[1])
        self._owner.reported(self)

    def _crc_of(self, start: int, end: int) -> int | None:
        queue = self._owner.queue
        file = queue.file_at(start)
        if file is None or not start < end <= file.end_offset or end > queue.committed_offset:
            return None
        return crc32(queue.slice(start, end - start))

    def _time_out(self) -> None:
        self.close(HaProtocolError("it has not said who it is in time"))
