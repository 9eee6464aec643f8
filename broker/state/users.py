"""Users and their policies: frozen values, and the JSON of RocketMQ's tools.

    user    alice, Normal or Super, enable or disable
    acl     of "User:alice": policies Custom, Default -> entries: resource, actions, sources, Allow or Deny
    resource    *    Topic:*    Topic:orders    Topic:orders-*    Group:...    Cluster:...    Namespace:...

Source: apache/rocketmq `auth/.../model/*.java`, `remoting/.../body/{UserInfo,AclInfo}.java`,
`broker/.../auth/converter/*.java` (5.3).
"""

import functools
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ledgermq.remoting.refusal import Cause, Refusal

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"

ANY: Final = "Any"
CLUSTER: Final = "Cluster"
TOPIC: Final = "Topic"
GROUP: Final = "Group"

ENTRIES_MAX: Final = 10_000
"""Most entries of one user. A change reads and replicates all of them at once, some 30 us of the loop for each."""

_USER: Final = "User:"
_SEALED: Final = "sealedPassword"
_PREFIX_END: Final = "*"


def _by_lower(*known: str) -> dict[str, str]:
    return {name.lower(): name for name in known}


_RESOURCE_TYPES: Final = _by_lower(ANY, CLUSTER, "Namespace", TOPIC, GROUP)
_ACTIONS: Final = _by_lower("All", "Any", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_DECISIONS: Final = _by_lower(ALLOW, DENY)
_POLICIES: Final = _by_lower(CUSTOM, DEFAULT)
_KINDS: Final = _by_lower(SUPER, NORMAL)
_STATUSES: Final = _by_lower(ENABLE, DISABLE)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user.

    Attributes:
        password: in plain text; empty if it is sealed.
        sealed: the password as `broker.auth.password_vault` encrypted it; empty if it is not sealed.
    """

    name: str
    password: str = field(repr=False)
    sealed: str = field(default="", repr=False)
    kind: str = NORMAL
    status: str = ENABLE

    @property
    def is_super(self) -> bool:
        return self.kind == SUPER

    def to_json(self, *, with_password: bool = True) -> dict[str, str]:
        shown = {"userStatus": self.status, "userType": self.kind, "username": self.name}
        if not with_password:
            return shown
        return ({_SEALED: self.sealed} if self.sealed else {"password": self.password}) | shown

    @classmethod
    def from_json(cls, value: Any) -> "User":
        """Read a complete user.

        Raises:
            Refusal: NO_PERMISSION, with the remark that RocketMQ gives.
        """
        changes = UserChange.from_json(value)
        name, sealed = value.get("username"), value.get(_SEALED)
        if not isinstance(name, str) or not name.strip():
            raise refused("username can not be blank")
        if isinstance(sealed, str) and sealed:
            return changes.update(cls(name=name, password="", sealed=sealed))
        return changes.create(name)


@dataclass(frozen=True, slots=True)
class UserChange:
    """A change of a user; empty texts change nothing."""

    password: str = field(default="", repr=False)
    kind: str = ""
    status: str = ""

    @classmethod
    def from_json(cls, value: Any) -> "UserChange":
        """Read a `UserInfo`; raises as `User.from_json`."""
        if not isinstance(value, Mapping):
            raise Refusal(Cause.MALFORMED_FIELD, f"the user is not a JSON object but {type(value).__name__}")
        password = value.get("password") or ""
        if not isinstance(password, str):
            raise Refusal(Cause.MALFORMED_FIELD, "field password is not a text")
        kind = _word(value, "userType", _KINDS)
        return cls(password, kind, _word(value, "userStatus", _STATUSES))

    def create(self, name: str) -> User:
        """Return the new user with these values; raises as `User.from_json`."""
        if not self.password.strip():
            raise refused("password can not be blank")
        return User(name=name, password=self.password, kind=self.kind or NORMAL, status=self.status or ENABLE)

    def update(self, user: User) -> User:
        """Return the user with the change applied; a new password is not sealed yet."""
        if self.password.strip():
            user = replace(user, password=self.password, sealed="")
        return replace(user, kind=self.kind or user.kind, status=self.status or user.status)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of a request, or a pattern for resources.

    Attributes:
        kind: one of the resource types.
        name: None: every resource of the type; of a pattern with `is_prefix`, how names begin.
    """

    kind: str
    name: str | None = None
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.kind == ANY:
            return "*"
        return (
            f"{self.kind}:{'' if self.name is None else self.name}{'*' if self.name is None or self.is_prefix else ''}"
        )

    @classmethod
    def parse(cls, text: Any) -> "Resource":
        """Read `Topic:orders`, `Topic:orders-*`, `Topic:*` or `*`.

        Raises:
            Refusal: NO_PERMISSION, it is none of these.
        """
        if text == "*":
            return cls(ANY)
        kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
        found = _canonical(kind, _RESOURCE_TYPES)
        if found is None or not colon or not name:
            raise refused("The resource is null.")
        if name == _PREFIX_END:
            return cls(found)
        if name.endswith(_PREFIX_END):
            return cls(found, name.partition(_PREFIX_END)[0], is_prefix=True)
        return cls(found, name)

    def matches(self, touched: "Resource") -> bool:
        """Return whether this pattern matches a resource of a request."""
        if self.kind == ANY:
            return True
        if self.kind != touched.kind:
            return False
        if self.name is None:
            return True
        return (touched.name or "").startswith(self.name) if self.is_prefix else touched.name == self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rule of a policy; without sources it holds for clients at any address."""

    resource: Resource
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    decision: str

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"actions": list(self.actions), "decision": self.decision}
        shown["resource"] = str(self.resource)
        return shown | ({"sourceIps": list(self.sources)} if self.sources else {})

    @classmethod
    def from_json(cls, value: Any) -> "Entry":
        """Read a `PolicyEntryInfo`; raises as `Acl.from_json`."""
        if not isinstance(value, Mapping):
            raise refused("The policy entries is empty.")
        resource = Resource.parse(value.get("resource"))
        actions = tuple(filter(None, (_canonical(name, _ACTIONS) for name in _texts(value, "actions"))))
        if not actions:
            raise refused("The actions is empty.")
        if "Any" in actions:
            raise refused("The actions can not be Any.")
        sources = tuple(_texts(value, "sourceIps"))
        for source in sources:
            if not source.strip():
                raise refused("The source ip is empty.")
            if network(source) is None:
                raise refused("The source ip is invalid.")
        decision = _canonical(value.get("decision"), _DECISIONS)
        if decision is None:
            raise refused("The decision is null or illegal.")
        return cls(resource=resource, actions=actions, sources=sources, decision=decision)


@dataclass(frozen=True, slots=True)
class Acl:
    """The policies of one user: entries by policy; a policy has each resource at most once."""

    subject: str
    policies: Mapping[str, tuple[Entry, ...]]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(map(len, self.policies.values()))

    def to_json(self) -> dict[str, Any]:
        policies = [
            {"entries": [entry.to_json() for entry in entries], "policyType": kind}
            for kind, entries in self.policies.items()
        ]
        return {"policies": policies, "subject": self.subject}

    @classmethod
    def from_json(cls, value: Any) -> "Acl":
        """Read an `AclInfo`, whose subject may be missing.

        Raises:
            Refusal: NO_PERMISSION with the remark that RocketMQ gives, or SYSTEM_ERROR where it is no list of policies.
        """
        policies = value.get("policies") if isinstance(value, Mapping) else None
        if not isinstance(policies, list) or not policies:
            raise Refusal(Cause.SYSTEM_ERROR, "The body of acl is null")
        by_kind: dict[str, list[Entry]] = {}
        for policy in policies:
            entries = policy.get("entries") if isinstance(policy, Mapping) else None
            if not isinstance(entries, list) or not entries:
                raise refused("The policy entries is empty.")
            kind = _canonical(policy.get("policyType"), _POLICIES) or CUSTOM
            by_kind.setdefault(kind, []).extend(map(Entry.from_json, entries))
        return cls(str(value.get("subject") or ""), {}).updated(by_kind)

    def updated(self, policies: Mapping[str, Iterable[Entry]]) -> "Acl":
        """Return these policies with `policies` added; an entry replaces the one of the same resource."""
        merged = dict(self.policies)
        for kind, entries in policies.items():
            by_resource = {entry.resource: entry for entry in merged.get(kind, ())}
            merged[kind] = tuple((by_resource | {entry.resource: entry for entry in entries}).values())
        return replace(self, policies=merged)

    def without(self, kind: str, resource: Resource) -> "Acl":
        """Return these policies without the entry of this resource; a policy that becomes empty is removed."""
        kept = tuple(entry for entry in self.policies.get(kind, ()) if entry.resource != resource)
        policies = {**self.policies, kind: kept}
        return replace(self, policies={name: entries for name, entries in policies.items() if entries})


def raw_size(value: Any) -> int:
    """Return the number of entries of an `AclInfo` that is not read yet; four actions or addresses count as one.

    Counting stops at what is more than `ENTRIES_MAX`.
    """
    policies = _listed(value, "policies")
    if len(policies) > ENTRIES_MAX:
        return len(policies)
    entries = [entry for policy in policies for entry in _listed(policy, "entries")]
    if len(entries) > ENTRIES_MAX:
        return len(entries)
    details = (len(_listed(entry, name)) for entry in entries for name in ("actions", "sourceIps"))
    return max(len(policies), len(entries), sum(details) // 4)


def _listed(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []


def subject_of(user: str) -> str:
    """Return the subject of a user's policies."""
    return _USER + user


def user_of(subject: str) -> str | None:
    """Return the user that a subject names; None when it names no user."""
    kind, colon, name = subject.partition(":")
    return name if colon and name and kind.lower() == "user" else None


@functools.lru_cache(maxsize=4096)
def network(text: str) -> Network | None:
    """Parse an address or network such as `10.0.0.1` or `10.0.0.0/8`; None when it is neither."""
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return None


def refused(remark: str) -> Refusal:
    """Return RocketMQ's refusal in matters of users and policies: NO_PERMISSION with a remark."""
    return Refusal(Cause.NO_PERMISSION, remark)


def _canonical(word: Any, known: Mapping[str, str]) -> str | None:
    return known.get(word.lower()) if isinstance(word, str) else None


def _word(value: Mapping[str, Any], name: str, known: Mapping[str, str]) -> str:
    word = value.get(name)
    found = _canonical(word, known)
    if word and found is None:
        raise Refusal(
            Cause.MALFORMED_FIELD, f"field {name} is {str(word)[:100]!r}, not one of {', '.join(known.values())}"
        )
    return found or ""


def _texts(value: Mapping[str, Any], name: str) -> list[str]:
    texts = value.get(name) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refusal(Cause.MALFORMED_FIELD, f"field {name} is not a list of texts")
    return texts
