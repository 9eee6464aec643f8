"""Who may change what this nameserver knows: routes, KV configuration, settings.

    with a secret      whoever signs the request by it; others with `insecureRegistration`, whose terms do not count
    without            this machine; everybody with `insecureRegistration`
    always             whoever shows a client certificate that this nameserver has asked for and verified

A signature is RocketMQ's (`ledgermq.remoting.signature`) with the secret as secret key, of whatever access key, so that
RocketMQ's own brokers and tools can make one. It covers neither the request's code nor the connection, so whoever has
seen such a request can send it again. Our brokers therefore sign a challenge too: a refusal has it as field
`challenge`, drawn for this connection. A request with such fields counts once, on this connection, with its own code.
"""

import hmac
import secrets
from typing import Final

from ledgermq.remoting.codec.codes import RequestCode, request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.proof import Secrets
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import CHALLENGE, SIGNATURE, SIGNED_CODE, SIGNED_NUMBER, as_secret_key, signature

GUARDED: Final = frozenset(
    {
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT),
        *(RequestCode.QUERY_DATA_VERSION, RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER),
        *(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
    }
)
"""Requests that change something; a broker's heartbeats (322, 904) keep it alive and are among them."""

_IS_PROVEN: Final = "isProven"


class NotAllowedError(Exception):
    """Somebody asked for a change who has not shown that he may.

    Attributes:
        challenge: what to sign on this connection; empty where no signature would help.
    """

    def __init__(self, refusal: Refusal, challenge: str) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        self.challenge = challenge


class Authority:
    """Looks at each request that changes something.

    Args:
        known: the secrets by which requests are signed; none where only this machine may ask for changes.
        is_open: whether everybody may.
    """

    def __init__(self, known: Secrets, *, is_open: bool) -> None:
        self._keys = tuple(map(as_secret_key, known))
        self._is_open = is_open

    def check(self, connection: Connection, command: Command) -> None:
        """Whether this request may be served.

        Raises:
            NotAllowedError: it may not.
        """
        if command.code not in GUARDED:
            return
        is_proven = connection.has_certificate or self._is_signed(connection, command)
        connection.attributes[_IS_PROVEN] = is_proven or not self._keys
        if is_proven or self._is_open:
            return
        if self._keys:
            detail = "it is not signed by the secret of this nameserver (namesrvSecretFile)"
            raise self._refused(command, detail, _challenge(connection))
        if not connection.is_local:
            detail = "only this nameserver's own machine may ask for changes (namesrvSecretFile lets others prove"
            raise self._refused(command, f"{detail} themselves, insecureRegistration=true lets everybody)", "")

    def _is_signed(self, connection: Connection, command: Command) -> bool:
        fields = command.ext
        claimed = fields.get(SIGNATURE, "").encode("ascii", "replace")
        for key in self._keys if claimed else ():
            if hmac.compare_digest(signature(fields, command.body, key).encode(), claimed):
                return CHALLENGE not in fields or _is_fresh(connection, command)
        return False

    def _refused(self, command: Command, why: str, challenge: str) -> NotAllowedError:
        return NotAllowedError(
            Refusal(Cause.NO_PERMISSION, f"request {request_name(command.code)} refused: {why}"), challenge
        )


def terms_count(connection: Connection) -> bool:
    """Whether the Raft term is to be believed in the registration that this connection has just sent."""
    return bool(connection.attributes[_IS_PROVEN])


def _challenge(connection: Connection) -> str:
    challenge: str = connection.attributes.setdefault(CHALLENGE, secrets.token_hex(16))
    return challenge


def _is_fresh(connection: Connection, command: Command) -> bool:
    """Whether a signed request is of this connection, comes for the first time, and is no other request."""
    fields, known = command.ext, connection.attributes
    number = long(fields, SIGNED_NUMBER, 0)
    if fields[CHALLENGE] != known.get(CHALLENGE) or fields.get(SIGNED_CODE) != str(command.code):
        return False
    if number <= known.get(SIGNED_NUMBER, 0):
        return False
    known[SIGNED_NUMBER] = number
    return True
