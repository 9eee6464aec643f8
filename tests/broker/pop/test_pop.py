"""POP at a broker's desk: taken, acknowledged, invisible, come again, held."""

import base64
from pathlib import Path

import orjson
import pytest

from broker.pop.waiting import HeldPops
from ledgermq.message.properties import decode_properties
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, send_fields
from tests.broker.pop.support import CODE, ack, bodies, handle_fields, handles, pop, pop_again, pop_fields, records


@pytest.fixture
async def topic(client: MemoryClient) -> str:
    await make_topic(client, "T", 1)
    return "T"


async def test_what_was_taken_is_not_given_again_and_is_described_as_java_does(
    client: MemoryClient, topic: str
) -> None:
    for number in range(3):
        await send(client, b"m%d" % number)
    answer = await pop(client)
    assert bodies(answer) == [b"m0", b"m1", b"m2"]
    ext = dict(answer.ext)
    assert int(ext.pop("popTime")) > 0
    assert ext == {
        "invisibleTime": "60000",
        "reviveQid": "0",
        "restNum": "0",
        "startOffsetInfo": "0 0 0",
        "msgOffsetInfo": "0 0 0,1,2",
    }
    assert answer.remark == "FOUND"
    nothing = await pop(client)
    assert (nothing.code, nothing.remark) == (210, "NO_MESSAGE_IN_QUEUE")


async def test_what_is_not_acknowledged_comes_again_from_the_retry_topic(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    for number in range(2):
        await send(client, b"m%d" % number)
    first = await pop(client, invisibleTime=300)
    assert (await ack(client, handles(first)[0])).code == 0
    again = await pop_again(client)
    (record,) = records(again)
    assert (record.body, record.topic, record.reconsume_times) == (b"m1", "T", 1)
    properties = decode_properties(record.properties)
    assert properties["1ST_POP_TIME"] == first.ext["popTime"]
    assert again.ext["startOffsetInfo"] == "1 0 0"
    handle = f"0 {again.ext['popTime']} 60000 {again.ext['reviveQid']} 1 {desk.config.broker_name} 0 0"
    assert properties["POP_CK"] == handle
    assert (await ack(client, handle)).code == 0
    await eventually(lambda: not desk.parts.context.state.pop.checkpoints, "nothing open")


@pytest.mark.parametrize("desk", [{"pop_retry_v2": True}], indirect=True)
async def test_messages_come_again_from_a_retry_topic_of_the_newer_name(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    await pop(client, invisibleTime=300)
    again = await pop_again(client)
    assert again.ext["startOffsetInfo"] == "2 0 0"
    assert [(record.body, record.topic) for record in records(again)] == [(b"m", "T")]
    assert (await ack(client, handles(again)[0])).code == 0
    await eventually(lambda: not desk.parts.context.state.pop.checkpoints, "nothing open")
    assert "%RETRY%g+T" in desk.parts.context.state.topics
    assert (await client.ask(CODE.SEND_MESSAGE_V2, send_fields("%RETRY%g+T"), b"x")).code == 29
    await desk.stop()
    await desk.start()
    assert "%RETRY%g+T" in desk.parts.context.state.topics
    assert desk.store.queues.get("%RETRY%g+T", 0).max_offset == 1


async def test_what_lies_under_the_older_name_is_found_too(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"old")
    await pop(client, invisibleTime=300)
    await eventually(lambda: desk.store.queues.get("%RETRY%g_T", 0).max_offset == 1, "the message in the retry topic")
    desk.config.pop_retry_v2, desk.config.pop_reads_retry_v1 = True, False
    assert (await pop(client)).code == 210
    desk.config.pop_reads_retry_v1 = True
    again = await pop_again(client)
    assert (again.ext["startOffsetInfo"], records(again)[0].body) == ("1 0 0", b"old")


async def test_what_lies_under_the_newer_name_is_found_when_that_is_switched_off(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    desk.config.pop_retry_v2 = True
    await send(client, b"new")
    await pop(client, invisibleTime=300)
    await eventually(lambda: desk.store.queues.get("%RETRY%g+T", 0).max_offset == 1, "the message in the retry topic")
    desk.config.pop_retry_v2 = False
    again = await pop_again(client)
    assert (again.ext["startOffsetInfo"], records(again)[0].body) == ("2 0 0", b"new")
    assert (await ack(client, handles(again)[0])).code == 0
    await eventually(lambda: not desk.parts.context.state.pop.checkpoints, "nothing open")


async def test_several_are_acknowledged_at_once(desk: Desk, client: MemoryClient, topic: str) -> None:
    for number in range(10):
        await send(client, b"m%d" % number)
    answer = await pop(client)
    await eventually(lambda: len(desk.parts.context.state.pop.checkpoints) == 1, "the checkpoint in the log")
    bits = base64.b64encode((0b11_1111_1101).to_bytes(2, "little")).decode()
    place = {"c": "g", "t": "T", "r": "0", "q": 0}
    taken = {"so": 0, "pt": int(answer.ext["popTime"]), "it": 60000, "rq": 0}
    body = orjson.dumps({"brokerName": "b", "acks": [{**place, **taken, "b": bits}]})
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=body)).code == 0
    (checkpoint,) = desk.parts.pop.progress.checkpoints
    assert checkpoint.open_offsets == [1]
    assert dict(desk.parts.context.counting.events.revive_in.items())["g", "T", "ACK", "PUT_OK"] == 9
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=b'{"acks":[]}')).code == 208
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=b'{"acks":[{"b":"?"}]}')).code == 1


