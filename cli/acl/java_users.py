"""Reads the users and policies that a broker of RocketMQ 5.x keeps in its store: two RocksDB databases.

    STORE/config/users    name of the user -> User      STORE/config/acls    subject -> Acl      JSON by fastjson2

An enumeration is a number there, where requests have its name. Nothing is changed in the store. The databases are read
by `rocksdict`, which is installed with `ledgermq-server[rocksdb]`.

Source: apache/rocketmq `auth/.../provider/Local{Authentication,Authorization}MetadataProvider.java`,
`auth/.../enums/*.java`, `common/.../{action/Action,resource/ResourceType,resource/ResourcePattern}.java` (5.3).
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.auth.plain_acl import PlainAclUsers
from broker.state.users import Acl, User, subject_of
from ledgermq.remoting.refusal import Refusal
from node.errors import UsageError

_T = TypeVar("_T")
_KINDS: Final = {1: "Super", 2: "Normal"}
_STATUSES: Final = {1: "enable", 2: "disable"}
_POLICIES: Final = {1: "Custom", 2: "Default"}
_DECISIONS: Final = {1: "Allow", 2: "Deny"}
_ACTIONS: Final = dict(enumerate(("All", "Any", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"), 1))
_RESOURCES: Final = {1: "Any", 2: "Cluster", 3: "Namespace", 4: "Topic", 5: "Group"}
_PATTERNS: Final = {1: "ANY", 2: "LITERAL", 3: "PREFIXED"}


def read_java_users(store: Path) -> PlainAclUsers:
    """Read the users, each with its policies, in a store's root.

    Raises:
        UsageError: there are none, `rocksdict` is not installed, or a database cannot be read.
    """
    config = store / "config"
    if not (config / "users" / "CURRENT").exists():
        raise UsageError(f"{config}: has no database of users as RocketMQ 5.x makes one in its store's root")
    users = {name: _read(config / "users", name, value, _user) for name, value in _rows(config / "users")}
    acls = {}
    if (config / "acls" / "CURRENT").exists():
        acls = {subject: _read(config / "acls", subject, value, _acl) for subject, value in _rows(config / "acls")}
    accounts = tuple((user, acls.pop(subject_of(name), None)) for name, user in sorted(users.items()))
    return PlainAclUsers(accounts, tuple(f"policies of {subject}, who is no user" for subject in sorted(acls)))


def _rows(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        rocks = importlib.import_module("rocksdict")
    except ImportError as error:
        raise UsageError(f"{path}: to read it, install ledgermq-server[rocksdb]") from error
    try:
        database = rocks.Rdict(str(path), rocks.Options(raw_mode=True), access_type=rocks.AccessType.read_only())
        try:
            for key, value in database.items():
                yield key.decode(), value
        finally:
            database.close()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: a key is not UTF-8") from error
    except Exception as error:  # rocksdict raises the plain class
        if type(error) is Exception:
            raise UsageError(f"{path}: {error}") from error
        raise


def _read(path: Path, key: str, value: bytes, convert: Callable[[str, Any], _T]) -> _T:
    try:
        return convert(key, json.loads(value))
    except (ValueError, TypeError, KeyError, AttributeError, Refusal) as error:
        cause = error.remark if isinstance(error, Refusal) else repr(error)
        raise UsageError(f"{path}: the entry of {key[:100]!r} is not understood: {cause}") from error


def _user(name: str, value: Mapping[str, Any]) -> User:
    kind, status = _name(value, "userType", _KINDS), _name(value, "userStatus", _STATUSES)
    return User.from_json({"username": name, "password": value["password"], "userType": kind, "userStatus": status})


def _acl(subject: str, value: Mapping[str, Any]) -> Acl:
    policies = [
        {"policyType": _name(policy, "policyType", _POLICIES), "entries": list(map(_entry, policy["entries"]))}
        for policy in value["policies"]
    ]
    return Acl.from_json({"subject": subject, "policies": policies})


def _entry(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "resource": _resource(value["resource"]),
        "actions": [_ACTIONS[action] for action in value["actions"]],
        "sourceIps": (value.get("environment") or {}).get("sourceIps"),
        "decision": _name(value, "decision", _DECISIONS),
    }


def _resource(value: Mapping[str, Any]) -> str:
    kind = _name(value, "resourceType", _RESOURCES)
    if kind == "Any":
        return "*"
    pattern = _name(value, "resourcePattern", _PATTERNS)
    name = "" if pattern == "ANY" else value["resourceName"]
    return f"{kind}:{name}{'' if pattern == 'LITERAL' else '*'}"


def _name(value: Mapping[str, Any], member: str, names: Mapping[int, str]) -> str | None:
    return None if value.get(member) is None else names[value[member]]
