"""Claims: for which client a member passes a request on, sealed with the cluster's secret.

    remark of the request:  "passed on for 10.0.0.7:50123"  or, with a secret,  "passed on for 10.0.0.7:50123 <seal>"

    of the next ones of the same client that it did not sign itself:  "passed on for the same"

The key of the seals is made of the secret and of one random value of either end, for one connection. A seal covers the
number of the request on this connection, its code, the client's address and the client's own signature. So a claim can
be neither made without the secret, nor used twice, elsewhere, or for another signed request. A request that its client
did not sign needs no seal of its own: whoever could insert one into the connection could as well change another one's
content. Without a secret each possible member is believed.
"""

import hmac
import re
from typing import Final

from ledgermq.message.errors import InvalidHostError
from ledgermq.message.hosts import Host, encode_host
from ledgermq.remoting.addresses import split_address
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import ConnectError
from ledgermq.remoting.proof import NONCE_SIZE, Secrets
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.serving.frame_seal import FrameSeal
from ledgermq.remoting.signature import SIGNATURE

VERSION: Final = "2"
"""Members of different versions refuse each other's greetings. 2: claims are sealed by AES-GCM."""

_SEALED_CLAIMS: Final = b"claims"
_MARK: Final = "passed on for "
_SAME: Final = "passed on for the same"
_NONCE: Final = re.compile(f"[0-9a-f]{{{2 * NONCE_SIZE}}}")


class Claims:
    """Makes the claims of one connection, at the end that passes requests on.

    Args:
        secrets: the first one seals; none: claims have no seal.
        own_nonce, their_nonce: drawn by the two ends for this connection.
    """

    def __init__(self, secrets: Secrets, own_nonce: bytes, their_nonce: bytes) -> None:
        self._seal = FrameSeal(_SEALED_CLAIMS, secrets[0], own_nonce, their_nonce) if secrets else None
        self._last = ""

    def make(self, command: Command, client: str) -> str:
        """Return the claim for the next request on the connection; `client` is `host:port`."""
        if client == self._last and not _is_signed(command):
            return _SAME
        self._last = client
        if self._seal is None:
            return _MARK + client
        return f"{_MARK}{client} {self._seal.next(command.code, _head(command, client)).hex()}"


class ClaimChecks:
    """Checks the claims of one connection, at the leader.

    Args:
        secrets: each of them is accepted; none: every claim is believed.
        own_nonce, their_nonce: drawn by the two ends for this connection.

    Attributes:
        is_proven: whether a claim with a valid seal was received: the other end has one of the secrets.
    """

    def __init__(self, secrets: Secrets, own_nonce: bytes, their_nonce: bytes) -> None:
        self._seals = [FrameSeal(_SEALED_CLAIMS, secret, their_nonce, own_nonce) for secret in secrets]
        self._is_sealed = bool(secrets)
        self._last = ""
        self.is_proven = False

    def client_of(self, command: Command) -> str:
        """Return the address, `host:port`, of the client whose request this is.

        Raises:
            Refusal: NO_PERMISSION, there is no claim, or its seal is not valid.
        """
        remark = command.remark or ""
        if remark == _SAME and self._last and not _is_signed(command):
            return self._last
        if not remark.startswith(_MARK):
            raise Refusal(Cause.NO_PERMISSION, "a member passes a request on without the address of its client")
        client, _, seal = remark.removeprefix(_MARK).partition(" ")
        if self._is_sealed:
            head, given = _head(command, client), seal.encode("utf-8", "surrogatepass")
            made = [(own, own.next(command.code, head).hex()) for own in self._seals]
            self._seals = [own for own, right in made if hmac.compare_digest(right.encode(), given)]
            if not self._seals:
                raise Refusal(Cause.NO_PERMISSION, "a request was passed on without the seal of the cluster's secret")
            self.is_proven = True
        self._last = client
        return client


def host_of(client: str) -> Host:
    """Return the host in a claim.

    Raises:
        Refusal: MALFORMED_FIELD, it is not `address:port`.
    """
    try:
        host = Host(*split_address(client))
        encode_host(host)
    except (ConnectError, InvalidHostError) as error:
        raise Refusal(Cause.MALFORMED_FIELD, f"a request was passed on for {client[:80]!r}: {error}") from error
    return host


def read_nonce(text: str) -> bytes:
    """Return the random bytes that the other end of a connection drew.

    Raises:
        Refusal: MALFORMED_FIELD.
    """
    if not _NONCE.fullmatch(text):
        raise Refusal(Cause.MALFORMED_FIELD, f"field nonce is {text[:80]!r}, not {NONCE_SIZE} bytes in hexadecimal")
    return bytes.fromhex(text)


def _is_signed(command: Command) -> bool:
    return SIGNATURE in command.ext


def _head(command: Command, client: str) -> bytes:
    return f"{client}\0{command.ext.get(SIGNATURE, '')}".encode("utf-8", "surrogatepass")
