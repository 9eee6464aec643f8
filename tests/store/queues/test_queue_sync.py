"""The checkpoint makes queues durable: a few files one by one, many with their file system."""

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.directory.checkpoint import StoreCheckpointFile
from store.errors import DiskFailedError, DiskFullError
from store.files import disk
from store.log.commit_log import CommitLogConfig
from store.message_store import MessageStore
from store.opening import OpenStore, open_classic_store
from store.queues import queue_sync
from store.queues.queue_file import QueueFile
from store.recovery import checkpointer
from store.store_config import StoreConfig
from tests.store.support import HOST, eventually, fast_directory, put_all, queued


async def open_quiet(root: Path) -> OpenStore:
    """A store that writes no checkpoint by itself before it is closed."""
    config = StoreConfig(root=root, checkpoint_interval_ms=3_600_000)
    return await open_classic_store(config, CommitLogConfig(directory=root / "commitlog", store_host=HOST))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics whose queue files were synced one by one; `*` for the whole file system."""
    found: list[str] = []
    sync, sync_all = QueueFile.sync, disk.sync_file_system

    def noting(file: QueueFile) -> None:
        found.append(file.path.parent.parent.name)
        sync(file)

    def noting_all(descriptor: int) -> None:
        found.append("*")
        sync_all(descriptor)

    monkeypatch.setattr(QueueFile, "sync", noting)
    monkeypatch.setattr(disk, "sync_file_system", noting_all)
    return found


async def checkpoint(opened: OpenStore) -> None:
    """Write one now, and wait for it."""
    opened.checkpointer.save()
    saving = opened.checkpointer._saving
    assert saving is not None
    await asyncio.wrap_future(saving)


async def put_one_each(opened: OpenStore, topics: list[str]) -> None:
    await put_all(opened, [queued(opened.store.queues.get(topic, 0)) for topic in topics])


async def test_only_queues_that_changed_are_synced_and_their_units_counted(tmp_path: Path, synced: list[str]) -> None:
    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["A", "B", "B"])
    await checkpoint(opened)
    assert sorted(synced) == ["A", "B"]
    await put_one_each(opened, ["B"])
    await checkpoint(opened)
    assert sorted(synced) == ["A", "B", "B"]
    progress = StoreCheckpointFile(tmp_path).found.progress
    assert progress is not None and progress.unit_count == 4
    opened.store.queues.delete_topic("B")
    await checkpoint(opened)
    progress = StoreCheckpointFile(tmp_path).found.progress
    assert progress is not None and progress.unit_count == 1
    await opened.close()


async def test_many_queues_are_synced_with_their_file_system(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sync, "SINGLY_MAX", 2)
    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["A", "B", "C"])
    await checkpoint(opened)
    assert synced == ["*"]
    await opened.close()
    opened = await open_quiet(tmp_path)
    assert opened.recovery.record_count == 0
    await opened.close()


async def test_where_syncfs_cannot_be_relied_on_each_file_and_new_folder_is_synced(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sync, "SINGLY_MAX", 2)
    monkeypatch.setattr(disk, "_SYNCFS_TELLS_ERRORS", (99, 0))
    root = tmp_path / "consumequeue"
    folders: list[str] = []
    sync_directory = disk.sync_directory

    def noting(directory: Path) -> None:
        if directory.is_relative_to(root):  # and not of the log's next file, which is made meanwhile
            folders.append(str(directory.relative_to(root)))
        sync_directory(directory)

    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["A", "B", "C"])
    monkeypatch.setattr(disk, "sync_directory", noting)
    await checkpoint(opened)
    assert sorted(synced) == ["A", "B", "C"]
    assert sorted(folders) == [".", "A", "A/0", "B", "B/0", "C", "C/0"]
    await put_one_each(opened, ["A"])
    folders.clear()
    await checkpoint(opened)
    assert folders == []
    await opened.close()


async def test_after_an_error_of_the_file_system_each_file_is_asked(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sync, "SINGLY_MAX", 2)

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "sync_file_system", fails)
    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["A", "B", "C"])
    await checkpoint(opened)
    assert sorted(synced) == ["A", "B", "C"]
    assert StoreCheckpointFile(tmp_path).found.progress is not None
    await opened.close()


async def test_many_changed_queues_are_counted_in_several_turns_of_the_loop(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_sync, "SINGLY_MAX", 100)
    monkeypatch.setattr(checkpointer, "_COUNTED_AT_ONCE", 10)
    monkeypatch.setattr(checkpointer, "_LOOK_S", 0.001)
    monkeypatch.setattr(checkpointer, "BYTES_BEHIND_MAX", 1)
    opened = await open_quiet(tmp_path)
    counted: list[int] = []
    take = opened.store.queues.take_changed

    def noting(limit: int | None = None) -> list[QueueFile]:
        counted.append(len(opened.store.queues.changed))
        return take(limit)

    monkeypatch.setattr(opened.store.queues, "take_changed", noting)
    await put_one_each(opened, [f"T{number}" for number in range(35)])

    def count() -> int:
        progress = StoreCheckpointFile(tmp_path).found.progress
        return 0 if progress is None else progress.unit_count

    await eventually(lambda: count() == 35)
    assert counted[:4] == [35, 25, 15, 5]
    assert sorted(synced) == sorted(f"T{number}" for number in range(35)), "those of every turn"
    await opened.close()


async def test_each_file_system_that_holds_queues_is_synced(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / name for name in ("one", "two", "also two")]
    for root in roots:
        root.mkdir()
    devices = dict(zip(roots, (1, 2, 2), strict=True))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda path: SimpleNamespace(st_dev=devices[path]))
        queues = queue_sync.QueueSync(roots)
    assert queues._sync_file_systems()
    assert synced == ["*", "*"]
    queues.close()


async def test_the_log_time_of_a_checkpoint_is_that_of_flushed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["A"])
    await checkpoint(opened)
    first = opened.store.last_timestamp
    flushed = opened.store.dispatched_offset
    monkeypatch.setattr(MessageStore, "durable_offset", flushed)
    opened.store.log.local.last_timestamp += 1000  # type: ignore[attr-defined]  # the next record comes later
    await put_one_each(opened, ["A"])
    await checkpoint(opened)
    found = StoreCheckpointFile(tmp_path).found
    assert (found.log_timestamp, found.queues_timestamp) == (first, first + 1000)
    monkeypatch.undo()
    await opened.close()


async def test_a_sync_that_fails_leaves_no_clean_stop_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_quiet(tmp_path)

    def fails(file: QueueFile) -> None:
        raise DiskFailedError(file.path, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(QueueFile, "sync", fails)
        await put_one_each(opened, ["T"] * 200)
        await checkpoint(opened)
    await opened.close()
    opened = await open_quiet(tmp_path)
    assert opened.recovery.record_count == 200
    assert opened.store.queues.get("T", 0).max_offset == 200
    await opened.close()


async def test_a_queue_whose_folder_cannot_be_synced_leaves_no_clean_stop_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_quiet(tmp_path)
    sync_directory = disk.sync_directory

    def fails(directory: Path) -> None:
        if directory.name == "0":
            raise DiskFailedError(directory, os.strerror(5))
        sync_directory(directory)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_directory", fails)
        await put_one_each(opened, ["T"])
        await checkpoint(opened)
    await opened.close()
    assert (tmp_path / "abort").exists()


async def test_a_checkpoint_without_room_is_written_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_quiet(tmp_path)
    await put_one_each(opened, ["T"])
    with monkeypatch.context() as patch:
        patch.setattr(StoreCheckpointFile, "save", _no_room)
        await checkpoint(opened)
        with pytest.raises(DiskFullError, match="checkpoint"):
            opened.checkpointer.save_cut()
    opened.checkpointer.save_cut()
    await opened.close()
    assert not (tmp_path / "abort").exists()


async def test_a_root_of_queues_that_is_made_later_is_on_a_file_system_that_is_synced(tmp_path: Path) -> None:
    with fast_directory() as other:
        if other.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one file system only")
        (tmp_path / "consumequeue").symlink_to(other)
        opened = await open_quiet(tmp_path)
        synced = {os.fstat(descriptor).st_dev for descriptor in opened.checkpointer._queue_sync._file_systems}
        assert synced == {other.stat().st_dev, tmp_path.stat().st_dev}
        await opened.close()


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
