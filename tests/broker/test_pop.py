"""POP at a broker's desk: taken, acknowledged, invisible, come again, held; in order; and what survives a restart."""

import asyncio
import base64
from pathlib import Path

import orjson
import pytest

from broker.pop.handles import parse_handle
from ledgermq.message.properties import decode_properties
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import Command
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, small_config

CODE = RequestCode


def pop_fields(**changes: object) -> dict[str, str]:
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
        "exp": "*",
        "expType": "TAG",
        "order": "false",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


async def pop(client: MemoryClient, **changes: object) -> Command:
    return await client.ask(CODE.POP_MESSAGE, pop_fields(**changes))


def records(answer: Command) -> list[Record]:
    return decode_records(answer.body)


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer
    return [record.body for record in records(answer)]


def handles(answer: Command) -> list[str]:
    """The handle of each message of an answer, as Java's client makes them."""
    ext = answer.ext
    made = []
    for start, offsets in zip(ext["startOffsetInfo"].split(";"), ext["msgOffsetInfo"].split(";"), strict=True):
        retry, queue, first = start.split(" ")
        for offset in offsets.split(" ")[2].split(","):
            head = f"{first} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
            made.append(f"{head} {retry} b {queue} {offset}")
    return made


def handle_fields(handle: str, **changes: object) -> dict[str, str]:
    parsed = parse_handle(handle)
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "%RETRY%g_T" if parsed.retry == "1" else "T",
        "queueId": parsed.queue_id,
        "extraInfo": handle,
        "offset": handle.split(" ")[7],
        **changes,
    }
    return {name: str(value) for name, value in fields.items()}


async def ack(client: MemoryClient, handle: str, **changes: object) -> Command:
    return await client.ask(CODE.ACK_MESSAGE, handle_fields(handle, **changes))


async def pop_again(client: MemoryClient, **changes: object) -> Command:
    """The next answer that has messages."""
    while (answer := await pop(client, pollTime=2000, **changes)).code != 0:
        assert answer.code == 210, answer
    return answer


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
    await eventually(lambda: not desk.parts.state.pop.checkpoints, "nothing open")


async def test_several_are_acknowledged_at_once(desk: Desk, client: MemoryClient, topic: str) -> None:
    for number in range(10):
        await send(client, b"m%d" % number)
    answer = await pop(client)
    await eventually(lambda: len(desk.parts.state.pop.checkpoints) == 1, "the checkpoint in the log")
    bits = base64.b64encode((0b11_1111_1101).to_bytes(2, "little")).decode()
    place = {"c": "g", "t": "T", "r": "0", "q": 0}
    taken = {"so": 0, "pt": int(answer.ext["popTime"]), "it": 60000, "rq": 0}
    body = orjson.dumps({"brokerName": "b", "acks": [{**place, **taken, "b": bits}]})
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=body)).code == 0
    (checkpoint,) = desk.parts.pop.progress.checkpoints
    assert checkpoint.open_offsets == [1]
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=b'{"acks":[]}')).code == 208
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=b'{"acks":[{"b":"?"}]}')).code == 29


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
    assert (await ack(client, "0 1 2 0 0 b 0 0", extraInfo="x 1 2 0 0 b 0 0")).code == 29
    assert (await ack(client, "0 1 2 0 0 b 0 0", queueId=7)).code == 13


async def test_tags_that_are_not_wanted_are_passed_over(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"a", i="TAGS\x01A\x02")
    await send(client, b"b", i="TAGS\x01B\x02")
    assert bodies(await pop(client, exp="B")) == [b"b"]
    await send(client, b"c", i="TAGS\x01C\x02")
    assert (await pop(client, exp="B")).code == 210
    assert desk.parts.offsets.get("T", "g", 0) == 3


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


