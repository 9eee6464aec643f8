"""The index over a store: what is dispatched is found, whatever happened to the process before."""

import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from ledgermq.message.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import IndexLayout, read_header
from store.errors import DiskFailedError, DiskFullError, DiskReadError, StoreFormatError
from store.files.mapped_file import MappedFile
from store.index import service
from store.index.batch import KeyBatch, log_batch
from store.index.builder import IndexBuilder
from store.index.file_bytes import FileBytes
from store.index.index_file import IndexFile, QueryRange
from store.opening import OpenStore
from store.recovery.record_batches import RecordBatch
from tests.store.index.support import FOREVER, LAYOUT, found, index_of, keyed, open_indexed, put_keyed
from tests.store.support import eventually, put_all


async def test_each_key_and_the_unique_key_are_found_newest_first(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    first = await put_keyed(store, "red  green", "ID1")
    second = await put_keyed(store, "green", "ID2")
    assert await found(store, "green") == [second, first]
    assert await found(store, "red") == [first]
    assert await found(store, "ID2") == [second]
    assert await found(store, "green", count=1) == [second]
    assert await found(store, "green", topic="other") == []
    result = await index_of(store).query("T", "green", 9, *FOREVER)
    assert result.index_last_update_offset == second
    assert result.index_last_update_timestamp == store.store.last_timestamp
    await store.close()


async def test_prepared_messages_are_indexed_and_rolled_back_ones_are_not(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    prepared = await put_keyed(store, "k", "P", sys_flag=TRANSACTION_PREPARED)
    await put_keyed(store, "k", "R", sys_flag=TRANSACTION_ROLLBACK)
    assert await found(store, "k") == [prepared]
    await store.close()


async def test_keys_beyond_ascii_are_found(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offset = await put_keyed(store, "订单 naïve \U0001f600", "ID")
    for key in ("订单", "naïve", "\U0001f600", "ID"):
        assert await found(store, key) == [offset]
    await store.close()


async def test_a_clean_stop_and_start_keeps_the_files_as_they_are(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, f"k{number} all", f"ID{number}") for number in range(30)]
    await store.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    assert len(before) == 5  # 90 entries, 19 a file
    store = await open_indexed(tmp_path)
    assert await found(store, "all") == offsets[::-1]
    await store.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "index").iterdir()} == before


async def test_names_are_local_time_and_rise_even_when_the_clock_does_not(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    await put_all(store, [keyed(store, f"k{number}", f"ID{number}") for number in range(12)])
    await put_all(store, [keyed(store, f"l{number}", f"IE{number}") for number in range(12)])
    await store.close()
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == len(set(names)) == 3
    assert all(len(name) == 17 and name.startswith("20") for name in names)


@pytest.mark.parametrize("checkpoints", [0, 1])
async def test_nothing_is_lost_or_doubled_when_the_process_dies(tmp_path: Path, checkpoints: int) -> None:
    """Upstream loses what the last index file held."""
    store = await open_indexed(tmp_path / "a")
    offsets = [await put_keyed(store, f"k{number % 3} all") for number in range(15)]
    await found(store, "all")
    if checkpoints:
        await checkpoint(store)
    offsets += [await put_keyed(store, f"k{number % 3} all") for number in range(15, 33)]
    await found(store, "all")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    await store.close()
    store = await open_indexed(tmp_path / "b")
    assert await found(store, "all") == offsets[::-1]
    assert await found(store, "k1") == offsets[1::3][::-1]
    await store.close()
    whole = {path.name: read_header(path.read_bytes()) for path in sorted((tmp_path / "a" / "index").iterdir())}
    again = {path.name: read_header(path.read_bytes()) for path in sorted((tmp_path / "b" / "index").iterdir())}
    assert list(again.values()) == list(whole.values())


async def test_slots_that_reached_the_disk_without_their_entries_are_made_again(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path / "a")
    offsets = [await put_keyed(store, "all") for _ in range(5)]
    await found(store, "all")
    await checkpoint(store)
    offsets += [await put_keyed(store, "all") for _ in range(5)]
    await found(store, "all")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    await store.close()
    (file,) = (tmp_path / "b" / "index").iterdir()
    with file.open("r+b") as torn:  # the power went: header and slots are new, the new entries are not there
        torn.seek(LAYOUT.entry_at(6))
        torn.write(bytes(LAYOUT.file_size - LAYOUT.entry_at(6)))
    store = await open_indexed(tmp_path / "b")
    assert await found(store, "all") == offsets[::-1]
    await store.close()


async def test_an_index_ahead_of_the_log_is_cut(tmp_path: Path) -> None:
    """The power went with ASYNC_FLUSH: the index's pages were written back, the log's were not."""
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "all") for _ in range(12)]
    await store.close()
    (tmp_path / "abort").write_text("1")
    log_file = sorted((tmp_path / "commitlog").iterdir())[0]
    with log_file.open("r+b") as torn:
        torn.seek(offsets[7])
        torn.write(bytes(offsets[11] + 200 - offsets[7]))
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store = await open_indexed(tmp_path)
    assert await found(store, "all") == offsets[:7][::-1]
    again = await put_keyed(store, "all")
    assert await found(store, "all") == [again, *offsets[:7][::-1]]
    await store.close()


