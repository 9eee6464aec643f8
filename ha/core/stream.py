"""The stream between a master and a slave, in two dialects; `ha.core.auto_switch` is a third. Big-endian, signed.

    slave -> master   report     how far the slave is
    master -> slave   frame      header, then bytes of the log; without bytes it is a heartbeat

| dialect | report | header |
|---|---|---|
| RocketMQ's | i64 end offset | i64 offset of the first byte, i32 size |
| ours | i64 received, i64 durable | i64 offset, i32 size, i32 epoch, i64 confirm offset, u32 CRC-32 of the bytes |

Where both ends have proved that they hold a secret, ours is sealed (`SealedOurs`): a report, a header, and the bytes
behind it, are each followed by a seal of 16 bytes.

RocketMQ's dialect has no handshake: the slave's first report is where it wants the log from, 0 for an empty slave. A
slave of ours says `OPENER` first, then shakes hands (`ha.core.handshake`). RocketMQ's master reads the opener as a
report of -1, which means "no report yet" to it, so a slave that dials the wrong kind of master does no harm.

Source: apache/rocketmq `store/.../ha/DefaultHAConnection.java`, `DefaultHAClient.java` (5.3.3).
"""

import hmac
import struct
from typing import Final, NamedTuple, Protocol

from ha.errors import HaProtocolError
from ledgermq.remoting.serving.frame_seal import FrameSeal

OPENER: Final = b"\xff" * 8
OPENER_SIZE: Final = 8
FRAME_LIMIT_BYTES: Final = (4 << 20) - 64
"""Most bytes of the log in one frame: RocketMQ's slave reads into a buffer of 4 MiB."""
_OFFSET: Final = struct.Struct(">q")
_REPORT: Final = struct.Struct(">qq")
_PLAIN: Final = struct.Struct(">qi")
_HEADER: Final = struct.Struct(">qiiqI")
_HEADS: Final = 0  # what a seal covers: a report or header, or the bytes after a header
_BYTES: Final = 1


class Report(NamedTuple):
    """A slave's report: the end of its log, and of its durable part. RocketMQ's slave reports the first only."""

    received: int
    durable: int


class Header(NamedTuple):
    """The header before bytes of the log.

    Attributes:
        offset: physical offset of the first byte, or of the next one that will be sent.
        size: bytes that follow; 0 for a heartbeat.
        epoch: of the master; 0 where it was appointed.
        confirm_offset: the master's; None in RocketMQ's dialect.
        crc: of the bytes; None in RocketMQ's dialect.
        epoch_start: offset at which the epoch begins, in RocketMQ's dialect of elected masters.
    """

    offset: int
    size: int
    epoch: int
    confirm_offset: int | None
    crc: int | None
    epoch_start: int = 0


class Dialect(Protocol):
    """How reports and headers are written."""

    report_size: int
    header_size: int
    seal_size: int
    has_crc: bool
    tells_confirmed: bool

    def report(self, report: Report) -> bytes:
        """Return a report as it is sent."""

    def read_report(self, data: memoryview) -> Report:
        """Return the report at the start of `data`. Raises `HaProtocolError`."""

    def header(self, header: Header) -> bytes:
        """Return a header as it is sent."""

    def read_header(self, data: memoryview) -> Header:
        """Return the header at the start of `data`; called once for each. Raises `HaProtocolError`."""

    def seal(self, data: bytes | memoryview) -> bytes:
        """Return the `seal_size` bytes that follow the bytes of a frame, or a snapshot; none after no bytes."""

    def check(self, data: bytes | memoryview, seal: memoryview) -> None:
        """Check the seal of `data`. Raises `HaProtocolError`."""


class Unsealed:
    """Base of dialects without seals, for connections without a secret."""

    seal_size = 0

    def seal(self, data: bytes | memoryview) -> bytes:
        """See `Dialect`."""
        return b""

    def check(self, data: bytes | memoryview, seal: memoryview) -> None:
        """See `Dialect`."""


