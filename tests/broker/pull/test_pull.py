"""Pulls: every result and refusal, filtering, and long polling."""

import asyncio
from typing import Any

import orjson
import pytest

from broker.pull import processor
from ledgermq.message.record import decode_records
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import (
    Desk,
    MemoryClient,
    eventually,
    log_state,
    make_topic,
    pull_fields,
    send,
    send_fields,
    topic_fields,
)

PULL = RequestCode.PULL_MESSAGE
HELD = {"sysFlag": 4 | 2, "suspendTimeoutMillis": 20_000}
TAG_B = "UNIQ_KEY\x01B\x02TAGS\x01TagB\x02"


async def fill(client: MemoryClient, count: int, topic: str = "T", **changes: str) -> None:
    client.give(*(Command(310, 5000 + n, ext=send_fields(topic, **changes), body=b"m%d" % n) for n in range(count)))
    await client.answer_to(5000 + count - 1)


def bounds(answer: Command) -> tuple[str, str, str]:
    return answer.ext["nextBeginOffset"], answer.ext["minOffset"], answer.ext["maxOffset"]


async def test_a_pull_gives_the_records_from_its_offset_on(client: MemoryClient) -> None:
    await make_topic(client)
    await fill(client, 5)
    answer = await client.ask(PULL, pull_fields(offset=2))
    assert (answer.code, answer.remark) == (0, "FOUND")
    assert bounds(answer) == ("5", "0", "5")
    assert answer.ext["suggestWhichBrokerId"] == "0"
    records = decode_records(answer.body)
    assert [record.body for record in records] == [b"m2", b"m3", b"m4"]
    assert [record.queue_offset for record in records] == [2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"maxMsgNums": 3}, 3),
        ({"maxMsgNums": 1000}, 32),
        ({"maxMsgBytes": 1}, 1),
        ({"maxMsgBytes": 600}, 3),
        ({"maxMsgNums": 1000, "bulk": "true"}, 40),
        ({"maxMsgNums": 39, "bulk": "true"}, 39),
        ({"maxMsgNums": 1000, "maxMsgBytes": 600, "bulk": "true"}, 3),
    ],
)
async def test_a_pull_keeps_to_the_asked_and_the_own_limits(
    client: MemoryClient, changes: dict[str, Any], count: int
) -> None:
    await make_topic(client)
    await fill(client, 40)
    answer = await client.ask(PULL, pull_fields(**changes))
    assert len(decode_records(answer.body)) == count
    assert answer.ext["nextBeginOffset"] == str(count)
    assert answer.ext.get("bulk") == changes.get("bulk"), "a client learns whether this broker knows of it"


@pytest.mark.parametrize("desk", [{"bulk_pull_bytes": 4000}], indirect=True)
async def test_a_bulk_pull_has_limits_of_its_own(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_topic(client)
    await fill(client, 60)
    most = {"maxMsgNums": 10**6, "maxMsgBytes": 10**6, "bulk": "true"}
    answer = await client.ask(PULL, pull_fields(**most))
    assert 4000 - 400 < len(answer.body) <= 4000
    monkeypatch.setattr(processor, "BULK_COUNT_MAX", 5)
    assert len(decode_records((await client.ask(PULL, pull_fields(**most))).body)) == 5


@pytest.mark.parametrize(
    ("stored", "offset", "code", "status", "next_offset"),
    [
        (0, 0, 19, "NO_MESSAGE_IN_QUEUE", "0"),
        (0, 7, 21, "NO_MESSAGE_IN_QUEUE", "0"),
        (5, 5, 19, "OFFSET_OVERFLOW_ONE", "5"),
        (5, 9, 21, "OFFSET_OVERFLOW_BADLY", "5"),
        (5, -1, 21, "OFFSET_TOO_SMALL", "0"),
    ],
)
async def test_an_offset_without_a_message_is_answered_with_where_to_go_on(
    client: MemoryClient, stored: int, offset: int, code: int, status: str, next_offset: str
) -> None:
    await make_topic(client)
    if stored:
        await fill(client, stored)
    answer = await client.ask(PULL, pull_fields(offset=offset))
    assert (answer.code, answer.remark) == (code, status)
    assert bounds(answer) == (next_offset, "0", str(stored))
    assert not answer.body


async def test_a_tag_filter_passes_over_what_it_does_not_want(client: MemoryClient) -> None:
    await make_topic(client)
    await fill(client, 3)
    nothing = await client.ask(PULL, pull_fields(subscription="TagX||TagY"))
    assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
    assert bounds(nothing) == ("3", "0", "3")
    await send(client, b"wanted", i=TAG_B)
    found = await client.ask(PULL, pull_fields(subscription="TagX || TagB"))
    assert [record.body for record in decode_records(found.body)] == [b"wanted"]
    assert found.ext["nextBeginOffset"] == "4"


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"topic": "none"}, 17, "topic[none] not exist"),
        ({"topic": "unreadable"}, 16, "topic[unreadable] pulling message is forbidden"),
        ({"topic": "rmq_sys_ledgermq_state"}, 16, "forbidden"),
        ({"queueId": 1}, 29, "queueId[1] is illegal"),
        ({"queueId": -1}, 29, "queueId[-1] is illegal"),
        ({"queueId": "zero"}, 1, "field queueId is not a number: 'zero'"),
        ({"queueOffset": None}, 1, "field queueOffset is missing"),
        ({"consumerGroup": None}, 1, "field consumerGroup is missing"),
        ({"consumerGroup": "a.b"}, 29, "illegal characters"),
        ({"subscription": "||"}, 23, "subscription failed"),
        ({"expressionType": "SQL92", "subscription": "a > 1"}, 1, "SQL92"),
        ({"sysFlag": 0}, 24, "group info not exist"),
    ],
)
async def test_a_pull_that_cannot_be_served_is_refused_with_its_cause(
    client: MemoryClient, changes: dict[str, object], code: int, part: str
) -> None:
    await make_topic(client)
    await make_topic(client, "unreadable", perm=2)
    answer = await client.ask(PULL, pull_fields(**changes))
    assert answer.code == code
    assert part in (answer.remark or "")


