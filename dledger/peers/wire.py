"""Raft messages as frames between peers: private request codes, binary bodies, one CRC over each body.

    body:  | crc u32 | meta size u16 | meta (fixed fields of the code) | data: the log's own bytes, or nothing | seal |

    | code | message | meta |
    |---|---|---|
    | 52001 | hello | proof, see `ledgermq.remoting.proof`; data is JSON, see `dledger.peers.hello` |
    | 52002 | AppendRequest | its fields in order; span: term, first (-1: none), last, start; data is the entries |
    | 52003 | AppendResponse | its fields in order, the term runs last |
    | 52004, 52005 | VoteRequest, VoteResponse | their fields in order |
    | 52006, 52007 | InstallRequest, InstallResponse | their fields in order; data is the part of the state |
    | 52008 | TransferRequest | term |
    | 52009, 52010 | CopyRequest, CopyResponse | index, term; data is the entry |
    | 52011 | challenge | none; data is the listener's nonce |
    | 52012 | refusal | none; data names the field of the hello that the listener does not accept |

The CRC is that of the data, continued over the meta, so that the CRC of a span is computed once for all peers. The
sender is known from the connection, so messages have no sender id. The seal, 16 bytes, follows after a
handshake in which both ends proved that they have a secret (`FrameSeal`). Every integer is signed, 64 bit, big-endian.
"""

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from dledger.core.messages import (
    NO_INDEX,
    AppendRequest,
    AppendResponse,
    InstallRequest,
    InstallResponse,
    Message,
    Span,
    TermRun,
    TransferRequest,
    VoteCause,
    VoteRequest,
    VoteResponse,
)
from dledger.errors import PeerProtocolError
from dledger.peers.frame_stream import frame_header, frame_prefix
from ledgermq.message.crc import crc32
from ledgermq.remoting.serving.frame_seal import FrameSeal

HELLO: Final = 52001
APPEND_REQUEST: Final = 52002
APPEND_RESPONSE: Final = 52003
VOTE_REQUEST: Final = 52004
VOTE_RESPONSE: Final = 52005
INSTALL_REQUEST: Final = 52006
INSTALL_RESPONSE: Final = 52007
TRANSFER_REQUEST: Final = 52008
COPY_REQUEST: Final = 52009
COPY_RESPONSE: Final = 52010
CHALLENGE: Final = 52011
REFUSAL: Final = 52012

_ENVELOPE: Final = Struct(">IH")
_APPEND_REQUEST: Final = Struct(">10q")
_APPEND_RESPONSE: Final = Struct(">q?4q?")
_RUN: Final = Struct(">qq")
_VOTE_REQUEST: Final = Struct(">qqq???")
_VOTE_RESPONSE: Final = Struct(">q??Bqq?")
_INSTALL_REQUEST: Final = Struct(">8q")
_INSTALL_RESPONSE: Final = Struct(">q?qq?q")
_TERM: Final = Struct(">q")
_COPY: Final = Struct(">qq")


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Ask a peer for the entry `index` of `term`, because this node's copy is damaged."""

    index: int
    term: int


@dataclass(frozen=True, slots=True)
class CopyResponse:
    """The whole entry; empty if the peer has no entry of that term, or a damaged one."""

    index: int
    term: int
    entry: bytes | memoryview


PeerMessage = Message | CopyRequest | CopyResponse
Frame = list[bytes | memoryview]


class Encoder:
    """Encodes messages. It keeps the last span's CRC, since the same span usually goes to every peer."""

    def __init__(self) -> None:
        self._headers = {code: frame_header(code) for code in range(HELLO, COPY_RESPONSE + 1)}
        self._span: Span | None = None
        self._span_crc = 0

    def encode(self, message: PeerMessage, seals: FrameSeal | None = None) -> Frame:
        """Return the frame as buffers to be written one after the other; a span's data is not copied.

        Args:
            message: the message.
            seals: seals of the connection on which the frame is sent next; None where frames are not sealed.
        """
        if type(message) is AppendRequest:
            return self._append_request(message, seals)
        code, meta, data = _FIELDS[type(message)](message)
        return self._frame(code, meta, data, crc32(data), seals)

    def _append_request(self, request: AppendRequest, seals: FrameSeal | None) -> Frame:
        span = request.span
        fields = (
            request.term,
            request.prev_index,
            request.prev_term,
            request.commit_index,
            request.recover_index,
            request.sequence,
        )
        if span is None:
            return self._frame(APPEND_REQUEST, _APPEND_REQUEST.pack(*fields, 0, NO_INDEX, 0, 0), b"", 0, seals)
        if span is not self._span:
            self._span, self._span_crc = span, crc32(span.data)
        meta = _APPEND_REQUEST.pack(*fields, span.term, span.first_index, span.last_index, span.start_position)
        return self._frame(APPEND_REQUEST, meta, span.data, self._span_crc, seals)

    def _frame(
        self,
        code: int,
        meta: bytes,
        data: bytes | memoryview,
        data_crc: int,
        seals: FrameSeal | None,
    ) -> Frame:
        size = _ENVELOPE.size + len(meta) + len(data) + (0 if seals is None else FrameSeal.SIZE)
        head = _ENVELOPE.pack(crc32(meta, data_crc), len(meta)) + meta
        frame: Frame = [frame_prefix(self._headers[code], size) + head]
        if data:
            frame.append(data)
        if seals is not None:
            frame.append(seals.next(code, b"".join((head, data)) if data else head))
        return frame


