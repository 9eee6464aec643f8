"""Administration of accounts and of what they may do (RocketMQ's ACL 2.0), the same at every broker.

Source: apache/rocketmq `remoting/.../protocol/body/{UserInfo,AclInfo}.java`.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import orjson

from ledgermq.client.admin.base import AdminBase
from ledgermq.client.admin.results import Policy, User, parse_policies
from ledgermq.client.core.answers import read_body
from ledgermq.client.core.checks import check_flag, check_kind, check_text, given, listed
from ledgermq.client.errors import InvalidArgumentError, ServerError
from ledgermq.remoting.codec.codes import RequestCode

Kind = Literal["Super", "Normal"]

_ENABLED: Final = "enable"


class UserAdmin(AdminBase):
    """Administration of users and policies; brokers with access control demand a super user for it."""

    async def create_user(self, name: str, password: str, kind: Kind = "Normal") -> None:
        """Create an account; one of kind `Super` may do everything.

        Raises:
            RefusedError: the account exists already.
        """
        check_kind(str, password=password, kind=kind)
        await self._put_user(RequestCode.AUTH_CREATE_USER, name, password, kind, True)

    async def update_user(
        self, name: str, *, password: str | None = None, kind: Kind | None = None, enabled: bool | None = None
    ) -> None:
        """Change an account; None keeps a setting.

        Raises:
            RefusedError: there is no such account.
        """
        await self._put_user(RequestCode.AUTH_UPDATE_USER, name, password, kind, enabled)

    async def delete_user(self, name: str) -> None:
        """Delete an account and its policies."""
        check_text(name, "name")
        await self._everywhere(RequestCode.AUTH_DELETE_USER, {"username": name})

    async def users(self, name_part: str = "") -> tuple[User, ...]:
        """Return the accounts whose names contain `name_part`, as the first broker that answers knows them."""
        check_text(name_part, "name_part")
        ext = {"filter": name_part} if name_part else {}
        where, answer = await self._at_any(await self._broker_names(None), RequestCode.AUTH_LIST_USER, ext)
        if not len(answer.body):
            return ()
        return read_body(where, "users", answer.body, lambda data: tuple(map(_parse_user, data)))

    async def create_policies(self, subject: str, policies: Sequence[Policy]) -> None:
        """Create the policies of a subject (`User:alice`).

        Raises:
            RefusedError: there is no such user, or a policy is malformed.
        """
        await self._put_policies(RequestCode.AUTH_CREATE_ACL, subject, policies)

    async def update_policies(self, subject: str, policies: Sequence[Policy]) -> None:
        """Change the policies of a subject: those for the same resources are replaced."""
        await self._put_policies(RequestCode.AUTH_UPDATE_ACL, subject, policies)

    async def delete_policies(self, subject: str, resource: str | None = None) -> None:
        """Delete a subject's policy for a resource, or all of them."""
        check_kind(str, subject=subject, **given(resource=resource))
        ext = given(subject=subject, resource=resource, policyType="Custom" if resource else None)
        await self._everywhere(RequestCode.AUTH_DELETE_ACL, ext)

    async def policies(self, subject_part: str = "", resource_part: str = "") -> dict[str, tuple[Policy, ...]]:
        """Return policies by subject, as the first broker that answers knows them.

        Only subjects that contain `subject_part` and resources that contain `resource_part` are listed.
        """
        check_kind(str, subject_part=subject_part, resource_part=resource_part)
        ext = given(subjectFilter=subject_part or None, resourceFilter=resource_part or None)
        where, answer = await self._at_any(await self._broker_names(None), RequestCode.AUTH_LIST_ACL, ext)
        if not len(answer.body):
            return {}
        return read_body(
            where, "policies", answer.body, lambda data: {str(one["subject"]): parse_policies(one) for one in data}
        )

    # -- internals

    async def _put_user(
        self, code: int, name: str, password: str | None, kind: Kind | None, enabled: bool | None
    ) -> None:
        check_kind(str, name=name, **given(password=password))
        if kind is not None and kind not in get_args(Kind):
            raise InvalidArgumentError(f"kind is {kind!r}, not one of {', '.join(get_args(Kind))}")
        check_flag(**given(enabled=enabled))
        if not name:
            raise InvalidArgumentError("a user without a name")
        status = None if enabled is None else _ENABLED if enabled else "disable"
        user = given(username=name, password=password, userType=kind, userStatus=status)
        await self._everywhere(code, {"username": name}, orjson.dumps(user))

    async def _put_policies(self, code: int, subject: str, policies: Sequence[Policy]) -> None:
        check_text(subject, "subject")
        entries = [
            {
                "resource": policy.resource,
                "actions": list(policy.actions),
                "sourceIps": list(policy.source_ips),
                "decision": "Allow" if policy.is_allowed else "Deny",
            }
            for policy in listed(Policy, "policies", policies)
        ]
        body = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        await self._everywhere(code, {"subject": subject}, orjson.dumps(body))

    async def _everywhere(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        await self._at_leaders(await self._broker_names(None, awaits_one=True), code, ext, ServerError, body=body)


def _parse_user(data: Any) -> User:
    return User(
        name=str(data["username"]),
        kind=str(data["userType"]),
        is_enabled=str(data.get("userStatus") or _ENABLED).lower() == _ENABLED,
    )
