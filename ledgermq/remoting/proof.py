"""How the two ends of a connection prove to each other that they hold one secret, and the seals of frames behind that.

A proof is an HMAC-SHA-256 over who proves, the nonce that the other end drew for this connection, and what the prover
says, which must have the prover's own nonce. A proof that was recorded, or that is sent back to whoever made it, is
therefore no proof. Behind the handshake `FrameSeal` covers each frame by a key of this connection alone.

A secret is replaced without a stop by a file of several lines: the first proves, each of them is accepted.
"""

import hashlib
import hmac
import logging
import secrets
from pathlib import Path
from typing import Final

from ledgermq.remoting.errors import RemotingError

NONCE_SIZE: Final = 32
DIALER: Final = b"dialer"
LISTENER: Final = b"listener"
_FRAMES: Final = b"frames"
_SECRET_MIN_BYTES: Final = 32  # whoever is dialed can test guesses at a short one
_SECRET_MAX_BYTES: Final = 4096
_SECRETS_MAX: Final = 4
_READABLE_BY_OTHERS: Final = 0o004

_log = logging.getLogger(__name__)

Secrets = tuple[bytes, ...]
"""The first proves, each of them is accepted; none where nothing needs to be proven."""


class SecretFileError(RemotingError):
    """A file of secrets cannot be used. The text names the file and does not show what is in it."""


def read_secrets(path: Path) -> Secrets:
    """The secrets in a file, one a line without white space at its ends: 1 to 4, of 32 to 4096 bytes each.

    Raises:
        SecretFileError: the file cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_SECRETS_MAX * (_SECRET_MAX_BYTES + 2) + 1)
            mode = path.stat().st_mode
    except OSError as error:
        raise SecretFileError(f"secret file {path} cannot be read: {error.strerror}") from error
    lines = tuple(filter(None, map(bytes.strip, data.split(b"\n"))))
    if not 1 <= len(lines) <= _SECRETS_MAX or not all(_SECRET_MIN_BYTES <= len(s) <= _SECRET_MAX_BYTES for s in lines):
        wanted = f"{_SECRET_MIN_BYTES} to {_SECRET_MAX_BYTES} bytes in a line, {_SECRETS_MAX} lines at most"
        raise SecretFileError(f"secret file {path} does not hold {wanted}: `openssl rand -hex 32` makes one")
    if mode & _READABLE_BY_OTHERS:
        _log.warning("every user of this machine can read the secret of the cluster: chmod 600 %s", path)
    return lines


def make_nonce() -> bytes:
    """`NONCE_SIZE` random bytes, for one connection."""
    return secrets.token_bytes(NONCE_SIZE)


def prove(secret: bytes, prover: bytes, nonce: bytes, said: bytes) -> bytes:
    """The proof that goes with what is said.

    Args:
        secret: the cluster's; empty where nothing needs to be proven, and then so is the proof.
        prover: `DIALER` or `LISTENER`.
        nonce: `NONCE_SIZE` bytes that the other end drew.
        said: what the prover says, as it is sent.
    """
    return hmac.digest(secret, prover + b"\0" + nonce + said, "sha256") if secret else b""


def is_proven(secret: bytes, prover: bytes, nonce: bytes, said: bytes, proof: bytes) -> bool:
    """Whether `proof` is what `prove` gives; takes the same time wherever they differ."""
    return hmac.compare_digest(prove(secret, prover, nonce, said), proof)


def proving_secret(accepted: Secrets, prover: bytes, nonce: bytes, said: bytes, proof: bytes) -> bytes | None:
    """That of the accepted secrets by which `proof` was made, empty where there are none; None: it is no proof."""
    for secret in accepted or (b"",):
        if is_proven(secret, prover, nonce, said, proof):
            return secret
    return None


class FrameSeal:
    """The seals of the frames in one direction of one connection: each frame has one, and they come in one order.

    A seal covers the frame's number on this connection, its code, its head and the digest of its data. A frame that was
    changed, left out, repeated, put in, or sent on another connection has a wrong one.

    Args:
        secret: by which both ends proved themselves.
        dialer_nonce, listener_nonce: of this connection.
    """

    SIZE: Final = 16

    def __init__(self, secret: bytes, dialer_nonce: bytes, listener_nonce: bytes) -> None:
        self._key = hmac.digest(secret, _FRAMES + b"\0" + dialer_nonce + listener_nonce, "sha256")
        self._count = 0

    def next(self, code: int, head: bytes | memoryview, data_digest: bytes) -> bytes:
        """`SIZE` bytes: the seal of the next frame. `data_digest` is `digest` of its data, of fixed length."""
        said = hashlib.blake2b(self._count.to_bytes(8) + code.to_bytes(4), digest_size=self.SIZE, key=self._key)
        said.update(data_digest)
        said.update(head)
        self._count += 1
        return said.digest()


def digest(data: bytes | memoryview) -> bytes:
    """SHA-256, which may be taken once for frames with the same data to several peers."""
    return hashlib.sha256(data).digest()
