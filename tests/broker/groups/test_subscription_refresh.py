"""A pull under a subscription the broker has not heard of: the client is asked, and the pull goes on."""

import orjson
import pytest

from broker.groups.subscription_refresh import AGAIN_SECONDS
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send
from tests.broker.groups.test_clients import beat, requests_of

PULL = RequestCode.PULL_MESSAGE
BY_HEARTBEAT = {"sysFlag": "0", "consumerGroup": "g"}


async def question(client: MemoryClient) -> Command:
    def asked() -> bool:
        return bool(requests_of(client, RequestCode.GET_CONSUMER_RUNNING_INFO))

    await eventually(asked, "the broker asks the client")
    return client.requests[-1]


def answer(client: MemoryClient, request: Command, body: bytes, code: int = 0) -> None:
    client.give(Command(code, request.opaque, RESPONSE_FLAG, body=body))


def running_info(version: int, topic: str = "T", tags: str = "*") -> bytes:
    entry = {"topic": topic, "subString": tags, "expressionType": "TAG", "subVersion": version}
    return orjson.dumps({"subscriptionSet": [entry], "properties": {}, "statusTable": {}})


async def test_a_pull_newer_than_the_heartbeat_is_served_after_asking(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    await beat(client, "c1", version=5)
    opaque = client.start(PULL, pull_fields(subVersion=6, **BY_HEARTBEAT))
    request = await question(client)
    assert request.ext == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}
    answer(client, request, running_info(6))
    assert (await client.answer_to(opaque)).code == ResponseCode.SUCCESS
    assert desk.parts.groups.clients.consumer_group("g").subscriptions["T"].version == 6  # type: ignore[union-attr]


async def test_a_topic_no_heartbeat_named_is_served_after_asking(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "New")
    await send(client, topic="New")
    await beat(client, "c1")
    opaque = client.start(PULL, pull_fields("New", subVersion=6, **BY_HEARTBEAT))
    answer(client, await question(client), running_info(6, "New"))
    assert (await client.answer_to(opaque)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("body", "code"),
    [(running_info(5), 0), (b"", 3), (b"no json", 0), (b'{"subscriptionSet": [7]}', 0), (b"[]", 0)],
)
async def test_an_answer_that_does_not_help_refuses_the_pull(
    desk: Desk, client: MemoryClient, body: bytes, code: int
) -> None:
    await make_topic(client)
    await beat(client, "c1", version=5)
    fields = pull_fields(subVersion=6, **BY_HEARTBEAT)
    opaque = client.start(PULL, fields)
    answer(client, await question(client), body, code)
    assert (await client.answer_to(opaque)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    # Asked a moment ago, so refused at once.
    assert AGAIN_SECONDS > 0
    assert (await client.ask(PULL, fields)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert len(requests_of(client, RequestCode.GET_CONSUMER_RUNNING_INFO)) == 1


async def test_one_question_serves_all_pulls_that_wait(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, queues=2)
    await send(client)
    await send(client, queue=1)
    await beat(client, "c1", version=5)
    pulls = [client.start(PULL, pull_fields(queueId=q, subVersion=6, **BY_HEARTBEAT)) for q in (0, 1)]
    answer(client, await question(client), running_info(6))
    assert [(await client.answer_to(opaque)).code for opaque in pulls] == [0, 0]
    assert len(requests_of(client, RequestCode.GET_CONSUMER_RUNNING_INFO)) == 1


async def test_who_is_no_member_is_refused_at_once(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await beat(desk.client(), "c1", version=5)
    reply = await client.ask(PULL, pull_fields(subVersion=6, **BY_HEARTBEAT))
    assert reply.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_first_heartbeat_is_answered_when_the_retry_topic_is_known(desk: Desk, client: MemoryClient) -> None:
    await beat(client, "c1")
    assert desk.parts.context.metadata.topic("%RETRY%g") is not None
    assert "%RETRY%g" not in desk.parts.context.new_topics
