"""Level `group`: three brokers that have formed a Raft group.

Frames go to the leader's processors, with replication beneath, and to the port at which its members hear each other.

Who speaks at the peers' port may say a hello that is right, so that the real member's connection is cut off, and then
messages of terms that are over, with fields of any size. Messages of the present term are not forged: a member that
lies about what it has may break any Raft group. The leader may change; afterwards one must lead, and serve.
"""

import contextlib
import socket
import time
from typing import Final

from dledger.core.messages import (
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
from dledger.peers import wire
from dledger.peers.hello import SEALED_FRAMES
from ledgermq.remoting.proof import NONCE_SIZE
from ledgermq.remoting.serving.frame_seal import FrameSeal
from tests.fuzz import peers
from tests.fuzz.campaign import LIMIT_S, Campaign
from tests.fuzz.decoders import peer_bytes
from tests.fuzz.nodes import PEER_SECRET, Group, dial
from tests.fuzz.values import Values

_LISTEN_S: Final = 0.02
_OVER: Final = (0, 0, -1, -(1 << 63), -(1 << 31))
_NUMBERS: Final = (0, 0, 1, 2, -1, -2, 7, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63))


class GroupCampaign(Campaign):
    """Cases against a group."""

    level = "group"

    def __init__(self, group: Group, seed: int, limit_s: float = LIMIT_S) -> None:
        super().__init__(group, seed, limit_s)
        self._group = group

    def _case(self, values: Values, server: str) -> None:
        if server != "N" and values.chance(0.25):
            self._pretend(values)
        else:
            super()._case(values, server)

    def _pretend(self, values: Values) -> None:
        """Be a peer of one of them."""
        to = values.random.randrange(3)
        with dial(self._group.peers_port(to), self._limit_s) as peer:
            peer.sendall(_said(values, to, peers.read_challenge(peer)))
            if values.chance(0.5):
                peer.shutdown(socket.SHUT_WR)
            peer.settimeout(_LISTEN_S)
            with contextlib.suppress(TimeoutError):
                while peer.recv(1 << 16):
                    pass

    def _check_service(self) -> None:
        """Of whoever leads now; one that has just ceased to may refuse."""
        deadline = time.monotonic() + self._limit_s
        while True:
            self._group.find_leader(self._limit_s)
            try:
                return super()._check_service()
            except (AssertionError, OSError):
                if time.monotonic() > deadline:
                    raise


def _said(values: Values, to: int, challenge: bytes) -> bytes:
    member = f"n{(to + values.random.choice((1, 2))) % 3}"
    nonce = values.random.randbytes(NONCE_SIZE)
    data = peers.hello(values, 0.2, challenge, node_id=member, to=f"n{to}", nonce=nonce.hex())
    encoder, seals = wire.Encoder(), FrameSeal(SEALED_FRAMES, PEER_SECRET, nonce, challenge)
    for _ in range(values.random.randrange(5)):
        if values.chance(0.6):
            sealed = b"".join(encoder.encode(_message(values, member), seals if values.chance(0.95) else None))
            data += values.damaged(sealed) if values.chance(0.1) else sealed
        else:
            data += peer_bytes(values)
    return data


def _message(values: Values, member: str) -> Message | wire.CopyRequest | wire.CopyResponse:
    """Of a term that is over; all else may be anything."""

    def some() -> int:
        return values.random.choice(_NUMBERS)

    def whether() -> bool:
        return values.chance(0.5)

    term = values.random.choice(_OVER)
    data = values.random.randbytes(values.random.choice((0, 1, 100, 5000)))
    start = values.random.choice((0, 1, 1 << 40, -1))
    span = Span(some(), max(0, some()), some(), start, start + len(data), data) if whether() else None
    runs = tuple(TermRun(some(), some()) for _ in range(values.random.choice((0, 1, 40))))
    cause = values.random.choice(list(VoteCause))
    drawn: tuple[Message | wire.CopyRequest | wire.CopyResponse, ...] = (
        AppendRequest(term, member, some(), some(), span, some(), some(), some()),
        AppendResponse(term, whether(), some(), some(), some(), some(), whether(), runs),
        VoteRequest(term, member, some(), some(), whether(), whether(), whether()),
        VoteResponse(term, whether(), whether(), cause, some(), some(), whether()),
        InstallRequest(term, member, some(), some(), some(), some(), len(data), 0, data, some()),
        InstallResponse(term, whether(), some(), some(), whether()),
        TransferRequest(term, member),
        wire.CopyRequest(some(), term),
        wire.CopyResponse(some(), term, data),
    )
    return values.random.choice(drawn)
