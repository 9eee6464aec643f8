"""The handshake of our own dialect: identities, proofs that both have the cluster's secret, and whether the logs agree.

    slave --OPENER--> master --challenge: nonce--> slave --SlaveHello, proof--> master
                      master --MasterWelcome, proof--> slave     the stream begins at `start`
                             '-Refused, proof--------> slave     closed

A message is u32 size, u8 size of the proof, proof, JSON (the challenge: the bare nonce). Proofs are empty where there
is no secret, see `ledgermq.remoting.proof`. A slave of another group is told only which field differs. A tail proves
that the logs agree: the CRC of the slave's last bytes, which end with a whole record. The head of a record holds its
offset, time and queue offset, so two histories that differ anywhere before the end of the slave's log differ in the
head of the last record as well, but for a chance of one in 2^32. A tail is long enough to hold that head where
`maxMessageSize` is at most 4 MiB.
"""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, Self

from ha.core.epochs import Epochs, common_end, from_text
from ha.errors import DivergedLogError, HaProtocolError, MasterRefusedError, WrongGroupError
from ledgermq.remoting.proof import NONCE_SIZE

PROTOCOL_VERSION: Final = 3
MESSAGE_LIMIT_BYTES: Final = 64 << 10
TAIL_BYTES: Final = 2 * ((4 << 20) + (64 << 10))
"""Most bytes of a tail: a record of 4 MiB, and a filler that was left for want of room for such a record."""
_SIZES: Final = struct.Struct(">IB")
_PROOF_SIZES: Final = (0, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last bytes of a log, all in one file: `[start, end)` and their CRC-32; empty at the start of a log."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommonFields:
    """Fields that both ends send.

    Attributes:
        version: of this protocol.
        cluster, name: of the group: brokerClusterName, brokerName.
        file_size: of the log's files, in bytes: offsets are the same on both only if their files are.
        nonce: drawn by the speaker for this connection, hexadecimal.
        client_address: `host:port` at which the speaker serves clients.
        inside_address: `host:port` at which it serves the brokers of the group; empty: the same.
    """

    MUST_AGREE: ClassVar[Mapping[str, str]] = {
        "version": "protocol version",
        "cluster": "brokerClusterName",
        "name": "brokerName",
        "file_size": "mappedFileSizeCommitLog",
    }

    version: int = PROTOCOL_VERSION
    cluster: str
    name: str
    file_size: int
    nonce: str
    client_address: str
    inside_address: str

    def encode(self) -> bytes:
        """Return the message as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parse a message.

        Raises:
            HaProtocolError: it is not such a message.
            MasterRefusedError: it is a refusal.
            DivergedLogError: it says that the logs differ.
        """
        parsed = _parse(data)
        if "refused" in parsed:
            if "detail" in parsed:
                raise DivergedLogError(str(parsed["refused"]), str(parsed["detail"]))
            raise MasterRefusedError(str(parsed["refused"])[:80])
        values: dict[str, Any] = {}
        for field in fields(cls):
            value: Any = parsed.get(field.name)
            if type(value) is not field.type or (field.type is int and value < 0):
                raise HaProtocolError(f"the handshake has {field.name} {str(value)[:80]!r}")
            values[field.name] = value
        if len(values["nonce"]) != 2 * NONCE_SIZE or not set(values["nonce"]) <= set("0123456789abcdef"):
            raise HaProtocolError(f"the handshake has nonce {values['nonce'][:80]!r}, expected {NONCE_SIZE} bytes")
        return cls(**values)

    def check(self, other: "_CommonFields") -> None:
        """Check that `other` belongs to this node's group. Raises `WrongGroupError`."""
        for field, label in self.MUST_AGREE.items():
            theirs, ours = getattr(other, field), getattr(self, field)
            if theirs != ours:
                raise WrongGroupError(label, f"{str(theirs)[:80]!r} there, {ours!r} here")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveHello(_CommonFields):
    """A slave's hello: its id, and the end of its log.

    Attributes:
        broker_id: which copy this is, 1 or more. A newer connection of the same id replaces the older.
        min_offset: where its log begins.
        tail_start, end, tail_crc: the log's `Tail`.
        epoch: of the master that the controllers named to it; 0 where masters are appointed.
        epochs: of its log, see `ha.core.epochs.to_text`; empty where masters are appointed.
    """

    broker_id: int
    min_offset: int
    tail_start: int
    end: int
    tail_crc: int
    epoch: int
    epochs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterWelcome(_CommonFields):
    """A master's welcome.

    Attributes:
        epoch: of the master; 0 where it was appointed.
        epochs: of its log, see `ha.core.epochs.to_text`; empty where it was appointed.
        start: offset of the first byte that it will send. If that is not the slave's end, or if a snapshot comes, the
            slave begins anew there; under an elected master it cuts its log there, if it lies in it.
        snapshot_size: bytes of state (topics, groups, offsets) that follow this message, before the stream; for a
            slave that begins anew behind the start of the log.
        wants_durable: only what the slave reports as durable counts.
        heartbeat_ms: longest silence of the master.
    """

    epoch: int
    epochs: str
    start: int
    snapshot_size: int
    wants_durable: bool
    heartbeat_ms: int


def refusal(error: WrongGroupError | DivergedLogError) -> bytes:
    """Encode the refusal of a slave."""
    if isinstance(error, DivergedLogError):
        return json.dumps({"refused": error.what, "detail": str(error)[:1000]}).encode()
    return json.dumps({"refused": error.field}).encode()


def join_offset(
    hello: SlaveHello, min_offset: int, end: int, crc_of: Callable[[int, int], int | None], epochs: Epochs = ()
) -> int:
    """Return the offset at which a slave continues: its end, or `min_offset` if its log ends before that.

    At `min_offset` the slave drops its log and begins anew, since the master does not have the bytes before any more
    with which the logs could be compared. The epochs of an elected master's log tell up to which offset the slave's log
    agrees. The slave drops the rest, which was not acknowledged: everything acknowledged is on every replica that can
    be elected.

    Args:
        hello: the slave's.
        min_offset: where the master's log begins.
        end: where it ends.
        crc_of: CRC-32 of a range of the master's log, in one file; None where the range is no such.
        epochs: of the master's log; none where it was appointed.

    Raises:
        DivergedLogError: the slave has bytes that the master does not have.
        HaProtocolError: the tail is longer than `TAIL_BYTES` or invalid, or the epochs are.
    """
    if not 0 <= hello.end - hello.tail_start <= TAIL_BYTES:
        raise HaProtocolError(f"a tail from {hello.tail_start} to {hello.end}; it may have {TAIL_BYTES} bytes")
    theirs = _epochs_of(hello)
    if epochs and theirs and hello.end > max(hello.min_offset, min_offset):
        agreed = common_end(theirs, hello.end, epochs, end)
        if agreed is None or agreed < max(hello.min_offset, min_offset):
            if min_offset < hello.min_offset:
                raise DivergedLogError(
                    "other bytes", f"the logs differ before {hello.min_offset}, where the slave's begins"
                )
            return min_offset
        if agreed < hello.end:
            return agreed
    if hello.end > end:
        raise DivergedLogError("longer", f"the slave has {hello.end} bytes, the master {end}")
    if hello.end == hello.min_offset or hello.end <= min_offset:
        return min_offset
    if crc_of(hello.tail_start, hello.end) != hello.tail_crc:
        raise DivergedLogError(
            "other bytes", f"the logs differ before {hello.end}, in the last bytes from {hello.tail_start}"
        )
    return hello.end


def _epochs_of(hello: SlaveHello) -> Epochs:
    try:
        return from_text(hello.epochs)
    except ValueError as error:
        raise HaProtocolError(f"the handshake has epochs {hello.epochs[:80]!r}: {error}") from error


def seal(content: bytes, proof: bytes = b"") -> bytes:
    """Return a message as it is sent."""
    return _SIZES.pack(1 + len(proof) + len(content), len(proof)) + proof + content


def unseal(data: memoryview) -> tuple[int, bytes, bytes] | None:
    """Return `(size in the stream, proof, content)` of the message at the start of `data`; None while it is incomplete.

    Raises:
        HaProtocolError: it is not a message.
    """
    if len(data) < _SIZES.size:
        return None
    size, proof_size = _SIZES.unpack_from(data)
    if not 1 + proof_size <= size <= MESSAGE_LIMIT_BYTES or proof_size not in _PROOF_SIZES:
        raise HaProtocolError(f"no handshake: a message of {size} bytes with a proof of {proof_size}")
    whole = 4 + size
    if len(data) < whole:
        return None
    start = _SIZES.size
    return whole, bytes(data[start : start + proof_size]), bytes(data[start + proof_size : whole])


def _parse(data: bytes) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HaProtocolError(f"handshake {data[:80]!r} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise HaProtocolError(f"the handshake is a {type(parsed).__name__}, expected an object")
    return parsed
