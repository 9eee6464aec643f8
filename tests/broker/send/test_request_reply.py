"""Replies to requests: pushed to who asked, stored, and what the replier hears."""

import orjson
import pytest

from ledgermq.message.properties import decode_properties
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from tests.broker.conftest import Desk, MemoryClient, eventually, send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "CORRELATION_ID\x01c7\x02REPLY_TO_CLIENT\x01asker@1\x02TTL\x013000\x02UNIQ_KEY\x0101\x02"


async def requester(desk: Desk) -> MemoryClient:
    client = desk.client()
    body = orjson.dumps({"clientID": "asker@1", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []})
    assert (await client.ask(RequestCode.HEART_BEAT, {}, body)).code == 0
    return client


async def pushed(client: MemoryClient) -> Command:
    def has_come() -> bool:
        client.take()
        return any(request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT for request in client.requests)

    await eventually(has_come, "the reply comes to the requester")
    return client.requests[-1]


def reply(client: MemoryClient, **changes: str) -> int:
    fields = send_fields(TOPIC, i=PROPERTIES, **changes)
    return client.start(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"the answer")


async def test_a_reply_goes_to_the_requester_and_into_the_log(desk: Desk, client: MemoryClient) -> None:
    asker = await requester(desk)
    opaque = reply(client)
    push = await pushed(asker)
    assert bytes(push.body) == b"the answer"
    assert push.ext["topic"] == TOPIC
    assert push.ext["producerGroup"] == "producers"
    assert push.ext["bornHost"] == client.connection.address
    properties = decode_properties(push.ext["properties"])
    assert properties["CORRELATION_ID"] == "c7"
    assert int(properties["PUSH_REPLY_TIME"]) == int(push.ext["storeTimestamp"])
    asker.give(Command(ResponseCode.SUCCESS, push.opaque, RESPONSE_FLAG))
    answer = await client.answer_to(opaque)
    assert answer.code == ResponseCode.SUCCESS
    assert [record.body for record in desk.records() if record.topic == TOPIC] == [b"the answer"]
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
    assert len(answer.ext["msgId"]) == 32


async def test_long_names_are_taken(desk: Desk, client: MemoryClient) -> None:
    asker = await requester(desk)
    fields = {
        "producerGroup": "producers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": PROPERTIES,
    }
    opaque = client.start(RequestCode.SEND_REPLY_MESSAGE, fields, b"x")
    push = await pushed(asker)
    asker.give(Command(ResponseCode.SUCCESS, push.opaque, RESPONSE_FLAG))
    assert (await client.answer_to(opaque)).code == ResponseCode.SUCCESS


async def test_a_requester_that_is_gone_is_told_and_the_reply_is_kept(desk: Desk, client: MemoryClient) -> None:
    asker = await requester(desk)
    asker.close()
    answer = await client.answer_to(reply(client))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "asker@1" in (answer.remark or "")
    assert [record.body for record in desk.records() if record.topic == TOPIC] == [b"the answer"]


async def test_a_requester_that_refuses_is_told(desk: Desk, client: MemoryClient) -> None:
    asker = await requester(desk)
    opaque = reply(client)
    push = await pushed(asker)
    asker.give(Command(ResponseCode.SYSTEM_ERROR, push.opaque, RESPONSE_FLAG, remark="no such request"))
    assert (await client.answer_to(opaque)).code == ResponseCode.SYSTEM_ERROR


async def test_a_reply_to_nobody_is_told(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_fields(TOPIC), b"x")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "REPLY_TO_CLIENT" in (answer.remark or "")


async def test_a_reply_into_no_topic_is_refused(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, send_fields("bad topic!", i=PROPERTIES), b"x")
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("desk", [{"store_replies": False}], indirect=True)
async def test_replies_need_not_be_stored(desk: Desk, client: MemoryClient) -> None:
    asker = await requester(desk)
    opaque = reply(client)
    push = await pushed(asker)
    asker.give(Command(ResponseCode.SUCCESS, push.opaque, RESPONSE_FLAG))
    answer = await client.answer_to(opaque)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert not [record for record in desk.records() if record.topic == TOPIC]
