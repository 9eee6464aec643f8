"""Sends: what is stored, what is answered, what is refused."""

import pytest

from ledgermq.message.batch import encode_batch
from ledgermq.message.hashing import tags_code
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.properties import decode_properties
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import BINARY_HEADER, ONEWAY_FLAG, Command
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, send_fields, topic_fields

LONG_NAMES = {
    "producerGroup": "p",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "0",
    "properties": "UNIQ_KEY\x01AA\x02",
    "reconsumeTimes": "0",
    "unitMode": "false",
}


STAMP = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
"""What the broker adds to every message."""


async def test_a_sent_message_is_stored_as_it_came_and_answered_with_its_place(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 2)
    await send(client, b"first", queue=1)
    answer = await send(client, b"second", queue=1, h="7", j="3")
    assert answer.ext["queueId"] == "1"
    assert answer.ext["queueOffset"] == "1"
    assert answer.ext["transactionId"] == "0A0B0C"
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (answer.ext["term"], answer.ext["copies"]) == ("0", "1")
    assert answer.version == 479
    record = desk.records()[-1]
    host, offset = parse_offset_message_id(answer.ext["msgId"])
    assert (str(host), offset) == ("127.0.0.1:10911", record.physical_offset)
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 1, 1)
    assert (record.body, record.flag, record.reconsume_times) == (b"second", 7, 3)
    assert record.born_timestamp == 1_700_000_000_000
    assert str(record.born_host) == f"127.0.0.1:{client.connection.peer[1]}"
    assert decode_properties(record.properties) == {"UNIQ_KEY": "0A0B0C", "TAGS": "TagA", **STAMP}


async def test_the_queue_unit_holds_the_hash_of_the_tag(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, i="XTAGS\x01no\x02TAGS\x01old\x02TAGS\x01new")
    queue = desk.store.queues.get("T", 0)
    await eventually(lambda: queue.max_offset == 1)
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == tags_code("new")


async def test_answers_of_one_turn_leave_in_one_write(client: MemoryClient) -> None:
    await make_topic(client)
    writes = len(client.transport.writes)
    client.give(*(Command(310, 100 + n, ext=send_fields(), body=b"x") for n in range(50)))
    await client.answer_to(149)
    assert len(client.transport.writes) == writes + 1
    assert [client.answers[100 + n].ext["queueOffset"] for n in range(50)] == [str(n) for n in range(50)]


