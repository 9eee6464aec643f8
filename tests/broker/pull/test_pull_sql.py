"""Pulls under an SQL92 expression, in the request or in the heartbeat."""

import orjson
import pytest

from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from tests.broker.conftest import MemoryClient, make_topic, pull_fields, send

PULL = RequestCode.PULL_MESSAGE
SQL = {"expressionType": "SQL92"}
with_sql = pytest.mark.parametrize("desk", [{"property_filter": True}], indirect=True)


async def three(client: MemoryClient, topic: str = "T") -> None:
    await make_topic(client, topic)
    for number in (1, 2, 3):
        await send(client, b"m%d" % number, topic=topic, i=f"UNIQ_KEY\x010{number}\x02a\x01{number}\x02")


def subscription(expression: str, topic: str = "T") -> dict[str, object]:
    return {"topic": topic, "subString": expression, "expressionType": "SQL92", "subVersion": 1}


async def beat(client: MemoryClient, expression: str, topic: str = "T") -> None:
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": "g",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription(expression, topic)],
    }
    body = orjson.dumps({"clientID": "c1", "consumerDataSet": [consumer], "producerDataSet": []})
    assert (await client.ask(RequestCode.HEART_BEAT, {}, body)).code == 0


@with_sql
async def test_a_pull_gets_what_its_expression_matches(client: MemoryClient) -> None:
    await three(client)
    answer = await client.ask(PULL, pull_fields(subscription="a > 1 AND a <> 2", **SQL))
    assert answer.code == ResponseCode.SUCCESS
    assert bytes(answer.body).count(b"m3") == 1
    assert b"m1" not in bytes(answer.body)
    assert answer.ext["nextBeginOffset"] == "3"


@with_sql
async def test_nothing_matched_moves_the_offset_on(client: MemoryClient) -> None:
    await three(client)
    answer = await client.ask(PULL, pull_fields(subscription="a > 9", **SQL))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")


@with_sql
async def test_the_heartbeats_expression_filters(client: MemoryClient) -> None:
    await three(client)
    await beat(client, "a = 2")
    answer = await client.ask(PULL, pull_fields(sysFlag=0, subscription=None, **SQL))
    assert answer.code == ResponseCode.SUCCESS
    assert b"m2" in bytes(answer.body) and b"m3" not in bytes(answer.body)


@with_sql
@pytest.mark.parametrize(("flags", "code"), [(4, 23), (0, 27)])
async def test_a_broken_expression_is_refused_with_its_place(client: MemoryClient, flags: int, code: int) -> None:
    await three(client)
    await beat(client, "a > > 1")
    answer = await client.ask(PULL, pull_fields(sysFlag=flags, subscription="a > > 1", **SQL))
    assert answer.code == code
    assert "at character 4" in (answer.remark or "")


@with_sql
@pytest.mark.parametrize(("expression", "code"), [("a > 1", 0), ("a > > 1", 23)])
async def test_a_client_may_ask_whether_its_expression_is_good(
    client: MemoryClient, expression: str, code: int
) -> None:
    body = orjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription(expression)})
    assert (await client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, body)).code == code


async def test_without_the_key_sql_is_refused(client: MemoryClient) -> None:
    await three(client)
    body = orjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription("a > 1")})
    for code, fields, content in [
        (PULL, pull_fields(subscription="a > 1", **SQL), b""),
        (RequestCode.CHECK_CLIENT_CONFIG, {}, body),
    ]:
        answer = await client.ask(code, fields, content)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "SQL92" in (answer.remark or "")


@pytest.mark.parametrize(
    ("desk", "matched"),
    [({"property_filter": True}, True), ({"property_filter": True, "filter_retries": True}, False)],
    indirect=["desk"],
)
async def test_retried_messages_are_filtered_only_when_asked(client: MemoryClient, matched: bool) -> None:
    topic = "%RETRY%g"
    await beat(client, "a > 9", topic)
    await send(client, b"again", topic=topic)
    answer = await client.ask(PULL, pull_fields(topic, sysFlag=0, subscription=None, **SQL))
    assert (answer.code == ResponseCode.SUCCESS) is matched
