"""RocketMQ's dialect of the stream where controllers elect masters. Big-endian, signed.

    slave -> master   handshake   i32 state 1, i16 from the last file, i16 learner, i64 broker id
    master -> slave   answer      i32 state 1, i32 size, i64 end of the log, i32 newest epoch
                                  then of each epoch i32 number, i64 start
    slave -> master   report      i32 state 2, i64 end offset; the first one is where it wants the log from
    master -> slave   frame       i32 state 2, i32 size, i64 offset, i32 epoch, i64 its start, i64 confirm offset
                                  then bytes; without bytes it is a heartbeat

The slave finds from the epochs up to where the logs agree, and cuts the rest. A frame lies in one epoch. RocketMQ's
master labels the last frame of an epoch with the next one, so that the epochs of a log are those of the answer here.

Source: apache/rocketmq `store/.../ha/autoswitch/AutoSwitchHAConnection.java`, `AutoSwitchHAClient.java` (5.3.3).
"""

import struct
from typing import Final, NamedTuple

from ha.core.epochs import SENT_MAX, Epoch, Epochs, checked
from ha.core.stream import Header, Report, Unsealed, check_header
from ha.errors import HaProtocolError

_AGREEING: Final = 1
_STREAMING: Final = 2
_HANDSHAKE: Final = struct.Struct(">ihhq")
_ANSWER: Final = struct.Struct(">iiqi")
_ENTRY: Final = struct.Struct(">iq")
_REPORT: Final = struct.Struct(">iq")
_HEADER: Final = struct.Struct(">iiqiqq")
OPENING: Final = struct.pack(">i", _AGREEING)
"""A slave's first bytes."""


class SlaveHandshake(NamedTuple):
    """A slave's handshake.

    Attributes:
        broker_id: that the controllers gave it, 1 or more.
        is_learner: whether it must never count.
        wants_last_file: whether it is empty, and wants only the log's last file.
    """

    broker_id: int
    is_learner: bool = False
    wants_last_file: bool = False


class MasterAnswer(NamedTuple):
    """A master's answer: the end of its log, and its epochs, oldest first."""

    end: int
    epochs: Epochs


class AutoSwitch(Unsealed):
    """See `ha.core.stream.Dialect`. Slaves report only what they have received."""

    report_size = _REPORT.size
    header_size = _HEADER.size
    has_crc = False
    tells_confirmed = True

    def report(self, report: Report) -> bytes:
        """See `Dialect`; the durable offset is left out."""
        return _REPORT.pack(_STREAMING, report.received)

    def read_report(self, data: memoryview) -> Report:
        """See `Dialect`."""
        state, offset = _REPORT.unpack_from(data)
        if state != _STREAMING or offset < 0:
            raise HaProtocolError(f"a report of offset {offset} in state {state}")
        return Report(offset, offset)

    def header(self, header: Header) -> bytes:
        """See `Dialect`; the CRC is left out."""
        return _HEADER.pack(
            _STREAMING, header.size, header.offset, header.epoch, header.epoch_start, header.confirm_offset
        )

    def read_header(self, data: memoryview) -> Header:
        """See `Dialect`."""
        state, size, offset, epoch, start, confirmed = _HEADER.unpack_from(data)
        if state != _STREAMING:
            raise HaProtocolError(f"a frame in state {state}")
        return check_header(Header(offset, size, epoch, max(confirmed, 0), None, start))


AUTO_SWITCH: Final = AutoSwitch()


def encode_handshake(handshake: SlaveHandshake) -> bytes:
    """Return the bytes to send in one write: RocketMQ's master misreads a handshake that arrives in parts."""
    return _HANDSHAKE.pack(_AGREEING, handshake.wants_last_file, handshake.is_learner, handshake.broker_id)


def read_handshake(data: memoryview) -> tuple[int, SlaveHandshake] | None:
    """Return size and content of a handshake; None while it is incomplete. Raises `HaProtocolError`."""
    if len(data) < _HANDSHAKE.size:
        return None
    state, from_last_file, learner, broker_id = _HANDSHAKE.unpack_from(data)
    if state != _AGREEING or broker_id <= 0:
        raise HaProtocolError(f"a handshake of broker {broker_id} in state {state}")
    return _HANDSHAKE.size, SlaveHandshake(broker_id, learner != 0, from_last_file != 0)


def encode_answer(answer: MasterAnswer) -> bytes:
    """Return the bytes to send; of the epochs only the newest, `SENT_MAX` at most."""
    epochs = answer.epochs[-SENT_MAX:]
    newest = epochs[-1].number if epochs else 0
    entries = b"".join(_ENTRY.pack(*epoch) for epoch in epochs)
    return _ANSWER.pack(_AGREEING, len(entries), answer.end, newest) + entries


def read_answer(data: memoryview) -> tuple[int, MasterAnswer] | None:
    """Return size and content of an answer; None while it is incomplete. Raises `HaProtocolError`."""
    if len(data) < _ANSWER.size:
        return None
    state, size, end, _ = _ANSWER.unpack_from(data)
    if state != _AGREEING or end < 0 or size % _ENTRY.size or not 0 <= size <= SENT_MAX * _ENTRY.size:
        raise HaProtocolError(f"no answer to a handshake: state {state}, {size} bytes of epochs, end {end}")
    whole = _ANSWER.size + size
    if len(data) < whole:
        return None
    try:
        epochs = checked(Epoch(*entry) for entry in _ENTRY.iter_unpack(data[_ANSWER.size : whole]))
    except ValueError as error:
        raise HaProtocolError(f"the master tells of epochs that cannot be: {error}") from error
    return whole, MasterAnswer(end, epochs)
