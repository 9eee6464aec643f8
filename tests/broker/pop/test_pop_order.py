"""POP in order: a queue gives nothing more until what it gave is done, or visible again."""

import asyncio
import time

import pytest

from tests.broker.conftest import Desk, MemoryClient, make_topic, send
from tests.broker.groups.test_offsets import make_group
from tests.broker.pop.support import CODE, ack, bodies, handle_fields, handles, pop, pop_again, pop_fields


@pytest.fixture
async def topic(client: MemoryClient) -> str:
    await make_topic(client, "T", 1)
    return "T"


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
    assert desk.parts.context.offsets.get("T", "g", 0) == 2


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


async def test_an_orderly_look_is_told_at_its_end_of_what_the_same_attempt_took(client: MemoryClient) -> None:
    await make_topic(client)
    await make_group(client)
    await send(client, b"m")
    await pop(client, order="true", attemptId="other", invisibleTime=300)
    looks = pop_fields(order="true", attemptId="A", pollTime=1500)
    asked = client.start(CODE.NOTIFICATION, looks | {"bornTime": str(time.time_ns() // 1_000_000)})
    await asyncio.sleep(0.4)
    taken = await client.ask(CODE.POP_MESSAGE, pop_fields(order="true", attemptId="A"))
    assert bodies(taken) == [b"m"]
    assert (await client.answer_to(asked)).ext["hasMsg"] == "true"
