"""Costly filters: the loop gets its turns, pulls and pops come to their end all the same."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.turns import TurnQueue
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from store.queues.queue_reader import FILTER_SLICE_S, GetResult
from tests.broker.conftest import Desk, MemoryClient, eventually, make_topic, pull_fields, send
from tests.broker.pop.support import bodies, pop, pop_fields

with_small_scans = pytest.mark.parametrize(
    "desk", [{"property_filter": True, "maxFilterMessageSize": 1}], indirect=True
)
SQL = {"expressionType": "SQL92"}
COUNT = 100  # a scan is of 32 messages


async def many(client: MemoryClient) -> None:
    await make_topic(client, "T", 1)
    for number in range(COUNT):
        await send(client, b"m%d" % number, i=f"UNIQ_KEY\x010{number}\x02a\x01{number}\x02TAGS\x01T{number}\x02")


async def test_between_costly_reads_the_loop_has_its_turns(spend: Callable[[float], None]) -> None:
    loop = asyncio.get_running_loop()
    turns, seen = TurnQueue(loop), []

    def read(name: str) -> None:
        seen.append(name)
        loop.call_soon(seen.append, "turn")
        spend(FILTER_SLICE_S * 1.5)

    for name in "abc":
        turns.run(functools.partial(read, name))
    assert (seen, len(turns)) == (["a"], 2)
    await eventually(lambda: len(seen) == 6)
    assert [name for name in seen if name != "turn"] == ["a", "b", "c"]
    assert seen.index("turn") < seen.index("c")


async def test_cheap_reads_are_not_put_off() -> None:
    turns, seen = TurnQueue(asyncio.get_running_loop()), []
    turns.run(lambda: seen.append("a"))
    assert seen == ["a"]


async def test_a_read_put_off_comes_in_a_later_turn() -> None:
    turns, seen = TurnQueue(asyncio.get_running_loop()), []
    turns.run_later(lambda: seen.append("a"))
    assert seen == []
    await eventually(lambda: seen == ["a"])


async def test_steps_are_taken_a_slice_at_a_time(spend: Callable[[float], None]) -> None:
    loop = asyncio.get_running_loop()
    turns, seen = TurnQueue(loop), list[str]()

    def steps() -> Iterator[None]:
        for name in "abc":
            seen.append(name)
            loop.call_soon(seen.append, "turn")
            spend(FILTER_SLICE_S * 1.5)
            yield

    turns.run_steps(steps())
    assert seen == ["a"]
    await eventually(lambda: len(seen) == 6)
    assert [name for name in seen if name != "turn"] == ["a", "b", "c"]
    assert seen.index("turn") < seen.index("c")


@with_small_scans
async def test_many_pulls_through_costly_filters_are_all_answered(client: MemoryClient) -> None:
    await many(client)
    opaques = [
        client.start(RequestCode.PULL_MESSAGE, pull_fields(subscription=f"a = {number}", **SQL)) for number in range(20)
    ]
    for number, opaque in enumerate(opaques):
        answer = await client.answer_to(opaque)
        assert answer.code == ResponseCode.SUCCESS
        assert bytes(answer.body).count(b"m%d" % number) == 1


@with_small_scans
@pytest.mark.parametrize(("kind", "expression"), [("SQL92", "a = 99"), ("TAG", "T99")])
async def test_a_pop_goes_on_behind_what_its_filter_keeps_back(
    client: MemoryClient, kind: str, expression: str
) -> None:
    await many(client)
    answer = await pop(client, pollTime=8000, exp=expression, expType=kind)
    assert bodies(answer) == [b"m99"]


@with_small_scans
async def test_a_pop_that_may_not_wait_is_answered_and_the_next_one_goes_on(client: MemoryClient) -> None:
    await many(client)
    answers = [await pop(client, exp="a = 99", expType="SQL92") for _ in range(4)]
    assert [answer.code for answer in answers] == [ResponseCode.POLLING_TIMEOUT] * 3 + [ResponseCode.SUCCESS]


@pytest.mark.parametrize("desk", [{"property_filter": True}], indirect=True)
async def test_a_read_that_fails_in_a_later_turn_is_answered_and_the_others_go_on(
    desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await many(client)
    get, calls = desk.parts.context.store.reader.get, iter(range(4))

    def fails_twice(*asked: Any, **named: Any) -> GetResult:
        if next(calls) < 2:
            raise ValueError("no record")
        return get(*asked, **named)

    monkeypatch.setattr(desk.parts.context.store.reader, "get", fails_twice)
    desk.parts.pull.processor._turns.run_later(lambda: None)  # so that what comes now waits
    pull = pull_fields(subscription="a = 1", **SQL)
    waiting = [client.start(RequestCode.PULL_MESSAGE, pull)]
    waiting.append(client.start(RequestCode.POP_MESSAGE, pop_fields(exp="a = 1", expType="SQL92")))
    waiting.append(client.start(RequestCode.PULL_MESSAGE, pull))
    answers = [await client.answer_to(opaque) for opaque in waiting]
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR, 0]
    assert [answer.remark for answer in answers[:2]] == ["ValueError: no record"] * 2
    assert client.connection.in_flight == 0
    assert sum(record.exc_info is not None for record in caplog.records) == 2