class Classic(Unsealed):
    """RocketMQ's dialect. Its slaves count what they have received, durable or not."""

    report_size = _OFFSET.size
    header_size = _PLAIN.size
    has_crc = False
    tells_confirmed = False

    def report(self, report: Report) -> bytes:
        """See `Dialect`; the durable offset is left out."""
        return _OFFSET.pack(report.received)

    def read_report(self, data: memoryview) -> Report:
        """See `Dialect`."""
        (offset,) = _OFFSET.unpack_from(data)
        if offset < 0:
            raise HaProtocolError(f"a report of offset {offset}")
        return Report(offset, offset)

    def header(self, header: Header) -> bytes:
        """See `Dialect`; epoch, confirm offset and CRC are left out."""
        return _PLAIN.pack(header.offset, header.size)

    def read_header(self, data: memoryview) -> Header:
        """See `Dialect`."""
        offset, size = _PLAIN.unpack_from(data)
        return check_header(Header(offset, size, 0, None, None))


class Ours(Unsealed):
    """The dialect between two nodes of LedgerMQ."""

    report_size = _REPORT.size
    header_size = _HEADER.size
    has_crc = True
    tells_confirmed = True

    def report(self, report: Report) -> bytes:
        """See `Dialect`."""
        return _REPORT.pack(*report)

    def read_report(self, data: memoryview) -> Report:
        """See `Dialect`."""
        report = Report(*_REPORT.unpack_from(data))
        if not 0 <= report.durable <= report.received:
            raise HaProtocolError(f"a report of {report.received} received, {report.durable} durable")
        return report

    def header(self, header: Header) -> bytes:
        """See `Dialect`."""
        assert header.confirm_offset is not None and header.crc is not None
        return _HEADER.pack(header.offset, header.size, header.epoch, header.confirm_offset, header.crc)

    def read_header(self, data: memoryview) -> Header:
        """See `Dialect`."""
        return check_header(Header(*_HEADER.unpack_from(data)))


class SealedOurs(Ours):
    """Our dialect with seals, for one end of a connection of two nodes that have proved the secret to each other.

    Args:
        secret: by which the slave proved itself.
        slave_nonce, master_nonce: drawn by the two ends for this connection.
    """

    report_size = Ours.report_size + FrameSeal.SIZE
    header_size = Ours.header_size + FrameSeal.SIZE
    seal_size = FrameSeal.SIZE

    def __init__(self, secret: bytes, slave_nonce: bytes, master_nonce: bytes) -> None:
        self._reports = FrameSeal(b"HA reports", secret, slave_nonce, master_nonce)
        self._frames = FrameSeal(b"HA frames", secret, slave_nonce, master_nonce)

    def report(self, report: Report) -> bytes:
        """See `Dialect`."""
        packed = super().report(report)
        return packed + self._reports.next(_HEADS, packed)

    def read_report(self, data: memoryview) -> Report:
        """See `Dialect`."""
        size = Ours.report_size
        _compare(self._reports.next(_HEADS, data[:size]), data[size : self.report_size])
        return super().read_report(data)

    def header(self, header: Header) -> bytes:
        """See `Dialect`."""
        packed = super().header(header)
        return packed + self._frames.next(_HEADS, packed)

    def read_header(self, data: memoryview) -> Header:
        """See `Dialect`."""
        size = Ours.header_size
        _compare(self._frames.next(_HEADS, data[:size]), data[size : self.header_size])
        return super().read_header(data)

    def seal(self, data: bytes | memoryview) -> bytes:
        """See `Dialect`."""
        return self._frames.next(_BYTES, data) if len(data) else b""

    def check(self, data: bytes | memoryview, seal: memoryview) -> None:
        """See `Dialect`."""
        if len(data):
            _compare(self._frames.next(_BYTES, data), seal)


CLASSIC: Final = Classic()
OURS: Final = Ours()


def _compare(right: bytes, given: memoryview) -> None:
    if not hmac.compare_digest(right, given):
        raise HaProtocolError("bytes without the seal of haPeerSecretFile: they were changed on the way")


def check_header(header: Header) -> Header:
    """Return a valid header. Raises `HaProtocolError`: its values are impossible."""
    if header.offset < 0 or not 0 <= header.size <= FRAME_LIMIT_BYTES or (header.confirm_offset or 0) < 0:
        raise HaProtocolError(f"a header of offset {header.offset}, size {header.size}")
    return header
