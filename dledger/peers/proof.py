"""How the two ends of a connection between peers prove to each other that they hold the cluster's secret.

A proof is an HMAC-SHA-256 over who proves, the nonce that the other end drew for this connection, and the prover's
whole hello, which has the prover's own nonce, both node ids, cluster and group. A proof that was recorded, or that is
sent back to whoever made it, is therefore no proof. What is sent after the handshake is not covered.
"""

import hmac
import logging
import secrets
from pathlib import Path
from typing import Final

from dledger.errors import RaftConfigError

NONCE_SIZE: Final = 32
DIALER: Final = b"dialer"
LISTENER: Final = b"listener"
_SECRET_MIN_BYTES: Final = 32  # whoever is dialed can test guesses at a short one
_SECRET_MAX_BYTES: Final = 4096
_READABLE_BY_OTHERS: Final = 0o004

_log = logging.getLogger(__name__)


def read_secret(path: Path) -> bytes:
    """The secret in a file, without white space at both ends: 32 to 4096 bytes.

    Raises:
        RaftConfigError: the file cannot be read, or holds fewer or more bytes. The text does not show them.
    """
    try:
        with path.open("rb") as file:
            secret = file.read(_SECRET_MAX_BYTES + 2).strip()
            mode = path.stat().st_mode
    except OSError as error:
        raise RaftConfigError(f"dLegerPeerSecretFile {path} cannot be read: {error.strerror}") from error
    if not _SECRET_MIN_BYTES <= len(secret) <= _SECRET_MAX_BYTES:
        wanted = f"{_SECRET_MIN_BYTES} to {_SECRET_MAX_BYTES} bytes"
        raise RaftConfigError(f"dLegerPeerSecretFile {path} does not hold {wanted}: `openssl rand -hex 32` makes some")
    if mode & _READABLE_BY_OTHERS:
        _log.warning("every user of this machine can read the secret of the Raft peers: chmod 600 %s", path)
    return secret


def make_nonce() -> bytes:
    """`NONCE_SIZE` random bytes, for one connection."""
    return secrets.token_bytes(NONCE_SIZE)


def prove(secret: bytes, prover: bytes, nonce: bytes, said: bytes) -> bytes:
    """The proof that goes with a hello.

    Args:
        secret: the cluster's; empty where members need not prove anything, and then so is the proof.
        prover: `DIALER` or `LISTENER`.
        nonce: `NONCE_SIZE` bytes that the other end drew.
        said: the prover's hello as it is sent.
    """
    return hmac.digest(secret, prover + b"\0" + nonce + said, "sha256") if secret else b""


def is_proven(secret: bytes, prover: bytes, nonce: bytes, said: bytes, proof: bytes) -> bool:
    """Whether `proof` is what `prove` gives; takes the same time wherever they differ."""
    return hmac.compare_digest(prove(secret, prover, nonce, said), proof)
