"""Passwords as they are stored: sealed by a key, so that neither the log nor a file of `config/` shows them. Pure.

RocketMQ's signatures are computed from the password itself, so it must be possible to open what is stored: passwords
are encrypted (AES-SIV, RFC 5297) and not hashed. The user's name is sealed along with the password, so that a stored
password cannot be given to another user. The same password of a user is sealed to the same text, and members that
apply the same record have the same tables.

The key is made from a secret of a file. Of several secrets the first one seals and each of them opens, so that a secret
can be replaced: the leader seals again what the first one did not seal.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from broker.state.users import User

_USE = b"ledgermq passwords of users"
_OPENED_MAX = 4096


class PasswordVault:
    """Seals and opens passwords.

    Args:
        secrets: the first one seals, each of them opens.
        make: called for them when a password is to be sealed and there are none; none: passwords are stored as they
            are.
    """

    def __init__(self, secrets: Iterable[bytes], make: Callable[[], Iterable[bytes]] = tuple) -> None:
        self._ciphers = _ciphers(secrets)
        self._make = make
        self._opened = lru_cache(_OPENED_MAX)(self._open)

    def seal(self, user: User) -> User:
        """Return the user with the password sealed; unchanged if it cannot be opened, or without a secret.

        Raises:
            Refusal: there is no secret, and none is made.
        """
        password = self.password_of(user)
        if not self._ciphers and password is not None:
            self._ciphers = _ciphers(self._make())
        if not self._ciphers or password is None:
            return user
        sealed = self._ciphers[0].encrypt(password.encode("utf-8", "surrogatepass"), [user.name.encode()])
        return replace(user, password="", sealed=base64.b64encode(sealed).decode())

    def password_of(self, user: User) -> str | None:
        """Return the password; None if it was sealed by a secret that is not known here, or for another user."""
        return self._opened(user.name, user.sealed) if user.sealed else user.password

    def _open(self, name: str, sealed: str) -> str | None:
        try:
            data = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(data, [name.encode()]).decode("utf-8", "surrogatepass")
            except (InvalidTag, ValueError):
                continue
        return None


def _ciphers(secrets: Iterable[bytes]) -> list[AESSIV]:
    return [AESSIV(hmac.digest(secret, _USE, "sha512")) for secret in secrets]