@pytest.mark.parametrize("lost", ["first", "middle", "last", "all"])
async def test_index_files_that_are_missing_are_made_again_from_the_log(tmp_path: Path, lost: str) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, f"k{number} all", f"ID{number}") for number in range(30)]
    await store.close()
    (tmp_path / "checkpoint").unlink()
    files = sorted((tmp_path / "index").iterdir())
    doomed = {"first": files[:1], "middle": files[2:3], "last": files[-1:], "all": files}[lost]
    for file in doomed:
        file.unlink()
    store = await open_indexed(tmp_path, is_safe=True)
    assert await found(store, "all") == offsets[::-1]
    assert await found(store, "ID0") == offsets[:1]
    await store.close()


async def test_files_without_a_checkpoint_of_ours_are_gone_on_with(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "a b c", f"ID{number}") for number in range(9)]
    await store.close()
    (tmp_path / "checkpoint").unlink()
    for abort in (False, True):
        if abort:
            (tmp_path / "abort").write_text("1")
            (tmp_path / "checkpoint").unlink()
        store = await open_indexed(tmp_path)
        offsets.append(await put_keyed(store, "a b c", f"IE{abort}"))
        for key in "abc":
            assert await found(store, key) == offsets[::-1]
        await store.close()


async def test_switched_on_later_it_takes_in_what_was_sent_before(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k")]
    await store.close()
    for _ in range(2):
        (tmp_path / "index").rename(tmp_path / "aside")
        plain = await open_indexed(tmp_path, layout=IndexLayout(3, 3))
        await plain.close()
        shutil.rmtree(tmp_path / "index")
        (tmp_path / "aside").rename(tmp_path / "index")
        store = await open_indexed(tmp_path)
        offsets.append(await put_keyed(store, "k"))
        assert await found(store, "k") == offsets[::-1]
        await store.close()


async def test_files_of_another_length_are_refused_by_name(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    await put_keyed(store, "k")
    await store.close()
    with pytest.raises(StoreFormatError, match="maxHashSlotNum"):
        await open_indexed(tmp_path, layout=IndexLayout(8, 20))
    store = await open_indexed(tmp_path)
    await store.close()


async def test_an_entry_count_beyond_the_file_is_refused(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    await put_keyed(store, "k")
    await store.close()
    (file,) = (tmp_path / "index").iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(36)
        damaged.write((21).to_bytes(4, "big"))
    with pytest.raises(StoreFormatError, match="21 entries"):
        await open_indexed(tmp_path)


async def test_foreign_files_stay_and_empty_ones_go(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "notes.txt").write_text("mine")
    (tmp_path / "index" / "20260101000000000").touch()
    store = await open_indexed(tmp_path)
    await put_keyed(store, "k")
    assert len(await found(store, "k")) == 1
    await store.close()
    assert sorted(path.name for path in (tmp_path / "index").iterdir())[1:] == ["notes.txt"]


async def test_a_full_disk_delays_the_index_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_RETRY_S", 0.01)
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k")]
    assert await found(store, "k") == offsets
    index = index_of(store)
    with monkeypatch.context() as patched:
        patched.setattr(FileBytes, "write", _no_room)
        offsets += [await put_keyed(store, "k"), await put_keyed(store, "k")]
        await eventually(lambda: index.error is not None)
        assert await found(store, "k") == offsets[:1]
    await eventually(lambda: index.error is None)
    offsets.append(await put_keyed(store, "k"))
    assert await found(store, "k") == offsets[::-1]
    await store.close()


async def test_a_failed_sync_ends_building_and_the_next_start_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k")]
    await found(store, "k")
    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "sync", _sync_failed)
        await checkpoint(store)
        assert isinstance(index_of(store).error, DiskFailedError)
        offsets.append(await put_keyed(store, "k"))
        await store.close()
    store = await open_indexed(tmp_path)
    assert await found(store, "k") == offsets[::-1]
    await store.close()


async def test_files_go_when_all_their_records_are_gone_but_never_the_last(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "a b", f"ID{number}") for number in range(20)]
    await found(store, "a")
    index = index_of(store)
    names = sorted((tmp_path / "index").iterdir())
    assert len(names) == 4
    index.delete_before(offsets[6])  # the first file's last entry is of record 6
    await found(store, "a")
    assert sorted((tmp_path / "index").iterdir()) == names
    index.delete_before(offsets[7])
    await found(store, "a")
    assert sorted((tmp_path / "index").iterdir()) == names[1:]
    index.delete_before(1 << 40)
    assert await found(store, "a") == [offset for offset in offsets[::-1] if offset >= offsets[19]]
    assert sorted((tmp_path / "index").iterdir()) == names[-1:]
    await store.close()


async def test_drafts_that_wait_too_long_are_let_go_and_read_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DRAFT_BYTES_MAX", 300)
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k") for _ in range(20)]
    assert await found(store, "k") == offsets[::-1]
    await store.close()


async def test_a_slice_takes_about_as_many_records_of_the_log_whatever_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small records would hold the loop for long."""
    for name, value in {"_DELAY_S": 3600.0, "_DRAFT_BYTES_MAX": 0, "_BATCH_BYTES": 500, "_SLICE_RECORDS": 16}.items():
        monkeypatch.setattr(service, name, value)
    counts: list[int] = []

    def counted(file: MappedFile, batch: RecordBatch) -> KeyBatch:
        counts.append(len(batch.starts))
        return log_batch(file, batch)

    monkeypatch.setattr(service, "log_batch", counted)
    store = await open_indexed(tmp_path, file_size=1 << 20, layout=IndexLayout(slots=7, entries=2000))
    await put_all(store, [keyed(store, "k") for _ in range(100)])
    await put_all(store, [keyed(store, "k", body=bytes(1000)) for _ in range(100)])
    await index_of(store).catch_up()
    assert counts[0] < 10
    assert set(counts[1:6]) == {16}
    assert set(counts[-4:-1]) == {16}
    await store.close()


async def test_large_bodies_take_no_more_slices_than_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices counted by bytes kept the index behind at 250 MB/s: it read the log again, which costs twice as much."""
    monkeypatch.setattr(service, "_DELAY_S", 3600.0)
    slices: list[int] = []
    apply = IndexBuilder.apply

    def counted(builder: IndexBuilder, batch: KeyBatch | None, end: int) -> Future[bool]:
        slices.append(end)
        return apply(builder, batch, end)

    monkeypatch.setattr(IndexBuilder, "apply", counted)
    store = await open_indexed(tmp_path, file_size=8 << 20, layout=IndexLayout(slots=7, entries=2000))
    for _ in range(8):
        await put_all(store, [keyed(store, "k", body=bytes(8192)) for _ in range(50)])
    await index_of(store).catch_up()
    assert slices == [store.store.dispatched_offset]
    await store.close()


async def test_records_that_a_log_began_anew_without_are_forgotten_and_others_take_their_place(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k") for _ in range(30)]
    index = index_of(store)
    assert await found(store, "k") == offsets[::-1]
    await asyncio.wrap_future(index._builder.cut_at(offsets[11]))
    assert (
        await asyncio.wrap_future(index._builder.query(QueryRange(index_hash("T#k"), *FOREVER), 64))
    ).offsets == offsets[10::-1]
    index._cursor = offsets[11]
    assert await found(store, "k") == offsets[::-1]
    await store.close()


async def test_what_the_disk_cannot_read_of_the_index_is_said_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_indexed(tmp_path)
    await put_keyed(store, "k")
    await found(store, "k")
    with monkeypatch.context() as patched:
        patched.setattr(FileBytes, "read", _cannot_read)
        with pytest.raises(DiskReadError, match="index"):
            await found(store, "k")
    assert len(await found(store, "k")) == 1
    await store.close()


async def test_a_stretch_of_the_log_that_cannot_be_read_is_left_out_and_the_rest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_indexed(tmp_path)
    offsets = [await put_keyed(store, "k") for _ in range(10)]
    await store.close()
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "index")
    store = await open_indexed(tmp_path)
    walk = store.store.log.walk

    def damaged_walk(start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        for offset, record in walk(start, end):
            if offset == offsets[4]:
                raise DiskReadError(tmp_path / "commitlog", offset, "broken")
            yield offset, record

    monkeypatch.setattr(store.store.log, "walk", damaged_walk)
    assert await found(store, "k") == [offset for offset in offsets[::-1] if offset != offsets[4]]
    await store.close()


async def test_what_is_sent_while_the_store_closes_is_indexed(tmp_path: Path) -> None:
    store = await open_indexed(tmp_path)
    drafts = [keyed(store, "k") for _ in range(5)]
    store.store.put(drafts, lambda _: None)
    await store.close()
    (file,) = (tmp_path / "index").iterdir()
    assert read_header(file.read_bytes()).entry_count == 6
    assert not (tmp_path / "abort").exists()


async def checkpoint(store: OpenStore) -> None:
    """Save one now, and wait for it."""
    checkpointer = store.checkpointer
    await asyncio.get_running_loop().run_in_executor(
        checkpointer._executor, checkpointer._save, checkpointer._capture()
    )


def _no_room(file: FileBytes, data: bytes, _: int) -> None:
    raise DiskFullError(file.path, len(data))


def _cannot_read(file: FileBytes, position: int, _: int) -> bytes:
    raise DiskReadError(file.path, position, "broken")


def _sync_failed(file: IndexFile) -> None:
    raise DiskFailedError(file.path, "sync failed")
