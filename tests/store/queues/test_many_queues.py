"""Ten thousand queues in one process: their descriptors, their memory, and what the next start makes of them."""

import gc
import mmap
import os
from pathlib import Path

import pytest

from store.log.commit_log import CommitLogConfig
from store.opening import OpenStore, open_classic_store
from store.queues.queue_mapping import map_file
from store.store_config import StoreConfig
from tests.store.support import HOST, fast_directory, put_all, queued

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
