"""Queues are synced as they fill pages, and all of them with the checkpoint."""

import os
from pathlib import Path

import pytest

from store.errors import DiskFailedError
from store.log.commit_log import CommitLogConfig
from store.opening import OpenStore, open_classic_store
from store.queues.queue_file import QueueFile
from store.store_config import StoreConfig
from tests.store.support import HOST, eventually, put_all, queued

UNITS_OF_A_PAGE = 205


async def open_syncing(root: Path, pages: int) -> OpenStore:
    config = StoreConfig(root=root, checkpoint_interval_ms=3_600_000, queue_sync_interval_ms=1, queue_sync_pages=pages)
    return await open_classic_store(config, CommitLogConfig(directory=root / "commitlog", store_host=HOST))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics whose queue files were synced."""
    found: list[str] = []
    sync = QueueFile.sync

    def noting(file: QueueFile) -> None:
        found.append(file.path.parent.parent.name)
        sync(file)

    monkeypatch.setattr(QueueFile, "sync", noting)
    return found


async def test_a_queue_is_synced_when_it_has_filled_its_pages_and_others_wait(
    tmp_path: Path, synced: list[str]
) -> None:
    opened = await open_syncing(tmp_path, 2)
    busy, idle = opened.store.queues.get("Busy", 0), opened.store.queues.get("Idle", 0)
    await put_all(opened, [queued(idle)] * 1)
    await put_all(opened, [queued(busy) for _ in range(2 * UNITS_OF_A_PAGE - 1)])
    assert (busy.unflushed_pages, idle.unflushed_pages) == (1, 0)
    await put_all(opened, [queued(busy)])
    await eventually(lambda: "Busy" in synced)
    assert busy.unflushed_pages == 0
    assert "Idle" not in synced
    await opened.close()
    assert "Idle" in synced


async def test_a_sync_that_fails_leaves_no_clean_stop_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_syncing(tmp_path, 1)
    queue = opened.store.queues.get("T", 0)
    failed = False

    def fails(file: QueueFile) -> None:
        nonlocal failed
        failed = True
        raise DiskFailedError(file.path, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(QueueFile, "sync", fails)
        await put_all(opened, [queued(queue) for _ in range(UNITS_OF_A_PAGE)])
        await eventually(lambda: failed)
    await opened.close()
    opened = await open_syncing(tmp_path, 1)
    assert opened.recovery.record_count == UNITS_OF_A_PAGE
    assert opened.store.queues.get("T", 0).max_offset == UNITS_OF_A_PAGE
    await opened.close()
