"""Long requests: slices in turns of the loop, one of a connection at a time, bounds, closed connections."""

import asyncio
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from broker import long_requests
from broker.long_requests import LongRequests
from broker.turns import TurnQueue
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from tests.broker.conftest import eventually


class End:
    """Stands for a connection, of which only this is read."""

    is_closed = False


def connection() -> Connection:
    return cast(Connection, End())


class Desk:
    spend: Callable[[float], None]

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.failures: list[str] = []
        self.unsettled = 0
        self.long = LongRequests(
            TurnQueue(asyncio.get_running_loop()),
            lambda _connection, _command, error: self.failures.append(str(error)),
            lambda: 0,
            lambda _connection, _before: None,
            lambda: self.unsettled,
        )

    def steps(self, name: str, count: int = 3, step_s: float = 0.003) -> Iterator[None]:
        for _ in range(count):
            self.seen.append(name)
            self.spend(step_s)
            yield
        self.seen.append(name.upper())

    def begin(self, where: Connection, steps: Iterator[None], body: bytes = b"") -> None:
        self.long.begin(where, Command(202, body=body), steps)


@pytest.fixture(autouse=True)
def work_takes_what_a_test_says(spend: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Desk, "spend", staticmethod(spend), raising=False)


async def test_a_short_one_is_served_at_once() -> None:
    desk = Desk()
    desk.begin(connection(), desk.steps("a", step_s=0))
    assert desk.seen == ["a", "a", "a", "A"]


async def test_long_ones_of_several_connections_take_turns_and_those_of_one_follow_each_other() -> None:
    desk, one, other = Desk(), connection(), connection()
    desk.begin(one, desk.steps("a"))
    desk.begin(one, desk.steps("b"))
    desk.begin(other, desk.steps("c"))
    assert desk.seen == ["a"]  # its slice is used
    await eventually(lambda: len(desk.seen) == 12)
    assert desk.seen.index("b") > desk.seen.index("A")
    assert desk.seen.index("c") < desk.seen.index("A")


async def test_between_slices_the_loop_serves_others() -> None:
    desk, ticks = Desk(), []

    def tick() -> None:
        ticks.append(len(desk.seen))
        if "A" not in desk.seen:
            asyncio.get_running_loop().call_soon(tick)

    desk.begin(connection(), desk.steps("a", 5))
    tick()
    await eventually(lambda: "A" in desk.seen)
    assert {1, 2, 3, 4} <= set(ticks)


async def test_a_closed_connection_ends_its_requests() -> None:
    desk, one, other = Desk(), End(), connection()
    desk.begin(cast(Connection, one), desk.steps("a"))
    desk.begin(cast(Connection, one), desk.steps("b"))
    desk.begin(other, desk.steps("c"))
    one.is_closed = True
    await eventually(lambda: "C" in desk.seen)
    await asyncio.sleep(0.01)
    assert "A" not in desk.seen
    assert "B" not in desk.seen


async def test_what_a_step_raises_is_handed_on_and_the_next_is_served() -> None:
    desk, one = Desk(), connection()

    def failing() -> Iterator[None]:
        yield from desk.steps("a", 1)
        raise Refusal(Cause.TOPIC_NOT_EXIST, "no topic")

    desk.begin(one, failing())
    desk.begin(one, desk.steps("b"))
    await eventually(lambda: "B" in desk.seen)
    assert desk.failures == ["no topic"]


async def test_one_that_changes_tables_waits_until_most_of_that_is_committed() -> None:
    desk = Desk()

    def changes() -> Iterator[None]:
        for name in "abcd":
            desk.seen.append(name)
            desk.unsettled += 40 << 10
            yield

    desk.begin(connection(), changes())
    desk.begin(connection(), desk.steps("x"))  # changes nothing, so it does not wait
    await eventually(lambda: "X" in desk.seen)
    assert desk.seen == ["a", "b", "x", "x", "x", "X"]
    desk.unsettled = 40 << 10
    await eventually(lambda: "c" in desk.seen)
    desk.unsettled = 0
    await eventually(lambda: "d" in desk.seen)


async def test_one_that_changes_tables_ends_though_others_always_have_much_that_is_not_committed() -> None:
    desk = Desk()
    desk.unsettled = 65 << 10

    def changes() -> Iterator[None]:
        for name in "abc":
            desk.seen.append(name)
            desk.unsettled += 1
            yield

    desk.begin(connection(), changes())
    assert desk.seen == ["a"]
    await eventually(lambda: desk.seen == ["a", "b", "c"])


async def test_requests_and_their_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_requests, "_COUNT_MAX", 2)
    monkeypatch.setattr(long_requests, "_BYTES_MAX", 10)
    desk, one = Desk(), connection()
    desk.begin(one, desk.steps("a"), bytes(6))
    with pytest.raises(Refusal, match="1 long requests") as too_large:
        desk.begin(one, desk.steps("b"), bytes(5))
    assert too_large.value.cause is Cause.BUSY
    desk.begin(one, desk.steps("c"), bytes(4))
    with pytest.raises(Refusal, match="2 long requests"):
        desk.begin(one, desk.steps("d"))
    await eventually(lambda: "C" in desk.seen)
    desk.begin(one, desk.steps("e"), bytes(10))


async def test_no_more_than_sixteen_are_in_progress() -> None:
    desk = Desk()
    for _ in range(17):
        desk.begin(connection(), desk.steps("a"))
    desk.begin(connection(), desk.steps("b"))
    await eventually(lambda: "B" in desk.seen)
    assert desk.seen.index("b") > desk.seen.index("A")


async def test_a_request_whose_connection_closed_before_its_turn_takes_no_step_and_is_answered() -> None:
    desk, one = Desk(), End()
    desk.begin(connection(), desk.steps("a"))
    desk.begin(cast(Connection, one), desk.steps("b"))
    one.is_closed = True
    await eventually(lambda: "A" in desk.seen and bool(desk.failures))
    assert "b" not in desk.seen
    assert desk.failures == ["the client's connection has closed"]
