"""What POP remembers: after a restart, after a group was moved, and when topics and groups go."""

import asyncio
from pathlib import Path

import orjson
import pytest

from broker.state.names import STATE_TOPIC
from broker.state.tables import ReplicatedState, StateChange
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, send, small_config
from tests.broker.groups.test_offsets import make_group
from tests.broker.pop.support import CODE, ack, bodies, handles, pop, pop_again, records
from tests.limits import WAIT_S


@pytest.fixture
async def topic(client: MemoryClient) -> str:
    await make_topic(client, "T", 1)
    return "T"


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
    await desk.parts.context.offsets.drain()
    await desk.stop(save_tables=False)
    await desk.start()
    try:
        client = desk.client()
        assert desk.parts.context.offsets.get("T", "g", 0) == 3
        taken: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while len(taken) < 2:
                taken += bodies(await pop_again(client))
        assert taken == [b"m0", b"m2"]
        await desk.parts.pop.progress.drain()
        await desk.parts.context.offsets.drain()
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
    await eventually(lambda: len(desk.parts.context.state.pop.checkpoints) == 1, "the checkpoint in the log")
    assert (await client.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await eventually(lambda: not desk.parts.context.state.pop.checkpoints, "no checkpoint")
    assert len(desk.parts.pop.progress.checkpoints) == 0


async def test_deleting_a_topic_deletes_what_comes_again_of_it(desk: Desk, client: MemoryClient, topic: str) -> None:
    await send(client, b"m")
    await pop(client, invisibleTime=100)
    await eventually(lambda: "%RETRY%g_T" in desk.parts.context.state.topics, "the retry topic")
    assert (await client.ask(CODE.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    await eventually(lambda: not {"T", "%RETRY%g_T"} & desk.parts.context.state.topics.keys(), "neither topic")


async def test_a_group_that_goes_blocks_nothing_and_nothing_of_it_comes_again(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    await pop(client, invisibleTime=400)
    await pop(client, consumerGroup="h", order="true")
    pops = desk.parts.context.state.pop
    await eventually(lambda: bool(pops.checkpoints and pops.orders), "both in the log")
    for group in ("g", "h"):
        fields = {"groupName": group, "cleanOffset": "true"}
        assert (await client.ask(CODE.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
    await eventually(lambda: not pops.checkpoints and not pops.orders, "nothing of them")
    revive = desk.parts.pop.revive
    assert (revive.revived, revive.dropped) == (0, 0)  # the removal itself took the checkpoint along
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
    assert not desk.parts.context.offsets.all().keys() & {"T@stranger", "Unknown@g"}


async def test_what_is_taken_and_acknowledged_at_once_leaves_no_checkpoint_in_the_log(
    desk: Desk, client: MemoryClient, topic: str
) -> None:
    await send(client, b"m")
    for handle in handles(await pop(client)):
        await ack(client, handle)
    version = desk.parts.context.state.pop.version
    await eventually(lambda: desk.parts.context.state.offsets.get("T@g") == {0: 1}, "the offset in the log")
    assert desk.parts.context.state.pop.version == version


async def test_wherever_a_leader_dies_what_was_taken_is_either_given_again_or_comes_again(
    desk: Desk, client: MemoryClient
) -> None:
    await make_topic(client, "T", 3)
    for number in range(30):
        await send(client, b"m%d" % number, queue=number % 3)
    for number in range(10):
        answer = await pop(client, queueId=number % 3, maxMsgNums=3, order="true" if number % 3 == 2 else "false")
        for handle in handles(answer) if number % 2 and answer.code == 0 else ():
            await ack(client, handle)
        if number % 2:
            desk.parts.pop.progress.send()
    await desk.parts.pop.progress.drain()
    await desk.parts.context.offsets.drain()
    state, seen = ReplicatedState(), 0
    for record in desk.records():
        if record.topic == STATE_TOPIC:
            state.apply(StateChange.decode(record.body, ""), 0)
        for checkpoint in state.pop.checkpoints.values():
            seen += 1
            assert state.offsets["T@g"][checkpoint.queue_id] > checkpoint.offsets[-1]
    assert seen > 0


async def test_in_order_an_acknowledgement_steps_over_nothing_that_a_dead_leader_had_given(tmp_path: Path) -> None:
    desk = Desk(small_config(tmp_path))
    await desk.start()
    client = desk.client()
    await make_topic(client)
    await make_group(client)
    for number in range(3):
        await send(client, b"m%d" % number)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "0"}
    assert (await client.ask(CODE.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    given = await pop(client, order="true")
    await desk.stop(save_tables=False)
    await desk.start()
    client = desk.client()
    assert (await ack(client, handles(given)[1])).code == 0
    assert bodies(await pop(client, order="true")) == [b"m0", b"m1", b"m2"]
    await desk.stop()
