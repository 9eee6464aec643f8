"""Heartbeats, members, notices, queue locks, and questions passed on to clients."""

import orjson
import pytest

from broker.groups.clients import EXPIRY_SECONDS, Client, ConsumerGroup, Gone
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send


def heartbeat(client_id: str, topics: tuple[str, ...] = ("T",), *, tags: str = "*", version: int = 1) -> bytes:
    return orjson.dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": "g",
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": tags, "expressionType": "TAG", "subVersion": version}
                        for topic in topics
                    ],
                    "unitMode": False,
                }
            ],
            "producerDataSet": [{"groupName": "p"}],
        }
    )


async def beat(client: MemoryClient, client_id: str, **more: object) -> Command:
    answer = await client.ask(RequestCode.HEART_BEAT, {}, heartbeat(client_id, **more))  # type: ignore[arg-type]
    assert answer.code == 0, answer
    return answer


async def members(client: MemoryClient) -> list[str]:
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    return list(orjson.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []


def requests_of(client: MemoryClient, code: int) -> list[Command]:
    client.take()
    return [request for request in client.requests if request.code == code]


def notices(client: MemoryClient) -> int:
    return len(requests_of(client, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))


async def test_a_heartbeat_makes_the_client_known_with_its_group_and_retry_topic(
    desk: Desk, client: MemoryClient
) -> None:
    answer = await beat(client, "c1")
    assert answer.version >= 232
    assert answer.ext == {"IS_SUB_CHANGE": "true", "IS_SUPPORT_HEART_BEAT_V2": "true"}
    assert await members(client) == ["c1"]
    await eventually(lambda: "g" in desk.parts.context.state.groups and "%RETRY%g" in desk.parts.context.state.topics)
    shown = orjson.loads((await client.ask(203, {"consumerGroup": "g"})).body)
    assert [entry["clientId"] for entry in shown["connectionSet"]] == ["c1"]
    assert shown["subscriptionTable"]["T"]["subString"] == "*"
    producers = orjson.loads((await client.ask(204, {"producerGroup": "p"})).body)
    assert producers["connectionSet"][0]["clientAddr"] == client.connection.address


async def test_members_hear_of_joins_leaves_and_other_topics_but_not_of_repetitions(desk: Desk) -> None:
    one, two = desk.client(), desk.client()
    await beat(one, "c1")
    assert notices(one) == 1
    await beat(one, "c1")
    assert notices(one) == 1
    await beat(two, "c2")
    assert (notices(one), notices(two)) == (2, 1)
    await beat(two, "c2", topics=("T", "U"), version=2)
    assert (notices(one), notices(two)) == (3, 2)
    await two.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g", "producerGroup": "p"})
    assert notices(one) == 4
    assert await members(one) == ["c1"]


async def test_a_closed_connection_leaves_its_groups(desk: Desk, client: MemoryClient) -> None:
    other = desk.client()
    await beat(client, "c1")
    await beat(other, "c2")
    other.close()
    assert await members(client) == ["c1"]
    client.close()
    assert desk.parts.groups.clients.consumer_group("g") is None


@pytest.mark.parametrize(
    ("ended_at", "why"),
    [((10.0,), Gone.LOST), ((10.0, 10.1, 10.2), Gone.DIED), ((10.0, 12.0, 12.1), Gone.DIED), ((10.0, 11.0), Gone.LOST)],
)
async def test_a_consumer_whose_connections_end_at_once_has_died(
    desk: Desk, ended_at: tuple[float, ...], why: Gone
) -> None:
    group, connections = ConsumerGroup("g"), [desk.client().connection for _ in ended_at]
    for connection in connections:
        group.put(connection, Client("c", connection, "GO", 1, 0.0))
    *before, last = [group.drop(*end)[1] for end in zip(connections, ended_at, strict=True)]
    assert (before, last) == ([None] * (len(ended_at) - 1), why)


async def test_a_connection_in_many_groups_leaves_them_one_a_step_when_it_closes(
    desk: Desk, client: MemoryClient
) -> None:
    table = desk.parts.groups.clients
    for number in range(500):
        table.beat_producer(f"p{number}", "c", client.connection, "GO", 1, None)
    steps = table.connection_closed(client.connection)
    left = [len(table.all_producers()) for _ in steps]
    assert left == list(range(499, -1, -1))
    assert client.connection not in table.connections()


async def test_a_silent_client_is_dropped(desk: Desk, client: MemoryClient) -> None:
    await beat(client, "c1")
    group = desk.parts.groups.clients.consumer_group("g")
    assert group is not None
    for member in group.members.values():
        member.last_seen -= EXPIRY_SECONDS + 1
    assert len(list(desk.parts.groups.clients.expire())) > 0
    assert desk.parts.groups.clients.consumer_group("g") is None
    assert client.transport.closed


async def test_a_silent_client_that_speaks_while_it_is_taken_out_of_its_groups_is_no_member_any_more(
    desk: Desk, client: MemoryClient
) -> None:
    table, (silent, awake) = desk.parts.groups.clients, (desk.client(), client)
    for member in (silent, awake):
        await beat(member, "c")
    for number in range(3):
        table.beat_producer(f"p{number}", "c", silent.connection, "GO", 1, None)
    group = table.consumer_group("g")
    assert group is not None
    for one in group.members.values():
        one.last_seen -= EXPIRY_SECONDS + 1
    steps = table.expire()
    next(steps)
    assert silent.connection.is_closed
    await beat(awake, "c")
    assert len(list(steps)) > 0
    assert list(group.members) == [awake.connection]
    assert not awake.connection.is_closed


async def test_a_pull_without_expression_filters_by_the_heartbeat(client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, b"a")
    await send(client, b"b", i="UNIQ_KEY\x01B\x02TAGS\x01TagB\x02")
    await beat(client, "c1", tags="TagB", version=5)
    found = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=0, subVersion=5, subscription=None))
    assert found.code == 0
    assert b"TagB" in bytes(found.body)
    assert b"TagA" not in bytes(found.body)
    newer = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(sysFlag=0, subVersion=6))
    assert newer.code == 25
    await make_topic(client, "U")
    other = await client.ask(RequestCode.PULL_MESSAGE, pull_fields("U", sysFlag=0))
    assert other.code == 24


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"}, 1),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "none"}, 206),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "none"}, 1),
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "none", "clientId": "c"}, 1),
        (RequestCode.HEART_BEAT, {}, 1),
        (RequestCode.LOCK_BATCH_MQ, {}, 1),
    ],
)
async def test_questions_about_nobody_have_a_code_and_a_remark(
    client: MemoryClient, code: int, fields: dict[str, str], expected: int
) -> None:
    answer = await client.ask(code, fields, b"{}")
    assert answer.code == expected
    assert answer.remark


