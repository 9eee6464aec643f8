"""What the cleaner asks of an archive before a file of the log goes. The archive is made by hand, without Spark."""

import asyncio
import hashlib
import logging
import os
from pathlib import Path

import pytest

from ledgermq import archive as module
from ledgermq.archive import Manifest, manifest_path, parquet_path
from store.cleaning.archive_gate import ArchiveGate
from store.cleaning.cleaner import Cleaner
from store.cleaning.config import CleaningConfig
from store.cleaning.disk_space import DiskSpace, StoreSpace
from store.log.flusher import FlushMode
from tests.limits import WAIT_S
from tests.store.support import open_classic, put_all, queued


def archive_by_hand(archive: Path, segment: Path) -> None:
    """Put a manifest, and something for a Parquet file, into an archive."""
    archive.mkdir(exist_ok=True)
    start, data, parquet = int(segment.name), segment.read_bytes(), b"Parquet"
    parquet_path(archive, start).write_bytes(parquet)
    sums = (hashlib.sha256(each).hexdigest() for each in (data, parquet))
    manifest = Manifest(start, len(data), next(sums), "classic", 0, 0, 0, len(parquet), next(sums))
    manifest_path(archive, start).write_bytes(manifest.encode())


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(bytes(range(200)))
    archive_by_hand(tmp_path / "archive", path)
    return path


def test_a_file_that_could_not_be_read_is_read_again(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = ArchiveGate(segment.parent / "archive")

    def fails(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "sha256_of", fails)
        assert not gate.is_open(segment)
        assert gate.fault == f"{segment}: Input/output error"
    assert gate.is_open(segment)
    assert gate.fault is None


def test_what_is_archived_is_durable_before_a_file_goes(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been copied there by a program that syncs nothing."""
    archive, synced, fsync = segment.parent / "archive", [], os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    assert ArchiveGate(archive).is_open(segment)
    assert {parquet_path(archive, 0), manifest_path(archive, 0), archive} <= set(synced)


def test_an_archive_that_cannot_be_synced_keeps_the_file(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    gate = ArchiveGate(segment.parent / "archive")
    monkeypatch.setattr(os, "fsync", fails)
    assert not gate.is_open(segment)
    assert str(gate.fault).endswith("Input/output error")


async def test_a_new_reason_is_told_and_the_wait_ends_at_any_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    queue = opened.store.queues.get("T", 0)
    await put_all(opened, [queued(queue, bytes(900)) for _ in range(20)])
    (first, _), *_ = opened.store.log.sealed_files()
    os.utime(first, (0, 0))
    archive, hours = tmp_path / "archive", [4, 4, 4, 12]
    config = CleaningConfig(log_pause_ms=0, queue_pause_ms=0, archive_required=True, archive_path=archive)
    disk = DiskSpace(10, 90, 100)
    cleaner = Cleaner(config, opened.store, measure=lambda: StoreSpace(disk, disk), hour=lambda: hours.pop(0))
    with caplog.at_level(logging.WARNING, "store.cleaning.cleaner"):
        await cleaner.run_round()
        await cleaner.run_round()
        archive_by_hand(archive, first)
        parquet_path(archive, 0).write_bytes(b"PARQUET")
        await cleaner.run_round()
    texts = [each.message for each in caplog.records]
    assert len(texts) == 2
    assert texts[0].endswith("No such file or directory")
    assert texts[1].endswith("is not the file that its manifest describes")
    assert cleaner.waits_for_archive
    archive_by_hand(archive, first)
    await cleaner.run_round()
    assert (cleaner.waits_for_archive, cleaner.deleted_files) == (False, 0)
    await opened.close()


async def test_an_archive_that_does_not_answer_keeps_no_round_from_its_end(tmp_path: Path) -> None:
    opened = await open_classic(tmp_path, flush_mode=FlushMode.SYNC)
    queue = opened.store.queues.get("T", 0)
    await put_all(opened, [queued(queue, bytes(900)) for _ in range(20)])
    (first, _), *_ = opened.store.log.sealed_files()
    archive, percent = tmp_path / "archive", 86
    archive_by_hand(archive, first)
    manifest = manifest_path(archive, 0)
    data = manifest.read_bytes()
    manifest.unlink()
    os.mkfifo(manifest)  # whoever reads it waits for a writer

    def measure() -> StoreSpace:
        disk = DiskSpace(percent, 100 - percent, 100)
        return StoreSpace(disk, disk)

    config = CleaningConfig(
        interval_ms=200, log_pause_ms=0, queue_pause_ms=0, archive_required=True, archive_path=archive
    )
    cleaner = Cleaner(config, opened.store, measure=measure)
    task = asyncio.create_task(cleaner.run_round())
    done, _ = await asyncio.wait([task], timeout=WAIT_S)
    percent = 91
    if done:
        await cleaner.run_round()
    refusal, waited = opened.store.disk_full, cleaner.waits_for_archive
    writer = os.open(manifest, os.O_WRONLY)
    manifest.unlink()
    manifest.write_bytes(data)
    os.write(writer, data)
    os.close(writer)
    assert done and waited and refusal is not None
    for _ in range(100):
        await cleaner.run_round()
        if opened.store.log.min_offset == 4096:
            break
    assert opened.store.log.min_offset == 4096
    await cleaner.close()
    await opened.close()
