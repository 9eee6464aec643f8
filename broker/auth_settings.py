"""What a broker is told of authentication and authorization.

Source: apache/rocketmq `auth/.../config/AuthConfig.java`; the names it gives these settings are in `node.keys`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from broker.state.users import SUPER, User
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """By default nobody is asked who he is.

    Attributes:
        first_user: JSON with username and password: made, Super, when there is no such user.
        inner_user: JSON with accessKey and secretKey: likewise.
        old_acl: `aclEnable` was said.
    """

    authentication_enable: bool = False
    authorization_enable: bool = False
    authentication_whitelist: frozenset[int] = frozenset()
    authorization_whitelist: frozenset[int] = frozenset()
    first_user: str = field(default="", repr=False)
    inner_user: str = field(default="", repr=False)
    old_acl: bool = False

    def super_users(self) -> list[User]:
        """The users to make when they are not there.

        Raises:
            ValueError: a text is no such JSON.
        """
        wanted = ((self.first_user, "username", "password"), (self.inner_user, "accessKey", "secretKey"))
        return [_user(text, name, secret) for text, name, secret in wanted if text]

    def problems(self) -> Iterator[tuple[str, str]]:
        """`(field, sentence)` of each relation that does not hold."""
        if self.authorization_enable and not self.authentication_enable:
            yield "authorization_enable", "needs authentication_enable: whoever is not asked who he is can be anybody"
        if self.old_acl and not (self.authentication_enable and self.authorization_enable):
            yield (
                "old_acl",
                "alone protects nothing: set authentication_enable, authorization_enable and first_user,"
                " then take plain_acl.yml over with `ledgermq acl import`",
            )
        for name, text, members in (
            ("first_user", self.first_user, ("username", "password")),
            ("inner_user", self.inner_user, ("accessKey", "secretKey")),
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
