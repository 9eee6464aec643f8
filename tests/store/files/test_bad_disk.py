"""A disk that really cannot read, or write back: an error with file and place, never a signal, never a lie."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ledgermq.message.index_unit import ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, IndexLayout
from ledgermq.remoting.refusal import Cause, Refusal
from store.compaction.sparse_file import SparseFile
from store.errors import DiskReadError, StoreError
from store.files import pages
from store.files.mapped_file import MappedFile, file_name
from store.index.batch import Entries
from store.index.index_file import IndexFile, QueryRange
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from store.queues.queue_file import QueueFile
from store.timer.recovery import recover
from store.timer.timer_log import NO_POSITION, TimerLog, TimerUnit
from store.timer.wheel import Slot, TimerWheel
from tests.store.files.conftest import MEBIBYTE, Disk
from tests.store.support import Outcomes, eventually, open_classic, put_all, queued

MakeDisk = Callable[..., Disk]
FILE_SIZE = 16 * MEBIBYTE


def written_file(disk: Disk) -> MappedFile:
    """A file full of noise, on the disk and out of memory."""
    file = MappedFile(disk.mount / file_name(0), 0, FILE_SIZE)
    file.write(memoryview(os.urandom(FILE_SIZE)))
    file.sync()
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def test_a_page_that_cannot_be_read_is_named_by_file_and_place(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = written_file(disk)
    lost = disk.lose_end_of(file.path)
    file.ensure_readable(0, lost)
    with pytest.raises(DiskReadError, match="Input/output error") as caught:
        file.ensure_readable(0, FILE_SIZE)
    assert (caught.value.file, caught.value.position) == (file.path, lost)
    file.close()


def test_what_was_readable_and_is_no_longer_is_found_out_after_a_while(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = written_file(disk)
    file.ensure_readable(0, FILE_SIZE)
    file.unmap()  # as after a time of rest: nothing keeps the pages in memory
    lost = disk.lose_end_of(file.path)
    with pytest.raises(DiskReadError):
        file.ensure_readable(lost, lost + 1)
    file.close()


def test_a_consume_queue_s_file_that_cannot_be_read_is_named_when_it_is_mapped(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = QueueFile(str(disk.mount), 0, FILE_SIZE)
    file.reserve(FILE_SIZE)
    file.path.write_bytes(os.urandom(FILE_SIZE))
    lost = disk.lose_end_of(file.path)
    with pytest.raises(DiskReadError, match="Input/output error") as caught:
        file.map()
    assert (caught.value.file, caught.value.position) == (file.path, lost)


async def test_a_store_reads_on_around_an_unreadable_place_and_says_which_it_is(make_disk: MakeDisk) -> None:
    disk = make_disk(64 * MEBIBYTE)
    store = await open_classic(disk.mount / "store", file_size=FILE_SIZE, queue_file_size=20_000)
    queue = store.store.queues.get("T", 0)
    for _ in range(20):
        await put_all(store, [queued(queue, os.urandom(MEBIBYTE // 2)) for _ in range(2)])
    await store.close()
    store = await open_classic(disk.mount / "store", file_size=FILE_SIZE, queue_file_size=20_000)
    log = store.store.log
    assert isinstance(log, CommitLog)
    queue = store.store.queues.get("T", 0)
    for file in log._queue.files:
        file.unmap()  # as after a time of rest: nothing keeps the pages in memory
    lost = disk.lose_end_of(disk.mount / "store" / "commitlog" / file_name(0))
    outcomes = [read(store.store, queue, number) for number in range(40)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, DiskReadError)]
    assert errors
    assert len(errors) < 40
    assert {(error.file.name, error.position) for error in errors} >= {(file_name(0), lost)}
    assert log.state.writable


def read(store: object, queue: object, number: int) -> object:
    try:
        return store.reader.get(queue, number, 1, 1).count  # type: ignore[attr-defined]
    except StoreError as error:
        return error


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_the_first_write_back_that_fails_is_final(make_disk: MakeDisk, flush_mode: FlushMode) -> None:
    disk = make_disk(64 * MEBIBYTE, room_bytes=8 * MEBIBYTE)
    store = await open_classic(disk.mount / "store", flush_mode=flush_mode, file_size=FILE_SIZE, queue_file_size=20_000)
    queue = store.store.queues.get("T", 0)
    log = store.store.log
    assert isinstance(log, CommitLog)
    assert log.local._flusher is not None
    outcomes = Outcomes()
    store.store.put([queued(queue, os.urandom(FILE_SIZE - MEBIBYTE))], outcomes)
    await eventually(lambda: bool(outcomes.all))
    if flush_mode is FlushMode.ASYNC:
        log.local._flusher.flush_if_worth()
        await eventually(lambda: not log.state.writable)
    else:
        assert outcomes.causes == [Cause.DISK_FAILED]
        assert (log.confirm_offset, queue.max_offset) == (0, 0)
    with pytest.raises(Refusal, match="not tried again") as caught:
        store.store.put([queued(queue)], outcomes)
    assert caught.value.cause is Cause.DISK_FAILED
    await store.close()


async def test_what_a_failed_write_back_left_out_is_on_the_disk_after_the_next_start(make_disk: MakeDisk) -> None:
    """ext4 counts such blocks as never written, also when the next process has written and synced the pages again."""
    disk = make_disk(64 * MEBIBYTE, room_bytes=8 * MEBIBYTE)
    mode = FlushMode.ASYNC
    store = await open_classic(disk.mount / "store", flush_mode=mode, file_size=FILE_SIZE, queue_file_size=20_000)
    log = store.store.log
    assert isinstance(log, CommitLog)
    assert log.local._flusher is not None
    outcomes, body = Outcomes(), os.urandom(FILE_SIZE - MEBIBYTE)
    store.store.put([queued(store.store.queues.get("T", 0), body)], outcomes)
    await eventually(lambda: bool(outcomes.all))
    log.local._flusher.flush_if_worth()
    await eventually(lambda: not log.state.writable)
    await store.close()
    subprocess.run(["mount", "-o", "remount,size=80m", disk.image.parent], check=True)
    again = await open_classic(disk.mount / "store", flush_mode=mode, file_size=FILE_SIZE, queue_file_size=20_000)
    await again.close()
    path = disk.mount / "store" / "commitlog" / f"{0:020d}"
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert body in file.read()


def test_a_bad_page_beside_what_was_never_written_does_not_hinder_a_start(make_disk: MakeDisk) -> None:
    """The end of a full file of a Raft log is never written: its filler is a few bytes."""
    disk = make_disk(40 * MEBIBYTE)
    file = MappedFile(disk.mount / file_name(0), 0, FILE_SIZE)
    file.write(memoryview(os.urandom(MEBIBYTE)))
    file.fill()
    file.sync()
    assert disk.lose_end_of(file.path) < MEBIBYTE
    file.write_unwritten(0)
    file.close()


@pytest.mark.skipif(not Path("/dev/mapper/control").exists(), reason="this kernel has no device mapper")
def test_a_device_mapper_s_error_target_is_met_like_any_bad_disk(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = written_file(disk)
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(disk.mount)], capture_output=True, text=True, check=True)
    sectors = 40 * MEBIBYTE // 512
    table = f"0 {sectors // 2} linear {device.stdout.strip()} 0\n{sectors // 2} {sectors // 2} error"
    done = subprocess.run(
        ["dmsetup", "create", "ledgermq-test"], input=table, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"dmsetup is not permitted here: {done.stderr}")
    try:
        descriptor = os.open("/dev/mapper/ledgermq-test", os.O_RDONLY)
        with pytest.raises(DiskReadError):
            pages.read_through(descriptor, disk.mount, 30 * MEBIBYTE, 31 * MEBIBYTE)
        os.close(descriptor)
    finally:
        subprocess.run(["dmsetup", "remove", "ledgermq-test"], check=True)
        file.close()


def test_a_compacted_file_that_cannot_be_read_is_named(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = SparseFile(disk.mount / file_name(0), FILE_SIZE)
    file.write(0, os.urandom(FILE_SIZE))
    file.sync()
    lost = disk.lose_end_of(file.path)
    file.ensure_readable(0, lost)
    file.close()  # as a sealed one, which is still read
    with pytest.raises(DiskReadError, match="Input/output error") as caught:
        file.ensure_readable(lost - 10, FILE_SIZE)
    assert (caught.value.file, caught.value.position) == (file.path, lost)
    with pytest.raises(DiskReadError):
        file.clear_from(lost)


def test_a_timer_wheel_that_cannot_be_read_is_made_anew(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    slots = FILE_SIZE // 32
    path = disk.mount / "timerwheel"
    wheel = TimerWheel(path, 1000, slots)
    wheel.put(1000, Slot(0, 0, 1))
    wheel.close()
    with path.open("r+b") as file:
        file.seek(FILE_SIZE // 2)
        file.write(os.urandom(FILE_SIZE // 2))
    disk.lose_end_of(path)
    wheel = TimerWheel(path, 1000, slots)
    assert wheel.was_made
    assert wheel.slots_beyond(0) == {}
    wheel.close()


def test_a_timer_log_that_cannot_be_read_ends_there_and_says_what_is_lost(make_disk: MakeDisk, tmp_path: Path) -> None:
    disk = make_disk(40 * MEBIBYTE)
    timer_log = TimerLog(disk.mount / "timerlog", FILE_SIZE)
    timer_log.load()
    units = [TimerUnit(NO_POSITION, 1, 0, 1000 * number, number, 100, 0) for number in range(1, 200_000)]
    for unit in units:
        timer_log.append(unit)
    end = timer_log.end
    timer_log.queue.files[0].sync()
    timer_log.close()
    lost = disk.lose_end_of(disk.mount / "timerlog" / file_name(0))
    assert lost < end
    timer_log = TimerLog(disk.mount / "timerlog", FILE_SIZE)
    timer_log.load()
    wheel = TimerWheel(tmp_path / "timerwheel", 1000, 1 << 18)
    found = recover(wheel, timer_log, end)
    assert found.has_lost_units
    assert 0 < found.end <= lost
    assert wheel.get(1000) is not None
    timer_log.close()
    wheel.close()


def index_with_noise(disk: Disk, layout: IndexLayout) -> IndexFile:
    """An index file of three entries whose other bytes are noise, of which the disk loses the end."""
    path = disk.mount / "20260101000000000"
    file = IndexFile(path, layout)
    file.put(Entries(np.array([1, 2, 3], np.int32), np.array([10, 20, 30]), np.array([1000, 2000, 3000])))
    file.sync()
    file.close()
    with path.open("r+b") as raw:
        raw.seek(FILE_SIZE // 2)
        raw.write(os.urandom(layout.file_size - FILE_SIZE // 2))
    return IndexFile(path, layout)


def test_slots_of_the_index_that_cannot_be_read_are_named_when_they_are_mapped_or_asked(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    file = index_with_noise(disk, IndexLayout(slots=FILE_SIZE // SLOT_SIZE, entries=10))
    lost = disk.lose_end_of(file.path)
    with pytest.raises(DiskReadError, match="Input/output error") as caught:
        file.put(Entries(np.array([4], np.int32), np.array([40]), np.array([4000])))
    assert caught.value.file == file.path
    with pytest.raises(DiskReadError, match="Input/output error"):
        file.find(QueryRange((lost - HEADER_SIZE) // SLOT_SIZE + 2048, 0, 1 << 62), 10)
    assert file.header.entry_count == 4, "as before"
    file.close()


def test_entries_of_the_index_that_cannot_be_read_are_named(make_disk: MakeDisk) -> None:
    disk = make_disk(40 * MEBIBYTE)
    layout = IndexLayout(slots=16, entries=FILE_SIZE // ENTRY_SIZE)
    file = index_with_noise(disk, layout)
    lost = disk.lose_end_of(file.path)
    number = (lost - layout.entries_at) // ENTRY_SIZE + 1
    with pytest.raises(DiskReadError, match="Input/output error") as caught:
        file.entries(number, number + 1)
    assert caught.value.file == file.path
    assert file.entries(1, 4)["offset"].tolist() == [10, 20, 30]
    file.close()
