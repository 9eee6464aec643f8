"""Level `tls`: what `nodes` does, behind a handshake; and the handshake and the records themselves made wrong.

TLS ends in the same frames as a plain connection, but another machine stands between: half a record, a close without
word or with one, an alert, a renegotiation, bytes that no key fits.
"""

import contextlib
import socket
import ssl
from typing import Final

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import encode
from tests.fuzz.campaign import LIMIT_S, Campaign
from tests.fuzz.frames import Frames
from tests.fuzz.nodes import TlsPair, dial
from tests.fuzz.values import Values

_PROBE: Final = encode(Command(9998, 1))
_STEPS_MAX: Final = 8
_LISTEN_S: Final = 0.02


class TlsCampaign(Campaign):
    """Cases against a broker whose port takes TLS."""

    level = "tls"

    def __init__(self, pair: TlsPair, seed: int, limit_s: float = LIMIT_S) -> None:
        super().__init__(pair, seed, limit_s)
        self._tls = pair

    def _case(self, values: Values, server: str) -> None:
        if server == "B" and values.chance(0.25):
            self._tamper(values)
        else:
            super()._case(values, server)

    def _tamper(self, values: Values) -> None:
        """A client of which one flight is damaged, cut off, sent twice or followed by plain bytes."""
        client, heard, said = self._tls.client_half()
        bad_step = values.random.randrange(4)  # 0 and 1 are the handshake's in TLS 1.3, what follows is data
        with dial(self._tls.port("B"), self._limit_s) as peer:
            for step in range(_STEPS_MAX):
                is_inside = self._advance(values, client)
                flight = said.read()
                is_bad = step == bad_step
                peer.sendall(self._worse(values, flight) if is_bad else flight)
                peer.settimeout(_LISTEN_S if is_inside else self._limit_s)  # half a frame of ours is owed no answer
                if is_bad or not self._hear(peer, heard, may_wait=is_inside):
                    break
            if values.chance(0.5):
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
            peer.settimeout(_LISTEN_S)
            with contextlib.suppress(TimeoutError):
                while peer.recv(1 << 16):
                    pass

    def _advance(self, values: Values, client: ssl.SSLObject) -> bool:
        """As far as what was heard allows; then data. Whether the handshake is done."""
        frames = Frames(values, "B")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            return False
        client.write(frames.bytes_of(frames.request(1)) + _PROBE)
        return True

    def _hear(self, peer: socket.socket, heard: ssl.MemoryBIO, *, may_wait: bool) -> bool:
        """Whether it goes on."""
        try:
            data = peer.recv(1 << 16)
        except TimeoutError:
            if not may_wait:
                raise
            return True
        heard.write(data)
        return bool(data)

    def _worse(self, values: Values, flight: bytes) -> bytes:
        draw = values.random.randrange(6)
        if draw == 0:
            return flight[: values.random.randrange(len(flight) + 1)]
        if draw == 1:
            return flight * 2
        if draw == 2:
            return flight + Frames(values, "B").greeting()
        if draw == 3:  # a record of each kind, of any length, whether or not so much follows
            kind, length = (
                values.random.choice((20, 21, 22, 23, 24, 0, 255)),
                values.random.choice((0, 1, 2, 16_640, 65_535)),
            )
            return (
                flight
                + bytes((kind, 3, values.random.choice((0, 3, 4))))
                + length.to_bytes(2, "big")
                + bytes(min(length, 99))
            )
        return values.damaged(flight)
