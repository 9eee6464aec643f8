"""A store across restarts: a clean stop leaves nothing to walk, a crash what the checkpoint does not cover."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from store.directory.checkpoint import StoreCheckpointFile
from store.errors import DiskFailedError, StoreFormatError, StoreLockedError
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from store.opening import OpenStore
from store.queues.queue_ends import read_ends
from tests.page_cache import PageCache
from tests.store.support import Outcomes, bodies_of, eventually, open_classic, put_all, queued


async def write(store: OpenStore, start: int, end: int) -> None:
    queues = store.store.queues
    await put_all(store, [queued(queues.get(f"T{n % 2}", 0), b"%d" % n, tags=f"tag{n % 3}") for n in range(start, end)])


def contents(store: OpenStore) -> list[int]:
    return sorted(int(body) for queue in store.store.queues for body in bodies_of(store, queue))


def crash(root: Path) -> Path:
    """The directory as a killed process leaves it."""
    copy = root.with_name(root.name + "-crashed")
    shutil.copytree(root, copy)
    return copy


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_clean_stop_leaves_nothing_to_walk(tmp_path: Path, flush_mode: FlushMode) -> None:
    for round_number in range(3):
        store = await open_classic(tmp_path, flush_mode=flush_mode)
        assert store.directory.was_clean
        assert store.recovery.record_count == 0
        assert contents(store) == list(range(round_number * 40))
        await write(store, round_number * 40, round_number * 40 + 40)
        await store.close()
    assert not (tmp_path / "abort").exists()


async def test_a_crash_costs_what_the_checkpoint_does_not_cover(tmp_path: Path) -> None:
    store = await open_classic(tmp_path / "a")
    await write(store, 0, 50)
    store.checkpointer._executor.submit(store.checkpointer._save, store.checkpointer._capture()).result()
    await eventually(lambda: store.store.dispatched_offset == store.store.log.max_offset)
    await write(store, 50, 70)
    again = await open_classic(crash(tmp_path / "a"))
    assert not again.directory.was_clean
    assert 20 <= again.recovery.record_count <= 70
    assert contents(again) == list(range(70))
    await write(again, 70, 90)
    assert contents(again) == list(range(90))
    await again.close()
    await store.close()


async def test_checkpoints_are_written_by_themselves(tmp_path: Path) -> None:
    store = await open_classic(tmp_path, flush_mode=FlushMode.SYNC, checkpoint_interval_ms=1)
    await write(store, 0, 10)
    end = store.store.log.confirm_offset

    def saved() -> bool:
        progress = StoreCheckpointFile(tmp_path).found.progress
        return progress is not None and progress.dispatched_offset == progress.flushed_offset == end

    await eventually(saved)
    await store.close()


async def test_a_log_shorter_than_its_checkpoint_cuts_the_queues(tmp_path: Path) -> None:
    store = await open_classic(tmp_path / "a", file_size=65536)
    await write(store, 0, 50)
    await store.close()
    log_file = tmp_path / "a" / "commitlog" / "00000000000000000000"
    raw = bytearray(log_file.read_bytes())
    third = store.store.queues.get("T1", 0)
    third.load()
    offset = third.units(1, 1)
    position = int.from_bytes(offset[:8], "big")
    raw[position:] = bytes(len(raw) - position)
    log_file.write_bytes(raw)
    (tmp_path / "a" / "checkpoint").unlink()
    again = await open_classic(tmp_path / "a", file_size=65536)
    assert contents(again) == [0, 1, 2]
    await write(again, 3, 10)
    assert contents(again) == list(range(10))
    await again.close()


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T0", "consumequeue/T1/0/00000000000000000200"])
async def test_queues_lost_behind_the_checkpoint_are_noticed_and_made_again(tmp_path: Path, lost: str) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 50)
    await store.close()
    path = tmp_path / lost
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    again = await open_classic(tmp_path)
    assert contents(again) == list(range(50))
    await again.close()


@pytest.mark.parametrize("lost", [0, 30, 49])
@pytest.mark.parametrize("place", [0, 5])
async def test_records_behind_an_unreadable_one_are_in_their_queues_when_these_are_made_again(
    tmp_path: Path, lost: int, place: int
) -> None:
    """A record's size or magic changed on the disk: a place at which RocketMQ cuts the log."""
    store = await open_classic(tmp_path)
    await write(store, 0, 50)
    log = store.store.log
    offset = [offset for offset, _ in log.walk(0, log.confirm_offset)][lost]
    await store.close()
    path = tmp_path / "commitlog" / f"{offset // 4096 * 4096:020d}"
    raw = bytearray(path.read_bytes())
    raw[offset % 4096 + place] ^= 0x40
    path.write_bytes(raw)
    shutil.rmtree(tmp_path / "consumequeue")
    again = await open_classic(tmp_path)
    assert contents(again) == [number for number in range(50) if number != lost]
    await write(again, 50, 60)
    assert contents(again) == [number for number in range(60) if number != lost]
    await again.close()


