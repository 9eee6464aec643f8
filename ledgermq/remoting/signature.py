"""The signature of a request, as RocketMQ's clients make it.

    Signature = base64(HMAC-SHA1(secret, values of all other header fields in the order of their names + body))

It says who asks, and that header fields and body are his. It does not say when: whoever can read a connection can send
the same again. That is what TLS is for.

Source: apache/rocketmq `client/.../acl/common/{AclClientRPCHook,AclUtils,AclSigner}.java`.
"""

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ledgermq.remoting.codec.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name, and the secret that signs the user's requests; `repr` does not show the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)

    def sign(self, command: Command) -> None:
        """Add user name and signature to a request, which must not be changed afterwards."""
        ext = dict(command.ext)
        ext.pop(SIGNATURE, None)
        ext[ACCESS_KEY] = self.access_key
        if self.security_token:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = signature(ext, command.body, self.secret_key)
        command.ext = ext


def signature(fields: Mapping[str, str], body: bytes | memoryview, secret: str, *, left_out: str = SIGNATURE) -> str:
    """The signature of these header fields and this body.

    Args:
        fields: header fields; `Signature` may be among them.
        body: as it is sent.
        secret: of the user.
        left_out: a further name that was not signed, besides `Signature`.
    """
    values = "".join(fields[name] for name in sorted(fields) if name not in (SIGNATURE, left_out))
    made = hmac.new(secret.encode(), values.encode("utf-8", "surrogatepass"), "sha1")
    made.update(body)
    return base64.b64encode(made.digest()).decode()