async def test_in_order_a_queue_gives_nothing_until_what_it_gave_is_done(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    for number in range(4):
        await send(client, b"m%d" % number)
    first = await pop(client, order="true", maxMsgNums=2, attemptId="one")
    assert bodies(first) == [b"m0", b"m1"]
    assert (first.ext["reviveQid"], first.ext["orderCountInfo"]) == ("999", "0 0 0")
    assert (await pop(client, order="true", attemptId="two")).code == 210
    assert bodies(await pop(client, order="true", maxMsgNums=2, attemptId="one")) == [b"m0", b"m1"]
    again = await pop(client, order="true", maxMsgNums=2, attemptId="one")
    one, two = handles(again)
    waiting = desk.client()
    held = waiting.start(CODE.POP_MESSAGE, pop_fields(order="true", pollTime=20_000))
    assert (await ack(client, one)).code == 0
    assert (await pop(client, order="true")).code == 210
    assert (await ack(client, two)).code == 0
    assert bodies(await waiting.answer_to(held)) == [b"m2", b"m3"]
    assert desk.parts.offsets.get("T", "g", 0) == 2


async def test_in_order_the_queue_gives_again_after_the_invisible_time_and_counts(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    for number in range(2):
        await send(client, b"m%d" % number)
    first = await pop(client, order="true", invisibleTime=200)
    assert (await ack(client, handles(first)[0])).code == 0
    again = await pop_again(client, order="true")
    assert bodies(again) == [b"m1"]
    assert again.ext["orderCountInfo"] == "0 qo0%1 1;0 0 1"
    shorter = handle_fields(handles(again)[0], invisibleTime=100)
    changed = await client.ask(CODE.CHANGE_MESSAGE_INVISIBLETIME, shorter)
    assert (changed.code, changed.ext["popTime"], changed.ext["reviveQid"]) == (0, again.ext["popTime"], "999")
    third = await pop_again(client, order="true")
    assert third.ext["orderCountInfo"] == "0 qo0%1 2;0 0 2"
    assert (await ack(client, handles(third)[0], offset=0)).code == 0, "what is behind the group is done"


async def test_a_restart_knows_what_was_taken_and_what_was_acknowledged(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client, "T", 1)
    for number in range(3):
        await send(client, b"m%d" % number)
    answer = await pop(client, invisibleTime=600)
    await ack(client, handles(answer)[1])
    await desk.parts.pop.progress.drain()
    await desk.parts.offsets.drain()
    await desk.stop(save_tables=False)
    await desk.start()
    try:
        client = desk.client()
        assert desk.parts.offsets.get("T", "g", 0) == 3
        taken: list[bytes] = []
        async with asyncio.timeout(10):
            while len(taken) < 2:
                taken += bodies(await pop_again(client))
        assert taken == [b"m0", b"m2"]
        await desk.parts.pop.progress.drain()
        await desk.parts.offsets.drain()
        await desk.stop()
        await desk.start()
        assert len(desk.parts.pop.progress.checkpoints) in (1, 2), "from the file"
        assert (await pop(desk.client())).code == 210
    finally:
        await desk.stop()


async def test_a_group_that_was_moved_takes_from_there(desk: Desk, client: MemoryClient, topic: str) -> None:
    for number in range(3):
        await send(client, b"m%d" % number)
    first = await pop(client, order="true")
    assert len(records(first)) == 3
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "offset": "1", "queueId": "0"}
    assert (await client.ask(CODE.INVOKE_BROKER_TO_RESET_OFFSET, fields)).code == 0
    assert bodies(await pop(client, order="true")) == [b"m1", b"m2"]


async def test_a_topic_that_goes_takes_its_checkpoints_with_it(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"m")
    await pop(client)
    await eventually(lambda: len(desk.parts.state.pop.checkpoints) == 1, "the checkpoint in the log")
    assert (await client.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await eventually(lambda: not desk.parts.state.pop.checkpoints, "no checkpoint")
    assert len(desk.parts.pop.progress.checkpoints) == 0


async def test_deleting_a_topic_deletes_what_comes_again_of_it(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"m")
    await pop(client, invisibleTime=100)
    await eventually(lambda: "%RETRY%g_T" in desk.parts.state.topics, "the retry topic")
    assert (await client.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await eventually(lambda: not {"T", "%RETRY%g_T"} & desk.parts.state.topics.keys(), "neither topic")


async def test_a_group_that_goes_blocks_nothing_and_nothing_of_it_comes_again(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    await pop(client, invisibleTime=400)
    await pop(client, consumerGroup="h", order="true")
    pops = desk.parts.state.pop
    await eventually(lambda: bool(pops.checkpoints and pops.orders), "both in the log")
    for group in ("g", "h"):
        fields = {"groupName": group, "cleanOffset": "true"}
        assert (await client.ask(CODE.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    await eventually(lambda: not pops.checkpoints and not pops.orders, "nothing of them")
    assert desk.parts.pop.revive.dropped == 1
    assert bodies(await pop(client, consumerGroup="h", order="true")) == [b"m"]


async def test_hearing_again_that_it_leads_forgets_nothing(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"m")
    await pop(client)
    desk.parts.pop.lead()
    assert len(desk.parts.pop.progress.checkpoints) == 1


async def test_acknowledging_what_was_never_given_leaves_nothing_behind(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    assert (await ack(client, "0 1 2 999 0 b 0 0", consumerGroup="stranger")).code == 0
    entry = {"b": "AQ==", "c": "g", "it": 1, "pt": 1, "q": 7, "r": "0", "rq": 999, "so": 0, "t": "Unknown"}
    body = orjson.dumps({"brokerName": "b", "acks": [entry]})
    assert (await client.ask(CODE.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert not desk.parts.offsets.all().keys() & {"T@stranger", "Unknown@g"}


GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "json"


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


async def test_what_is_taken_and_acknowledged_at_once_leaves_no_checkpoint_in_the_log(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    for handle in handles(await pop(client)):
        await ack(client, handle)
    version = desk.parts.state.pop.version
    await eventually(lambda: desk.parts.state.offsets.get("T@g") == {0: 1}, "the offset in the log")
    assert desk.parts.state.pop.version == version
