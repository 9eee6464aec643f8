"""ASYNC_FLUSH by RocketMQ's keys: interval, least pages, thorough interval, and flushing when something was placed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.directory.checkpoint import StoreCheckpoint
from store.log.commit_log import CommitLog, CommitLogConfig
from tests.store.support import HOST, Outcomes, eventually, make_draft

FOREVER_MS = 3_600_000
MakeLog = Callable[..., CommitLog]


@pytest.fixture
async def make_log(tmp_path: Path) -> AsyncIterator[MakeLog]:
    made: list[CommitLog] = []

    def make(**settings: int | bool) -> CommitLog:
        config = CommitLogConfig(directory=tmp_path, store_host=HOST, file_size_bytes=1 << 20, **settings)  # type: ignore[arg-type]
        log = CommitLog(config, asyncio.get_running_loop())
        log.recover(StoreCheckpoint(), clean=True)
        log.start()
        made.append(log)
        return log

    yield make
    for log in made:
        await log.close()


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0.001)


async def test_less_than_the_least_pages_waits(make_log: MakeLog) -> None:
    log = make_log(flush_interval_ms=1)
    log.append([make_draft(bytes(3 * 4096))], Outcomes())
    await turns()
    assert log.flushed_offset == 0
    log.append([make_draft(bytes(4096))], Outcomes())
    await eventually(lambda: log.flushed_offset == log.max_offset)


async def test_the_thorough_interval_flushes_any_byte(make_log: MakeLog) -> None:
    log = make_log(flush_interval_ms=1, flush_thorough_interval_ms=20)
    log.append([make_draft()], Outcomes())
    await eventually(lambda: log.flushed_offset == log.max_offset)


@pytest.mark.parametrize(
    ("timed", "wakes", "flushes"), [(True, True, False), (False, False, False), (False, True, True)]
)
async def test_placing_wakes_the_flusher_only_when_both_keys_say_so(
    make_log: MakeLog, timed: bool, wakes: bool, flushes: bool
) -> None:
    log = make_log(flush_interval_ms=FOREVER_MS, flush_timed=timed, flush_wakes=wakes)
    log.append([make_draft(bytes(5 * 4096))], Outcomes())
    if flushes:
        await eventually(lambda: log.flushed_offset == log.max_offset)
    else:
        await turns()
        assert log.flushed_offset == 0


async def test_a_commit_wakes_a_flusher_that_is_not_timed(make_log: MakeLog) -> None:
    log = make_log(flush_interval_ms=FOREVER_MS, flush_timed=False, transient_pool=True, pool_count=2)
    log.append([make_draft(bytes(5 * 4096))], Outcomes())
    await eventually(lambda: log.flushed_offset == log.max_offset)
