"""RocketMQ's old access control, `plain_acl.yml`, as users and policies. Pure: the file is read elsewhere.

    accessKey, secretKey          -> user                    topicPerms, groupPerms           -> policy Custom
    admin: true                   -> a super user            defaultTopicPerm, ...GroupPerm   -> policy Default

DENY denies all actions, PUB and SUB allow those. Addresses that needed no signature have no counterpart: they are
reported and not converted.

Source: apache/rocketmq `auth/.../migration/AuthMigrator.java` (5.3), which treats an unknown permission as all of them;
here it is an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from broker.state.users import (
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    GROUP,
    NORMAL,
    SUPER,
    TOPIC,
    Acl,
    Entry,
    Resource,
    User,
    subject_of,
)

_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "DENY": ("All",),
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
}


class PlainAclError(ValueError):
    """The file is no valid `plain_acl.yml`; the message names the account and the member."""


@dataclass(frozen=True, slots=True)
class PlainAclUsers:
    """Users of a broker of RocketMQ's, to be imported.

    Attributes:
        users: the users, each with its policies or None.
        left: sentences about settings without a counterpart.
    """

    users: tuple[tuple[User, Acl | None], ...]
    left: tuple[str, ...] = field(default=())


def convert(value: Any) -> PlainAclUsers:
    """Convert a parsed file, whose scalars are all texts.

    Raises:
        PlainAclError: a member is missing or has an invalid value.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("accounts"), list):
        raise PlainAclError("the list of accounts is missing")
    left = []
    if found := value.get("globalWhiteRemoteAddresses"):
        left.append(f"globalWhiteRemoteAddresses {found}: all clients must sign")
    users = []
    for number, account in enumerate(value["accounts"], 1):
        place = f"account {number}"
        if not isinstance(account, Mapping):
            raise PlainAclError(f"{place} is not a table")
        user = _user(account, place)
        if address := account.get("whiteRemoteAddress"):
            left.append(f"whiteRemoteAddress {address} of {user.name}: all clients must sign")
        users.append((user, _acl(account, user.name)))
    names = [user.name for user, _ in users]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise PlainAclError(f"there are several accounts of {', '.join(repeated)}")
    return PlainAclUsers(tuple(users), tuple(left))


def _user(account: Mapping[str, Any], place: str) -> User:
    name, secret = account.get("accessKey"), account.get("secretKey")
    for member, text in (("accessKey", name), ("secretKey", secret)):
        if not isinstance(text, str) or not text.strip():
            raise PlainAclError(f"{place} has no {member}")
    admin = str(account.get("admin", "false")).lower()
    if admin not in ("true", "false"):
        raise PlainAclError(f"{place}: admin is {admin[:20]!r}, not true or false")
    return User(name=str(name), password=str(secret), kind=SUPER if admin == "true" else NORMAL)


def _acl(account: Mapping[str, Any], name: str) -> Acl | None:
    custom = [*_permissions(account, "topicPerms", TOPIC, name), *_permissions(account, "groupPerms", GROUP, name)]
    default = [
        _entry(Resource(kind), account[member], f"{member} of {name}")
        for member, kind in (("defaultTopicPerm", TOPIC), ("defaultGroupPerm", GROUP))
        if account.get(member)
    ]
    policies = {kind: entries for kind, entries in ((CUSTOM, custom), (DEFAULT, default)) if entries}
    return Acl(subject_of(name), {}).updated(policies) if policies else None


def _permissions(account: Mapping[str, Any], member: str, kind: str, name: str) -> list[Entry]:
    place = f"{member} of {name}"
    items = account.get(member) or []
    if not isinstance(items, list):
        raise PlainAclError(f"{place} is not a list")
    entries = []
    for item in items:
        resource, sign, permission = str(item).partition("=")
        if not sign or not resource.strip():
            raise PlainAclError(f"{place}: {str(item)[:100]!r} is not NAME=PERMISSION")
        if "*" in resource:  # a literal name in plain_acl.yml; in a policy it would be a prefix
            raise PlainAclError(f"{place}: {resource.strip()[:100]!r} is not a valid name")
        entries.append(_entry(Resource(kind, resource.strip()), permission, place))
    return entries


def _entry(resource: Resource, permission: Any, place: str) -> Entry:
    word = str(permission).replace(" ", "")
    if word not in _ACTIONS:
        raise PlainAclError(f"{place}: {word[:100]!r} is not one of {', '.join(_ACTIONS)}")
    return Entry(resource=resource, actions=_ACTIONS[word], decision=DENY if word == "DENY" else ALLOW)
