"""How much of a copied log is read at once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import message_store
from store.files.mapped_file import MappedFile
from store.message_store import MessageStore
from store.opening import OpenStore
from store.recovery.batch_fields import LogBatches
from store.recovery.record_batches import RecordBatch
from tests.store.support import eventually, open_classic, put_all, queue_table, queued

WATCHED = "state"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were read at once."""
    read, batches = list[int](), LogBatches.batches

    def counted(self: LogBatches, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        for file, batch in batches(self, start, end):
            read.append(len(batch.starts))
            yield file, batch

    monkeypatch.setattr(LogBatches, "batches", counted)
    return read


async def dispatched(store: OpenStore, directory: Path) -> None:
    """Dispatch the whole log of a store in another one."""
    other = MessageStore(store.store.log, queue_table(directory, 100), asyncio.get_running_loop())
    other.watch_topic(WATCHED)
    other.start()
    await eventually(lambda: other.dispatched_offset == store.store.log.confirm_offset)
    other.close()


async def test_about_as_many_records_are_read_at_once_as_are_dispatched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """Reading a window of many small records would hold the loop for long."""
    for name, value in {"_BATCH_BYTES": 0, "_BATCH_RECORDS": 16, "_SMALL_WINDOW_BYTES": 999}.items():
        monkeypatch.setattr(message_store, name, value)
    store = await open_classic(tmp_path / "a", file_size=100_000)
    await put_all(store, [queued(store.store.queues.get("T", 0), bytes(300)) for _ in range(200)])
    await dispatched(store, tmp_path / "b")
    assert sum(read) == 200
    assert read[0] < max(read) == 16
    await store.close()


async def test_no_more_bytes_are_read_at_once_than_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    for name, value in {"_BATCH_BYTES": 0, "_SMALL_WINDOW_BYTES": 999, "_GATHERED_BYTES": 5000}.items():
        monkeypatch.setattr(message_store, name, value)
    store = await open_classic(tmp_path / "a", file_size=100_000)
    await put_all(store, [queued(store.store.queues.get("T", 0), bytes(300)) for _ in range(200)])
    await dispatched(store, tmp_path / "b")
    assert sum(read) == 200
    assert 5000 // 500 < max(read) <= 5000 // 300 + 1
    await store.close()


async def test_no_more_is_read_again_in_each_slice_than_a_slice_dispatches_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[int]
) -> None:
    """State records take long: windows that were right for others would be read once for each few of them."""
    names = {"_BATCH_BYTES": 0, "_BATCH_RECORDS": 50, "_SMALL_WINDOW_BYTES": 999, "SLICE_S": 0.0}
    for name, value in names.items():
        monkeypatch.setattr(message_store, name, value)
    store = await open_classic(tmp_path / "a", file_size=100_000)
    for topic in ("T", WATCHED):
        await put_all(store, [queued(store.store.queues.get(topic, 0), bytes(300)) for _ in range(100)])
    await dispatched(store, tmp_path / "b")
    assert max(read) == 50
    assert max(read[-20:]) <= 4
    await store.close()


async def test_a_slice_ends_behind_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole log would hold the loop for long."""
    for name, value in {"_BATCH_BYTES": 0, "_BATCH_RECORDS": 16, "SLICE_S": 0.0}.items():
        monkeypatch.setattr(message_store, name, value)
    store = await open_classic(tmp_path / "a", file_size=100_000)
    await put_all(store, [queued(store.store.queues.get("T", 0), bytes(300)) for _ in range(160)])
    other = MessageStore(store.store.log, queue_table(tmp_path / "b", 100), asyncio.get_running_loop())
    other.start()
    ends = {other.dispatched_offset}
    while other.dispatched_offset < store.store.log.confirm_offset:
        await asyncio.sleep(0)
        ends.add(other.dispatched_offset)
    assert len(ends) >= 10
    other.close()
    await store.close()