@pytest.mark.parametrize("known", [0, 2])
async def test_units_of_records_that_the_log_does_not_have_are_dropped(tmp_path: Path, known: int) -> None:
    """A power cut may keep units of lost records below the end of a log that has grown since: no offset tells."""
    store = await open_classic(tmp_path / "a", file_size=65536)
    other = store.store.queues.get("Other", 0)
    await put_all(store, [queued(other, b"%d" % n) for n in range(known)])
    lost = store.store.log.max_offset
    await write(store, known, 50)
    for offset in (lost, lost + 1000):
        other.put(offset, 300, 0, other.max_offset)
    again = await open_classic(crash(tmp_path / "a"), file_size=65536)
    assert again.store.queues.get("Other", 0).max_offset == known
    assert contents(again) == list(range(50))
    await put_all(again, [queued(again.store.queues.get("Other", 0), b"50")])
    assert contents(again) == list(range(51))
    await again.close()
    await store.close()


async def test_a_checkpoint_that_java_moved_is_not_trusted(tmp_path: Path) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 20)
    await store.close()
    path = tmp_path / "checkpoint"
    page = bytearray(path.read_bytes())
    page[7] ^= 1
    path.write_bytes(page)
    again = await open_classic(tmp_path)
    assert again.recovery.record_count == 20
    assert contents(again) == list(range(20))
    await again.close()


async def test_a_store_that_cannot_be_opened_gives_everything_back(tmp_path: Path) -> None:
    store = await open_classic(tmp_path)
    with pytest.raises(StoreLockedError):
        await open_classic(tmp_path)
    await write(store, 0, 10)
    await store.close()
    stray = tmp_path / "commitlog" / "notes"
    stray.write_text("")
    with pytest.raises(StoreFormatError):
        await open_classic(tmp_path)
    stray.unlink()
    again = await open_classic(tmp_path)
    assert again.directory.was_clean
    assert contents(again) == list(range(10))
    await again.close()


async def test_a_store_whose_opening_the_disk_ended_does_not_count_as_closed_cleanly(tmp_path: Path) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 10)
    await store.close()
    assert not (tmp_path / "abort").exists()

    def fail(_store: object) -> None:
        raise DiskFailedError(tmp_path, "EIO")

    with pytest.raises(DiskFailedError):
        await open_classic(tmp_path, prepare=fail)
    assert (tmp_path / "abort").exists()
    again = await open_classic(tmp_path)
    assert not again.directory.was_clean
    assert contents(again) == list(range(10))
    await again.close()


async def test_a_refused_directory_is_not_changed(tmp_path: Path) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 50)
    await store.close()

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    for file_size, queue_file_size in [(8192, 200), (4096, 400)]:
        with pytest.raises(StoreFormatError, match="bytes long, must be"):
            await open_classic(tmp_path, file_size=file_size, queue_file_size=queue_file_size)
        assert files() == before


async def test_a_failed_sync_of_a_queue_keeps_the_last_checkpoint_and_says_so_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 20)

    def fail(_file: object) -> None:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr("store.queues.queue_file.QueueFile.sync", fail)
        await store.close()
    assert StoreCheckpointFile(tmp_path).found.progress is None
    assert (tmp_path / "abort").exists()
    again = await open_classic(tmp_path)
    assert contents(again) == list(range(20))
    await again.close()


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_stop_after_a_failed_sync_of_the_log_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: FlushMode
) -> None:
    store = await open_classic(tmp_path, flush_mode=flush_mode)
    await write(store, 0, 10)
    cache = PageCache(tmp_path, monkeypatch)
    cache.is_failing = True
    store.store.put([queued(store.store.queues.get("T0", 0), b"10")], Outcomes())
    assert isinstance(store.store.log, CommitLog)
    store.store.log.local.sync(store.store.log.max_offset, lambda _: None)
    await eventually(lambda: not store.store.log.state.writable)
    cache.is_failing = False
    await store.close()
    assert (tmp_path / "abort").exists()
    again = await open_classic(tmp_path, flush_mode=flush_mode)
    assert contents(again) == list(range(11))
    assert not any(where for name, where in cache.lost.items() if name.startswith("commitlog/"))
    await again.close()


async def test_a_stop_while_the_queues_have_more_than_a_log_that_began_anew_is_not_clean(tmp_path: Path) -> None:
    store = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    await write(store, 0, 10)
    assert isinstance(store.store.log, CommitLog)
    store.store.log.restart(0)  # and the disk refuses to restart the queues
    await store.close()
    assert (tmp_path / "abort").exists()
    again = await open_classic(tmp_path)
    assert contents(again) == []
    await again.close()


async def test_the_ends_of_queues_over_a_trimmed_log_are_believed(tmp_path: Path) -> None:
    store = await open_classic(tmp_path)
    await write(store, 0, 100)
    await store.close()
    store = await open_classic(tmp_path)
    start = store.store.log.trim(8192)
    assert start > 0
    await store.cleaner.clean_queues()
    await store.close()
    (ends,) = read_ends(tmp_path)
    assert ends.log_min_offset == start


async def test_opening_leaves_no_thread_behind(tmp_path: Path) -> None:
    before = len(asyncio.all_tasks())
    store = await open_classic(tmp_path)
    await store.close()
    names = [name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if name.startswith("ledgermq")]
    assert len(asyncio.all_tasks()) == before


async def test_a_queue_that_never_had_a_message_takes_its_first_after_a_clean_stop(tmp_path: Path) -> None:
    opened = await open_classic(tmp_path)
    opened.store.queues.get("Empty", 0)
    await put_all(opened, [queued(opened.store.queues.get("T", 0))])
    await opened.close()
    opened = await open_classic(tmp_path)
    queue = opened.store.queues.get("Empty", 0)
    await put_all(opened, [queued(queue, b"first")])
    assert bodies_of(opened, queue) == [b"first"]
    await opened.close()
