"""A run ends by its limits whatever hangs: first as by Ctrl-C, then at once."""

import asyncio
import signal
import threading
import time

import pytest

from chaos.drills.background import in_background
from chaos.drills.watchdog import Watchdog
from tests.limits import WAIT_S


def _never(hangs: str) -> None:
    raise AssertionError(f"the run ended in order, but was left: {hangs}")


def test_a_stage_that_is_overdue_cancels_the_run_and_is_named() -> None:
    with Watchdog(_never) as watchdog, pytest.raises(KeyboardInterrupt):
        watchdog.stage("the first", 1000.0)
        watchdog.stage("an answer that never comes", 0.05)
        asyncio.run(asyncio.wait_for(asyncio.Event().wait(), WAIT_S))
    assert watchdog.overdue == "waited for an answer that never comes: not within 0.05 s"


def test_a_run_is_cancelled_where_sigint_was_ignored_as_in_background_jobs() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Watchdog(_never) as watchdog, pytest.raises(KeyboardInterrupt):
            watchdog.stage("an answer that never comes", 0.05)
            asyncio.run(asyncio.wait_for(asyncio.Event().wait(), WAIT_S))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_stages_within_their_limits_are_left_alone() -> None:
    with Watchdog(_never) as watchdog:
        for _ in range(3):
            watchdog.stage("a step", 0.3)
            time.sleep(0.15)
    assert watchdog.overdue == ""


def test_a_run_that_does_not_end_when_it_is_cancelled_is_left() -> None:
    left: list[str] = []
    has_left = threading.Event()

    def leave(hangs: str) -> None:
        left.append(hangs)
        has_left.set()

    with Watchdog(leave, undo_limit_s=0.2) as watchdog:
        watchdog.stage("the close of the producer", 0.05)
        with pytest.raises(KeyboardInterrupt):
            has_left.wait(WAIT_S)
        watchdog.stage("a later stage of the run that is being cancelled", 1000.0)
        assert has_left.wait(WAIT_S)
    expected = "waited for the close of the producer: not within 0.05 s, and the end of the run not within 0.2 s more"
    assert left == [expected]


async def test_work_beside_a_block_that_is_slow_to_end_does_not_take_the_cancellation_of_the_block() -> None:
    may_end = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    async def block() -> None:
        async with in_background(slow_to_end()):
            await asyncio.sleep(0)

    task = asyncio.ensure_future(block())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.wait({task})
    assert task.cancelled()
