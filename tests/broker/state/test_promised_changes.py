"""Changes that were answered hold: recalls, prohibitions, removed groups, moves of a group's offsets."""

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest

from broker.state.settings import GroupConfig, TopicConfig
from broker.state.tables import ReplicatedState, StateChange, when_all
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.refusal import Cause, Refusal
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, pull_fields, send
from tests.broker.delay.test_timer_messages import delivered, now_ms, send_timer
from tests.broker.groups.test_offsets import key, make_group
from tests.broker.pop.support import bodies, pop
from tests.broker.state.test_topic_lives import nothing_commits, placed

FORBID = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
RESET = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "offset": "1", "queueId": "0"}


@pytest.mark.parametrize("desk", [{"recall_enable": True}], indirect=True)
async def test_a_timer_is_not_delivered_while_its_recall_is_on_the_way(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    due = (now_ms() // 1000 + 2) * 1000 + 1  # the handle says when its slot begins
    sent = await send_timer(client, b"recalled", "K", TIMER_DELIVER_MS=due)
    fields = {"topic": "T", "recallHandle": sent.ext["recallHandle"], "producerGroup": "p"}
    await eventually(lambda: now_ms() > due - 700)
    with nothing_commits(desk):
        end = desk.store.log.max_offset
        recall = client.start(RequestCode.RECALL_MESSAGE, fields)
        await placed(desk, end)
        await eventually(lambda: now_ms() > due + 100)
    assert (await client.answer_to(recall)).code == 0
    await asyncio.sleep(0.2)
    assert delivered(desk) == []
    assert not desk.parts.delay.timer._recalled


async def test_two_prohibitions_of_one_turn_both_hold(desk: Desk, client: MemoryClient) -> None:
    other = desk.client()
    for topic in ("T", "U"):
        await make_topic(client, topic)
    await make_group(client)
    first = client.start(FORBID, {"group": "g", "topic": "T", "readable": "false"})
    second = other.start(FORBID, {"group": "g", "topic": "U", "readable": "false"})
    assert [(await client.answer_to(first)).code, (await other.answer_to(second)).code] == [0, 0]
    assert set(desk.parts.context.state.forbidden["g"]) == {"T", "U"}


async def test_a_group_made_again_does_not_get_what_the_one_before_took(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    await send(client, b"old")
    assert bodies(await pop(client, invisibleTime=500)) == [b"old"]
    body = {"groupName": "g", "cleanOffset": "true"}
    assert (await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, body)).code == 0
    assert not len(desk.parts.pop.progress.checkpoints)
    assert desk.parts.context.state.pop.checkpoints == {}
    await make_group(client)
    assert bodies(await pop(client, invisibleTime=60_000)) == [b"old"]
    await asyncio.sleep(0.7)
    assert not desk.store.queues.of_topic("%RETRY%g_T")


async def moved_desk(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client)
    await make_group(client)
    for _ in range(6):
        await send(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="4"))
    assert (await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET)).code == 0


@pytest.mark.parametrize("save_tables", [True, False])
async def test_a_reset_outlives_its_leader(desk: Desk, save_tables: bool) -> None:
    await moved_desk(desk)
    await desk.stop(save_tables=save_tables)
    await desk.start()
    client = desk.client()
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="5"))  # of before the reset
    assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, key())).ext["offset"] == "1"
    told = await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=4))
    assert (told.code, told.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    await eventually(lambda: not desk.parts.context.state.resets, "the log has it that the group was told")
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="2"))
    assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, key())).ext["offset"] == "2"
    assert (await client.ask(RequestCode.PULL_MESSAGE, pull_fields(offset=2))).code == 0
    await desk.stop(save_tables=save_tables)
    await desk.start()
    assert not desk.parts.context.offsets.has_resets


async def test_a_follower_sends_the_pull_of_a_moved_group_to_the_leader(desk: Desk) -> None:
    await moved_desk(desk)
    desk.parts.context.role.update(log_state(writable=False, generation=2))
    answer = await desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields(offset=4))
    assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    assert answer.ext["nextBeginOffset"] == "4"
    assert desk.parts.context.state.resets == {"T@g": {0: 1}}


def test_resets_are_part_of_a_snapshot() -> None:
    state, other = ReplicatedState(), ReplicatedState()
    state.resets = {"T@g": {0: 1}}
    other.restore(state.snapshot())
    assert (other.resets, state.copy().resets) == (state.resets, state.resets)


def test_resets_go_with_their_topic() -> None:
    state = ReplicatedState()
    state.resets = {"T@g": {0: 1}, "TT@g": {0: 1}}
    state.apply(StateChange(topics={"T": None}), 1, 5)
    assert state.resets == {"TT@g": {0: 1}}


async def test_a_timer_that_is_recalled_twice_waits_for_both(desk: Desk) -> None:
    timer = desk.parts.delay.timer
    for _ in range(2):
        timer.hold_back("K")
    timer.release("K")
    assert "K" in timer._recalled
    timer.release("K")
    assert not timer._recalled


def test_a_change_of_several_queues_is_answered_once_when_the_last_is_good_or_one_is_not() -> None:
    told: list[str] = []

    def outcome(refusal: Refusal | None) -> None:
        told.append("good" if refusal is None else "refused")

    done = when_all(2, outcome)
    done(None)
    assert told == []
    done(None)
    assert told == ["good"]
    done = when_all(3, outcome)
    for refusal in (None, Refusal(Cause.DISK_FULL, "no"), None):
        done(refusal)
    assert told == ["good", "refused"]


async def test_cloned_offsets_are_answered_when_the_log_has_them(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    await make_group(client, "h")
    await send(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"}
    assert (await client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)).code == 0
    assert desk.parts.context.state.offsets["T@h"] == {0: 1}


@pytest.mark.parametrize("desk", [{"max_groups": 150, "max_topics": 150}], indirect=True)
async def test_the_rest_of_a_list_is_refused_when_others_have_taken_the_room_between_two_steps(desk: Desk) -> None:
    metadata, state, heard = desk.parts.context.metadata, desk.parts.context.state, list[Refusal | None]()
    lists: list[Iterator[None]] = []
    for prefix in "ab":
        names = [f"{prefix}{number}" for number in range(101)]  # two records of each kind
        topics = [TopicConfig(name=name, read_queues=1, write_queues=1) for name in names]
        lists.append(islice(metadata.put_topics(topics, heard.append), len(topics), None))  # they are checked
        lists.append(metadata.put_groups([GroupConfig(name=name) for name in names], heard.append))
    for one in lists:
        next(one)
    await eventually(lambda: (len(state.topics), len(state.groups)) == (200, 200), "the first records are committed")
    for one in lists:
        assert list(one) == []
    assert [refusal.cause for refusal in heard if refusal is not None] == [Cause.INVALID_PARAMETER] * 4


async def test_a_topic_of_a_list_that_is_removed_between_two_steps_is_refused(desk: Desk) -> None:
    await make_topic(desk.client())
    metadata, heard = desk.parts.context.metadata, list[Refusal | None]()
    topic = metadata.topic("T")
    assert topic is not None
    steps = metadata.put_topics([topic], heard.append)
    next(steps)
    metadata.remove_topics(["T"])
    for _ in steps:
        pass
    assert [refusal.cause for refusal in heard if refusal is not None] == [Cause.BUSY]
    await eventually(
        lambda: metadata.topic("T") is None, "the removal is decided, and nothing has made the topic again"
    )
