"""Groups that may not read a topic: asked, set, kept over a restart, and in RocketMQ's file."""

import orjson

from broker.state.tables import ReplicatedState, StateChange
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.data_version import DataVersion
from tests.broker.conftest import Desk, MemoryClient, make_topic, pull_fields, send

FORBID = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN


async def forbid(client: MemoryClient, **fields: str) -> bool:
    answer = await client.ask(FORBID, {"group": "g", "topic": "T", **fields})
    assert answer.code == 0, answer
    return bool(orjson.loads(answer.body)["readable"])


async def test_a_group_is_forbidden_to_read_and_allowed_again(client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    assert await forbid(client)
    assert not await forbid(client, readable="false")
    refused = await client.ask(RequestCode.PULL_MESSAGE, pull_fields())
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "g" in (refused.remark or "")
    groups = await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert orjson.loads(groups.body)["forbiddenTable"] == {"g": {"T": 4}}
    assert await forbid(client, readable="true")
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields())).code == 0


async def test_it_outlives_a_restart_in_rocketmqs_file(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await forbid(client, readable="false")
    await desk.stop()
    file = orjson.loads((desk.config.store.root / "config" / "subscriptionGroup.json").read_bytes())
    assert file["forbiddenTable"] == {"g": {"T": 4}}
    await desk.start()
    assert not await forbid(desk.client())


def test_a_removed_group_is_forbidden_nothing_and_a_snapshot_has_all() -> None:
    state = ReplicatedState()
    state.apply(StateChange(forbidden={"g": {"T": 4}, "h": {"T": 4}}), 1)
    assert state.group_version == DataVersion(1, 1)
    other = ReplicatedState()
    other.restore(state.snapshot())
    assert other.forbidden == {"g": {"T": 4}, "h": {"T": 4}}
    state.apply(StateChange.decode(StateChange(groups={"g": None}, forbidden={"h": {}}).encode(), "test"), 2)
    assert state.forbidden == {}
