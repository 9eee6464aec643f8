"""Requests about users (3001 to 3005) and policies (3006 to 3010). Changes are records of the log, as those of topics.

    follower --(the request as it came)--> leader --> record of the state topic --> every member

Tools send a change to each member of a cluster, as if each had tables of its own. A follower therefore forwards it to
the leader, and the leader answers a repetition within ten seconds with success.

Passwords are shown to super users only: RocketMQ shows them to whoever may read the cluster, or, without
authentication, to everybody.

Source: apache/rocketmq `broker/.../processor/AdminBrokerProcessor.java`,
`auth/.../manager/{AuthenticationMetadataManagerImpl,AuthorizationMetadataManagerImpl}.java`,
`tools/.../command/auth/*SubCommand.java` (5.3).
"""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from broker.auth.guard import Guard
from broker.auth.password_vault import PasswordVault
from broker.role import Role
from broker.state.tables import Propose, ReplicatedState, StateChange
from broker.state.users import (
    CUSTOM,
    DEFAULT,
    ENTRIES_MAX,
    Acl,
    Resource,
    User,
    UserChange,
    raw_size,
    refused,
    subject_of,
    user_of,
)
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import dumps
from ledgermq.remoting.codec.lenient_json import request_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

log = logging.getLogger(__name__)

_NAME_MAX: Final = 255
_REPEATED_WITHIN_S: Final = 10.0
_RECENT_MAX: Final = 10_000
_USERS_PER_RECORD: Final = 100
_KEY_FIELDS: Final = ("username", "subject", "policyType", "resource")


class AuthRequests:
    """Shows and changes users and policies.

    Args:
        vault: seals passwords before they are proposed.
        propose: appends a change; its callback gets None when the change is committed and applied, or the refusal.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        state: ReplicatedState,
        role: Role,
        guard: Guard,
        vault: PasswordVault,
        propose: Propose,
        clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._role = role
        self._guard = guard
        self._vault = vault
        self._propose = propose
        self._recent = _RecentChanges(clock)

    # ---- users

    def create_user(self, connection: Connection, command: Command) -> None:
        """3001: create a user."""
        name = self._begin_change(command)
        user = UserChange.from_json(_body(command)).create(name)
        if user.is_super:
            self._guard.check_super(command, "create")
        if name in self._state.users:
            self._done_before(connection, command, "The user is existed")
            return
        self._change(connection, command, StateChange(users={name: self._vault.seal(user)}))

    def update_user(self, connection: Connection, command: Command) -> None:
        """3002: change a user; members that the body leaves out keep their values."""
        name = self._begin_change(command)
        change = UserChange.from_json(_body(command))
        present = self._state.users.get(name)
        if present is None:
            raise refused("The user is not exist")
        user = change.update(present)
        if present.is_super or user.is_super:
            self._guard.check_super(command, "update")
        self._change(connection, command, StateChange(users={name: self._vault.seal(user)}))

    def delete_user(self, connection: Connection, command: Command) -> None:
        """3003: delete a user and its policies; deleting a missing user succeeds."""
        name = self._begin_change(command)
        present = self._state.users.get(name)
        if present is None:
            connection.respond(command, ResponseCode.SUCCESS)
            return
        if present.is_super:
            self._guard.check_super(command, "update")
        self._change(connection, command, StateChange(users={name: None}, acls={subject_of(name): None}))

    def get_user(self, connection: Connection, command: Command) -> None:
        """3004: answer one user; the answer has no body if there is no user of that name."""
        self._guard.check_may_change(command)
        found = self._state.users.get(_user_name(command))
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(self._shown(found, command)) if found else b"")

    def list_users(self, connection: Connection, command: Command) -> None:
        """3005: answer the users whose names contain `filter`."""
        self._guard.check_may_change(command)
        wanted = command.ext.get("filter", "").strip()
        users = [self._shown(user, command) for name, user in sorted(self._state.users.items()) if wanted in name]
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(users) if users else b"")

    # ---- policies

    def put_acl(self, connection: Connection, command: Command) -> None:
        """3006, 3007: add entries to a subject's policies, replacing those of the same policy and resource."""
        self._check_change(command)
        body = _body(command)
        _check_size(raw_size(body))
        given = Acl.from_json(body)
        subject = self._existing_subject(given.subject or command.ext.get("subject", ""))
        present = self._state.acls.get(subject, Acl(subject, {}))
        wanted = present.updated(given.policies)
        _check_size(wanted.size)
        self._change(connection, command, StateChange(acls={subject: wanted}))

    def delete_acl(self, connection: Connection, command: Command) -> None:
        """3008: delete the entry of one resource, or all policies of a subject."""
        self._check_change(command)
        subject = self._existing_subject(command.ext.get("subject", ""))
        present = self._state.acls.get(subject)
        if present is None:
            self._done_before(connection, command, "The acl is not exist.")
            return
        left: Acl | None = None
        if resource := command.ext.get("resource", "").strip():
            kind = DEFAULT if command.ext.get("policyType", "").lower() == DEFAULT.lower() else CUSTOM
            left = present.without(kind, Resource.parse(resource))
        self._change(connection, command, StateChange(acls={subject: left if left and left.policies else None}))

    def get_acl(self, connection: Connection, command: Command) -> None:
        """3009: answer the policies of one subject; the answer has no body if it has none."""
        self._guard.check_may_change(command)
        found = self._state.acls.get(self._existing_subject(command.ext.get("subject", "")))
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(found.to_json()) if found else b"")

    def list_acls(self, connection: Connection, command: Command) -> None:
        """3010: answer entries whose subject contains `subjectFilter` and whose resource contains `resourceFilter`."""
        self._guard.check_may_change(command)
        subject, resource = (command.ext.get(name, "").strip() for name in ("subjectFilter", "resourceFilter"))
        found = [
            shown.to_json()
            for name, acl in sorted(self._state.acls.items())
            if subject in name and (shown := _only(acl, resource)).policies
        ]
        connection.respond(command, ResponseCode.SUCCESS, body=dumps(found) if found else b"")

    # ---- users of the configuration

    def make_users(self, wanted: list[User]) -> None:
        """Create those of the users that do not exist; a new leader does this with the users of the configuration."""
        missing = {user.name: self._vault.seal(user) for user in wanted if user.name not in self._state.users}
        if missing:
            self._propose(StateChange(users=missing), _made)

    def seal_users(self) -> None:
        """Seal the passwords that are in plain text, or sealed by an earlier secret; a new leader does this."""
        users = self._state.users.items()
        changed = [(name, sealed) for name, user in users if (sealed := self._vault.seal(user)) != user]
        for start in range(0, len(changed), _USERS_PER_RECORD):
            self._propose(StateChange(users=dict(changed[start : start + _USERS_PER_RECORD])), _made)
        if changed:
            log.info("the passwords of %d users are sealed by the present secret from now on", len(changed))

    # ---- internals

    def _done_before(self, connection: Connection, command: Command, remark: str) -> None:
        if not self._recent.has(command):
            raise refused(remark)
        connection.respond(command, ResponseCode.SUCCESS)

    def _begin_change(self, command: Command) -> str:
        self._check_change(command)
        return _user_name(command)

    def _check_change(self, command: Command) -> None:
        self._role.check_writable()
        self._guard.check_may_change(command)

    def _existing_subject(self, text: str) -> str:
        name = user_of(text)
        if name is None:
            raise Refusal(Cause.INVALID_PARAMETER, f"field subject is {text[:100]!r}, not User:name")
        if name not in self._state.users:
            raise refused(f"The subject of {subject_of(name)} is not exist.")
        return subject_of(name)

    def _shown(self, user: User, command: Command) -> dict[str, str]:
        if not self._guard.is_super(command):
            return user.to_json(with_password=False)
        return replace(user, password=self._vault.password_of(user) or "", sealed="").to_json()

    def _change(self, connection: Connection, command: Command, change: StateChange) -> None:
        def done(refusal: Refusal | None) -> None:
            if refusal is None:
                self._recent.note(command)
                connection.respond(command, ResponseCode.SUCCESS)
            else:
                connection.refuse(command, refusal)

        changed = ", ".join(sorted({*change.users, *change.acls}))
        log.info("%s changes users or policies of %s (request %d)", connection.address, changed, command.code)
        self._propose(change, done)


