"""Bounds of single requests: batches, heartbeats, members, groups, offsets; and lists that become many records."""

import json

import pytest

from broker.groups import clients
from broker.state import offsets
from ledgermq.message.batch import BatchMessage, encode_batch
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import Desk, MemoryClient, make_topic, send_fields
from tests.broker.groups.test_offsets import UPDATE, key, make_group


def heartbeat(*groups: str) -> bytes:
    return json.dumps({"clientID": "c", "producerDataSet": [{"groupName": name} for name in groups]}).encode()


def group_list(count: int, prefix: str = "g") -> bytes:
    return json.dumps({"groupConfigList": [{"groupName": f"{prefix}{number}"} for number in range(count)]}).encode()


@pytest.mark.parametrize("desk", [{"batch_messages_max": 3}], indirect=True)
async def test_a_batch_has_at_most_so_many_messages(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    for count, code in ((3, ResponseCode.SUCCESS), (4, ResponseCode.MESSAGE_ILLEGAL)):
        body = encode_batch([BatchMessage(0, b"x", b"")] * count)
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), body)
        assert answer.code == code, answer


async def test_a_heartbeat_names_at_most_so_many_groups(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "GROUPS_MAX", 2)
    assert (await client.ask(RequestCode.HEART_BEAT, None, heartbeat("a", "b"))).code == 0
    refused = await client.ask(RequestCode.HEART_BEAT, None, heartbeat("a", "b", "c"))
    assert refused.remark == "heartbeat: 3 groups, more than 2"
    hidden = heartbeat("a", "b", "c").replace(b"groupName", b"group\\u004eame")
    refused = await client.ask(RequestCode.HEART_BEAT, None, hidden)
    assert refused.remark == "heartbeat: 3 groups, more than 2"


async def test_groups_have_at_most_so_many_members(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MEMBERS_MAX", 2)
    assert (await client.ask(RequestCode.HEART_BEAT, None, heartbeat("a", "b"))).code == 0
    assert (await client.ask(RequestCode.HEART_BEAT, None, heartbeat("a", "b"))).code == 0  # the same ones
    other = desk.client()
    refused = await other.ask(RequestCode.HEART_BEAT, None, heartbeat("a"))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    leave = {"clientID": "c", "producerGroup": "a"}
    assert (await client.ask(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
    assert (await other.ask(RequestCode.HEART_BEAT, None, heartbeat("a"))).code == 0


@pytest.mark.parametrize("desk", [{"max_groups": 3}], indirect=True)
async def test_there_are_at_most_so_many_groups(desk: Desk, client: MemoryClient) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    assert (await client.ask(code, None, group_list(3))).code == 0
    assert (await client.ask(code, None, group_list(3))).code == 0  # these are changed
    refused = await client.ask(code, None, group_list(4, "h"))
    assert refused.remark == "4 groups cannot be created: there are 3, and 3 are the most (maxGroups)"
    refused = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"h"}')
    assert refused.remark == "group h cannot be created: there are 3, and 3 are the most (maxGroups)"


async def test_settings_that_are_kept_unread_are_short(desk: Desk, client: MemoryClient) -> None:
    """12 MB of them in one group were taken, written to the log and kept in memory."""
    for size, code in ((100, ResponseCode.SUCCESS), (1 << 20, ResponseCode.INVALID_PARAMETER)):
        extra = {"groupRetryPolicy": {"note": "x" * size}}
        group, topic = {"groupName": "g", **extra}, {"topicName": "t", **extra}
        body = json.dumps(group).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == code
        body = json.dumps({"topicConfigList": [topic]}).encode()
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)).code == code
    kept = desk.parts.context.state.groups["g"].extra
    assert len(json.dumps(kept)) < 1000


async def test_a_refusal_shows_the_beginning_of_a_long_value(client: MemoryClient) -> None:
    body = json.dumps({"topicConfigList": [{"topicName": "t" * 1_000_000}]}).encode()
    refused = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    assert refused.code != 0 and len(refused.remark or "") == 8192, "a client's parser takes headers of 256 KiB"


async def test_a_long_list_is_many_records_and_answered_after_the_last(desk: Desk, client: MemoryClient) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    assert (await client.ask(code, None, group_list(250))).code == 0
    assert {f"g{number}" for number in range(250)} <= desk.parts.context.state.groups.keys()
    wrong = json.loads(group_list(250, "h"))
    wrong["groupConfigList"][249]["groupName"] = "no good name!"
    refused = await client.ask(code, None, json.dumps(wrong).encode())
    assert refused.code != 0
    assert not any(name.startswith("h") for name in desk.parts.context.metadata.groups())


async def test_a_long_list_of_topics_is_many_records(desk: Desk, client: MemoryClient) -> None:
    entries = [{"topicName": f"t{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(250)]
    body = json.dumps({"topicConfigList": entries}).encode()
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)).code == 0
    assert {f"t{number}" for number in range(250)} <= desk.parts.context.state.topics.keys()


async def test_a_group_has_offsets_of_at_most_so_many_queues(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "QUEUES_MAX", 2)
    await make_topic(client)
    await make_group(client)
    for queue_id, code in ((0, 0), (7, 0), (8, ResponseCode.INVALID_PARAMETER), (7, 0)):
        assert (await client.ask(UPDATE, key(queueId=str(queue_id), commitOffset="1"))).code == code
    assert desk.parts.context.state.offsets == {"T@g": {0: 1, 7: 1}}


async def test_a_long_heartbeat_counts_for_the_user_who_signed_it(desk: Desk, client: MemoryClient) -> None:
    names = [f"group-with-a-long-name-{number:050}" for number in range(1000)]
    connection = client.connection
    connection.user = "alice"
    steps = desk.parts.groups.requests()[RequestCode.HEART_BEAT](
        connection, Command(RequestCode.HEART_BEAT, body=heartbeat(*names))
    )
    assert steps is not None
    connection.user = "mallory"  # signed the next request on the connection
    for _ in steps:
        pass
    assert {desk.parts.groups.clients.producers(name)[0].user for name in names} == {"alice"}
