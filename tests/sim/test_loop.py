"""SimLoop: what a process that dies leaves under way is ended at once, however often it waits while it cleans up."""

import asyncio
import contextlib
import gc
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.sim.clock import SimClock
from chaos.sim.stack.loop import SimLoop


def test_what_waits_while_it_cleans_up_is_ended_before_those_that_await_it() -> None:
    ended: list[str] = []

    async def inner() -> None:
        async with contextlib.AsyncExitStack() as last:
            last.callback(ended.append, "inner")
            for _ in range(3):
                last.push_async_callback(asyncio.sleep, 1)
            await asyncio.sleep(1)

    async def outer() -> None:
        try:
            await inner()
        finally:
            ended.append("outer")

    def run(_: str, turn: Callable[[], None]) -> None:
        with loop.running():
            turn()

    def submit(_: Any, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        raise AssertionError("nothing is submitted")

    clock = SimClock(Random(0))
    loop = SimLoop(clock, lambda: clock.now_us, 1.0, run, submit, lambda: False, lambda: False)
    task = loop.create_task(outer())
    clock.run_until(100)
    with loop.running():
        loop.stop()
    assert ended == ["inner", "outer"]
    del task
    gc.collect()  # pytest fails the test for a coroutine that is ended only here
