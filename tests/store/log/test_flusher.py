"""Group commit: one sync for all that gathered, one call each, nothing after the first failure, stalls in sight."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store.errors import DiskFailedError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log.flusher import Flusher
from store.log.thresholds import IntervalTimer
from tests.limits import WAIT_S
from tests.store.support import eventually
from tests.store.test_mapped_file_queue import write

SIZE = 4096


class Disk:
    """Stands between the flusher and `fdatasync`: can hold it back or fail it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.syncs = 0

    def sync(self, _file: MappedFile) -> None:
        self.syncs += 1
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            raise self.error


class Rig:
    def __init__(self, queue: MappedFileQueue, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = queue
        self.errors: list[DiskFailedError] = []
        self.flushes: list[int] = []
        self.done: list[int] = []
        self.flusher = Flusher(
            queue, loop, on_failed=self.errors.append, on_flushed=lambda offset, _: self.flushes.append(offset)
        )

    def put(self, size: int) -> None:
        write(self.queue, b"x" * size)
        self.flusher.request(self.queue.max_offset, self.done.append)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(MappedFile, "sync", lambda file: disk.sync(file))
    yield disk
    disk.gate.set()


@pytest.fixture
async def rig(disk: Disk, tmp_path: Path) -> AsyncIterator[Rig]:
    queue = MappedFileQueue(tmp_path, SIZE)
    rig = Rig(queue, asyncio.get_running_loop())
    yield rig
    disk.gate.set()
    await rig.flusher.close()
    queue.close()


async def test_done_is_called_once_with_what_is_durable(rig: Rig) -> None:
    rig.put(10)
    assert rig.done == []
    await eventually(lambda: bool(rig.done))
    assert (rig.done, rig.queue.flushed_offset) == ([10], 10)
    file = rig.queue.last()
    assert file is not None
    assert file.flush_position == 10


async def test_requests_that_come_during_a_sync_share_the_next_one(rig: Rig, disk: Disk) -> None:
    disk.gate.clear()
    rig.put(10)
    await eventually(lambda: disk.syncs == 1)
    for _ in range(5):
        rig.put(10)
    disk.gate.set()
    await eventually(lambda: len(rig.done) == 6)
    assert disk.syncs == 2
    assert rig.done == [10, 60, 60, 60, 60, 60]
    assert rig.flushes == [10, 60]


async def test_one_request_covers_every_file_it_needs(rig: Rig, disk: Disk) -> None:
    rig.put(3 * SIZE)
    await eventually(lambda: bool(rig.done))
    assert disk.syncs == 3
    assert [file.flush_position for file in rig.queue.files] == [SIZE] * 3


async def test_what_is_durable_already_is_still_answered_later_and_once(rig: Rig) -> None:
    rig.put(10)
    await eventually(lambda: bool(rig.done))
    rig.flusher.request(5, rig.done.append)
    assert rig.done == [10]
    await eventually(lambda: len(rig.done) == 2)
    assert rig.done == [10, 10]


async def test_the_first_failed_sync_is_final(rig: Rig, disk: Disk) -> None:
    disk.error = OSError(5, "Input/output error")
    rig.put(10)
    await eventually(lambda: bool(rig.errors))
    disk.error = None
    rig.put(10)
    await asyncio.sleep(0)
    assert (rig.done, rig.queue.flushed_offset, disk.syncs) == ([], 0, 1)
    assert rig.flusher.failed is rig.errors[0]
    assert "not tried again" in str(rig.errors[0])


async def test_a_stalled_sync_is_visible(rig: Rig, disk: Disk) -> None:
    assert not rig.flusher.pending_since
    disk.gate.clear()
    before = time.monotonic()
    rig.put(10)
    await eventually(lambda: disk.syncs == 1)
    since = rig.flusher.pending_since or 0.0
    assert before <= since <= time.monotonic()
    disk.gate.set()
    await eventually(lambda: rig.flusher.pending_since is None)


async def test_a_sync_that_began_before_a_cut_proves_nothing_behind_it(rig: Rig, disk: Disk) -> None:
    rig.put(10)
    await eventually(lambda: bool(rig.done))
    disk.gate.clear()
    rig.put(20)
    await eventually(lambda: disk.syncs == 2)
    rig.queue.truncate_to(15)
    write(rig.queue, b"y" * 100)
    disk.gate.set()
    await eventually(lambda: len(rig.done) == 2)
    assert disk.syncs == 3
    assert rig.done == [10, 115]


async def test_a_request_from_before_a_cut_is_answered_with_what_is_left(rig: Rig, disk: Disk) -> None:
    disk.gate.clear()
    rig.put(30)
    await eventually(lambda: disk.syncs == 1)
    rig.queue.truncate_to(5)
    rig.put(1)
    disk.gate.set()
    await eventually(lambda: len(rig.done) == 2)
    assert rig.done == [6, 6]
    assert rig.queue.flushed_offset == 6


async def test_a_file_deleted_during_its_sync_is_no_error(tmp_path: Path) -> None:
    queue = MappedFileQueue(tmp_path, SIZE)
    rig = Rig(queue, asyncio.get_running_loop())
    rig.put(2 * SIZE)
    queue.reset_to(0)
    await rig.flusher.close()
    assert rig.errors == []


async def test_the_timer_flushes_without_being_asked(rig: Rig) -> None:
    rig.flusher.flush_every(0.001)
    write(rig.queue, b"x" * 10)
    await eventually(lambda: rig.queue.flushed_offset == 10)


async def test_closing_flushes_what_is_left(tmp_path: Path) -> None:
    queue = MappedFileQueue(tmp_path, SIZE)
    rig = Rig(queue, asyncio.get_running_loop())
    write(queue, b"x" * 10)
    await rig.flusher.close()
    assert queue.flushed_offset == 10


async def test_closing_ends_when_the_last_sync_fails(disk: Disk, tmp_path: Path) -> None:
    queue = MappedFileQueue(tmp_path, SIZE)
    rig = Rig(queue, asyncio.get_running_loop())
    disk.error = OSError(5, "Input/output error")
    write(queue, b"x" * 10)
    await rig.flusher.close()
    assert (queue.flushed_offset, len(rig.errors)) == (0, 1)


async def test_a_timer_that_is_stopped_or_started_again_does_not_go_on_as_before() -> None:
    calls: list[int] = []
    timer = IntervalTimer(asyncio.get_running_loop(), lambda: calls.append(1))
    timer.start(0.001)
    timer.start(3600)
    await asyncio.sleep(0.01)
    timer.start(0.001)
    timer.stop()
    await asyncio.sleep(0.01)
    assert not calls
