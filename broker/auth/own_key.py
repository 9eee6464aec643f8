"""The key of a broker that shares none with others, for the passwords of its users: made when it is first needed."""

import logging
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from broker.auth_settings import WithoutSecret
from ledgermq.remoting.proof import SecretFileError, Secrets, read_secrets
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.config_file import write_config
from store.errors import StoreError

KEY_FILE: Final = "password.key"
_SIZE: Final = 32
_NEEDED: Final = "passwords are stored encrypted only: set passwordKeyFile to the same file on all replicas"

log = logging.getLogger(__name__)


def known_secrets(root: Path) -> Secrets:
    """Return the secrets in the key file of the store's root; none without that file.

    Raises:
        SecretFileError: it cannot be used.
    """
    path = root / KEY_FILE
    return read_secrets(path) if path.exists() else ()


def made_secrets(without: WithoutSecret, root: Path) -> Callable[[], Secrets]:
    """Return the function that the vault calls for secrets when it has none and a password is to be stored.

    By `without` the function returns none, makes the key file, or raises a `Refusal`; the latter also if the disk
    fails.
    """
    return {WithoutSecret.PLAIN: tuple, WithoutSecret.REFUSE: _refuse}.get(without, partial(_make, root))


def _refuse() -> Secrets:
    raise Refusal(Cause.SYSTEM_ERROR, f"{_NEEDED} (plainPasswords=true does without)")


def _make(root: Path) -> Secrets:
    path = root / KEY_FILE
    try:
        if not path.exists():
            write_config(path, secrets.token_hex(_SIZE).encode() + b"\n")
            path.chmod(0o600)  # also where the process lets others read what it makes
            log.warning("passwords of users are encrypted by the new key in %s: without it they are lost", path)
        return read_secrets(path)
    except (OSError, StoreError, SecretFileError) as error:
        raise Refusal(Cause.SYSTEM_ERROR, f"the key for passwords of users cannot be made: {error}") from error
