"""Proofs that both ends of a connection have the same secret.

A proof is an HMAC-SHA-256 over the role of the prover, the nonce that the other end drew for this connection, and the
prover's message, which must contain the prover's own nonce. So neither a recorded proof nor one sent back to its maker
is valid. The frames after the handshake can be sealed: `ledgermq.remoting.serving.frame_seal`.

A secret is replaced without a stop by a file of several lines: the first proves, each of them is accepted.
"""

import hmac
import logging
import secrets
from pathlib import Path
from typing import Final

from ledgermq.remoting.errors import RemotingError

NONCE_SIZE: Final = 32
DIALER: Final = b"dialer"
LISTENER: Final = b"listener"
_NOTICES: Final = b"notices"
_SECRET_MIN_BYTES: Final = 32  # guesses at a short secret could be tested on a listener
_SECRET_MAX_BYTES: Final = 4096
_SECRETS_MAX: Final = 4
_READABLE_BY_OTHERS: Final = 0o004

_log = logging.getLogger(__name__)

Secrets = tuple[bytes, ...]
"""The first proves, each of them is accepted; empty if no proof is asked for."""


class SecretFileError(RemotingError):
    """A file of secrets cannot be used. The text names the file and does not show its content."""


def read_secrets(path: Path) -> Secrets:
    """Read the secrets in a file, one a line without white space at its ends: 1 to 4, of 32 to 4096 bytes each.

    Raises:
        SecretFileError: the file cannot be read, or has another content.
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
    """Return `NONCE_SIZE` random bytes, for one connection."""
    return secrets.token_bytes(NONCE_SIZE)


def prove(secret: bytes, prover: bytes, nonce: bytes, message: bytes) -> bytes:
    """Return the proof for a message.

    Args:
        secret: the cluster's secret; if it is empty, so is the proof.
        prover: `DIALER` or `LISTENER`.
        nonce: `NONCE_SIZE` bytes that the other end drew.
        message: the prover's message, as it is sent.
    """
    return hmac.digest(secret, prover + b"\0" + nonce + message, "sha256") if secret else b""


def is_proven(secret: bytes, prover: bytes, nonce: bytes, message: bytes, proof: bytes) -> bool:
    """Return whether `proof` equals the result of `prove`; compared in constant time."""
    return hmac.compare_digest(prove(secret, prover, nonce, message), proof)


def proving_secret(accepted: Secrets, prover: bytes, nonce: bytes, message: bytes, proof: bytes) -> bytes | None:
    """Return the accepted secret with which `proof` was made, empty if none is needed; None: the proof is not valid."""
    for secret in accepted or (b"",):
        if is_proven(secret, prover, nonce, message, proof):
            return secret
    return None


def notice_key(secret: bytes, dialer_nonce: bytes, listener_nonce: bytes) -> bytes:
    """Return the key that seals the dialer's datagrams beside one connection; `secret` may be empty."""
    return hmac.digest(secret, _NOTICES + b"\0" + dialer_nonce + listener_nonce, "sha256")
