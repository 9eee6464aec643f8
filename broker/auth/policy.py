"""Decides by a user's policies whether an access is allowed. Pure.

    super user -> allowed        matching entries of Custom, else of Default -> the most specific one decides
                                 no entry matches -> denied

Order of entries, most specific first: a literal resource, a longer prefix, a shorter prefix, all resources of a type,
`*`; among equals an entry that denies. RocketMQ intends the same, but its comparison (5.3.3) puts shorter prefixes and
allowing entries first.

Source: apache/rocketmq `auth/.../authorization/chain/{UserAuthorizationHandler,AclAuthorizationHandler}.java`.
"""

import ipaddress
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.state.users import ANY, CUSTOM, DEFAULT, DENY, Acl, Entry, Resource, User, network, refused, subject_of
from ledgermq.remoting.refusal import Cause, Refusal

_SCANNED_FOR_MAX: Final = 8
_COMPARED_MAX: Final = 200_000
"""Most comparisons for one request, which the loop waits for: some 0.1 s."""


@dataclass(frozen=True, slots=True)
class NeededAccess:
    """A resource that a request uses; the request needs one of the actions on it."""

    resource: Resource
    actions: tuple[str, ...]


def check(user: User, acl: Acl | None, accesses: Iterable[NeededAccess], source: str) -> None:
    """Check that all accesses are allowed.

    Args:
        user: the user of the request.
        acl: the user's policies; None allows nothing, except to a super user.
        accesses: the accesses of the request.
        source: the address of the client.

    Raises:
        Refusal: NO_PERMISSION, with RocketMQ's remark; INVALID_PARAMETER, comparing this many names with the user's
        patterns takes too long.
    """
    if user.is_super:
        return
    wanted = dict.fromkeys(accesses)
    candidates = Candidates(acl, len(wanted)) if acl is not None else None
    for access in wanted:
        entry = candidates.deciding_entry(access, source) if candidates is not None else None
        if entry is None or entry.decision == DENY:
            detail = "no matched policies." if entry is None else "the decision is deny."
            subject = subject_of(user.name)
            raise refused(f"{subject} has no permission to access {access.resource} from {source}, {detail}")


class Candidates:
    """A user's entries for the accesses of one request: for many, those that name one resource are looked up."""

    def __init__(self, acl: Acl, accesses: int) -> None:
        self._scanned = {kind: list(acl.policies.get(kind, ())) for kind in (CUSTOM, DEFAULT)}
        self._literal: dict[tuple[str, Resource], list[Entry]] = {}
        if accesses <= _SCANNED_FOR_MAX:
            return
        for kind, entries in self._scanned.items():
            for entry in filter(_is_literal, entries):
                self._literal.setdefault((kind, entry.resource), []).append(entry)
            self._scanned[kind] = [entry for entry in entries if not _is_literal(entry)]
        if (count := accesses * sum(map(len, self._scanned.values()))) > _COMPARED_MAX:
            detail = f"{count} comparisons of names with the user's patterns, {_COMPARED_MAX} are the most"
            raise Refusal(Cause.INVALID_PARAMETER, f"{detail}: name fewer in one request")

    def deciding_entry(self, access: NeededAccess, source: str) -> Entry | None:
        """Return the most specific matching entry; None when none matches."""
        for kind, scanned in self._scanned.items():
            candidates = itertools.chain(scanned, self._literal.get((kind, access.resource), ()))
            found = [entry for entry in candidates if _matches(entry, access, source)]
            if found:
                return max(found, key=_particularity)
        return None


def _is_literal(entry: Entry) -> bool:
    resource = entry.resource
    return resource.name is not None and not resource.is_prefix and resource.kind != ANY  # `Any:x` matches everything


def _matches(entry: Entry, access: NeededAccess, source: str) -> bool:
    if not entry.resource.matches(access.resource):
        return False
    if "All" not in entry.actions and not any(action in entry.actions for action in access.actions):
        return False
    return not entry.sources or any(_is_within(source, text) for text in entry.sources)


def _is_within(source: str, text: str) -> bool:
    addresses = network(text)
    try:
        return addresses is not None and ipaddress.ip_address(source) in addresses
    except ValueError:
        return False


def _particularity(entry: Entry) -> tuple[int, int, bool]:
    resource = entry.resource
    denies = entry.decision == DENY
    if resource.kind == ANY:
        return 0, 0, denies
    if resource.name is None:
        return 1, 0, denies
    return (2, len(resource.name), denies) if resource.is_prefix else (3, 0, denies)
