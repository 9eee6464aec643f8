"""Messages sent back by consumers, and delayed messages."""

import asyncio

import pytest

from broker.state.names import DELAY_PROGRESS_GROUP, SCHEDULE_TOPIC
from broker.state.tables import ChangeDone, StateChange
from ledgermq.message.properties import decode_properties
from ledgermq.message.queue_unit import DELAY_LEVELS_MS
from ledgermq.message.record import Record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.refusal import Cause, Refusal
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, send, send_fields
from tests.broker.groups.test_offsets import make_group

BACK = RequestCode.CONSUMER_SEND_MSG_BACK
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every level is due at once."""
    monkeypatch.setattr("broker.delay.levels.DELAY_LEVELS_MS", (0,) * len(DELAY_LEVELS_MS))


def back_fields(offset: int, /, **changes: object) -> dict[str, str]:
    fields = {"offset": offset, "group": "g", "delayLevel": 1, "originTopic": "T", "maxReconsumeTimes": 16, **changes}
    return {name: str(value) for name, value in fields.items()}


def in_topic(desk: Desk, topic: str) -> list[Record]:
    return [record for record in desk.records() if record.topic == topic]


async def test_a_message_sent_back_comes_again_to_its_group_after_its_level(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    answer = await send(client, b"again", i="UNIQ_KEY\x01U\x02TAGS\x01A\x02p\x01v\x02", h="5")
    (original,) = in_topic(desk, "T")
    assert (await client.ask(BACK, back_fields(original.physical_offset))).code == 0
    await eventually(lambda: in_topic(desk, RETRY) != [])
    (waiting,) = in_topic(desk, SCHEDULE_TOPIC)
    assert waiting.queue_id == 0
    (again,) = in_topic(desk, RETRY)
    assert (again.body, again.flag, again.reconsume_times) == (b"again", 5, 1)
    assert (again.born_timestamp, again.born_host) == (original.born_timestamp, original.born_host)
    properties = decode_properties(again.properties)
    assert "DELAY" not in properties
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == answer.ext["msgId"]
    assert (properties["UNIQ_KEY"], properties["p"]) == ("U", "v")


async def test_the_broker_chooses_the_level_by_the_number_of_tries(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, j="2")
    (original,) = in_topic(desk, "T")
    await client.ask(BACK, back_fields(original.physical_offset, delayLevel=0))
    await eventually(lambda: in_topic(desk, SCHEDULE_TOPIC) != [])
    assert in_topic(desk, SCHEDULE_TOPIC)[0].queue_id == 4


@pytest.mark.parametrize("changes", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
async def test_a_message_that_had_its_tries_goes_to_the_dead_letters(
    desk: Desk, client: MemoryClient, changes: dict[str, int]
) -> None:
    await make_topic(client)
    await send(client, b"doomed")
    (original,) = in_topic(desk, "T")
    assert (await client.ask(BACK, back_fields(original.physical_offset, **changes))).code == 0
    (dead,) = in_topic(desk, DEAD)
    assert dead.body == b"doomed"
    assert decode_properties(dead.properties)["DLQ_ORIGIN_TOPIC"] == "T"
    assert in_topic(desk, SCHEDULE_TOPIC) == []


async def test_what_comes_again_is_counted_under_known_topics_only(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, i="RETRY_TOPIC\x01T\x02")
    await send(client, i="RETRY_TOPIC\x01whatever\x02")
    for record in in_topic(desk, "T"):
        for level in (1, -1):
            fields = back_fields(record.physical_offset, delayLevel=level)
            assert (await client.ask(BACK, fields)).code == 0
    assert set(desk.parts.context.counting.statistics.keys("SNDBCK_PUT_NUMS")) == {"T@g", f"{RETRY}@g"}
    assert set(desk.parts.context.counting.statistics.keys("DLQ_PUT_NUMS")) == {"T@g", f"{RETRY}@g"}
    late = send_fields(RETRY, j="17", i="RETRY_TOPIC\x01another\x02")
    assert (await client.ask(RequestCode.SEND_MESSAGE_V2, late, b"m")).code == 0
    assert dict(desk.parts.context.counting.events.dead_letters.items()) == {("T", "g"): 1, (RETRY, "g"): 2}


async def test_a_dead_letter_is_not_there_before_its_topic_can_be_found(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    (original,) = in_topic(desk, "T")
    desk.nameservers_answer.clear()
    opaque = client.start(BACK, back_fields(original.physical_offset, delayLevel=-1))
    await eventually(lambda: DEAD in desk.parts.context.state.topics)
    assert in_topic(desk, DEAD) == []
    desk.nameservers_answer.set()
    assert (await client.answer_to(opaque)).code == 0
    assert len(in_topic(desk, DEAD)) == 1


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"offset": 3}, 1, "look message by offset failed, 3"),
        ({"group": "a.b"}, 29, "illegal characters"),
        ({"delayLevel": "x"}, 1, "delayLevel"),
    ],
)
async def test_what_cannot_be_sent_back_is_refused(
    client: MemoryClient, changes: dict[str, object], code: int, part: str
) -> None:
    await make_topic(client)
    await send(client)
    answer = await client.ask(BACK, back_fields(0, **changes))
    assert answer.code == code
    assert part in (answer.remark or "")


async def test_a_client_that_resends_by_itself_is_counted_too(desk: Desk, client: MemoryClient) -> None:
    await make_group(client)
    for times, topic in ((3, RETRY), (17, DEAD)):
        answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(RETRY, j=str(times)), b"x")
        assert answer.code == 0
        assert len(in_topic(desk, topic)) == 1


async def test_a_delayed_message_comes_to_the_queue_it_was_sent_to(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client, "T", 4)
    answer = await send(client, b"later", queue=3, i="UNIQ_KEY\x01U\x02DELAY\x012\x02TAGS\x01A\x02")
    assert answer.ext["queueId"] == "3"
    await eventually(lambda: in_topic(desk, "T") != [])
    (delivered,) = in_topic(desk, "T")
    assert (delivered.queue_id, delivered.queue_offset, delivered.body) == (3, 0, b"later")
    assert "DELAY" not in decode_properties(delivered.properties)


async def test_a_level_above_the_last_counts_as_the_last_and_0_as_none(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, i="DELAY\x0199\x02")
    await send(client, i="DELAY\x010\x02")
    assert in_topic(desk, SCHEDULE_TOPIC)[0].queue_id == 17
    await eventually(lambda: len(in_topic(desk, "T")) == 2)


async def test_delivery_keeps_the_order_and_a_new_leader_goes_on_behind_it(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    for number in range(20):
        await send(client, b"%d" % number, i="DELAY\x013\x02")
    await eventually(lambda: len(in_topic(desk, "T")) == 20)
    assert [record.body for record in in_topic(desk, "T")] == [b"%d" % number for number in range(20)]
    key = f"{SCHEDULE_TOPIC}@{DELAY_PROGRESS_GROUP}"
    await eventually(lambda: desk.parts.context.state.offsets.get(key) == {2: 20})
    desk.parts.on_role_change(log_state(writable=False, generation=1))
    desk.parts.on_role_change(log_state(writable=True, generation=2))
    await send(client, b"last", i="DELAY\x013\x02")
    await eventually(lambda: len(in_topic(desk, "T")) == 21)


async def test_a_delayed_message_whose_topic_is_gone_is_dropped_and_counted(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.delay.levels.DELAY_LEVELS_MS", (300,) * 18)
    await make_topic(client)
    await send(client, b"lost", i="DELAY\x011\x02")
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    await eventually(lambda: desk.parts.delay.levels.dropped == 1)
    assert in_topic(desk, "T") == []


async def test_the_progress_of_each_level_can_be_asked_for(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client, b"x", i="UNIQ_KEY\x01U\x02DELAY\x011\x02")
    await eventually(lambda: desk.parts.delay.levels.delivered == 1)
    answer = await client.ask(RequestCode.GET_ALL_DELAY_OFFSET)
    assert bytes(answer.body) == (b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable":{1:1}}')


async def test_progress_of_a_level_that_was_refused_is_told_again(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(client)
    propose = desk.parts.context.appender.propose
    refused: list[StateChange] = []

    def refuse_once(change: StateChange, done: ChangeDone) -> None:
        if not refused and any(DELAY_PROGRESS_GROUP in key for key in change.offsets):
            refused.append(change)
            asyncio.get_running_loop().call_soon(done, Refusal(Cause.DISK_FULL, "no room"))
        else:
            propose(change, done)

    monkeypatch.setattr(desk.parts.delay.deliveries, "_propose", refuse_once)
    await send(client, b"x", i="DELAY\x013\x02")
    await eventually(lambda: bool(refused))
    await eventually(
        lambda: desk.parts.context.state.offsets.get(f"{SCHEDULE_TOPIC}@{DELAY_PROGRESS_GROUP}") == {2: 1}, "progress"
    )