def seal(code: int, data: bytes, meta: bytes = b"", *, is_response: bool = False) -> bytes:
    """Return a frame of the handshake."""
    prefix = frame_prefix(frame_header(code, is_response=is_response), _ENVELOPE.size + len(meta) + len(data))
    return prefix + _ENVELOPE.pack(crc32(meta, crc32(data)), len(meta)) + meta + data


def open_sealed(code: int, body: memoryview, seals: FrameSeal) -> memoryview:
    """Return the body of the next frame of a connection without its seal.

    Raises:
        PeerProtocolError: the seal is not that of this frame in this place.
    """
    body, found = body[: -FrameSeal.SIZE], body[-FrameSeal.SIZE :]
    if not hmac.compare_digest(found, seals.next(code, body)):
        raise PeerProtocolError(f"code {code}, {len(body)} bytes: this frame was not sent by the peer as it came here")
    return body


def unseal(code: int, body: memoryview) -> tuple[memoryview, memoryview]:
    """Return meta and data of a frame's body.

    Raises:
        PeerProtocolError: the body is too short, or its CRC is wrong.
    """
    if len(body) < _ENVELOPE.size:
        raise PeerProtocolError(f"body of code {code} has {len(body)} bytes, must be at least {_ENVELOPE.size}")
    crc, meta_size = _ENVELOPE.unpack_from(body)
    meta_end = _ENVELOPE.size + meta_size
    if meta_end > len(body):
        raise PeerProtocolError(f"body of code {code} has {len(body)} bytes, its meta would end at {meta_end}")
    meta, data = body[_ENVELOPE.size : meta_end], body[meta_end:]
    actual = crc32(meta, crc32(data) if data else 0)
    if actual != crc:
        raise PeerProtocolError(f"code {code}, {len(body)} bytes: CRC is {actual:#010x}, the frame says {crc:#010x}")
    return meta, data


def decode(code: int, body: memoryview, peer_id: str) -> PeerMessage:
    """Decode the message from `peer_id` in a frame's body; a span's data is a view of `body`.

    Raises:
        PeerProtocolError: unknown code, wrong CRC, or fields that cannot be read.
    """
    reader = _READERS.get(code)
    if reader is None:
        raise PeerProtocolError(f"code {code} is not part of the peer protocol")
    meta, data = unseal(code, body)
    try:
        return reader(meta, data, peer_id)
    except (struct.error, ValueError) as error:
        raise PeerProtocolError(f"meta of code {code} has {len(meta)} bytes: {error}") from error


def _read_append_request(meta: memoryview, data: memoryview, peer_id: str) -> AppendRequest:
    fields = _APPEND_REQUEST.unpack(meta)
    term, prev_index, prev_term, commit_index, recover_index, sequence, span_term, first, last, start = fields
    span = None if first == NO_INDEX else Span(span_term, first, last, start, start + len(data), data)
    return AppendRequest(term, peer_id, prev_index, prev_term, span, commit_index, recover_index, sequence)


def _read_append_response(meta: memoryview, data: memoryview, peer_id: str) -> AppendResponse:
    term, accepted, prev_index, received, durable, sequence, recovering = _APPEND_RESPONSE.unpack_from(meta)
    rest = meta[_APPEND_RESPONSE.size :]
    runs = tuple(TermRun(*run) for run in _RUN.iter_unpack(rest)) if rest else ()
    return AppendResponse(term, accepted, prev_index, received, durable, sequence, recovering, runs)


