"""Bounds of single requests: batches, heartbeats, members, groups, offsets; and lists that become many records."""

import json

import pytest

from broker import subsystem
from broker.groups import client_requests, clients
from broker.groups.subscription import TAGS_LENGTH_MAX
from broker.state import offsets
from broker.state.users import ENTRIES_MAX, raw_size
from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.lenient_json import LISTED_MAX
from ledgermq.remoting.route import QUEUES_MAX
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
        body = encode_batch([(0, b"x", b"")] * count)
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


@pytest.mark.parametrize(
    ("code", "name", "most"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topicConfigList", LISTED_MAX),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groupConfigList", LISTED_MAX),
        (RequestCode.BATCH_ACK_MESSAGE, "acks", LISTED_MAX),
        (RequestCode.LOCK_BATCH_MQ, "mqSet", QUEUES_MAX),
        (RequestCode.UNLOCK_BATCH_MQ, "mqSet", QUEUES_MAX),
    ],
)
async def test_a_list_has_at_most_so_many_elements(client: MemoryClient, code: int, name: str, most: int) -> None:
    body = {"consumerGroup": "g", "clientId": "c", "brokerName": "b", name: [{}] * (most + 1)}
    refused = await client.ask(code, None, json.dumps(body).encode())
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert f"{name} has {most + 1} elements, {most} are the most" in (refused.remark or "")


async def test_a_list_that_is_too_long_is_refused_before_it_is_parsed(client: MemoryClient) -> None:
    for code, body in (
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'"groupName"' * (LISTED_MAX + 1)),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'"topicName"' * (LISTED_MAX + 1)),
        (RequestCode.LOCK_BATCH_MQ, b'"queueId"' * (QUEUES_MAX + 1)),
    ):
        refused = await client.ask(code, None, body)
        assert "are the most: send several requests" in (refused.remark or "")


def test_the_groups_of_a_heartbeat_are_read_one_a_step() -> None:
    entries = [{"groupName": f"g{number}"} for number in range(100)]
    steps = clients.Heartbeat.from_json(
        {"clientID": "c", "producerDataSet": entries[:40], "consumerDataSet": entries[40:]}
    )
    assert len(list(steps)) == 100


async def test_a_heartbeat_creates_at_most_so_many_groups_and_the_next_one_goes_on(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "_NEW_GROUPS_MAX", 2)
    body = {"clientID": "c", "consumerDataSet": [{"groupName": f"g{number}"} for number in range(3)]}
    first = await client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())
    assert first.code == ResponseCode.SYSTEM_BUSY
    assert desk.parts.context.metadata.group("g1") and not desk.parts.context.metadata.group("g2")
    assert (await client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())).code == 0
    assert desk.parts.context.metadata.group("g2")


@pytest.mark.parametrize("desk", [{"auto_create_group": False}], indirect=True)
async def test_groups_that_a_heartbeat_may_not_create_are_not_counted(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_requests, "_NEW_GROUPS_MAX", 2)
    body = {"clientID": "c", "consumerDataSet": [{"groupName": f"g{number}"} for number in range(3)]}
    assert (await client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())).code == 0


async def test_a_heartbeat_is_short_and_so_is_a_tag_expression(client: MemoryClient) -> None:
    def beat(expression: str) -> bytes:
        subscription = {"topic": "T", "subString": expression}
        consumer = {"groupName": "g", "subscriptionDataSet": [subscription]}
        return json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()

    assert (await client.ask(RequestCode.HEART_BEAT, None, beat("a" * TAGS_LENGTH_MAX))).code == 0
    refused = await client.ask(RequestCode.HEART_BEAT, None, beat("a" * (TAGS_LENGTH_MAX + 1)))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    refused = await client.ask(RequestCode.HEART_BEAT, None, beat("a" * (1 << 20)))
    assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_an_answer_is_no_longer_than_clients_read(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subsystem, "_ANSWER_MAX_BYTES", 200)
    await make_topic(client)  # some 280 bytes a queue
    refused = await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    assert refused.code == ResponseCode.SYSTEM_ERROR and "200 bytes" in (refused.remark or "")


def test_policies_count_by_their_entries_and_by_what_these_list() -> None:
    entry = {"resource": "Topic:a", "actions": ["Pub"], "sourceIps": ["192.0.2.1"] * 100}
    many = [{"policyType": "Custom", "entries": [entry]}] * ENTRIES_MAX
    assert raw_size({"policies": many}) > ENTRIES_MAX
    assert raw_size({"policies": [{"entries": [entry] * 3}]}) == 75
