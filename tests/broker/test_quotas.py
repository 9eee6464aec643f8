"""Quotas on a broker: of users, whatever their address; of what requests create; changed while it runs."""

import time

import pytest

from broker.auth_settings import AuthSettings
from broker.passing.relayed import RelayedClient
from ledgermq.message.hosts import Host
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.quotas import AddressQuotas, UserQuotas
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.signature import Credentials
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, topic_fields

ROOT = Credentials("root", "root-secret")
ASKING = AuthSettings(authentication_enable=True, first_user='{"username": "root", "password": "root-secret"}')


async def _ask_as_root(client: MemoryClient) -> Command:
    command = Command(RequestCode.CHECK_CLIENT_CONFIG, ext={})
    ROOT.sign(command)
    return await client.ask(command.code, command.ext)


@pytest.mark.parametrize(
    "desk", [{"auth": ASKING, "user_quotas": UserQuotas(requests_a_second=2, connections=2)}], indirect=True
)
async def test_all_connections_of_a_user_share_his_quota(desk: Desk) -> None:
    await eventually(lambda: "root" in desk.parts.context.state.users, "the first user")
    one, other, third = desk.client(), desk.client(), desk.client()
    await one.ask(RequestCode.CHECK_CLIENT_CONFIG)
    for _ in range(2):
        await _ask_as_root(one)
    assert not one.connection.is_throttled  # who does not prove to be somebody is counted as an address only
    await _ask_as_root(other)
    assert other.connection.is_throttled
    refused = await _ask_as_root(third)
    assert (refused.code, refused.remark) == (
        2,
        "[OVERLOAD]user root has 2 connections (maxConnectionsPerUser)",
    )
    assert third.connection.is_closed
    one.close()
    assert (await _ask_as_root(desk.client())).code != 2


async def test_a_connection_on_which_several_users_sign_counts_for_none_of_them(desk: Desk) -> None:
    """Such as a proxy's, or the one on which a slave forwards changes to its master."""
    handler, quotas = desk.parts.handler, desk.parts.quotas
    quotas.set(AddressQuotas(), UserQuotas(connections=1))
    shared, own, second = (desk.client().connection for _ in range(3))
    for user in ("alice", "bob", "alice"):
        handler._signed_by(shared, user)
    handler._signed_by(own, "alice")
    handler._signed_by(shared, "bob")
    with pytest.raises(Refusal, match="maxConnectionsPerUser"):
        handler._signed_by(second, "alice")
    handler.on_closed(shared)
    handler.on_closed(own)
    handler._signed_by(second, "alice")
    assert not handler._of_user.keys() - {"alice"}


QUOTA = {"user_quotas": UserQuotas(creations_of_address=1)}


@pytest.mark.parametrize("desk", [QUOTA], indirect=True)
async def test_queues_and_groups_that_requests_create_are_counted(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 6)
    other = desk.client()
    assert not client.connection.is_throttled
    await send(other, b="automatic", d="4")  # 4 queues
    assert not other.connection.is_throttled
    for number in range(4):
        await other.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "g%d"}' % number)
    assert [one.connection.is_throttled for one in (client, other)] == [False, True]  # only whoever creates waits


@pytest.mark.parametrize("desk", [QUOTA], indirect=True)
async def test_what_a_request_creates_that_was_held_is_counted(desk: Desk, client: MemoryClient) -> None:
    """A request that waits for a leader is served by `serve_again`, without `on_request`."""
    desk.parts.handler.serve_again(client.connection, Command(17, 1, ext=topic_fields("T", 200)))
    assert client.connection.is_throttled


@pytest.mark.parametrize("desk", [QUOTA], indirect=True)
async def test_what_a_long_request_creates_is_counted(desk: Desk, client: MemoryClient) -> None:
    groups = b",".join(b'{"groupName": "g%d"}' % number for number in range(150))
    answer = await client.ask(225, body=b'{"groupConfigList": [' + groups + b"]}")
    assert answer.code == 0, answer
    assert client.connection.is_throttled


async def test_what_a_long_request_creates_is_counted_once(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def created(_block: str, _user: str | None, count: int, _now: float) -> float:
        counts.append(count)
        return 0.0

    monkeypatch.setattr(desk.parts.quotas, "created", created)
    monkeypatch.setattr("broker.long_requests.FILTER_SLICE_S", 1.0)  # all of it inside `on_request`
    groups = b",".join(b'{"groupName": "g%d"}' % number for number in range(150))
    assert (await client.ask(225, body=b'{"groupConfigList": [' + groups + b"]}")).code == 0
    assert sum(counts) == 150


@pytest.mark.parametrize("desk", [QUOTA], indirect=True)
async def test_a_client_behind_another_member_does_not_stop_the_others_there(desk: Desk, client: MemoryClient) -> None:
    relayed = RelayedClient(client.connection, desk.parts.handler, Host("10.0.0.9", 1))
    desk.parts.handler.on_request(relayed, Command(17, 1, ext=topic_fields("T", 200)))
    assert relayed.is_throttled
    assert not client.connection.is_throttled


async def test_a_quota_counts_from_its_change_on(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    for _ in range(30):
        await send(client)
    assert not client.connection.is_throttled
    desk.parts.quotas.set(AddressQuotas(requests_a_second=10))
    began = time.monotonic()
    for _ in range(11):
        await send(client)
    assert client.connection.is_throttled or time.monotonic() - began > 0.05


def test_none_of_traffic_is_set_at_first() -> None:
    assert (AddressQuotas().bytes_a_second, AddressQuotas().requests_a_second) == (0, 0)
    assert (UserQuotas().bytes_a_second, UserQuotas().requests_a_second) == (0, 0)
