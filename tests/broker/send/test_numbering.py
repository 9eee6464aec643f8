"""Batches whose messages are numbered: nothing is stored twice, whatever is sent again, and whoever leads."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.state.files import StateWriter, load_state
from broker.state.lanes import Lane
from broker.state.tables import NewerNames, ReplicatedState, StateChange
from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, send_fields, topic_fields
from tests.broker.state.test_topic_lives import nothing_commits
from tests.broker.test_raft_brokers import Group, group

__all__ = ["group"]

P = "query-1/0"
KEY = f"T@0@{P}"


def body_of(first: int, count: int, properties: bytes = b"TAGS\x01t\x02") -> bytes:
    return encode_batch((0, b"m%d" % number, properties) for number in range(first, first + count))


def fields(first: int | str, producer: str = P, **more: str) -> dict[str, str]:
    return send_fields(m="true", i="UNIQ_KEY\x01WHOLE\x02", numberedBy=producer, firstNumber=str(first), **more)


async def send_batch(client: MemoryClient, first: int, count: int, producer: str = P, **more: str) -> Command:
    return await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(first, producer, **more), body_of(first, count))


def bodies(desk: Desk) -> list[bytes]:
    return [record.body for record in desk.records() if record.topic == "T"]


def names(*numbers: int) -> list[bytes]:
    return [b"m%d" % number for number in numbers]


async def test_what_is_sent_again_is_stored_once(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    assert (await send_batch(client, 0, 3)).ext["queueOffset"] == "0"
    again = await send_batch(client, 0, 3)
    assert (again.code, again.ext["lastNumber"]) == (0, "2")
    assert (await send_batch(client, 1, 4)).ext["queueOffset"] == "3"
    assert (await send_batch(client, 100, 1)).code == 0  # numbers need not be without gaps
    assert (await send_batch(client, 3, 2)).ext["lastNumber"] == "100"  # all below the last request is stored
    assert bodies(desk) == names(0, 1, 2, 3, 4, 100)
    records = [record for record in desk.records() if record.topic == "T"]
    assert [record.property_map["LEDGERMQ_NUMBER"] for record in records[:2]] == [f"{P}:0", f"{P}:1"]
    assert {record.tags for record in records} == {"t"}
    await send_batch(client, 0, 1, "another")
    assert bodies(desk)[-1:] == names(0)


async def test_special_properties_do_not_matter(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    special = body_of(0, 2, b"__SHARDINGKEY\x01s")
    for _ in range(2):
        assert (await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(0), special)).code == 0
    assert bodies(desk) == names(0, 1)


@pytest.mark.parametrize("save_tables", [True, False])
async def test_numbers_outlive_a_restart(desk: Desk, client: MemoryClient, save_tables: bool) -> None:
    await make_topic(client)
    await send_batch(client, 0, 3)
    lane = desk.parts.context.state.lanes[KEY]
    await desk.stop(save_tables=save_tables)
    await desk.start()
    assert desk.parts.context.state.lanes == {KEY: lane}
    await send_batch(desk.client(), 0, 5)
    assert bodies(desk) == names(0, 1, 2, 3, 4)
    assert await asked(desk.client()) == "4"


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_what_a_failover_has_left_of_a_request_is_completed(desk: Desk, client: MemoryClient, kept: int) -> None:
    await make_topic(client)
    await send_batch(client, 0, 2)
    numbered = [record.properties for record in desk.records() if record.topic == "T"]
    context = desk.parts.context
    context.appender.add(context.drafts.state(StateChange(lanes={KEY: Lane(2, 4)}).encode()))
    for number in range(2, 2 + kept):
        own = numbered[0].replace(b":0\x02", b":%d\x02" % number)
        context.appender.add(
            context.drafts.new(context.targets.target("T", 0), b"m%d" % number, own, born=(1, bytes(8)))
        )
    await send(client, b"another's")
    await desk.stop()
    await desk.start()
    for _ in range(2):
        await send_batch(desk.client(), 2, 3)
    left = range(2, 2 + kept)
    assert bodies(desk) == [*names(0, 1, *left), b"another's", *names(*range(2 + kept, 5))]


async def test_a_copy_of_another_lane_s_message_is_not_taken_for_one_that_is_missing(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await send_batch(client, 0, 2)
    context = desk.parts.context
    own = next(record.properties for record in desk.records() if record.topic == "T").replace(b":0\x02", b":2\x02")
    context.appender.add(context.drafts.state(StateChange(lanes={KEY: Lane(2, 3)}).encode()))
    copy = context.drafts.new(context.targets.target("T", 1), b"copy", own, born=(1, bytes(8)))
    context.appender.add(copy)
    await send(client, b"another's")
    desk.parts.send._numbering.follow()
    await send_batch(client, 2, 2)
    assert bodies(desk) == [*names(0, 1), b"copy", b"another's", *names(2, 3)]


async def test_a_request_that_is_under_way_is_not_begun_again(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    with nothing_commits(desk):
        first = client.start(RequestCode.SEND_BATCH_MESSAGE, fields(0), body_of(0, 3))
        second = await send_batch(desk.client(), 0, 3)
        assert (second.code, second.ext["cause"]) == (ResponseCode.SYSTEM_BUSY, "busy")
    assert (await client.answer_to(first)).code == 0
    assert (await send_batch(client, 0, 3)).ext["lastNumber"] == "2"
    assert bodies(desk) == names(0, 1, 2)


async def asked(client: MemoryClient) -> str:
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(0))
    return answer.ext.get("lastNumber", answer.ext.get("cause", ""))


async def test_a_question_is_told_in_which_queues_a_producer_has_messages_from_a_number_on(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, queues=4)
    await send_batch(client, 0, 3, e="1")
    await send_batch(client, 7, 1, e="3")
    await send_batch(client, 9, 1, "another", e="2")

    async def begun(first: int, producer: str = P) -> str:
        answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(first, producer))
        return answer.ext["begunIn"]

    assert [await begun(first) for first in (0, 2, 3, 7, 8)] == ["1,3", "1,3", "3", "3", ""]
    assert await begun(0, "another") == "2"
    assert await begun(0, "nobody") == ""


async def test_a_question_about_a_queue_waits_for_no_request_that_goes_on_in_another_one(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, queues=2)
    for first in (0, 2):
        await send_batch(client, first, 2, e="1")
    with nothing_commits(desk):
        goes_on = client.start(RequestCode.SEND_BATCH_MESSAGE, fields(4, e="1"), body_of(4, 2))
        with patch.object(desk.store.log, "walk", side_effect=AssertionError("nothing needs to be read")):
            answer = await desk.client().ask(RequestCode.SEND_BATCH_MESSAGE, fields(0))
        assert (answer.ext["lastNumber"], answer.ext["begunIn"]) == ("-1", "1")
    assert (await client.answer_to(goes_on)).code == 0


async def test_a_request_is_under_way_until_it_is_dispatched_or_another_node_leads(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    numbering = desk.parts.send._numbering
    with nothing_commits(desk):
        client.start(RequestCode.SEND_BATCH_MESSAGE, fields(0), body_of(0, 3))
        await eventually(lambda: KEY in numbering._under_way and numbering._under_way[KEY].end > 0)
        numbering._under_way[KEY].is_answered = True  # as by a refusal of what is placed
        assert await asked(desk.client()) == "busy"
        numbering.follow()
        assert await asked(desk.client()) == "-1"
    await eventually(lambda: bodies(desk) == names(0, 1, 2))
    assert await asked(desk.client()) == "2"


async def test_what_was_counted_holds_until_another_node_leads_and_for_the_record_that_tells_of_it(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await send_batch(client, 0, 3)
    assert await asked(client) == "2"
    lanes = desk.parts.context.state.lanes
    lanes[KEY] = replace(lanes[KEY], last=4)  # another request lies there now
    assert await asked(client) == "2"
    desk.parts.send._numbering.follow()
    assert await asked(client) == "-1"


async def test_a_request_of_which_nothing_was_placed_may_come_again(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send(client)
    opaque = client.start(RequestCode.SEND_BATCH_MESSAGE, fields(0), body_of(0, 3))
    desk.store.disk_full = "no room"
    assert (await client.answer_to(opaque)).ext["cause"] == "disk-full"
    desk.store.disk_full = None
    await send_batch(client, 0, 3)
    assert bodies(desk)[1:] == names(0, 1, 2)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"numberedBy": ""}, "malformed-field"),
        ({"numberedBy": "a@b"}, "invalid-parameter"),
        ({"numberedBy": "p" * 65}, "invalid-parameter"),
        ({"firstNumber": "x"}, "malformed-field"),
        ({"firstNumber": "-1"}, "invalid-parameter"),
        ({"firstNumber": str((1 << 63) - 2)}, "invalid-parameter"),
    ],
)
async def test_names_and_numbers_that_are_refused(
    desk: Desk, client: MemoryClient, changes: dict[str, str], cause: str
) -> None:
    await make_topic(client)
    answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields(0) | changes, body_of(0, 3))
    assert answer.ext["cause"] == cause
    too_many = await send_batch(client, 0, 4097)
    assert too_many.ext["cause"] == "message-illegal"
    assert bodies(desk) == []


async def test_too_many_messages_are_refused_though_some_are_stored(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    desk.parts.send.processor._batch_max = 3
    await send_batch(client, 0, 3)
    for count in (4, 6):
        refused = await send_batch(client, 0, count)
        assert refused.ext["cause"] == "message-illegal"
        assert "maxMessagesOfBatch" in (refused.remark or "")
    await send_batch(client, 2, 3)
    assert bodies(desk) == names(0, 1, 2, 3, 4)


async def test_lanes_are_bounded_and_expire(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    context = desk.parts.context
    object.__setattr__(context.config, "lanes_max", 2)
    for producer in ("a", "b"):
        assert (await send_batch(client, 0, 1, producer)).code == 0
    refused = await send_batch(client, 0, 1, "c")
    assert (refused.code, refused.ext["cause"]) == (ResponseCode.INVALID_PARAMETER, "invalid-parameter")
    assert "maxNumberedLanes" in (refused.remark or "")
    assert (await send_batch(client, 1, 1, "a")).code == 0
    now_ms = context.clock_ms()
    numbering = desk.parts.send._numbering
    numbering._clock_ms = lambda: now_ms + 169 * 3_600_000
    numbering.forget_old()
    await eventually(lambda: not context.state.lanes)
    assert (await send_batch(client, 0, 1, "c")).code == 0


async def test_an_old_lane_with_a_request_under_way_is_not_forgotten(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_batch(client, 0, 3)
    numbering, now_ms = desk.parts.send._numbering, desk.parts.context.clock_ms()
    with nothing_commits(desk):
        opaque = client.start(RequestCode.SEND_BATCH_MESSAGE, fields(3), body_of(3, 2))
        await eventually(lambda: KEY in numbering._under_way)
        numbering._clock_ms = lambda: now_ms + 169 * 3_600_000
        numbering.forget_old()
        numbering._clock_ms = lambda: now_ms
    await client.answer_to(opaque)
    assert await asked(client) == "4"


async def test_where_the_log_is_deleted_nobody_guesses(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await send_batch(client, 0, 3)
    desk.parts.send._numbering.follow()  # as for a new leader
    state = desk.parts.context.state
    state.lanes[KEY] = Lane(0, 2, desk.store.log.min_offset - 1, 1)
    refused = await send_batch(client, 0, 3)
    assert (refused.ext["cause"], "deleted" in (refused.remark or "")) == ("query-not-found", True)
    assert (await send_batch(client, 3, 1)).code == 0


def test_lanes_in_snapshots_and_with_their_topic() -> None:
    state, copy = ReplicatedState(), ReplicatedState()
    state.apply(StateChange(lanes={KEY: Lane(0, 4), "U@0@p": Lane(5, 5)}), 77, 1234)
    assert state.lanes[KEY] == Lane(0, 4, 1234, 77)
    copy.restore(state.snapshot())
    assert copy.lanes == state.lanes
    change = StateChange(lanes={KEY: Lane(0, 4)})
    assert NewerNames(topics={"T"}).without(change) == change
    state.apply(StateChange(topics={"T": None}), 78, 2000)
    assert list(state.lanes) == ["U@0@p"]
    state.apply(StateChange(lanes={"U@0@p": None}), 79, 3000)
    assert not state.lanes


def test_lanes_on_disk_follow_the_table(tmp_path: Path) -> None:
    state, installed = ReplicatedState(), ReplicatedState()
    writer = StateWriter(tmp_path)
    state.apply(StateChange(lanes={KEY: Lane(0, 4), "U@0@p": Lane(5, 5)}), 77, 1234)
    writer.write(state)
    assert load_state(tmp_path).lanes == state.lanes
    state.apply(StateChange(topics={"T": None}), 78, 2000)
    writer.write(state)
    assert load_state(tmp_path).lanes == state.lanes == {"U@0@p": Lane(5, 5, 1234, 77)}
    installed.restore(state.snapshot())  # by a member that knew of no lane
    StateWriter(tmp_path / "other").rewrite(installed)
    assert load_state(tmp_path / "other").lanes == state.lanes
    writer.write(installed.copy())
    assert load_state(tmp_path).lanes == state.lanes


async def test_a_new_leader_knows_the_numbers(group: Group) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.ask_leader(RequestCode.SEND_BATCH_MESSAGE, fields(0), body_of(0, 3))
    old = group.leader
    group.brokers.remove(old)
    await old.close()
    await group.led()
    again = await group.ask_leader(RequestCode.SEND_BATCH_MESSAGE, fields(0), body_of(0, 5))
    assert again.ext["queueOffset"] == "3"
    queue = group.leader.parts.context.store.queues.find("T", 0)
    assert queue is not None
    await eventually(lambda: queue.max_offset == 5)