@pytest.mark.parametrize("limits", [{"maxMsgNums": 0}, {"maxMsgNums": -1}, {"maxMsgBytes": 0}, {"maxMsgBytes": -1}])
async def test_one_message_is_given_whatever_the_client_allows(client: MemoryClient, limits: dict[str, int]) -> None:
    await make_topic(client)
    for body in (b"first", b"second"):
        await send(client, body)
    answer = await client.ask(PULL, pull_fields(**limits))
    assert [record.body for record in decode_records(answer.body)] == [b"first"]
    assert answer.ext["nextBeginOffset"] == "1"


async def test_negative_queue_counts_and_permissions_are_kept(desk: Desk, client: MemoryClient) -> None:
    fields = topic_fields("T") | {"readQueueNums": "-1", "writeQueueNums": "-1", "perm": "-1", "topicSysFlag": "-1"}
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code == 0
    assert (await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(queue=-1), b"x")).code == 29
    await desk.stop()
    await desk.start()
    topic = desk.parts.context.state.topics["T"]
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag) == (-1, -1, -1, -1)


async def test_progress_tells_how_far_a_group_has_pulled(client: MemoryClient) -> None:
    await make_topic(client)
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"g"}')).code == 0
    for _ in range(3):
        await send(client)
    fields = {"topic": "T", "consumerGroup": "g", "queueId": "0"}
    await client.ask(PULL, pull_fields(offset=1))
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": "1"})
    stats = await client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"})
    assert b'"consumerOffset":1' in bytes(stats.body)
    assert b'"pullOffset":3' in bytes(stats.body)


async def test_a_disabled_group_gets_nothing(client: MemoryClient) -> None:
    await make_topic(client)
    body = b'{"groupName":"g","consumeEnable":false}'
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)).code == 0
    answer = await client.ask(PULL, pull_fields())
    assert answer.code == 16
    assert "g" in (answer.remark or "")


@pytest.mark.parametrize("desk", [{"auto_create_group": False}], indirect=True)
async def test_an_unknown_group_is_refused_where_groups_are_not_made(client: MemoryClient) -> None:
    await make_topic(client)
    answer = await client.ask(PULL, pull_fields())
    assert answer.code == 26


