"""Settings of a broker's authentication and authorization.

Source: apache/rocketmq `auth/.../config/AuthConfig.java`.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from broker.state.users import SUPER, User
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.config_key import BOOL, OURS, PATH, SECRET, ValueKind, key, read_integer
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.signature import Credentials


def _read_codes(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        try:
            read_integer(word)
        except ValueError:
            raise ValueError(f"has {word!r}, which is not a request code") from None
    return frozenset(map(int, words))


CODES = ValueKind("text", _read_codes, lambda codes: ",".join(map(str, sorted(codes))))
"""Request codes, `10,310`."""


class WithoutSecret(enum.Enum):
    """How a password is stored where no secret is given."""

    PLAIN = "it is stored in plain text"
    OWN_KEY = "a key is made in the store's directory: no replica needs it"
    REFUSE = "it is not stored: replicas need the same secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """By default no client has to sign.

    Attributes:
        first_user: JSON with username and password of a super user, who is created if there is no such user.
        inner_user: the same with accessKey and secretKey; brokers sign requests to each other by it.
        old_acl: `aclEnable` is set.
    """

    ORIGIN: ClassVar[str] = "AuthConfig"

    authentication_enable: bool = key(
        "authenticationEnabled",
        BOOL,
        False,
        "Ask clients who they are.",
        note="Every request of a broker; nameservers ask for no signature, as upstream.",
    )
    authorization_enable: bool = key(
        "authorizationEnabled",
        BOOL,
        False,
        "Check what clients may do.",
        note="A request without a rule in RocketMQ needs Update on the cluster, or Get if it only reads.",
    )
    authentication_whitelist: frozenset[int] = key(
        "authenticationWhitelist", CODES, frozenset(), "Request codes that need no user."
    )
    authorization_whitelist: frozenset[int] = key(
        "authorizationWhitelist", CODES, frozenset(), "Request codes that need no permission."
    )
    first_user: str = key(
        "initAuthenticationUser",
        SECRET,
        "",
        "First user and password.",
        note="Made by the leader when there is no such user; never shown.",
    )
    inner_user: str = key(
        "innerClientAuthenticationCredentials",
        SECRET,
        "",
        "User and password of the brokers among themselves.",
        note="Made likewise. By it a slave signs what it sends to other masters while it stands in for its own.",
    )
    password_key_file: Path | None = key(
        "passwordKeyFile",
        PATH,
        None,
        "File with the secret, 32 bytes or more, by which the stored passwords of users are encrypted.",
        note="The same on all replicas. Without it that of dLegerPeerSecretFile or haPeerSecretFile is used;"
        " a broker without replicas then makes password.key in storePathRootDir.",
        origin=OURS,
    )
    plain_passwords: bool = key(
        "plainPasswords", BOOL, False, "Store passwords in plain text where no secret is given.", origin=OURS
    )
    password_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """From that file, filled in by the node at the start."""
    without_secret: WithoutSecret = WithoutSecret.PLAIN
    """Filled in likewise."""
    old_acl: bool = key(
        "aclEnable",
        BOOL,
        False,
        "Check signatures and permissions by the old access control of 4.x.",
        origin="BrokerConfig",
        note="Refused unless authentication and authorization are enabled: RocketMQ 5.3.3 takes and ignores it.",
    )

    def super_users(self) -> list[User]:
        """Return the users that are created at the start if they do not exist.

        Raises:
            ValueError: a text is no such JSON.
        """
        wanted = ((self.first_user, "username", "password"), (self.inner_user, "accessKey", "secretKey"))
        return [_user(text, name, secret) for text, name, secret in wanted if text]

    @property
    def inner_credentials(self) -> Credentials | None:
        """Return the credentials that sign requests to other brokers; None if these are not signed.

        Raises:
            ValueError: the text is no such JSON.
        """
        if not self.inner_user:
            return None
        user = _user(self.inner_user, "accessKey", "secretKey")
        return Credentials(user.name, user.password)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation that does not hold."""
        if self.authorization_enable and not self.authentication_enable:
            yield "authorizationEnabled", "needs authenticationEnabled: without signatures a client can claim any user"
        if self.old_acl and not (self.authentication_enable and self.authorization_enable):
            yield (
                "aclEnable",
                "alone protects nothing: set authenticationEnabled, authorizationEnabled and initAuthenticationUser,"
                " then take plain_acl.yml over with `ledgermq acl import`",
            )
        for name, text, members in (
            ("initAuthenticationUser", self.first_user, ("username", "password")),
            ("innerClientAuthenticationCredentials", self.inner_user, ("accessKey", "secretKey")),
        ):
            try:
                if text:
                    _user(text, *members)
            except ValueError as error:
                yield name, str(error)


def _user(text: str, name: str, secret: str) -> User:
    try:
        value: Any = loads(text.encode())
        members = (value[name], value[secret])
    except (JsonError, TypeError, KeyError, IndexError):
        members = ("", "")
    if not all(isinstance(member, str) and member.strip() for member in members):
        raise ValueError(f'is not {{"{name}":"...","{secret}":"..."}}')  # never shows what it is instead
    return User(name=members[0], password=members[1], kind=SUPER)