async def test_long_and_short_names_and_both_headers_are_understood(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        answer = await client.ask(code, LONG_NAMES, b"x")
        assert (answer.code, answer.ext["transactionId"]) == (0, "AA")
    answer = await client.ask(310, send_fields(), b"x", header_type=BINARY_HEADER)
    assert (answer.code, answer.ext["queueOffset"]) == (0, "2")


async def test_a_message_without_unique_key_gets_one(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    answer = await send(client, i="k\x01v")
    key = answer.ext["transactionId"]
    assert len(key) == 32
    assert decode_properties(desk.records()[-1].properties) == {"k": "v", "UNIQ_KEY": key, **STAMP}


async def test_a_unique_key_that_json_must_escape_comes_back_whole(client: MemoryClient) -> None:
    await make_topic(client)
    answer = await send(client, i='UNIQ_KEY\x01a"\\\x7fж\x02')
    assert answer.ext["transactionId"] == 'a"\\\x7fж'


async def test_a_oneway_send_is_stored_and_not_answered(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    writes = len(client.transport.writes)
    client.start(310, send_fields(), b"x", flag=ONEWAY_FLAG)
    client.start(310, send_fields(topic="none", c="none"), b"x", flag=ONEWAY_FLAG)
    await eventually(lambda: desk.store.queues.get("T", 0).max_offset == 1)
    assert len(client.transport.writes) == writes


@pytest.mark.parametrize("properties", ["", "DELAY\x013\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"])
async def test_a_connection_is_not_read_while_its_oneway_messages_of_each_kind_wait_for_the_log(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    monkeypatch.setattr("broker.send.oneway.UNSETTLED_MAX_BYTES", 10)
    await make_topic(client)
    client.start(310, send_fields(i=f"UNIQ_KEY\x01A\x02{properties}"), bytes(11), flag=ONEWAY_FLAG)
    assert client.connection._is_held_back
    await eventually(lambda: not client.connection._is_held_back)
    assert not desk.parts.send.processor._oneway.unsettled


async def test_queue_minus_one_lets_the_broker_choose(client: MemoryClient) -> None:
    await make_topic(client, "T", 3)
    chosen = {(await send(client, queue=-1)).ext["queueId"] for _ in range(40)}
    assert chosen == {"0", "1", "2"}


async def test_a_batch_is_many_messages_with_properties_of_their_own(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    messages = [(n, b"b%d" % n, b"UNIQ_KEY\x01K%d\x02" % n) for n in range(3)]
    fields = send_fields(m="true", i="UNIQ_KEY\x01WHOLE\x02WAIT\x01true\x02")
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(messages))
    records = desk.records()[-3:]
    assert answer.ext["msgId"].count(",") == 2
    assert (answer.ext["queueOffset"], answer.ext["transactionId"]) == ("0", "WHOLE")
    assert [record.body for record in records] == [b"b0", b"b1", b"b2"]
    assert [record.queue_offset for record in records] == [0, 1, 2]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in records] == ["K0", "K1", "K2"]


async def test_the_first_send_makes_its_topic_and_the_log_says_so_before_the_message(
    desk: Desk, client: MemoryClient
) -> None:
    client.give(*(Command(310, n, ext=send_fields("fresh", n % 4), body=b"x") for n in range(8)))
    answers = [await client.answer_to(n) for n in range(8)]
    assert {answer.code for answer in answers} == {0}
    topics = [record.topic for record in desk.records()]
    assert topics == ["rmq_sys_ledgermq_state"] + ["fresh"] * 8
    topic = desk.parts.context.state.topics["fresh"]
    assert (topic.read_queues, topic.write_queues, topic.perm) == (4, 4, 6)
    assert desk.announced > 0


async def test_the_sender_of_a_topics_first_message_hears_of_it_when_nameservers_know_the_topic(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "known")
    desk.nameservers_answer.clear()
    client.give(*(Command(310, n, ext=send_fields("fresh"), body=b"x") for n in (801, 802)))
    await eventually(lambda: desk.store.queues.get("fresh", 0).max_offset == 2)
    await send(client, topic="known")
    client.take()
    assert not {801, 802} & client.answers.keys()
    desk.nameservers_answer.set()
    assert [(await client.answer_to(n)).code for n in (801, 802)] == [0, 0]
    assert (await send(client, topic="fresh")).ext["queueOffset"] == "2"


async def test_a_producer_cannot_ask_for_more_queues_than_the_template_has(desk: Desk, client: MemoryClient) -> None:
    await send(client, topic="wide", d="500")
    assert desk.parts.context.state.topics["wide"].write_queues == 8


@pytest.mark.parametrize(
    ("fields", "body", "code", "part"),
    [
        (send_fields("none", c="no_template"), b"x", 17, "topic[none] not exist"),
        (send_fields("bad topic"), b"x", 29, "illegal characters"),
        (send_fields("t" * 128), b"x", 29, "has 128 characters, the limit is 127"),
        (send_fields(" "), b"x", 29, "blank"),
        (send_fields("SCHEDULE_TOPIC_XXXX"), b"x", 16, "SCHEDULE_TOPIC_XXXX"),
        (send_fields("RMQ_SYS_TRANS_HALF_TOPIC"), b"x", 16, "forbidden"),
        (send_fields("rmq_sys_ledgermq_state"), b"x", 16, "forbidden"),
        (send_fields(i="INNER_NUM\x012\x02"), b"x", 13, "INNER_NUM"),
        (send_fields("T", 50), b"x", 29, "queueId[50]"),
        (send_fields("T", "x"), b"x", 1, "field e (queueId) is not a number: 'x'"),
        (send_fields("T", str(2**31)), b"x", 1, "field e (queueId) is out of range"),
        (send_fields(f="zip"), b"x", 1, "field f (sysFlag) is not a number"),
        (send_fields(g="now"), b"x", 1, "field g (bornTimestamp) is not a number"),
        (send_fields(g=str(2**63)), b"x", 1, "field g (bornTimestamp) is out of range"),
        (send_fields(h="1e3"), b"x", 1, "field h (flag) is not a number"),
        (send_fields(j="x"), b"x", 1, "field j (reconsumeTimes) is not a number"),
        ({"b": "T"}, b"x", 1, "field e (queueId) is missing"),
        ({}, b"x", 1, "field b (topic) is missing"),
        (send_fields(), b"x" * 100_001, 13, "100001 bytes, the limit is 100000"),
        (send_fields(), b"", 13, "has 0 bytes"),
        (send_fields(i="p\x01" + "v" * 33_000), b"x", 13, "the limit is 32767"),
        (send_fields(i="TIMER_DELAY_SEC\x01soon\x02"), b"x", 13, "TIMER_DELAY_SEC is 'soon'"),
        (send_fields(i="TIMER_DELAY_SEC\x01300000\x02"), b"x", 13, "max delay 259200000ms"),
        (send_fields(i="DELAY\x01soon\x02"), b"x", 13, "DELAY is b'soon'"),
        (send_fields("%RETRY%bad.group"), b"x", 29, "illegal characters"),
    ],
)
async def test_a_send_that_cannot_be_taken_is_refused_with_its_cause_and_stores_nothing(
    desk: Desk, client: MemoryClient, fields: dict[str, str], body: bytes, code: int, part: str
) -> None:
    await make_topic(client, "T", 2)
    before = desk.store.log.max_offset
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == code
    assert answer.remark is not None
    assert part in answer.remark
    assert desk.store.log.max_offset == before
    await send(client, queue=1)


@pytest.mark.parametrize(
    ("body", "code", "part"),
    [
        (b"", 1, "without messages"),
        (b"\0\0\0\x10", 1, "malformed batch"),
        (encode_batch([(0, b"x", b"DELAY\x013\x02")]), 13, "DELAY"),
        (b"\0" * 100_001, 13, "100001 bytes"),
    ],
)
async def test_a_bad_batch_is_refused_whole(
    desk: Desk, client: MemoryClient, body: bytes, code: int, part: str
) -> None:
    await make_topic(client)
    before = desk.store.log.max_offset
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), body)
    assert answer.code == code
    assert part in (answer.remark or "")
    assert desk.store.log.max_offset == before


async def test_one_bad_request_among_good_ones_harms_none_of_them(client: MemoryClient) -> None:
    await make_topic(client)
    client.give(
        Command(310, 1, ext=send_fields(), body=b"a"),
        Command(310, 2, ext=send_fields(queue=9), body=b"b"),
        Command(310, 3, ext=send_fields(), body=b"c"),
    )
    codes = [(await client.answer_to(opaque)).code for opaque in (1, 2, 3)]
    assert codes == [0, 29, 0]


@pytest.mark.parametrize("desk", [{"auto_create_topic": False}], indirect=True)
async def test_with_auto_create_off_an_unknown_topic_is_refused(client: MemoryClient) -> None:
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("fresh"), b"x")
    assert answer.code == 17
    assert "topic[fresh] not exist" in (answer.remark or "")