async def test_the_first_pull_of_a_group_makes_it(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await client.ask(PULL, pull_fields())
    await eventually(lambda: "g" in desk.parts.context.state.groups)


# ---- long polling


async def test_a_held_pull_is_answered_by_the_message_it_waits_for(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaque = client.start(PULL, pull_fields(**HELD))
    assert len(desk.parts.pull.held) == 1
    await send(desk.client(), b"news")
    answer = await client.answer_to(opaque)
    assert [record.body for record in decode_records(answer.body)] == [b"news"]
    assert len(desk.parts.pull.held) == 0


async def test_a_pull_held_for_a_tag_sleeps_through_others(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaque = client.start(PULL, pull_fields(subscription="TagB", **HELD))
    sender = desk.client()
    await fill(sender, 3)
    client.take()
    assert opaque not in client.answers
    assert len(desk.parts.pull.held) == 1
    await send(sender, b"mine", i=TAG_B)
    answer = await client.answer_to(opaque)
    assert [record.body for record in decode_records(answer.body)] == [b"mine"]
    assert answer.ext["nextBeginOffset"] == "4"


async def test_a_held_pull_whose_time_is_over_is_answered(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    plain = client.start(PULL, pull_fields(**{**HELD, "suspendTimeoutMillis": 0}))
    tagged = client.start(PULL, pull_fields(subscription="TagB", **{**HELD, "suspendTimeoutMillis": 0}))
    desk.parts.pull.held.sweep()
    assert (await client.answer_to(plain)).code == 19
    assert (await client.answer_to(tagged)).code == 19


async def test_a_pull_that_slept_through_others_goes_on_behind_them(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaque = client.start(PULL, pull_fields(subscription="TagB", **HELD))
    await fill(desk.client(), 3)
    desk.parts.pull.held.release()
    answer = await client.answer_to(opaque)
    assert answer.code == 20
    assert answer.ext["nextBeginOffset"] == "3"


async def test_a_pull_of_a_closed_connection_is_forgotten(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    client.start(PULL, pull_fields(**HELD))
    client.close()
    desk.parts.pull.held.sweep()
    assert len(desk.parts.pull.held) == 0
    await send(desk.client())


async def test_a_held_pull_does_not_hold_up_its_connection(client: MemoryClient) -> None:
    await make_topic(client)
    client.start(PULL, pull_fields(**HELD))
    assert (await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})).ext["offset"] == "0"


async def test_removing_a_topic_answers_its_held_pulls(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaque = client.start(PULL, pull_fields(**HELD))
    await desk.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (await client.answer_to(opaque)).code == 19


async def test_a_thousand_held_pulls_are_all_woken(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaques = [client.start(PULL, pull_fields(consumerGroup=f"g{n}", **HELD)) for n in range(1000)]
    await send(desk.client(), b"for all")
    for opaque in opaques:
        assert (await client.answer_to(opaque)).code == 0


async def test_so_many_pulls_wait_for_messages_of_one_queue(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pull.held_pulls.OF_QUEUE_MAX", 2)
    await make_topic(client)
    held = [client.start(PULL, pull_fields(consumerGroup=f"g{n}", **HELD)) for n in range(2)]
    assert (await client.ask(PULL, pull_fields(consumerGroup="g2", **HELD))).code == 2
    await send(desk.client(), b"for all")
    for opaque in held:
        assert (await client.answer_to(opaque)).code == 0
    opaque = client.start(PULL, pull_fields(offset=1, **HELD))
    await send(desk.client(), b"again")
    assert (await client.answer_to(opaque)).code == 0


@pytest.mark.parametrize("desk", [{}, {"held_pulls_max": 20}], indirect=True)
async def test_for_a_client_s_pull_the_one_with_most_gives_some_up(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pull.held_pulls.OF_QUEUE_MAX", 20)
    await make_topic(client)
    greedy, modest = desk.client(), desk.client()
    many = [greedy.start(PULL, pull_fields(consumerGroup=f"g{n}", **HELD)) for n in range(19)]
    few = [modest.start(PULL, pull_fields(consumerGroup="modest", **HELD)) for _ in range(2)]
    given_up = [(await greedy.answer_to(opaque)).code for opaque in many[:3]]
    assert given_up == [19, 19, 19], "the oldest ones"
    assert len(desk.parts.pull.held) == 18
    many += [greedy.start(PULL, pull_fields(consumerGroup=f"h{n}", **HELD)) for n in range(2)]
    assert (await greedy.ask(PULL, pull_fields(consumerGroup="h9", **HELD))).code == 2
    await send(desk.client(), b"for all")
    for whose, opaque in [(modest, opaque) for opaque in few] + [(greedy, opaque) for opaque in many[3:]]:
        assert (await whose.answer_to(opaque)).code == 0
    held = desk.parts.pull.held
    assert not (held._of_queue or held._holders or held._all_holders or len(held))


async def test_one_connection_leaves_room_for_the_pulls_of_others(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.pull.held_pulls.OF_CONNECTION_MAX", 2)
    await make_topic(client)
    held = [client.start(PULL, pull_fields(consumerGroup=f"g{n}", **HELD)) for n in range(2)]
    assert (await client.ask(PULL, pull_fields(consumerGroup="g2", **HELD))).code == 2
    other = desk.client()
    others = other.start(PULL, pull_fields(consumerGroup="g3", **HELD))
    await send(desk.client(), b"for all")
    assert (await other.answer_to(others)).code == 0
    for opaque in held:
        assert (await client.answer_to(opaque)).code == 0
    opaque = client.start(PULL, pull_fields(offset=1, **HELD))
    await send(desk.client(), b"again")
    assert (await client.answer_to(opaque)).code == 0


@pytest.mark.parametrize("desk", [{"long_polling": False, "short_polling_ms": 0}], indirect=True)
async def test_without_long_polling_a_pull_is_held_only_shortly(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    opaque = client.start(PULL, pull_fields(**HELD))
    desk.parts.pull.held.sweep()
    assert (await client.answer_to(opaque)).code == 19


# ---- followers


async def test_a_follower_serves_what_is_confirmed_and_calls_no_offset_illegal(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client)
    await fill(client, 3)
    desk.parts.on_role_change(log_state(writable=False, generation=4))
    found = await client.ask(PULL, pull_fields())
    assert (found.code, found.ext["nextBeginOffset"], found.ext["suggestWhichBrokerId"]) == (0, "3", "1")
    for offset in (9, -1):
        outside = await client.ask(PULL, pull_fields(offset=offset))
        assert (outside.code, outside.ext["nextBeginOffset"]) == (20, str(offset))
        assert outside.ext["suggestWhichBrokerId"] == "0", "the leader knows whether there is such an offset"
    opaque = client.start(PULL, pull_fields(offset=9, **HELD))
    await asyncio.sleep(0)
    client.take()
    assert opaque not in client.answers


@pytest.mark.parametrize(("named", "suggested"), [((0, 1), "1"), ((3, 1), "3"), ((0, 2), "0")])
async def test_where_readers_are_spread_a_groups_settings_count_only_if_they_name_other_brokers_than_by_default(
    desk: Desk, client: MemoryClient, named: tuple[int, int], suggested: str
) -> None:
    await make_topic(client)
    await fill(client, 3)
    settings = {"groupName": "g", "brokerId": named[0], "whichBrokerWhenConsumeSlowly": named[1]}
    body = orjson.dumps(settings)
    assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
    desk.config.slave_read = True
    desk.parts.on_role_change(log_state(writable=False, generation=4))
    found = await client.ask(PULL, pull_fields())
    assert (found.code, found.ext["suggestWhichBrokerId"]) == (0, suggested)


@pytest.mark.parametrize(("stored", "still_leads"), [(3, True), (3, False), (0, True), (0, False)])
async def test_a_leader_calls_no_offset_illegal_before_it_would_know_that_it_stood_still_and_another_one_leads(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, stored: int, still_leads: bool
) -> None:
    await make_topic(client)
    if stored:
        await fill(client, stored)
    desk.parts.on_role_change(log_state(writable=True, generation=4))
    held, now_s = desk.parts.pull.held, desk.parts.pull.held.now()
    monkeypatch.setattr(held, "_clock", lambda: now_s)
    opaque = client.start(PULL, pull_fields(offset=9, **HELD))
    await asyncio.sleep(0)
    client.take()
    assert opaque not in client.answers
    if not still_leads:
        desk.parts.on_role_change(log_state(writable=False, generation=5))
    now_s += processor.DOUBT_SECONDS
    held.sweep()
    answer = await client.answer_to(opaque)
    assert (answer.code, answer.ext["nextBeginOffset"]) == ((21, str(stored)) if still_leads else (20, "9"))


async def test_the_offset_that_a_pull_reports_is_taken_by_the_leader_only(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await fill(client, 3)
    commit = {"sysFlag": 4 | 1}
    await client.ask(PULL, pull_fields(commitOffset=1, **commit))
    assert desk.parts.context.offsets.get("T", "g", 0) == 1
    desk.parts.on_role_change(log_state(writable=False, generation=4))
    found = await client.ask(PULL, pull_fields(commitOffset=2, **commit))
    assert found.code == 0
    assert desk.parts.context.offsets.get("T", "g", 0) != 2, "a follower's offsets are those of the log alone"
