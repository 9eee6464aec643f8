"""The transient pool: placed, committed, flushed are three things; what is not committed nobody sees or is told of."""

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ledgermq.message.record import BLANK_SIZE_MIN
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError, PoolUnavailableError, RecordUnavailableError
from store.files import disk
from store.files.pooled_file import PooledFile
from store.files.transient_pool import TransientPool
from store.log import committer
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt
from tests.limits import WAIT_S
from tests.store.support import HOST, Outcomes, bodies_of, eventually, make_draft, open_classic

SIZE = 4096
HEAD = 88 + 1 + 1 + 2
FOREVER_MS = 3_600_000


class Gate:
    """Stands between the committer and the file: can hold it back or fail it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.error: DiskFailedError | None = None
        self.writes = 0

    def write_at(self, descriptor: int, path: Path, data: memoryview, position: int) -> None:
        self.writes += 1
        assert self.open.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        disk.write_at(descriptor, path, data, position)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(committer, "write_at", gate.write_at)
    yield gate
    gate.open.set()


MakeLog = Callable[..., CommitLog]


@pytest.fixture
async def make_log(tmp_path: Path, gate: Gate) -> AsyncIterator[MakeLog]:
    made: list[CommitLog] = []

    def make(**settings: object) -> CommitLog:
        values: dict[str, object] = {
            "file_size_bytes": SIZE,
            "transient_pool": True,
            "pool_count": 4,
            "flush_interval_ms": FOREVER_MS,
            "commit_interval_ms": FOREVER_MS,
        }
        config = CommitLogConfig(directory=tmp_path / "log", store_host=HOST, **(values | settings))  # type: ignore[arg-type]
        log = CommitLog(config, asyncio.get_running_loop())
        log.recover(StoreCheckpoint(), clean=True)
        log.start()
        made.append(log)
        return log

    yield make
    gate.open.set()
    for log in made:
        await log.close()


async def acknowledged(outcomes: Outcomes, count: int) -> None:
    await eventually(lambda: len(outcomes.all) == count)


def free(log: CommitLog) -> int:
    assert log.local._pool is not None
    return log.local._pool.free_count


def in_file(log: CommitLog, offset: int, size: int) -> bytes:
    path = log._queue.files[offset // SIZE].path
    return path.read_bytes()[offset % SIZE : offset % SIZE + size]


async def test_what_is_placed_is_neither_read_nor_acknowledged_before_it_is_committed(
    make_log: MakeLog, gate: Gate
) -> None:
    log, outcomes = make_log(), Outcomes()
    gate.open.clear()
    log.append([make_draft(b"x" * 100)], outcomes)
    await eventually(lambda: gate.writes == 1)
    size = log.max_offset
    assert (log.committed_offset, log.confirm_offset, outcomes.all) == (0, 0, [])
    assert in_file(log, 0, size) == bytes(size)
    with pytest.raises(RecordUnavailableError):
        log.read(0, size)
    gate.open.set()
    await eventually(lambda: bool(outcomes.all))
    assert outcomes.all == [AppendReceipt(0, 1, 0)]
    assert (log.committed_offset, log.confirm_offset, log.flushed_offset) == (size, size, 0)
    assert bytes(log.read(0, size)) == in_file(log, 0, size) != bytes(size)


async def test_batches_that_come_during_a_commit_share_the_next_one(make_log: MakeLog, gate: Gate) -> None:
    log, outcomes = make_log(), Outcomes()
    gate.open.clear()
    log.append([make_draft()], outcomes)
    await eventually(lambda: gate.writes == 1)
    for _ in range(5):
        log.append([make_draft()], outcomes)
        await asyncio.sleep(0)
    gate.open.set()
    await eventually(lambda: len(outcomes.all) == 6)
    assert gate.writes == 2


async def test_sync_flush_confirms_what_is_committed_and_flushed(make_log: MakeLog) -> None:
    log, outcomes = make_log(flush_mode=FlushMode.SYNC), Outcomes()
    log.append([make_draft()], outcomes)
    await eventually(lambda: bool(outcomes.all))
    assert outcomes.all == [AppendReceipt(0, 1, 1)]
    assert log.flushed_offset == log.confirm_offset == log.max_offset


async def test_without_waking_commits_come_by_interval_and_pages(make_log: MakeLog, gate: Gate) -> None:
    log, outcomes = (
        make_log(commit_wakes=False, commit_interval_ms=1, commit_thorough_interval_ms=FOREVER_MS),
        Outcomes(),
    )
    log.append([make_draft()], outcomes)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert (gate.writes, outcomes.all) == (0, [])
    log.append([make_draft(bytes(3000)), make_draft(bytes(3000))], outcomes)  # into the next file: the first is full
    await eventually(lambda: len(outcomes.all) == 2)


async def test_the_pool_s_buffers_go_round_and_leave_nothing_of_one_file_in_another(make_log: MakeLog) -> None:
    log, outcomes = make_log(pool_count=3), Outcomes()
    sizes = [3000, 3500, 2500, 3900, 2200, 3000, 2100]
    for number, size in enumerate(sizes):
        log.append([make_draft(bytes([number + 1]) * (size - HEAD))], outcomes)
        await acknowledged(outcomes, number + 1)
    assert free(log) >= 0
    for number, size in enumerate(sizes):
        start = number * SIZE
        assert bytes(log.read(start, size)) == in_file(log, start, size)
        tail = in_file(log, start + size + BLANK_SIZE_MIN, SIZE)
        assert not any(tail), f"file {number} has bytes of another one behind its blank"


async def test_without_a_free_buffer_records_are_written_directly_in_their_order(make_log: MakeLog, gate: Gate) -> None:
    log, outcomes = make_log(pool_count=1), Outcomes()
    gate.open.clear()
    for number in range(4):
        log.append([make_draft(bytes([number + 1]) * 3000)], outcomes)
        await asyncio.sleep(0)
    assert (log.committed_offset, outcomes.all) == (0, [])
    gate.open.set()
    await eventually(lambda: len(outcomes.all) == 4)
    assert log.committed_offset == log.confirm_offset == log.max_offset
    assert [bytes(log.read(n * SIZE, 200))[HEAD + 10] for n in range(4)] == [1, 2, 3, 4]


async def test_without_a_free_buffer_senders_are_refused_when_that_was_asked_for(make_log: MakeLog, gate: Gate) -> None:
    log = make_log(pool_count=1, pool_refuses=True)
    gate.open.clear()
    log.append([make_draft(bytes(3000))], Outcomes())
    with pytest.raises(Refusal, match="all are in use") as caught:
        log.append([make_draft(bytes(3000))], Outcomes())
    assert (caught.value.cause, caught.value.retry_after_ms) == (Cause.BUSY, 100)
    gate.open.set()


async def test_a_failed_commit_is_final_and_nobody_is_told_otherwise(make_log: MakeLog, gate: Gate) -> None:
    log, outcomes = make_log(), Outcomes()
    gate.error = DiskFailedError(Path("file"), "write of 5 bytes at 0 failed: [Errno 5] Input/output error")
    log.append([make_draft()], outcomes)
    await eventually(lambda: bool(outcomes.all))
    assert outcomes.causes == [Cause.DISK_FAILED]
    assert (log.state.writable, log.confirm_offset) == (False, 0)
    gate.error = None
    with pytest.raises(Refusal, match="commit failed, and is not tried again") as caught:
        log.append([make_draft()], outcomes)
    assert caught.value.cause is Cause.DISK_FAILED


async def test_closing_commits_and_flushes_what_is_left(make_log: MakeLog) -> None:
    log, outcomes = make_log(commit_wakes=False), Outcomes()
    log.append([make_draft()], outcomes)
    size = log.max_offset
    await log.close()
    assert outcomes.all == [AppendReceipt(0, 1, 0)]
    assert log.flushed_offset == size


async def test_a_batch_that_cannot_be_encoded_leaves_nothing_in_the_file(make_log: MakeLog) -> None:
    log, outcomes = make_log(), Outcomes()
    bad = make_draft()
    bad.queue_id = 1 << 40
    with pytest.raises(Exception, match=r"argument out of range|format requires"):
        log.append([make_draft(bytes(3000)), make_draft(bytes(3000)), bad], outcomes)
    log.append([make_draft()], outcomes)
    await eventually(lambda: bool(outcomes.all))
    assert (log.min_offset, log._queue.files[0].start_offset, len(log._queue.files)) == (0, 0, 1)
    assert not any(in_file(log, log.max_offset, SIZE))


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_killed_process_loses_nothing_that_it_acknowledged(tmp_path: Path, flush_mode: FlushMode) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.files.pool_child", str(tmp_path), flush_mode.value], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    last = -1
    while last < 300:
        last = int(child.stdout.readline())
    child.kill()
    last = max([last, *map(int, child.stdout.read().split())])
    child.wait()
    child.stdout.close()
    store = await open_classic(tmp_path, file_size=1 << 20, queue_file_size=20_000)
    bodies = [body[:-500].decode() for body in bodies_of(store, store.store.queues.get("T", 0))]
    expected = [f"{number}-{index}" for number in range(last + 1) for index in range(20)]
    assert bodies[: len(expected)] == expected
    await store.close()


async def test_what_lies_in_the_files_at_any_moment_is_recovered_to_what_was_confirmed(
    make_log: MakeLog, gate: Gate, tmp_path: Path
) -> None:
    """Every image that a kill may leave: between any two writes of the committer, over several files."""
    log, outcomes = make_log(pool_count=8), Outcomes()
    images: list[tuple[Path, int]] = []
    write_at = gate.write_at

    def copying(descriptor: int, path: Path, data: memoryview, position: int) -> None:
        image = tmp_path / f"image{len(images)}"
        shutil.copytree(tmp_path / "log", image)
        images.append((image, log.confirm_offset))
        write_at(descriptor, path, data, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committer, "write_at", copying)
        for number in range(12):
            log.append([make_draft(bytes([number + 1]) * (400 * (number % 4 + 1))) for _ in range(3)], outcomes)
            if number % 3 == 0:
                await acknowledged(outcomes, number + 1)
        await acknowledged(outcomes, 12)
    whole = b"".join((tmp_path / "log" / file.path.name).read_bytes() for file in log._queue.files)
    assert len(images) > 4
    for image, confirmed in images:
        config = CommitLogConfig(directory=image, store_host=HOST, file_size_bytes=SIZE)
        found = CommitLog(config, asyncio.get_running_loop())
        found.recover(StoreCheckpoint(), clean=False)
        assert found.max_offset >= confirmed
        for offset, record in found.walk(0, found.max_offset):
            assert bytes(record) == whole[offset : offset + len(record)]
        await found.close()


def test_a_pool_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(PoolUnavailableError, match="this machine has"):
        TransientPool(1 << 20, 1 << 30).open()


def test_a_file_that_cannot_be_made_gives_its_buffer_back(tmp_path: Path) -> None:
    pool = TransientPool(1, SIZE)
    pool.open()
    with pytest.raises(DiskFailedError):
        PooledFile(tmp_path / "missing" / "0", 0, SIZE, pool)
    assert pool.free_count == 1
    pool.close()
