"""Administration: topics, groups, figures; and the shape of every answer beside what a Java broker answered."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.admin.transfer import TRANSFER_LEADERSHIP
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.lenient_json import loads
from store.log.commit_log import CommitLog
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    log_state,
    make_topic,
    pull_fields,
    send,
    send_fields,
    topic_fields,
)
from tests.broker.groups.test_clients import beat
from tests.broker.groups.test_offsets import key, make_group

GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "json"
TOPIC, GROUP = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


async def topic_config(client: MemoryClient, name: str) -> dict[str, Any]:
    answer = await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
    assert answer.code == 0, answer
    return dict(orjson.loads(answer.body))


async def test_a_topic_is_made_changed_shown_and_removed(desk: Desk, client: MemoryClient) -> None:
    assert (await client.ask(TOPIC, topic_fields("T", 4, attributes="+message.type=FIFO"))).code == 0
    assert desk.announced > 0
    assert await topic_config(client, "T") == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    version = desk.parts.context.state.topic_version
    assert (await client.ask(TOPIC, topic_fields("T", 4))).code == 0
    assert desk.parts.context.state.topic_version == version  # nothing has changed
    assert (await client.ask(TOPIC, topic_fields("T", 4, 4, attributes="-message.type"))).code == 0
    shown = await topic_config(client, "T")
    assert (shown["perm"], shown["attributes"]) == (4, {})
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})).code == 17
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected", "part"),
    [
        (TOPIC, topic_fields("bad topic"), b"", 29, "illegal characters"),
        (TOPIC, topic_fields("TBW102"), b"", 29, "conflict with system topic"),
        (TOPIC, topic_fields("rmq_sys_mine"), b"", 29, "conflict with system topic"),
        (TOPIC, topic_fields("T", 65_537), b"", 1, "readQueueNums"),
        (TOPIC, {**topic_fields("T"), "perm": "many"}, b"", 1, "perm"),
        (TOPIC, topic_fields("T", topicFilterType="NO_TAG"), b"", 1, "NO_TAG"),
        (TOPIC, topic_fields("T", attributes="message.type=FIFO"), b"", 1, "format is wrong: message.type"),
        (TOPIC, {"topic": "T"}, b"", 1, "readQueueNums"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"}, b"", 29, "TBW102"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {}, b"", 29, "topic"),
        (GROUP, {}, b"", 1, "JSON"),
        (GROUP, {}, b"{}", 1, "groupName"),
        (GROUP, {}, b'{"groupName":"a b"}', 29, "illegal characters"),
        (GROUP, {}, b'{"groupName":"g","retryQueueNums":"many"}', 1, "retryQueueNums"),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"}, b"", 29, "TOOLS_CONSUMER"),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}, b"", 17, "none"),
        (99_999, {}, b"", 3, "request type 99999 not supported"),
        (TRANSFER_LEADERSHIP, {}, b"", 3, "there is nobody to hand leadership to"),
    ],
)
async def test_a_change_that_cannot_be_made_is_refused_and_stores_nothing(
    desk: Desk, client: MemoryClient, code: int, fields: dict[str, str], body: bytes, expected: int, part: str
) -> None:
    answer = await client.ask(code, fields, body)
    assert answer.code == expected
    assert part in (answer.remark or "")
    assert desk.store.log.max_offset == 0


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (TOPIC, topic_fields("U"), b""),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
        (GROUP, {}, b'{"groupName":"h"}'),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"), b""),
        (RequestCode.SEND_MESSAGE_V2, send_fields(), b"x"),
        (RequestCode.SEND_BATCH_MESSAGE, send_fields(), b"x"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": "0", "delayLevel": "1"}, b""),
        (RequestCode.LOCK_BATCH_MQ, {}, b'{"clientId":"c","consumerGroup":"g","mqSet":[]}'),
    ],
)
async def test_a_follower_changes_nothing_and_says_who_leads(
    desk: Desk, client: MemoryClient, code: int, fields: dict[str, str], body: bytes
) -> None:
    from ledgermq.remoting.refusal import LeaderHint

    await make_topic(client)
    await make_group(client)
    desk.parts.on_role_change(log_state(writable=False, generation=7, leader=LeaderHint("n2", "10.0.0.3:10911")))
    before = desk.store.log.max_offset
    answer = await client.ask(code, fields, body)
    assert answer.code == 14
    assert (answer.ext["cause"], answer.ext["leaderHint"]) == ("not-leader", "10.0.0.3:10911")
    assert "does not lead in term 7: the leader is n2 at 10.0.0.3:10911" in (answer.remark or "")
    assert desk.store.log.max_offset == before


async def test_figures_of_topics_and_groups(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await make_group(client)
    await send(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    stats = loads((await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})).body)
    first = stats["offsetTable"]['{"brokerName":"b","queueId":0,"topic":"T"}']
    assert (first["minOffset"], first["maxOffset"]) == (0, 1)
    assert first["lastUpdateTimestamp"] > 0
    progress = loads((await client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})).body)
    row = progress["offsetTable"]['{"brokerName":"b","queueId":0,"topic":"T"}']
    assert (row["brokerOffset"], row["consumerOffset"]) == (1, 1)


async def test_the_configuration_is_shown_as_properties(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.partition("=")[::2] for line in bytes(answer.body).decode().splitlines())
    assert (lines["brokerName"], lines["maxMessageSize"]) == ("b", "100000")
    assert lines["enablePropertyFilter"] == "false"
    assert "counter" in answer.ext["version"]


# ---- the shapes of a Java broker's answers


def golden(code: int, number: str) -> dict[str, Any]:
    (folder,) = GOLDEN.glob(f"{code}-*")
    exchange = json.loads((folder / number / "exchange.json").read_text())
    return dict(exchange["response"])


def shape(value: Any) -> Any:
    """Names and kinds of a JSON value; of a table with free keys, the shape of one entry."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def one_entry(table: dict[str, Any]) -> Any:
    return shape(next(iter(table.values())))


