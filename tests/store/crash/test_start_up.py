"""What a start looks at: after a clean stop next to nothing, however large the store; after a crash what is behind."""

import os
import shutil
from pathlib import Path

import pytest

from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint, StoreCheckpointFile
from store.files.mapped_file import MappedFile
from store.log.commit_log import CommitLog
from store.opening import OpenStore
from store.queues.queue_ends import FILE_NAME, QueueEnds, decode_ends, encode_ends
from store.queues.queue_file import QueueFile
from tests.store.support import bodies_of, fast_directory, open_classic, put_all, queued

GIB = 1 << 30


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
    assert not (root / FILE_NAME).exists(), "believed once only"
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
    ends = decode_ends((root / FILE_NAME).read_bytes())
    assert ends is not None
    older = tuple((topic, number, low, high - 1, changed) for topic, number, low, high, changed in ends.queues)
    (root / FILE_NAME).write_bytes(encode_ends(QueueEnds(0, ends.dispatched_offset, ends.file_units, older)))


def a_copy(root: Path) -> None:
    for path in (root / "consumequeue").rglob("*"):
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "damage", [a_queue_lost, a_file_lost, ends_broken, ends_lost, checkpoint_lost, ends_of_another_time, a_copy]
)
async def test_where_anything_has_changed_each_queue_is_looked_at(tmp_path: Path, damage: object) -> None:
    assert await damage_and_reopen(tmp_path, damage) == [b"%d" % number for number in range(30)]
