"""What a start looks at: after a clean stop next to nothing, however large the store; after a crash what is behind."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.store_progress import Progress
from store.directory import boot
from store.directory.checkpoint import StoreCheckpoint, StoreCheckpointFile
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from store.opening import OpenStore
from store.queues import queue_ends
from store.queues.queue_ends import FILE_NAME, decode_ends, encode_ends, read_ends
from store.queues.queue_file import QueueFile
from tests.store.support import bodies_of, fast_directory, killed_image, open_classic, put_all, queued

GIB = 1 << 30


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: a disk's file system takes seconds to make and remove thousands of queues."""
    with fast_directory() as directory:
        yield directory


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were mapped or created."""
    names: list[str] = []
    for kind in (MappedFile, QueueFile):
        original = kind.map

        def noted(file: MappedFile | QueueFile, original: object = original) -> object:
            names.append(str(file.path))
            return original(file)  # type: ignore[operator]

        monkeypatch.setattr(kind, "map", noted)
    return names


async def write(store: OpenStore, topics: int, each: int) -> None:
    queues = store.store.queues
    for number in range(each):
        await put_all(store, [queued(queues.get(f"T{topic}", 0), b"%d" % number) for topic in range(topics)])


async def test_a_hundred_gigabytes_stopped_cleanly_are_not_looked_at(tmp_path: Path, touched: list[str]) -> None:
    size, count = GIB // 8, 800
    await (await open_classic(tmp_path, file_size=size)).close()
    for number in range(count):
        with (tmp_path / "commitlog" / f"{number * size:020d}").open("wb") as file:
            file.truncate(size)
    end = (count - 1) * size + 1000
    StoreCheckpointFile(tmp_path).save(StoreCheckpoint(progress=Progress(end, end, 0)))
    touched.clear()
    store = await open_classic(tmp_path, file_size=size)
    assert isinstance(store.store.log, CommitLog)
    assert (store.store.log.min_offset, store.store.log.max_offset) == (0, end)
    assert store.recovery.record_count == 0
    assert len(set(touched)) <= 3, "the last file, and those made ahead"
    await store.close()


async def test_thousands_of_queues_stopped_cleanly_are_not_looked_at(touched: list[str]) -> None:
    with fast_directory() as root:
        store = await open_classic(root, file_size=1 << 22, queue_file_size=2000)
        await write(store, 2000, 2)
        await store.close()
        touched.clear()
        store = await open_classic(root, file_size=1 << 22, queue_file_size=2000)
        assert not [name for name in touched if "consumequeue" in name]
        assert bodies_of(store, store.store.queues.get("T777", 0)) == [b"0", b"1"]
        await write(store, 3, 1)
        assert bodies_of(store, store.store.queues.get("T2", 0)) == [b"0", b"1", b"0"]
        await store.close()


async def damage_and_reopen(root: Path, damage: object) -> list[bytes]:
    store = await open_classic(root)
    await write(store, 2, 30)
    await store.close()
    damage(root)  # type: ignore[operator]
    store = await open_classic(root)
    assert all(ends.boot for ends in read_ends(root)), "a clean stop is believed once only"
    bodies = bodies_of(store, store.store.queues.get("T1", 0))
    await store.close()
    return bodies


def a_queue_lost(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T1")


def a_file_lost(root: Path) -> None:
    (root / "consumequeue" / "T1" / "0" / f"{200:020d}").unlink()


def ends_broken(root: Path) -> None:
    (root / FILE_NAME).write_bytes((root / FILE_NAME).read_bytes()[:-1])


def ends_lost(root: Path) -> None:
    (root / FILE_NAME).unlink()


def checkpoint_lost(root: Path) -> None:
    (root / "checkpoint").unlink()


def ends_of_another_time(root: Path) -> None:
    (ends,) = decode_ends((root / FILE_NAME).read_bytes())
    older = tuple((*row[:3], row[3] - 1, *row[4:]) for row in ends.queues)
    (root / FILE_NAME).write_bytes(encode_ends(replace(ends, queues=older, unit_count=ends.unit_count - len(older))))


def a_copy(root: Path) -> None:
    for path in (root / "consumequeue").rglob("*"):
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "damage", [a_queue_lost, a_file_lost, ends_broken, ends_lost, checkpoint_lost, ends_of_another_time, a_copy]
)
async def test_where_anything_has_changed_each_queue_is_looked_at(tmp_path: Path, damage: object) -> None:
    assert await damage_and_reopen(tmp_path, damage) == [b"%d" % number for number in range(30)]


async def checkpoint(store: OpenStore) -> None:
    store.checkpointer.save()
    saving = store.checkpointer._saving
    assert saving is not None
    await asyncio.wrap_future(saving)


def numbers(store: OpenStore) -> dict[str, list[bytes]]:
    return {f"{queue.topic}/{queue.queue_id}": bodies_of(store, queue) for queue in store.store.queues}


Step = Callable[[OpenStore], Awaitable[object]]


async def more(store: OpenStore) -> None:
    await write(store, 3, 2)


async def many_more(store: OpenStore) -> None:
    await write(store, 2, 30)  # ten units a file


async def a_new_topic(store: OpenStore) -> None:
    await put_all(store, [queued(store.store.queues.get("New", 3), b"new") for _ in range(25)])


async def a_topic_removed(store: OpenStore) -> None:
    store.store.queues.delete_topic("T2")


async def a_topic_made_again(store: OpenStore) -> None:
    await a_topic_removed(store)
    await put_all(store, [queued(store.store.queues.get("T2", 0), b"again")])


async def removed_checkpointed_and_made_again(store: OpenStore) -> None:
    await a_topic_removed(store)
    await checkpoint(store)
    await more(store)


async def two_checkpoints(store: OpenStore) -> None:
    await more(store)
    await checkpoint(store)
    await many_more(store)
    await checkpoint(store)
    await more(store)


@pytest.mark.parametrize("is_same_boot", [True, False])
@pytest.mark.parametrize("step", [more, many_more, a_new_topic, removed_checkpointed_and_made_again, two_checkpoints])
async def test_a_start_after_a_kill_opens_hardly_a_queue(
    tmp_path: Path, touched: list[str], monkeypatch: pytest.MonkeyPatch, step: Step, is_same_boot: bool
) -> None:
    store = await open_classic(tmp_path / "live", queue_file_size=200)
    await write(store, 200, 3)
    await checkpoint(store)
    await step(store)
    root = killed_image(store.directory.root, tmp_path / "image")
    expected = numbers(store)
    await store.close()
    if not is_same_boot:
        monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "boot")
        (tmp_path / "boot").write_text("another\n")
    touched.clear()
    store = await open_classic(root, queue_file_size=200)
    opened = {Path(name).parent.parent.name for name in touched if "consumequeue" in name}
    assert len(opened) <= 3 if is_same_boot else len(opened) >= 199
    assert numbers(store) == expected
    await write(store, 4, 12)
    assert all(numbers(store)[f"T{number}/0"][-12:] == [b"%d" % body for body in range(12)] for number in range(4))
    await store.close()


@pytest.mark.parametrize("step", [a_topic_removed, a_topic_made_again])
async def test_bounds_of_a_queue_that_lost_units_are_not_believed(tmp_path: Path, step: Step) -> None:
    store = await open_classic(tmp_path / "live", queue_file_size=200)
    await write(store, 5, 30)
    await checkpoint(store)
    assert read_ends(tmp_path / "live")
    await step(store)
    assert not read_ends(tmp_path / "live")
    await store.close()


@pytest.mark.parametrize("is_checkpointed", [True, False])
async def test_a_removal_that_the_log_has_lost_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkpointed: bool
) -> None:
    store = await open_classic(tmp_path / "live", flush_mode=FlushMode.ASYNC, flush_interval_ms=60_000)
    await write(store, 3, 30)
    await checkpoint(store)
    expected = numbers(store)
    assert store.store.log.flushed_offset < store.store.dispatched_offset, "as far as the checkpoint believes the log"
    store.store.queues.delete_topic("T1", removed_offset=store.store.log.max_offset)
    if is_checkpointed:
        await checkpoint(store)
    root = killed_image(store.directory.root, tmp_path / "image")
    await store.close()
    monkeypatch.setattr(boot, "_BOOT_ID", tmp_path / "boot")
    (tmp_path / "boot").write_text("another\n")
    store = await open_classic(root)
    assert numbers(store) == expected
    await store.close()


async def test_a_cut_of_queues_is_not_undone_by_saved_bounds(tmp_path: Path) -> None:
    store = await open_classic(tmp_path / "live", queue_file_size=2000)  # a cut within the file
    await write(store, 5, 10)
    middle = store.store.log.max_offset
    await write(store, 5, 10)
    await checkpoint(store)
    store.store.queues.cut_at(middle)
    root = killed_image(store.directory.root, tmp_path / "image")  # the log is cut last
    await store.close()
    store = await open_classic(root, queue_file_size=2000)
    assert numbers(store) == {
        f"T{number}/0": [b"%d" % body for body in [*range(10), *range(10)]] for number in range(5)
    }
    await store.close()


def ends_early(content: bytes) -> bytes:
    return content[:-1]


def has_another_max_offset(content: bytes) -> bytes:
    return content[:-17] + bytes([content[-17] ^ 1]) + content[-16:]


@pytest.mark.parametrize("damage", [ends_early, has_another_max_offset])
async def test_a_file_of_bounds_whose_last_part_is_damaged_is_believed_up_to_there(
    tmp_path: Path, touched: list[str], damage: Callable[[bytes], bytes]
) -> None:
    store = await open_classic(tmp_path / "live")
    await write(store, 20, 3)
    await checkpoint(store)
    await more(store)
    await checkpoint(store)
    root = killed_image(store.directory.root, tmp_path / "image")
    expected = numbers(store)
    await store.close()
    first, second = read_ends(root)
    assert (len(first.queues), len(second.queues)) == (20, 3)
    (root / FILE_NAME).write_bytes(damage((root / FILE_NAME).read_bytes()))
    touched.clear()
    store = await open_classic(root)
    assert len({name for name in touched if "consumequeue" in name}) == 3
    assert numbers(store) == expected
    await store.close()


async def test_the_bounds_are_written_anew_when_the_file_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_ends, "_GROWTH_BYTES", 100)
    store = await open_classic(tmp_path)
    counts = []
    for _ in range(12):
        await more(store)
        await checkpoint(store)
        counts.append(len(read_ends(tmp_path)))
    assert max(counts) <= 5
    assert counts.count(1) >= 2
    await store.close()


@pytest.mark.parametrize("loss", ["the end", "a record in the middle"])
async def test_bounds_are_not_believed_where_the_log_lost_what_was_dispatched(
    tmp_path: Path, touched: list[str], loss: str
) -> None:
    """No kill does that: a directory was copied while it was written, or a sync failed and its pages were dropped."""
    store = await open_classic(tmp_path / "live", file_size=1 << 16)
    await write(store, 20, 3)
    await checkpoint(store)
    middle = store.store.log.max_offset
    await more(store)
    end = store.store.log.max_offset
    await more(store)
    await checkpoint(store)
    root = killed_image(store.directory.root, tmp_path / "image")
    await store.close()
    found = StoreCheckpointFile(root).found
    assert found.progress is not None
    StoreCheckpointFile(root).save(replace(found, progress=replace(found.progress, flushed_offset=middle)))
    path = min((root / "commitlog").iterdir())
    content = path.read_bytes()
    lost = slice(end, len(content)) if loss == "the end" else slice(end - 8, end - 4)
    path.write_bytes(content[: lost.start] + bytes(lost.stop - lost.start) + content[lost.stop :])
    touched.clear()
    store = await open_classic(root, file_size=1 << 16)
    assert len({name for name in touched if "consumequeue" in name}) >= 20
    await store.close()