async def prepared(client: MemoryClient) -> None:
    await make_topic(client, "T", 2)
    await beat(client, "c1")
    await send(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))


@pytest.mark.parametrize(
    ("code", "number", "fields", "body"),
    [
        (310, "01", send_fields(), b"x"),
        (11, "01", pull_fields(), b""),
        (11, "03", pull_fields(subscription="TagNothing"), b""),
        (361, "01", pull_fields(), b""),
        (14, "01", key(), b""),
        (29, "02", {"topic": "T", "queueId": "0", "timestamp": "1"}, b""),
        (30, "01", {"topic": "T", "queueId": "0"}, b""),
        (31, "01", {"topic": "T", "queueId": "0"}, b""),
        (32, "01", {"topic": "T", "queueId": "0"}, b""),
        (33, "01", {"topic": "T", "offset": "0"}, b""),
        (33, "02", {"topic": "T", "offset": "1048560"}, b""),
        (15, "04", key(consumerGroup="WireClone", commitOffset="2"), b""),
        (38, "01", {"consumerGroup": "g"}, b""),
        (203, "02", {"consumerGroup": "NoSuchGroup"}, b""),
        (351, "03", {"topic": "NoSuchTopic"}, b""),
        (17, "03", topic_fields("bad topic!"), b""),
        (35, "01", {"clientID": "c1", "consumerGroup": "g"}, b""),
        (26, "01", None, b""),
    ],
)
async def test_an_answer_has_the_code_and_the_fields_of_a_java_broker(
    desk: Desk, client: MemoryClient, code: int, number: str, fields: dict[str, str] | None, body: bytes
) -> None:
    await prepared(client)
    if code == 33 and number == "01":
        fields = {"topic": "T", "offset": str(next(r.physical_offset for r in desk.records() if r.topic == "T"))}
    expected = golden(code, number)
    answer = await client.ask(code, fields, body)
    assert answer.code == expected["code"], answer
    assert answer.version == expected["version"]
    assert set(expected["extFields"] or {}) <= set(answer.ext)
    assert all(isinstance(value, str) for value in answer.ext.values())
    if code in (11, 361):
        assert answer.remark == expected["remark"]
    assert bool(answer.body) == bool(expected["bodyLength"])


@pytest.mark.parametrize(
    ("code", "fields", "tables"),
    [
        (21, None, ("topicConfigTable",)),
        (201, None, ("subscriptionGroupTable",)),
        (202, {"topic": "T"}, ("offsetTable",)),
        (203, {"consumerGroup": "g"}, ("subscriptionTable",)),
        (204, {"producerGroup": "p"}, ()),
        (208, {"consumerGroup": "g"}, ("offsetTable",)),
        (351, {"topic": "T"}, ()),
        (38, {"consumerGroup": "g"}, ()),
    ],
)
async def test_a_body_has_the_members_of_a_java_brokers(
    client: MemoryClient, code: int, fields: dict[str, str] | None, tables: tuple[str, ...]
) -> None:
    await prepared(client)
    expected = loads(golden(code, "01")["bodyText"])
    found = loads((await client.ask(code, fields)).body)
    for table in tables:
        wanted, has = one_entry(expected.pop(table)), one_entry(found.pop(table))
        assert {name: has.get(name) for name in wanted} == wanted
    for name, wanted in shape(expected).items():
        assert name in found
        assert shape(found[name]) == wanted or wanted in ({}, [])


async def test_runtime_info_says_how_far_the_disk_is_behind(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, bytes(3000))
    log = desk.store.log
    assert isinstance(log, CommitLog)
    found = loads((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    waiting = log.max_offset - log.flushed_offset
    assert found["remainHowManyDataToFlush"] == (f"{waiting / 1024:.1f} KiB" if waiting >= 1024 else f"{waiting} B")
    assert found["remainHowManyDataToCommit"] == "0 B"


async def test_runtime_info_has_every_key_of_a_java_brokers(desk: Desk, client: MemoryClient) -> None:
    desk.parts.admin.runtime.sample()
    await prepared(client)
    desk.parts.admin.runtime.sample()
    expected = loads(golden(28, "01")["bodyText"])["table"]
    found = loads((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert {name for name in expected if not name.startswith("commitLogDiskRatio_")} <= set(found)
    assert all(isinstance(value, str) for value in found.values())
    assert float(found["putTps"].split()[0]) > 0


@pytest.mark.parametrize("depth", [250, 1000])
@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[{"topicName":"deep","odd":%b}]}'),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[{"topicName":"deep","perm":%b}]}'),
        (GROUP, b'{"groupName":"deep","groupRetryPolicy":%b}'),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, b'{"groupConfigList":[{"groupName":"deep","odd":%b}]}'),
    ],
)
async def test_what_is_nested_too_deep_to_be_written_again_is_refused_and_leaves_nothing(
    desk: Desk, client: MemoryClient, code: int, body: bytes, depth: int
) -> None:
    answer = await client.ask(code, {}, body % (b"[" * depth + b"]" * depth))
    assert (answer.code, "nested deeper than 64" in (answer.remark or "")) == (1, True), answer
    assert (await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "deep"})).code == 17
    assert "deep" not in desk.parts.context.metadata.groups()
    await desk.stop()
    await desk.start()
    assert (await desk.client().ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "TBW102"})).code == 0