class _RecentChanges:
    """The changes that were committed within the last ten seconds.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()  # by digest; the one that ends first is first

    def note(self, command: Command) -> None:
        """Remember a committed change; of too many the oldest is forgotten."""
        now, key = self._clock(), _digest(command)
        self._until[key] = now + _REPEATED_WITHIN_S
        self._until.move_to_end(key)
        while len(self._until) > _RECENT_MAX or next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)

    def has(self, command: Command) -> bool:
        """Return whether the same change was committed within the last ten seconds."""
        return self._until.get(_digest(command), 0.0) > self._clock()


def _digest(command: Command) -> bytes:
    head = repr((command.code, *(command.ext.get(name) for name in _KEY_FIELDS)))
    return hashlib.blake2b(head.encode() + bytes(command.body), digest_size=16).digest()


def _made(refusal: Refusal | None) -> None:
    if refusal is not None:
        log.warning("users cannot be created, or their passwords sealed, yet: %s", refusal)


def _user_name(command: Command) -> str:
    name = command.ext.get("username", "")
    if not name.strip():
        raise Refusal(Cause.INVALID_PARAMETER, "The username is blank")
    if len(name) > _NAME_MAX or not name.isprintable():
        raise Refusal(Cause.INVALID_PARAMETER, f"The username must have at most {_NAME_MAX} characters, all printable")
    return name


def _check_size(count: int) -> None:
    if count > ENTRIES_MAX:
        detail = f"{count} entries, a user may have {ENTRIES_MAX}: use prefixes such as Topic:orders-*"
        raise Refusal(Cause.INVALID_PARAMETER, detail)


def _only(acl: Acl, resource: str) -> Acl:
    policies = {
        kind: tuple(entry for entry in entries if resource in str(entry.resource))
        for kind, entries in acl.policies.items()
    }
    return Acl(acl.subject, {kind: entries for kind, entries in policies.items() if entries})


def _body(command: Command) -> Any:
    if not command.body:
        raise Refusal(Cause.MALFORMED_FIELD, f"request {command.code} has no body")
    return request_json(command)
