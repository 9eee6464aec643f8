"""Authority to change the tables of a nameserver or a controller: routes, masters, settings.

    with a secret      clients that sign the request with it; others if the server is open, but they are not proven
    without            clients on this machine; all clients if the server is open
    always             clients with a certificate that this server has asked for and verified

A signature is RocketMQ's (`ledgermq.remoting.signature`) with the secret as secret key, of whatever access key, so that
RocketMQ's own brokers and tools can make one. It covers neither the request's code nor the connection, so whoever has
seen such a request can send it again. Our brokers therefore sign a challenge too: a refusal has it as field
`challenge`, drawn for this connection, and so has an open nameserver's answer to a heartbeat (322) that is not proven.
They sign such a request with a key of its own, names of the fields included. It counts once, on this connection, with
its own code.
"""

import hmac
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from ledgermq.remoting.codec.codes import RequestCode, request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.config_key import OURS, PATH, key
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.proof import Secrets, read_secrets
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import (
    CHALLENGE,
    SIGNATURE,
    SIGNED_CODE,
    SIGNED_NUMBER,
    as_secret_key,
    challenged_key,
    keyed_signature,
    signature,
)

IS_PROVEN: Final = "isProven"
"""Attribute of a connection: whether its last guarded request was proven, or needed no proof."""


_SECRET: Final = "namesrvSecretFile"
_log: Final = logging.getLogger(__name__)


class NotAllowed(Refusal):
    """A change was requested without proof of the right to make it.

    Args:
        challenge: what to sign on this connection; empty where no signature would help.
    """

    def __init__(self, remark: str, challenge: str) -> None:
        super().__init__(Cause.NO_PERMISSION, remark)
        self._challenge = challenge

    @property
    def ext(self) -> dict[str, str]:
        """As `Refusal.ext`, with the challenge."""
        return super().ext | ({CHALLENGE: self._challenge} if self._challenge else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityKeys:
    """The configuration keys of a nameserver or controller that say who may change its tables."""

    ORIGIN: ClassVar[str] = OURS

    secret_file: Path | None = key(
        _SECRET,
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which changes of routes, masters and settings are signed.",
        note="The same on brokers, nameservers and controllers. Without it only this machine may ask for changes.",
    )

    def secrets(self) -> Secrets:
        """Read the secrets; none without a file.

        Raises:
            SecretFileError: the file cannot be used.
        """
        return () if self.secret_file is None else read_secrets(self.secret_file)

    def notices(self, *, is_open: bool, open_name: str, danger: str) -> Iterator[str]:
        """Yield a sentence for the user if the server also takes changes without the secret; see `Authority`."""
        if is_open:
            yield f"WARNING: {open_name}=true: {danger}"
        elif self.secret_file is None:
            yield f"{_SECRET} is not set: only brokers and tools on this machine may register or change anything"


class Authority:
    """Checks each request that changes something.

    Args:
        guarded: codes of requests that change something.
        known: the secrets with which requests are signed; none: only this machine may request changes.
        is_open: whether all clients may request changes.
        server: name of the kind of server, for the user.
        open_name: the configuration key that opens the server, for the user.
    """

    def __init__(self, guarded: frozenset[int], known: Secrets, *, is_open: bool, server: str, open_name: str) -> None:
        self._guarded = guarded
        self._keys = tuple(map(as_secret_key, known))
        self._challenged_keys = tuple(map(challenged_key, self._keys))
        self._is_open = is_open
        self._strangers = RateLimitedLog(_log)
        self._server = server
        self._open_name = open_name

    def check(self, connection: Connection, command: Command) -> None:
        """Check whether this request may be served.

        Raises:
            NotAllowed: it may not.
        """
        if command.code not in self._guarded:
            return
        is_proven = connection.has_certificate or self._is_signed(connection, command)
        connection.attributes[IS_PROVEN] = is_proven or not self._keys
        if is_proven or self._is_open:
            return
        if self._keys:
            detail = f"it is not signed by the secret of this {self._server} ({_SECRET})"
            raise self._refused(connection, command, detail, draw_challenge(connection))
        if not connection.is_local:
            detail = f"only this {self._server}'s own machine may ask for changes ({_SECRET} lets others prove"
            raise self._refused(connection, command, f"{detail} themselves, {self._open_name}=true lets everybody)", "")

    def _is_signed(self, connection: Connection, command: Command) -> bool:
        fields, body = command.ext, command.body
        claimed = fields.get(SIGNATURE, "").encode("ascii", "replace")
        if not claimed:
            return False
        if CHALLENGE in fields:
            made = [keyed_signature(fields, body, key) for key in self._challenged_keys]
        else:
            made = [signature(fields, body, key) for key in self._keys]
        if not any(hmac.compare_digest(right.encode(), claimed) for right in made):
            return False
        return CHALLENGE not in fields or _is_fresh(connection, command)

    def _refused(self, connection: Connection, command: Command, why: str, challenge: str) -> NotAllowed:
        remark = f"request {request_name(command.code)} refused: {why}"
        if command.code != RequestCode.QUERY_DATA_VERSION:  # our brokers get their challenge by this refusal
            self._strangers.warning("%s: %s", connection.address, remark)
        return NotAllowed(remark, challenge)


def draw_challenge(connection: Connection) -> str:
    """Draw a new challenge for the connection; signatures of the old one become invalid."""
    challenge = secrets.token_hex(16)
    connection.attributes |= {CHALLENGE: challenge, SIGNED_NUMBER: 0}
    return challenge


def _is_fresh(connection: Connection, command: Command) -> bool:
    """Return whether a signed request belongs to this connection and this code, and comes for the first time."""
    fields, known = command.ext, connection.attributes
    number = long(fields, SIGNED_NUMBER, 0)
    if fields[CHALLENGE] != known.get(CHALLENGE) or fields.get(SIGNED_CODE) != str(command.code):
        return False
    if number <= known.get(SIGNED_NUMBER, 0):
        return False
    known[SIGNED_NUMBER] = number
    return True