@pytest.mark.parametrize("desk", [{"broker_permission": 4}], indirect=True)
async def test_a_broker_without_write_permission_refuses_ordered_topics_and_leaves_others_to_the_routes(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("O", order="true"))
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("O"), b"x")
    assert answer.code == 16
    assert "brokerPermission 4" in (answer.remark or "")
    await send(client)
    told = desk.parts.admin.describe()
    assert [told.topics[name].perm for name in ("O", "T")] == [4, 4]
    assert told.version != desk.parts.admin._topics.topic_version()


async def test_that_a_topic_is_read_only_is_said_by_its_route_and_not_by_sends(client: MemoryClient) -> None:
    await make_topic(client, "readonly", 1, perm=4)
    await send(client, topic="readonly")


@pytest.mark.parametrize("desk", [{"accepts_sends_from_ms": 4_102_444_800_000}], indirect=True)
async def test_a_broker_that_is_to_take_sends_later_says_from_when(client: MemoryClient) -> None:
    await make_topic(client)
    answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
    assert answer.code == 1
    assert (answer.remark or "").startswith("broker unable to service, until ")


async def test_a_topic_that_is_being_removed_takes_nothing_and_starts_anew(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    client.give(
        Command(RequestCode.DELETE_TOPIC_IN_BROKER, 900, ext={"topic": "T"}),
        Command(310, 901, ext=send_fields(), body=b"x"),
    )
    assert (await client.answer_to(901)).code == 17
    assert (await client.answer_to(900)).code == 0
    assert (await send(client, b"anew")).ext["queueOffset"] == "0"


@pytest.mark.parametrize(
    "other",
    [
        "CLUSTER\x01Other\x02TRACE_ON\x01false\x02MSG_REGION\x01R\x02",
        "POP_CK\x010 1 2 3 0 b 0 0\x02",
        "TAGS\x01a\x02POP_CK\x01x",
    ],
)
async def test_what_only_brokers_set_is_replaced_in_a_message_that_is_sent_on(
    desk: Desk, client: MemoryClient, other: str
) -> None:
    await make_topic(client)
    await send(client, i=f"UNIQ_KEY\x0101\x02{other}")
    tag = {"TAGS": "a"} if "TAGS" in other else {}
    record = desk.records()[-1]
    assert record.property_map == {"UNIQ_KEY": "01", **tag, **STAMP}
    assert [bytes(record.properties).count(b"%b\x01" % name.encode()) for name in STAMP] == [1] * len(STAMP)


@pytest.mark.parametrize("desk", [{"region_id": "R2", "trace_on": False}], indirect=True)
async def test_region_and_trace_are_told_and_stored(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    answer = await send(client)
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("R2", "false")
    assert b"MSG_REGION\x01R2\x02TRACE_ON\x01false\x02" in bytes(desk.records()[-1].properties)
