"""Seals of the frames between two servers that have proved to each other that they share a secret.

A seal is the tag of AES-256-GCM over a frame that is sent in the clear (GMAC): processors have instructions for it, and
it costs about a third of SHA-256. Source: NIST SP 800-38D. `cryptography` comes with the server's distribution.
"""

import hmac
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class FrameSeal:
    """The seals of the frames in one direction of one connection: one for each frame, in order.

    Both ends must make seals in the same way: a change here needs a new `PROTOCOL_VERSION` in `dledger.peers.hello` and
    `ha.core.handshake`, and a new `VERSION` in `broker.passing.claims`.

    A seal covers the frame's number on this connection, its code and its bytes. So a frame that was changed, left out,
    repeated, inserted, or sent on another connection has a wrong one.

    Args:
        purpose: purpose of the connection; each has its own keys.
        secret: the secret with which both ends proved themselves.
        dialer_nonce, listener_nonce: of this connection, drawn at random. Each direction has a purpose of its own.
    """

    SIZE: Final = 16

    def __init__(self, purpose: bytes, secret: bytes, dialer_nonce: bytes, listener_nonce: bytes) -> None:
        # Each end draws one of the nonces for this connection, so after a reconnection the key is another one. The
        # number never repeats on a connection. So no GCM nonce is used twice with one key.
        self._cipher = AESGCM(hmac.digest(secret, purpose + b"\0" + dialer_nonce + listener_nonce, "sha256"))
        self._count = 0

    def next(self, code: int, frame: bytes | memoryview) -> bytes:
        """Return `SIZE` bytes: the seal of the next frame, of `code` (32 bits, signed or not) and its bytes."""
        self._count += 1
        return self._cipher.encrypt(self._count.to_bytes(8) + (code & 0xFFFFFFFF).to_bytes(4), b"", frame)
