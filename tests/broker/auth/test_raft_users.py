"""Users of a Raft group: made on any member, as mqadmin asks all of them, and known to all."""

import pytest

from broker.state.users import Acl, User
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.signature import Credentials
from node.broker_assembly import Broker
from tests.broker.conftest import send_fields
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group, group

__all__ = ["group"]

ALICE = {"username": "alice"}
ACL = b'{"policies":[{"entries":[{"resource":"Topic:t","actions":["Pub"],"decision":"Allow"}]}]}'


async def ask_all(group: Group, code: int, fields: dict[str, str], body: bytes = b"") -> list[int]:
    """The same of followers and then of the leader, as it comes about in the tool."""
    brokers: list[Broker] = [*group.followers, group.leader]
    answers: list[Command] = [await ask(group.client, broker, code, fields, body) for broker in brokers]
    return [answer.code for answer in answers]


@pytest.mark.parametrize("group", [{"plainPasswords": True}], indirect=True)
async def test_a_change_that_every_member_is_asked_for_is_made_once_and_known_to_all(group: Group) -> None:
    assert await ask_all(group, RequestCode.AUTH_CREATE_USER, ALICE, b'{"password":"p"}') == [0, 0, 0]
    await group.everywhere(lambda broker: broker.parts.context.state.user("alice") == User(name="alice", password="p"))
    subject = {"subject": "User:alice"}
    assert await ask_all(group, RequestCode.AUTH_CREATE_ACL, subject, ACL) == [0, 0, 0]
    await group.everywhere(lambda broker: isinstance(broker.parts.context.state.acl("User:alice"), Acl))
    assert await ask_all(group, RequestCode.AUTH_DELETE_ACL, subject) == [0, 0, 0]
    assert await ask_all(group, RequestCode.AUTH_DELETE_USER, ALICE) == [0, 0, 0]
    await group.everywhere(lambda broker: not broker.parts.context.state.users and not broker.parts.context.state.acls)


async def test_without_a_secret_for_all_replicas_no_password_is_stored(group: Group) -> None:
    answer = await ask(group.client, group.leader, RequestCode.AUTH_CREATE_USER, ALICE, b'{"password":"p"}')
    assert answer.code == 1 and "set passwordKeyFile to the same file on all replicas" in (answer.remark or "")


async def test_what_the_leader_refuses_a_follower_refuses_with_its_words(group: Group) -> None:
    answer = await ask(group.client, group.followers[0], RequestCode.AUTH_CREATE_USER, ALICE, b"{}")
    assert (answer.code, answer.remark) == (16, "password can not be blank")


CHECKED = {
    "plainPasswords": True,
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
}


@pytest.mark.parametrize("group", [CHECKED], indirect=True)
async def test_where_users_are_checked_requests_are_passed_on_too(group: Group) -> None:
    """The members' greeting has no user: their secret proves it, or that they are on this machine."""
    await group.everywhere(lambda broker: broker.parts.context.state.user("root") is not None)
    follower = group.followers[0]
    root = Credentials("root", "root-secret")

    async def asked(code: int, fields: dict[str, str], body: bytes = b"", *, signed: bool = True) -> tuple[int, str]:
        command = Command(code, ext=fields, body=body)
        if signed:
            root.sign(command)
        answer = await ask(group.client, follower, code, command.ext, body)
        return answer.code, answer.remark or ""

    assert await asked(RequestCode.AUTH_CREATE_USER, ALICE, b'{"password":"p"}') == (0, "")
    code, remark = await asked(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"through a follower")
    assert code == 0, remark
    assert follower.parts.passing.pass_on.passed == 2
    assert (await asked(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"by nobody", signed=False))[0] == 16