NO_HEARTBEATS = [
    b"",
    b"[]",
    b"{",
    b'{"clientID":7}',
    b'{"clientID":"c","consumerDataSet":{"a":1}}',
    b'{"clientID":"c","consumerDataSet":[1]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"subString":"*"}]}]}',
]


@pytest.mark.parametrize("body", NO_HEARTBEATS)
async def test_a_heartbeat_that_is_none_is_refused(client: MemoryClient, body: bytes) -> None:
    answer = await client.ask(RequestCode.HEART_BEAT, {}, body)
    assert answer.code == 1
    assert answer.remark


async def test_queue_locks_keep_others_out_until_they_are_given_back(client: MemoryClient) -> None:
    def body(who: str) -> bytes:
        queues = [{"brokerName": "b", "queueId": queue, "topic": "T"} for queue in (0, 1)]
        return orjson.dumps({"clientId": who, "consumerGroup": "g", "mqSet": queues})

    async def lock(who: str) -> int:
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, {}, body(who))
        return len(orjson.loads(answer.body)["lockOKMQSet"])

    assert [await lock("a"), await lock("b"), await lock("a")] == [2, 0, 2]
    assert (await client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body("a"))).code == 0
    assert await lock("b") == 2


async def test_a_question_for_a_client_goes_to_it_and_its_answer_comes_back(desk: Desk, client: MemoryClient) -> None:
    consumer = desk.client()
    await beat(consumer, "c1")
    opaque = client.start(307, {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"})

    await eventually(lambda: requests_of(consumer, 307) != [])
    (question,) = requests_of(consumer, 307)
    assert question.ext == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}
    consumer.give(Command(0, question.opaque, RESPONSE_FLAG, body=b'{"mqTable":{}}'))
    answer = await client.answer_to(opaque)
    assert (answer.code, bytes(answer.body)) == (0, b'{"mqTable":{}}')


async def test_a_client_that_goes_away_does_not_leave_the_asker_waiting(desk: Desk, client: MemoryClient) -> None:
    consumer = desk.client()
    await beat(consumer, "c1")
    opaque = client.start(307, {"consumerGroup": "g", "clientId": "c1"})
    await eventually(lambda: requests_of(consumer, 307) != [])
    consumer.close()
    answer = await client.answer_to(opaque)
    assert answer.code == 1
    assert "c1" in (answer.remark or "")


async def test_one_message_can_be_handed_to_one_client(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    message_id = (await send(client, b"direct")).ext["msgId"]
    assert parse_offset_message_id(message_id)
    consumer = desk.client()
    await beat(consumer, "c1")
    client.start(309, {"consumerGroup": "g", "clientId": "c1", "msgId": message_id})

    await eventually(lambda: requests_of(consumer, 309) != [])
    (handed,) = requests_of(consumer, 309)
    assert b"direct" in bytes(handed.body)
    assert handed.ext["brokerName"] == "b"


async def test_a_pull_held_under_an_older_expression_is_sent_for_the_new_one(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await beat(client, "c1", tags="TagA", version=5)
    fields = pull_fields(sysFlag=2, subVersion=5, subscription=None, suspendTimeoutMillis=15000)
    opaque = client.start(RequestCode.PULL_MESSAGE, fields)
    await eventually(lambda: len(desk.parts.pull.held) == 1)
    await beat(client, "c1", tags="TagB", version=6)
    await send(client, b"old")
    again = await client.answer_to(opaque)
    assert (again.code, again.ext["nextBeginOffset"]) == (20, "0")
    await send(client, b"new", i="UNIQ_KEY\x01B\x02TAGS\x01TagB\x02")
    answer = await client.ask(RequestCode.PULL_MESSAGE, {**fields, "subVersion": "6"})
    assert b"new" in bytes(answer.body)
    assert b"old" not in bytes(answer.body)


async def test_a_connection_is_known_by_so_many_client_ids_of_producers(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.groups.clients.IDS_MAX", 3)
    producer, table = desk.client(), desk.parts.groups.clients
    for number in range(4):
        body = {"clientID": f"id{number}", "producerDataSet": [{"groupName": f"g{number // 2}"}]}
        await producer.ask(RequestCode.HEART_BEAT, {}, orjson.dumps(body))
    known = [table.producer_connection(f"id{one}") for one in range(4)]
    assert known == [producer.connection] * 3 + [None]
    producer.connection.connection_lost(None)
    assert not any(table.producer_connection(f"id{one}") for one in range(4))