def _read_vote_request(meta: memoryview, data: memoryview, peer_id: str) -> VoteRequest:
    term, *fields = _VOTE_REQUEST.unpack(meta)
    return VoteRequest(term, peer_id, *fields)


def _read_vote_response(meta: memoryview, data: memoryview, peer_id: str) -> VoteResponse:
    term, granted, pre_vote, cause, last_index, last_term, recovering = _VOTE_RESPONSE.unpack(meta)
    return VoteResponse(term, granted, pre_vote, VoteCause(cause), last_index, last_term, recovering)


def _read_install_request(meta: memoryview, data: memoryview, peer_id: str) -> InstallRequest:
    term, first_index, start, prev_term, state_id, state_size, part_start, sequence = _INSTALL_REQUEST.unpack(meta)
    place = (first_index, start, prev_term)
    return InstallRequest(term, peer_id, *place, state_id, state_size, part_start, bytes(data), sequence)


def _read_install_response(meta: memoryview, data: memoryview, peer_id: str) -> InstallResponse:
    return InstallResponse(*_INSTALL_RESPONSE.unpack(meta))


def _read_transfer(meta: memoryview, data: memoryview, peer_id: str) -> TransferRequest:
    return TransferRequest(_TERM.unpack(meta)[0], peer_id)


def _read_copy_request(meta: memoryview, data: memoryview, peer_id: str) -> CopyRequest:
    return CopyRequest(*_COPY.unpack(meta))


def _read_copy_response(meta: memoryview, data: memoryview, peer_id: str) -> CopyResponse:
    index, term = _COPY.unpack(meta)
    return CopyResponse(index, term, data)


_READERS: Final[dict[int, Callable[[memoryview, memoryview, str], PeerMessage]]] = {
    APPEND_REQUEST: _read_append_request,
    APPEND_RESPONSE: _read_append_response,
    VOTE_REQUEST: _read_vote_request,
    VOTE_RESPONSE: _read_vote_response,
    INSTALL_REQUEST: _read_install_request,
    INSTALL_RESPONSE: _read_install_response,
    TRANSFER_REQUEST: _read_transfer,
    COPY_REQUEST: _read_copy_request,
    COPY_RESPONSE: _read_copy_response,
}

_Fields = tuple[int, bytes, bytes | memoryview]


def _append_response_fields(m: AppendResponse) -> _Fields:
    fixed = (m.term, m.accepted, m.prev_index, m.received_index, m.durable_index, m.sequence, m.recovering)
    return APPEND_RESPONSE, _APPEND_RESPONSE.pack(*fixed) + b"".join(_RUN.pack(*run) for run in m.term_runs), b""


def _vote_request_fields(m: VoteRequest) -> _Fields:
    fields = (m.term, m.last_index, m.last_term, m.pre_vote, m.transfer, m.salvage)
    return VOTE_REQUEST, _VOTE_REQUEST.pack(*fields), b""


def _vote_response_fields(m: VoteResponse) -> _Fields:
    fields = (m.term, m.granted, m.pre_vote, m.cause, m.last_index, m.last_term, m.recovering)
    return VOTE_RESPONSE, _VOTE_RESPONSE.pack(*fields), b""


def _install_request_fields(m: InstallRequest) -> _Fields:
    log = (m.term, m.first_index, m.start_position, m.prev_term)
    fields = (*log, m.state_id, m.state_size, m.part_start, m.sequence)
    return INSTALL_REQUEST, _INSTALL_REQUEST.pack(*fields), m.part


def _install_response_fields(m: InstallResponse) -> _Fields:
    fields = (m.term, m.accepted, m.last_index, m.sequence, m.recovering, m.state_end)
    return INSTALL_RESPONSE, _INSTALL_RESPONSE.pack(*fields), b""


_FIELDS: Final[dict[type, Callable[..., _Fields]]] = {
    AppendResponse: _append_response_fields,
    VoteRequest: _vote_request_fields,
    VoteResponse: _vote_response_fields,
    InstallRequest: _install_request_fields,
    InstallResponse: _install_response_fields,
    TransferRequest: lambda m: (TRANSFER_REQUEST, _TERM.pack(m.term), b""),
    CopyRequest: lambda m: (COPY_REQUEST, _COPY.pack(m.index, m.term), b""),
    CopyResponse: lambda m: (COPY_RESPONSE, _COPY.pack(m.index, m.term), m.entry),
}
