"""Ten thousand queues in one process: their descriptors, their memory, and what the next start makes of them."""

import asyncio
import gc
import itertools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.log.commit_log import CommitLogConfig
from store.opening import OpenStore, open_classic_store
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_mapping import MappedQueues, map_file
from store.recovery import checkpointer
from store.store_config import StoreConfig
from tests.store.support import HOST, eventually, fast_directory, put_all, queued

QUEUES = int(os.environ.get("LEDGERMQ_TEST_QUEUES", "10000"))
BATCH = 500


async def open_large(root: Path) -> OpenStore:
    """With queue files of RocketMQ's size."""
    log = CommitLogConfig(directory=root / "commitlog", store_host=HOST, file_size_bytes=32 << 20)
    return await open_classic_store(StoreConfig(root=root, checkpoint_interval_ms=3_600_000), log)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def anonymous_mib() -> int:
    """What the process itself holds, without pages of files."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("RssAnon"))


async def fill(opened: OpenStore, rounds: int) -> None:
    queues = [opened.store.queues.get(f"T{number}", 0) for number in range(QUEUES)]
    for _ in range(rounds):
        for start in range(0, QUEUES, BATCH):
            await put_all(opened, [queued(queue) for queue in queues[start : start + BATCH]])


async def test_ten_thousand_queues_take_neither_a_descriptor_each_nor_much_memory() -> None:
    with fast_directory() as root:
        opened = await open_large(root)
        gc.collect()
        descriptors_before, memory_before = descriptors(), anonymous_mib()
        await fill(opened, 2)
        assert descriptors() - descriptors_before < 50
        assert anonymous_mib() - memory_before < 100  # ten thousand bytes a queue
        assert all(queue.max_offset == 2 for queue in opened.store.queues)
        await opened.close()
        opened = await open_large(root)
        assert sum(queue.max_offset for queue in opened.store.queues) == 2 * QUEUES
        assert opened.recovery.record_count == 0
        assert descriptors() - descriptors_before < 50
        await opened.close()


def test_a_mapping_needs_no_descriptor_and_is_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 3 * mmap.PAGESIZE)
    before = descriptors()
    with path.open("r+b") as file:
        mapping = map_file(file.fileno(), 3 * mmap.PAGESIZE)
    assert descriptors() == before
    mapping[5:8] = b"xyz"
    assert path.read_bytes()[3:10] == b"aaxyzaa"
    with path.open("r+b") as file:
        file.seek(mmap.PAGESIZE)
        file.write(b"seen")
    view = memoryview(mapping)[mmap.PAGESIZE : mmap.PAGESIZE + 4]
    assert bytes(view) == b"seen"
    with pytest.raises(BufferError):
        mapping.close()
    view.release()
    mapping.close()


def test_a_file_that_is_too_short_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a")
    with path.open("r+b") as file, pytest.raises(OSError, match="shorter than"):
        map_file(file.fileno(), 4096)


def mapped_files(folder: Path) -> int:
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_only_so_many_queues_have_mapped_files_and_all_keep_their_units(tmp_path: Path) -> None:
    mapped = MappedQueues(3)
    queues = [ConsumeQueue("T", number, tmp_path / str(number), 50, mapped) for number in range(8)]
    read = queues[0].units(0, 0)
    for offset in range(120):  # over three files
        for queue in queues:
            queue.put(offset * 100, 100, queue.queue_id, offset)
            if offset == 60:
                read = queue.units(0, 50)
    assert mapped_files(tmp_path) <= 2 * 3 + 1, "two files a queue, and the one that is read"
    assert read[-20:-8] == (4900).to_bytes(8) + (100).to_bytes(4)
    for queue in queues:
        units = [unit for _, unit in queue.iterate(0, 120)]
        assert units == [(offset * 100, 100, queue.queue_id) for offset in range(120)]
        queue.cut_at(9_000)
        assert queue.max_offset == 90
        queue.put(9_000, 100, 7, 90)
    assert mapped_files(tmp_path) <= 2 * 3 + 1
    for queue in queues:
        assert queue.unit(90) == (9_000, 100, 7)


def test_a_queue_that_gets_units_stays_mapped_while_idle_ones_are_there(tmp_path: Path) -> None:
    mapped = MappedQueues(3)
    queues = [ConsumeQueue("T", number, tmp_path / str(number), 50, mapped) for number in range(6)]
    for number, queue in enumerate(queues):
        queue.put(0, 100, 0, 0)
        if number > 0:
            queues[0].put(number * 100, 100, 0, number)
    assert mapped_files(tmp_path / "0") == 1
    assert mapped_files(tmp_path / "1") == 0
    for queue in queues:
        queue.close()


@pytest.mark.parametrize("is_noted", [False, True])
async def test_a_checkpoint_of_ten_thousand_queues_looks_at_a_few_of_them_in_each_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    """Counted on a clock of which each look at a queue's units takes a hundredth of what a turn may take."""
    clock = itertools.count(0.0, checkpointer._WRITE_S / 100)
    monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    turns = [0]

    def counted(look: Callable[..., object]) -> Callable[..., object]:
        def noting(*arguments: object) -> object:
            turns[-1] += 1
            return look(*arguments)

        return noting

    for name in ("write_held", "held_below", "take_unflushed"):
        monkeypatch.setattr(ConsumeQueue, name, counted(getattr(ConsumeQueue, name)))

    def next_turn() -> None:
        turns.append(0)
        asyncio.get_running_loop().call_soon(next_turn)

    with fast_directory() as root:
        opened = await open_large(root)
        opened.checkpointer.save()
        await eventually(lambda: not opened.checkpointer._is_saving)
        await fill(opened, 1)
        monkeypatch.setattr(opened.checkpointer, "_is_note_enough", lambda: is_noted)
        next_turn()
        opened.checkpointer._count_then_save(QUEUES)
        await eventually(lambda: opened.checkpointer._noted_offset == opened.store.dispatched_offset)
        await eventually(lambda: not opened.checkpointer._is_saving)
        assert sum(turns) >= 2 * (QUEUES - 256)
        assert max(turns) <= checkpointer._COUNTED_AT_ONCE + 2 * 100
        monkeypatch.undo()
        await opened.close()
