"""Reads two YAML files: `plain_acl.yml`, and the credentials for the import in the format of mqadmin's `tools.yml`.

Scalars are read as text, so that a secret `0123` does not become a number.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from broker.auth.plain_acl import PlainAclError, PlainAclUsers, convert
from ledgermq.remoting.signature import Credentials
from node.errors import UsageError

_SIZE_MAX: Final = 4 << 20


def read_plain_acl(path: Path) -> PlainAclUsers:
    """Read a `plain_acl.yml`.

    Raises:
        UsageError: it cannot be read, or has another format.
    """
    try:
        return convert(_read(path))
    except PlainAclError as error:
        raise UsageError(f"{path}: {error}") from error


def read_credentials(path: Path) -> Credentials:
    """Read the credentials for the import; raises what `read_plain_acl` raises."""
    value = _read(path)
    found = [value.get(name) if isinstance(value, dict) else None for name in ("accessKey", "secretKey")]
    name, secret = found
    if not isinstance(name, str) or not isinstance(secret, str) or not name or not secret:
        raise UsageError(f"{path}: both accessKey and secretKey must be given")
    return Credentials(name, secret)


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _SIZE_MAX:
            raise UsageError(f"{path}: is larger than {_SIZE_MAX} bytes")
        # BaseLoader makes only texts, lists and tables
        return yaml.load(path.read_bytes(), Loader=_NoAliases)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(f"{path}: cannot be parsed as YAML{f' in line {mark.line + 1}' if mark else ''}") from error


class _NoAliases(yaml.BaseLoader):
    """A loader that refuses aliases, by which a small file can expand to a large one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)
