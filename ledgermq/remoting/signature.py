"""The signature of a request, as RocketMQ's clients make it.

    Signature = base64(HMAC-SHA1(secret, values of all other header fields in the order of their names + body))

It proves the user, the header fields and the body. It covers neither the time nor the request code: an attacker who can
read a connection can send the same again, also as another request, which TLS prevents.

Two other signatures, which only LedgerMQ knows, cover the names of the fields too. Each has a key of its own, so that
none is ever valid as another one. A request for a broker is signed with its code, if the user wishes so (`is_strict`),
a request for a nameserver or controller also with a challenge of the connection and a number (`ChallengedSigner`):

    Signature = base64(HMAC-SHA1(HMAC-SHA256(secret, "strict" or "challenged"), sorted fields as JSON + body))

Source: apache/rocketmq `client/.../acl/common/{AclClientRPCHook,AclUtils,AclSigner}.java`.
"""

import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ledgermq.remoting.codec.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
CHALLENGE: Final = "challenge"
SIGNED_CODE: Final = "signedCode"
SIGNED_NUMBER: Final = "signedNumber"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name, and the secret that signs the user's requests; `repr` does not show the secret.

    Attributes:
        is_strict: sign requests together with their code, so that a captured one cannot be sent as another request.
            LedgerMQ's brokers accept that signature beside RocketMQ's; other servers refuse it.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    is_strict: bool = False

    def sign(self, command: Command) -> None:
        """Add user name and signature to a request, which must not be changed afterwards."""
        ext = dict(command.ext)
        ext.pop(SIGNATURE, None)
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        if self.is_strict:
            ext[SIGNED_CODE] = str(command.code)
            ext[SIGNATURE] = keyed_signature(ext, command.body, strict_key(self.secret_key))
        else:
            ext[SIGNATURE] = signature(ext, command.body, self.secret_key)
        command.ext = ext


class ChallengedSigner:
    """Signs the requests of one connection so that none of them is valid twice, elsewhere, or as another request.

    Args:
        credentials: the user.
        challenge: drawn by the server for this connection.
    """

    def __init__(self, credentials: Credentials, challenge: str) -> None:
        self._access_key = credentials.access_key
        self._key = challenged_key(credentials.secret_key)
        self._challenge = challenge
        self._number = 0

    def sign(self, command: Command) -> None:
        """Sign a request, which must not be changed afterwards, and must be sent before the next one is signed."""
        self._number += 1
        fields = {CHALLENGE: self._challenge, SIGNED_CODE: str(command.code), SIGNED_NUMBER: str(self._number)}
        ext = {**command.ext, **fields, ACCESS_KEY: self._access_key}
        command.ext = ext | {SIGNATURE: keyed_signature(ext, command.body, self._key)}


def as_secret_key(secret: bytes) -> str:
    """Return a secret from a file as the secret key of a signature; the text of the file's line where that is ASCII."""
    return secret.decode("latin-1")


def signature(fields: Mapping[str, str], body: bytes | memoryview, secret: str, *, left_out: str = SIGNATURE) -> str:
    """Return the signature of these header fields and this body.

    Args:
        fields: header fields; `Signature` may be among them.
        body: as it is sent.
        secret: of the user.
        left_out: name of a further field that was not signed.
    """
    values = "".join(fields[name] for name in sorted(fields) if name not in (SIGNATURE, left_out))
    made = hmac.new(secret.encode(), values.encode("utf-8", "surrogatepass"), "sha1")
    made.update(body)
    return base64.b64encode(made.digest()).decode()


def challenged_key(secret: str) -> bytes:
    """Return the key of a user's signatures of challenged requests."""
    return hmac.digest(secret.encode(), b"challenged", "sha256")


def strict_key(secret: str) -> bytes:
    """Return the key of a user's signatures that cover the request code."""
    return hmac.digest(secret.encode(), b"strict", "sha256")


def keyed_signature(fields: Mapping[str, str], body: bytes | memoryview, key: bytes) -> str:
    """Return the signature of these header fields, with their names, and this body.

    Args:
        fields: header fields; `Signature` may be among them.
        body: as it is sent.
        key: see `challenged_key` and `strict_key`.
    """
    signed = sorted((name, value) for name, value in fields.items() if name != SIGNATURE)
    made = hmac.new(key, json.dumps(signed).encode(), "sha1")
    made.update(body)
    return base64.b64encode(made.digest()).decode()
