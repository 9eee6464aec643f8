"""RocketMQ's checks of sends and pulls, one by one, in its order, with its codes and the beginnings of its remarks.

Source: apache/rocketmq `broker/.../processor/{AbstractSendMessageProcessor,SendMessageProcessor,PullMessageProcessor}`
(5.3.3).
"""

from typing import Any

import orjson
import pytest

from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode
from tests.broker.conftest import Desk, MemoryClient, make_topic, pull_fields, send, send_fields, topic_fields
from tests.broker.groups.test_clients import heartbeat

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
PULL, LITE = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE
BY_HEARTBEAT = {"sysFlag": 0, "subscription": None}
Fields = dict[str, str]


async def prepare(client: MemoryClient) -> None:
    """Topics T (2 queues), O (ordered), C (compacted), W (write only), S (read only); a beat of group g on T."""
    await make_topic(client, "T", 2)
    for fields in (
        topic_fields("O", order="true"),
        topic_fields("C", attributes="+cleanup.policy=COMPACTION"),
        topic_fields("W", perm=2),
        topic_fields("S", perm=4),
    ):
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    assert (await client.ask(RequestCode.HEART_BEAT, {}, heartbeat("c", ("T",), version=7))).code == 0


@pytest.mark.parametrize(
    ("changes", "fields", "code", "remark"),
    [
        ({"accepts_sends_from_ms": 1 << 42}, send_fields(), 1, "broker unable to service, until "),
        ({"broker_permission": 4}, send_fields("O"), 16, "the broker[127.0.0.1] sending message is forbidden"),
        ({}, send_fields(""), 29, "The specified topic is blank."),
        (
            {},
            send_fields("a.b"),
            29,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ({}, send_fields("t" * 128), 29, "The specified topic is longer than topic max length."),
        *(
            ({}, send_fields(name), 16, f"Sending message to topic[{name}] is forbidden.")
            for name in (
                *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
                *("TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
            )
        ),
        ({}, send_fields("N", c="none"), 17, "topic[N] not exist, apply first please!"),
        ({}, send_fields(queue=2), 29, "request queueId[2] is illegal, "),
        ({"auto_create_group": False}, send_fields("%RETRY%none"), 26, "subscription group not exist, none"),
        ({}, send_fields("C"), 13, "Required message key is missing"),
        (
            {"reject_transactions": True},
            send_fields(i="TRAN_MSG\x01true\x02PGROUP\x01p\x02"),
            16,
            "the broker[127.0.0.1] sending transaction message is forbidden",
        ),
    ],
)
async def test_each_check_of_a_send(
    desk: Desk, client: MemoryClient, changes: dict[str, Any], fields: Fields, code: int, remark: str
) -> None:
    await prepare(client)
    for name, value in changes.items():
        setattr(desk.config, name, value)
    before = desk.store.log.max_offset
    answer = await client.ask(SEND, fields, b"x")
    assert answer.code == code
    assert (answer.remark or "").startswith(remark), answer.remark
    assert desk.store.log.max_offset == before


async def test_a_batch_to_a_retry_topic_is_refused(desk: Desk, client: MemoryClient) -> None:
    await prepare(client)
    body = encode_batch([(0, b"x", b"")])
    answer = await client.ask(BATCH, send_fields("%RETRY%g", m="true"), body)
    assert answer.code == 13
    assert (answer.remark or "").startswith("batch request does not support retry group %RETRY%g")


async def test_what_a_send_is_not_checked_for(desk: Desk, client: MemoryClient) -> None:
    """The topic's own permission, and the broker's for what is not ordered: clients heed them in routes."""
    await prepare(client)
    await send(client, topic="S")
    desk.config.broker_permission = 4
    await send(client, topic="T")


@pytest.mark.parametrize(
    ("reconsume_times", "limit", "version", "topic"),
    [(16, None, 479, "%RETRY%g"), (17, None, 479, "%DLQ%g"), (2, "1", 121, "%DLQ%g"), (2, "1", 120, "%RETRY%g")],
)
async def test_a_retry_that_came_too_often_is_a_dead_letter(
    desk: Desk, client: MemoryClient, reconsume_times: int, limit: str | None, version: int, topic: str
) -> None:
    await prepare(client)
    fields = send_fields("%RETRY%g", j=str(reconsume_times)) | ({} if limit is None else {"l": limit})
    assert (await client.ask(SEND, fields, b"x", version=version)).code == 0
    assert [record.topic for record in desk.records() if record.body == b"x"] == [topic]


@pytest.mark.parametrize(
    ("changes", "fields", "code", "forbidden", "remark"),
    [
        ({"broker_permission": 2}, pull_fields(), 16, "1", "the broker[127.0.0.1] pulling message is forbidden"),
        (
            {"auto_create_group": False},
            pull_fields(consumerGroup="none"),
            26,
            None,
            "subscription group [none] does not",
        ),
        ({}, pull_fields(consumerGroup="off"), 16, "2", "subscription group no permission, off"),
        ({}, pull_fields("N"), 17, None, "topic[N] not exist, apply first please!"),
        ({}, pull_fields("W"), 16, "3", "the topic[W] pulling message is forbidden"),
        *(
            (
                {},
                pull_fields(queueId=number),
                29,
                None,
                f"queueId[{number}] is illegal, topic:[T] topicConfig.readQueue",
            )
            for number in (-1, 2)
        ),
        (
            {},
            pull_fields(subscription="a >", expressionType="SQL92"),
            23,
            None,
            "parse the consumer's subscription fail",
        ),
        ({}, pull_fields(consumerGroup="h", **BY_HEARTBEAT), 24, None, "the consumer's group info not exist"),
        ({}, pull_fields("S", **BY_HEARTBEAT), 24, None, "the consumer's subscription not exist"),
        ({}, pull_fields(**BY_HEARTBEAT, subVersion=8), 25, None, "the consumer's subscription not latest"),
        (
            {"property_filter": False},
            pull_fields(subscription="a > 1", expressionType="SQL92"),
            1,
            None,
            "The broker does not support consumer to filter message by SQL92",
        ),
    ],
)
async def test_each_check_of_a_pull(
    desk: Desk,
    client: MemoryClient,
    changes: dict[str, Any],
    fields: Fields,
    code: int,
    forbidden: str | None,
    remark: str,
) -> None:
    await prepare(client)
    off = orjson.dumps({"groupName": "off", "consumeEnable": False})
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, off)).code == 0
    desk.config.property_filter = True
    for name, value in changes.items():
        setattr(desk.config, name, value)
    answer = await desk.client().ask(PULL, fields)
    assert answer.code == code, answer
    assert (answer.remark or "").startswith(remark), answer.remark
    assert answer.ext.get("forbiddenType") == forbidden


async def test_lite_pull_can_be_forbidden(desk: Desk, client: MemoryClient) -> None:
    await prepare(client)
    assert (await client.ask(LITE, pull_fields())).code == 19
    desk.config.lite_pull = False
    answer = await client.ask(LITE, pull_fields())
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "1")


async def test_a_group_that_is_forbidden_a_topic_or_to_broadcast_does_not_pull(
    desk: Desk, client: MemoryClient
) -> None:
    await prepare(client)
    fields = {"group": "g", "topic": "T", "readable": "false"}
    assert (await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)).code == 0
    answer = await client.ask(PULL, pull_fields(**BY_HEARTBEAT, subVersion=7))
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "5")
    body = orjson.loads(heartbeat("c", ("T",), version=8))
    body["consumerDataSet"][0] |= {"messageModel": "BROADCASTING", "groupName": "b"}
    assert (await client.ask(RequestCode.HEART_BEAT, {}, orjson.dumps(body))).code == 0
    config = orjson.dumps({"groupName": "b", "consumeBroadcastEnable": False})
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)).code == 0
    answer = await client.ask(PULL, pull_fields(consumerGroup="b", **BY_HEARTBEAT, subVersion=8))
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "4")
