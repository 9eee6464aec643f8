"""What all connections together may leave unread."""

import asyncio

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.limits import Limits, OutputBudget
from tests.remoting.peers import Dial, Serve, eventually

MIB = 1 << 20


class Hoarder:
    """A connection that keeps what it is given until it is told to let go, or is closed."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.why = ""

    def abort(self, reason: str) -> None:
        self.why, self.held_bytes = reason, 0

    def take(self, budget: OutputBudget, count: int) -> None:
        self.held_bytes += count
        budget.wrote(self, count)


async def test_what_is_read_is_given_back() -> None:
    budget, one = OutputBudget(MIB), Hoarder()
    seen = [budget.is_over]
    one.take(budget, 2 * MIB - 1)
    seen.append(budget.is_over)
    one.held_bytes = 1000
    await eventually(lambda: budget.spent_bytes == 1000)
    seen.append(budget.is_over)
    assert seen == [False, True, False] and not one.why
    budget.forget(one)
    assert budget.spent_bytes == 0


async def test_at_twice_the_limit_those_with_most_are_closed_at_once() -> None:
    budget = OutputBudget(MIB)
    small, large, larger = Hoarder(), Hoarder(), Hoarder()
    small.take(budget, 100_000)
    large.take(budget, 900_000)
    larger.take(budget, 1_000_000)
    assert budget.closed_count == 0
    small.take(budget, 200_000)
    assert (bool(small.why), bool(large.why), bool(larger.why)) == (False, False, True)
    assert (budget.closed_count, budget.spent_bytes) == (1, 1_200_000)


async def test_above_the_limit_for_long_whoever_reads_nothing_gives_way() -> None:
    budget, one, other = OutputBudget(MIB), Hoarder(), Hoarder()
    one.take(budget, 700_000)
    other.take(budget, 800_000)
    await eventually(lambda: budget.closed_count == 1)
    assert other.why and not one.why


async def test_a_turn_has_an_end() -> None:
    budget, one = OutputBudget(1 << 30), Hoarder()
    one.take(budget, 9 * MIB)
    assert budget.is_turn_full
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not budget.is_turn_full


async def test_answers_that_nobody_reads_close_those_with_most_and_spare_who_reads(serve: Serve, dial: Dial) -> None:
    server, handler = await serve(Limits(output_all_bytes=8 * MIB))
    handler.serve = lambda connection, command: connection.respond(command, 0, {}, bytes(4 * MIB))
    hoarders = [await dial(server) for _ in range(8)]
    for peer in hoarders:
        peer.pause()
        peer.send(Command(7, 1))
    output = server.connections.output
    await eventually(lambda: output.closed_count >= 4)
    assert output.spent_bytes <= 16 * MIB
    reader = await dial(server)
    reader.send(Command(7, 2))
    assert len((await reader.receive()).body) == 4 * MIB


async def test_a_large_answer_of_many_pieces_comes_whole(serve: Serve, dial: Dial) -> None:
    server, handler = await serve()
    pieces = [bytes([number]) * (300_000 * number) for number in range(7)]
    handler.serve = lambda connection, command: connection.respond(
        command, 0, {}, [memoryview(piece) for piece in pieces]
    )
    reader = await dial(server)
    for opaque in range(3):
        reader.send(Command(7, opaque))
    for opaque in range(3):
        answer = await reader.receive()
        assert (answer.opaque, bytes(answer.body)) == (opaque, b"".join(pieces))
