"""What bounds and orders the work under way: room in flight, lanes, prefetch."""

import asyncio

import pytest

from ledgermq.client.consumer.queue_reader import Prefetch
from ledgermq.client.producer.flow import InFlight, Lanes


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_room_is_bounded_by_count_and_by_bytes_and_given_in_turn() -> None:
    in_flight = InFlight(2, 100)
    order: list[int] = []

    async def enter(number: int, size: int) -> None:
        await in_flight.enter(size)
        order.append(number)

    tasks = [asyncio.ensure_future(enter(number, size)) for number, size in enumerate([60, 60, 10, 10])]
    await settle()
    assert order == [0], "the second is too large, and nobody overtakes it"
    in_flight.leave(60)
    await settle()
    assert order == [0, 1, 2]
    in_flight.leave(60)
    await settle()
    assert order == [0, 1, 2, 3]
    await asyncio.gather(*tasks)


async def test_what_is_larger_than_all_the_room_goes_alone() -> None:
    in_flight = InFlight(2, 100)
    await in_flight.enter(500)
    other = asyncio.ensure_future(in_flight.enter(1))
    await settle()
    assert not other.done()
    in_flight.leave(500)
    await other


async def test_one_that_no_longer_waits_takes_no_room() -> None:
    in_flight = InFlight(1, 100)
    await in_flight.enter(1)
    gone, next_one = (asyncio.ensure_future(in_flight.enter(1)) for _ in range(2))
    await settle()
    gone.cancel()
    in_flight.leave(1)
    await next_one
    in_flight.leave(1)
    assert in_flight.count == 0
    await in_flight.wait_idle()


async def test_one_cancelled_at_the_moment_of_its_turn_gives_the_room_back() -> None:
    in_flight = InFlight(1, 100)
    await in_flight.enter(1)
    gone = asyncio.ensure_future(in_flight.enter(1))
    await settle()
    in_flight.leave(1)  # its turn has come, but it has not run yet
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert in_flight.count == 0


async def test_a_lane_is_held_by_one_at_a_time_and_forgotten_after_the_last() -> None:
    lanes = Lanes()
    order: list[str] = []

    async def work(key: str, name: str) -> None:
        async with lanes.lane(key):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(work("k", "a"), work("k", "b"), work("other", "c"))
    assert [step for step in order if step[0] != "c"] == ["a in", "a out", "b in", "b out"]
    assert order.index("c in") < order.index("a out")
    assert not len(lanes)


async def test_a_reader_with_nothing_buffered_always_has_room_and_the_others_wait_for_bytes() -> None:
    prefetch = Prefetch(messages_max=10, bytes_max=100)
    prefetch.add(200)
    await prefetch.wait_room(lambda: prefetch.is_full(0))
    waiting = asyncio.ensure_future(prefetch.wait_room(lambda: prefetch.is_full(3)))
    await settle()
    assert not waiting.done()
    prefetch.free(150, 7)
    await waiting


async def test_a_buffer_is_filled_again_when_half_of_it_is_taken() -> None:
    prefetch = Prefetch(messages_max=10, bytes_max=1000)
    buffered = 10
    waiting = asyncio.ensure_future(prefetch.wait_room(lambda: prefetch.is_full(buffered)))
    for buffered in range(9, 4, -1):
        await settle()
        assert not waiting.done()
        prefetch.free(1, buffered)
    await waiting
