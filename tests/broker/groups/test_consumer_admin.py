"""Requests of administrators about consumers: offsets reset and cloned, spans, statistics, who consumes what."""

from typing import Any

import orjson
import pytest

from broker.state.offsets import CommitDone
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.refusal import Cause, Refusal
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send, topic_fields
from tests.broker.groups.test_clients import beat, requests_of

PULL = RequestCode.PULL_MESSAGE
RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


async def commit(client: MemoryClient, offset: int, *, group: str = "g", topic: str = "T", queue: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == 0, answer


async def stored(client: MemoryClient, *, group: str = "g", queue: int = 0) -> int:
    fields = {"consumerGroup": group, "topic": "T", "queueId": str(queue)}
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert answer.code == 0, answer
    return int(answer.ext["offset"])


async def ask(client: MemoryClient, code: int, **fields: object) -> Any:
    answer = await client.ask(code, {name: str(value) for name, value in fields.items()})
    assert answer.code == ResponseCode.SUCCESS, answer
    return loads(answer.body)


async def three(client: MemoryClient, queues: int = 1) -> None:
    await make_topic(client, queues=queues)
    await beat(client, "c1")
    for number in range(3):
        await send(client, b"m%d" % number)


async def test_a_reset_moves_the_group_and_tells_its_next_pull_once(client: MemoryClient) -> None:
    await three(client)
    await commit(client, 3)
    body = await ask(client, RESET, topic="T", group="g", timestamp=0, isForce="true")
    assert list(body["offsetTable"].values()) == [0]
    await commit(client, 3)  # of before the reset
    assert await stored(client) == 0
    fields = pull_fields(sysFlag=0, offset=3, subscription=None)
    moved = await client.ask(PULL, fields)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert (await client.ask(PULL, fields)).code == ResponseCode.PULL_NOT_FOUND
    await commit(client, 2)
    assert await stored(client) == 2


async def test_a_reset_wakes_held_pulls(desk: Desk, client: MemoryClient) -> None:
    await three(client)
    opaque = client.start(PULL, pull_fields(sysFlag=2, offset=3, subscription=None, suspendTimeoutMillis=15000))
    await eventually(lambda: len(desk.parts.pull.held) == 1)
    await ask(client, RESET, topic="T", group="g", queueId=0, offset=1, timestamp=-1)
    answer = await client.answer_to(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


async def test_a_reset_to_now_skips_what_is_there(client: MemoryClient) -> None:
    await three(client, queues=2)
    body = await ask(client, RESET, topic="T", group="g", timestamp=-1, isForce="true")
    assert sorted(body["offsetTable"].values()) == [0, 3]
    assert await stored(client) == 3


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "0", "offset": "4"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "0", "offset": "-2"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "1", "offset": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"timestamp": "soon"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_reset_that_cannot_be_is_refused(client: MemoryClient, fields: dict[str, str], code: int) -> None:
    await three(client)
    answer = await client.ask(RESET, {"topic": "T", "group": "g", "timestamp": "0", **fields})
    assert answer.code == code, answer


async def test_a_group_gets_the_offsets_of_another(client: MemoryClient) -> None:
    await three(client)
    await commit(client, 2)
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "", "offline": "true"}
    assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
    assert await stored(client, group="h") == 2


async def test_offsets_of_more_queues_than_one_step_moves_are_all_moved(desk: Desk, client: MemoryClient) -> None:
    queues, beyond = 130, 1000
    await three(client, queues)
    for queue in (*range(queues), beyond):
        await commit(client, queue + 1, queue=queue)
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"}
    assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
    state = desk.parts.context.state
    assert state.offsets["T@h"] == {queue: queue + 1 for queue in range(queues)}
    answer = await client.ask(RESET, {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"})
    assert bytes(answer.body).count(b'"queueId":') == queues
    assert state.offsets["T@g"] == {**dict.fromkeys(range(queues), 0), beyond: beyond + 1}
    assert state.resets["T@g"] == dict.fromkeys(range(queues), 0)


async def test_a_reset_to_the_end_of_a_queue_is_taken(client: MemoryClient) -> None:
    await three(client)
    body = await ask(client, RESET, topic="T", group="g", queueId=0, offset=3, timestamp=-1)
    assert list(body["offsetTable"].values()) == [3]


async def test_a_reset_in_a_topic_without_queues_is_refused(client: MemoryClient) -> None:
    await three(client)
    await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", readQueueNums="0"))
    answer = await client.ask(RESET, {"topic": "T", "group": "g", "timestamp": "0"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "No queues to reset in T.")


async def test_only_offsets_in_topics_that_the_group_reads_are_given_to_another_unless_it_is_offline(
    client: MemoryClient,
) -> None:
    await three(client)
    await make_topic(client, "U")
    for topic in ("T", "U"):
        await commit(client, 1, topic=topic)
    for offline, topics in (("false", ["T"]), ("true", ["T", "U"])):
        fields = {"srcGroup": "g", "destGroup": "h", "topic": "", "offline": offline}
        assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
        assert (await ask(client, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="h"))["topicList"] == topics


@pytest.mark.parametrize("name", ["reset", "commit_and_tell"])
async def test_a_change_of_offsets_of_which_one_step_is_refused_is_refused(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    await three(client, queues=130)
    for queue in range(130):
        await commit(client, 1, queue=queue)
    offsets = desk.parts.context.offsets
    change, parts = getattr(offsets, name), []

    def refuse_the_last(topic: str, group: str, part: dict[int, int], done: CommitDone) -> None:
        parts.append(part)
        if 129 in part:
            desk.parts.context.loop.call_later(0.05, done, Refusal(Cause.DISK_FULL, "full"))
        else:
            change(topic, group, part, done)

    monkeypatch.setattr(offsets, name, refuse_the_last)
    code = RESET if name == "reset" else RequestCode.CLONE_GROUP_OFFSET
    fields = {"topic": "T", "group": "g", "timestamp": "0", "srcGroup": "g", "destGroup": "h", "offline": "true"}
    answer = await client.ask(code, fields)
    assert (answer.code, len(parts)) == (ResponseCode.SERVICE_NOT_AVAILABLE, 3)


async def test_clients_tell_their_own_offsets(desk: Desk, client: MemoryClient) -> None:
    await three(client)
    admin = desk.client()
    opaque = admin.start(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})

    def asked() -> bool:
        return bool(requests_of(client, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT))

    await eventually(asked)
    body = b'{"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:3}}'
    client.give(Command(0, client.requests[-1].opaque, RESPONSE_FLAG, body=body))
    table = loads((await admin.answer_to(opaque)).body)["consumerTable"]
    assert list(table["c1"].values()) == [3]


async def test_who_consumes_what(client: MemoryClient) -> None:
    await three(client)
    await commit(client, 1, group="g")
    assert await ask(client, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T") == {"groupList": ["g"]}
    assert (await ask(client, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g"))["topicList"] == ["T"]
    body = await ask(client, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="T")
    assert body["subscriptionData"]["topic"] == "T"
    body = await ask(client, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="U")
    assert body == {"group": "g", "topic": "U"}


async def test_the_time_span_of_a_group(client: MemoryClient) -> None:
    await three(client)
    await commit(client, 1)
    (span,) = (await ask(client, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g"))["consumeTimeSpanSet"]
    assert 0 < span["minTimeStamp"] <= span["consumeTimeStamp"] <= span["maxTimeStamp"]
    assert span["delayTime"] >= 0
    assert span["messageQueue"] == {"brokerName": "b", "queueId": 0, "topic": "T"}


async def test_correction_offsets_are_the_least_of_the_other_groups(client: MemoryClient) -> None:
    await three(client, queues=2)
    body = orjson.dumps({"groupName": "h"})
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    await commit(client, 1, group="g")
    await commit(client, 2, group="h")
    fields = {"topic": "T", "compareGroup": "none"}
    answer = await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, fields)
    assert loads(answer.body) == {"correctionOffsets": {"0": 1}}


async def test_every_groups_backlog(client: MemoryClient) -> None:
    await three(client)
    await commit(client, 1)
    assert (await client.ask(PULL, pull_fields(subscription=None, sysFlag=0))).code == 0
    body = await ask(client, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert body["totalDiff"] == 2, "what is pulled is not consumed"
    (stats,) = next(entry["g"] for entry in body["consumeStatsList"] if "g" in entry)
    (row,) = stats["offsetTable"].values()
    assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (3, 1, 3)


async def test_the_backlog_in_a_queue_is_of_one_moment(desk: Desk, client: MemoryClient) -> None:
    """The topic is removed and made again between two steps of the request."""
    await three(client, queues=2)
    for queue in range(2):
        await commit(client, 3 - queue, queue=queue)
    topic = desk.parts.context.metadata.existing_topic("T")
    entries = desk.parts.groups._consumers._group_entries("g", topic)
    behind = [next(entries)[1]]
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await make_topic(client, queues=2)
    assert behind + [lag for _, lag in entries] == [0, 0]


async def test_units_of_a_queue(client: MemoryClient) -> None:
    await three(client)
    fields = {"topic": "T", "queueId": 0, "index": 1, "count": 5, "consumerGroup": "g"}
    body = await ask(client, RequestCode.QUERY_CONSUME_QUEUE, **fields)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert len(body["queueData"]) == 2
    assert body["subscriptionData"]["subString"] == "*"
    answer = await client.ask(
        RequestCode.QUERY_CONSUME_QUEUE, {**{k: str(v) for k, v in fields.items()}, "queueId": "7"}
    )
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "7@T is not exist!")


async def test_producers_and_statistics(client: MemoryClient) -> None:
    await three(client)
    body = await ask(client, RequestCode.GET_ALL_PRODUCER_INFO)
    assert [producer["clientId"] for producer in body["data"]["p"]] == ["c1"]
    assert (await client.ask(PULL, pull_fields())).code == 0
    for name, key, total in [("TOPIC_PUT_NUMS", "T", 3), ("GROUP_GET_NUMS", "T@g", 3)]:
        body = await ask(client, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        assert body["statsMinute"]["sum"] == body["statsHour"]["sum"] == body["statsDay"]["sum"] == total
    fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "none"}
    assert (await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)).code == ResponseCode.SYSTEM_ERROR


async def test_lists_of_topics_and_groups_are_made_by_one_request(desk: Desk, client: MemoryClient) -> None:
    topics = [{"topicName": f"L{number}", "readQueueNums": number, "writeQueueNums": 1} for number in (1, 2)]
    body = orjson.dumps({"topicConfigList": topics})
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)).code == 0
    assert desk.parts.context.metadata.existing_topic("L2").read_queues == 2
    body = orjson.dumps({"groupConfigList": [{"groupName": "g1"}, {"groupName": "g2", "retryMaxTimes": 3}]})
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)).code == 0
    group = desk.parts.context.metadata.group("g2")
    assert group is not None and group.retry_max_times == 3
    empty, system = b'{"topicConfigList":[]}', b'{"topicConfigList":[{"topicName":"TBW102"}]}'
    for bad, code in ((b"", 1), (b"[]", 1), (empty, 1), (system, 29)):
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, bad)
        assert answer.code == code, bad


async def test_system_topics_and_replication_status(client: MemoryClient) -> None:
    assert "TBW102" in (await ask(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    body = await ask(client, RequestCode.GET_BROKER_HA_STATUS)
    assert body["master"] is True
    assert body["haConnectionInfo"] == []
