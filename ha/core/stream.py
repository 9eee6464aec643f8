"""The stream between a master and a slave, in two dialects. Big-endian, signed.

    slave -> master   report     how far the slave is
    master -> slave   frame      header, then bytes of the log; without bytes it is a heartbeat

| dialect | report | header |
|---|---|---|
| RocketMQ's | i64 end offset | i64 offset of the first byte, i32 size |
| ours | i64 received, i64 durable | i64 offset, i32 size, i32 epoch, i64 confirm offset, u32 CRC-32 of the bytes |

RocketMQ's dialect has no handshake: the slave's first report is where it wants the log from, 0 for an empty slave. A
slave of ours says `OPENER` first, then shakes hands (`ha.core.handshake`). To RocketMQ's master the opener is a
report of -1, which means to it that there was no report yet, so that a slave pointed at the wrong kind of master harms
nothing.

Source: apache/rocketmq `store/.../ha/DefaultHAConnection.java`, `DefaultHAClient.java` (5.3.3).
"""

import struct
from typing import Final, NamedTuple, Protocol

from ha.errors import HaProtocolError

OPENER: Final = b"\xff" * 8
OPENER_SIZE: Final = 8
FRAME_LIMIT_BYTES: Final = (4 << 20) - 64
"""Most bytes of the log in one frame: RocketMQ's slave reads into a buffer of 4 MiB."""
_OFFSET: Final = struct.Struct(">q")
_REPORT: Final = struct.Struct(">qq")
_PLAIN: Final = struct.Struct(">qi")
_HEADER: Final = struct.Struct(">qiiqI")


class Report(NamedTuple):
    """How far a slave is: end of what it has, and of what is durable there. RocketMQ's slave tells the first only."""

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
    """

    offset: int
    size: int
    epoch: int
    confirm_offset: int | None
    crc: int | None


class Dialect(Protocol):
    """How reports and headers are written."""

    report_size: int
    header_size: int
    has_crc: bool

    def report(self, report: Report) -> bytes:
        """A report as it is sent."""

    def read_report(self, data: memoryview) -> Report:
        """The report that `data` begins with. Raises `HaProtocolError`."""

    def header(self, header: Header) -> bytes:
        """A header as it is sent."""

    def read_header(self, data: memoryview) -> Header:
        """The header that `data` begins with. Raises `HaProtocolError`."""


class Classic:
    """RocketMQ's dialect. Its slaves count what they have received, durable or not."""

    report_size = _OFFSET.size
    header_size = _PLAIN.size
    has_crc = False

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
        return _checked(Header(offset, size, 0, None, None))


class Ours:
    """The dialect between two nodes of LedgerMQ."""

    report_size = _REPORT.size
    header_size = _HEADER.size
    has_crc = True

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
        return _checked(Header(*_HEADER.unpack_from(data)))


CLASSIC: Final = Classic()
OURS: Final = Ours()


def _checked(header: Header) -> Header:
    if header.offset < 0 or not 0 <= header.size <= FRAME_LIMIT_BYTES or (header.confirm_offset or 0) < 0:
        raise HaProtocolError(f"a header of offset {header.offset}, size {header.size}")
    return header