async def test_another_invisible_time_gives_a_new_handle_and_voids_the_old(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    first = await pop(client)
    (old,) = handles(first)
    changed = await client.ask(CODE.CHANGE_MESSAGE_INVISIBLETIME, handle_fields(old, invisibleTime=200))
    assert (changed.code, changed.ext["invisibleTime"], changed.ext["reviveQid"]) == (0, "200", first.ext["reviveQid"])
    assert (await ack(client, old)).code == 0
    again = await pop_again(client)
    assert bodies(again) == [b"m"]
    late = await client.ask(CODE.CHANGE_MESSAGE_INVISIBLETIME, handle_fields(old, invisibleTime=0))
    assert late.code == 0
    assert (await pop(client)).code == 210, "what came again does not come twice"
    beyond = handle_fields(old, invisibleTime=0, offset=7)
    assert (await client.ask(CODE.CHANGE_MESSAGE_INVISIBLETIME, beyond)).code == 208


async def test_a_held_request_is_answered_when_a_message_comes(desk: Desk, client: MemoryClient, topic: str) -> None:
    waiting = client.start(CODE.POP_MESSAGE, pop_fields(pollTime=20_000))
    other = desk.client()
    info = await other.ask(CODE.POLLING_INFO, {"consumerGroup": "g", "topic": "T", "queueId": "-1"})
    assert info.ext == {"pollingNum": "1"}
    asked = other.start(CODE.NOTIFICATION, pop_fields(consumerGroup="h", pollTime=20_000))
    await send(other, b"now")
    assert bodies(await client.answer_to(waiting)) == [b"now"]
    assert (await other.answer_to(asked)).ext == {"hasMsg": "true", "pollingFull": "false"}
    assert len(desk.parts.pop.held) == 0


async def test_one_message_wakes_one_request_and_a_closed_one_takes_nothing(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    gone, second = desk.client(), desk.client()
    gone.start(CODE.POP_MESSAGE, pop_fields(pollTime=20_000))
    first = client.start(CODE.POP_MESSAGE, pop_fields(pollTime=20_000))
    later = second.start(CODE.POP_MESSAGE, pop_fields(pollTime=20_000))
    gone.close()
    await send(desk.client(), b"m")
    assert bodies(await client.answer_to(first)) == [b"m"]
    assert len(desk.parts.pop.held) == 1
    await send(desk.client(), b"n")
    assert bodies(await second.answer_to(later)) == [b"n"]


@pytest.mark.parametrize("desk", [{"pop_held_max": 20}], indirect=True)
async def test_for_a_client_s_request_the_one_with_most_gives_some_up(
    desk: Desk, client: MemoryClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = desk.client()
    many = [client.start(CODE.POP_MESSAGE, pop_fields(consumerGroup="greedy", pollTime=20_000)) for _ in range(20)]
    with monkeypatch.context() as patch:
        patch.setattr(HeldPops, "_all", lambda _: pytest.fail("all held requests were looked at"))
        few = other.start(CODE.POP_MESSAGE, pop_fields(pollTime=20_000))
    assert [(await client.answer_to(opaque)).code for opaque in many[:3]] == [210, 210, 210], "the oldest ones"
    assert len(desk.parts.pop.held) == 18
    many += [client.start(CODE.POP_MESSAGE, pop_fields(consumerGroup="greedy", pollTime=20_000)) for _ in range(2)]
    assert (await pop(client, consumerGroup="greedy", pollTime=20_000)).code == 209
    await send(desk.client(), b"m")
    assert bodies(await other.answer_to(few)) == [b"m"]


async def test_a_held_request_is_answered_when_its_time_is_over(client: MemoryClient, topic: str) -> None:
    answer = await pop(client, pollTime=100)
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext["msgOffsetInfo"] == ""
    told = await client.ask(CODE.NOTIFICATION, pop_fields(pollTime=50))
    assert told.ext == {"hasMsg": "false", "pollingFull": "false"}
    assert (await pop(client, bornTime=1000, pollTime=100)).code == 210


async def test_requests_beyond_the_limits_are_refused(client: MemoryClient, topic: str) -> None:
    for number in range(5):
        await send(client, b"m%d" % number)
    assert bodies(await pop(client, maxMsgNums=2)) == [b"m0", b"m1"]
    rest = await pop(client, maxMsgNums=2)
    assert (bodies(rest), rest.ext["restNum"]) == ([b"m2", b"m3"], "1")
    assert (await pop(client, maxMsgNums=33)).code == 29
    assert (await pop(client, queueId=4)).code == 29
    assert (await pop(client, topic="Unknown")).code == 17
    assert (await pop(client, exp="a >", expType="SQL92")).code == 23
    assert (await ack(client, "0 1 2 0 0 b 0 9")).code == 208
    assert (await ack(client, "0 1 2 0 0 b 0 0", extraInfo="x 1 2 0 0 b 0 0")).code == 1
    assert (await ack(client, "0 1 2 0 0 b 0 0", queueId=7)).code == 13


async def test_tags_that_are_not_wanted_are_passed_over(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"a", i="TAGS\x01A\x02")
    await send(client, b"b", i="TAGS\x01B\x02")
    assert bodies(await pop(client, exp="B")) == [b"b"]
    await send(client, b"c", i="TAGS\x01C\x02")
    assert (await pop(client, exp="B")).code == 210
    assert desk.parts.context.offsets.get("T", "g", 0) == 3


async def test_looking_takes_nothing(client: MemoryClient, topic: str) -> None:
    assert (await client.ask(CODE.PEEK_MESSAGE, pop_fields())).code == 19
    await send(client, b"m")
    for _ in range(2):
        seen = await client.ask(CODE.PEEK_MESSAGE, pop_fields())
        assert (bodies(seen), seen.ext["restNum"]) == ([b"m"], "1")
    assert bodies(await pop(client)) == [b"m"]


async def test_a_new_group_may_begin_at_the_end(desk: Desk, client: MemoryClient, topic: str) -> None:
    for number in range(3):
        await send(client, b"m%d" % number)
    assert bodies(await pop(client, initMode=1, consumerGroup="near")) == [b"m0", b"m1", b"m2"]


GOLDEN = Path(__file__).parents[2] / "golden" / "wire" / "json"


@pytest.mark.parametrize("number", ["01", "02", "03"])
async def test_answers_have_the_fields_of_the_real_broker(
    desk: Desk, client: MemoryClient, topic: str, number: str
) -> None:
    exchange = orjson.loads((GOLDEN / "200050-POP_MESSAGE" / number / "exchange.json").read_bytes())
    await send(client, b"m")
    request = {**exchange["request"]["extFields"], "topic": "T", "bornTime": "0"}
    answer = await client.ask(CODE.POP_MESSAGE, request)
    golden = exchange["response"]
    assert (answer.code, answer.remark) == (golden["code"], golden["remark"])
    assert answer.ext.keys() == golden["extFields"].keys()
    exchange = orjson.loads((GOLDEN / "200051-ACK_MESSAGE" / "01" / "exchange.json").read_bytes())
    acked = await ack(client, handles(answer)[0], consumerGroup="WirePopGroup")
    assert (acked.code, acked.remark, acked.ext or None, acked.body) == (
        0,
        None,
        exchange["response"]["extFields"],
        b"",
    )


@pytest.mark.parametrize("desk", [{"pop_limits_open": True, "pop_open_limit": 1}], indirect=True)
async def test_a_group_with_too_much_unacknowledged_gets_no_more(desk: Desk, client: MemoryClient, topic: str) -> None:
    for number in range(3):
        await send(client, b"m%d" % number)
    taken = await pop(client, maxMsgNums=2)
    assert len(records(taken)) == 2
    assert (await pop(client)).code == 210
    assert (await ack(client, handles(taken)[0])).code == 0
    assert bodies(await pop(client)) == [b"m2"]
