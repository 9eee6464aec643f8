"""A file system that really fills: it is cleaned, messages are refused in need, and all comes back by itself."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledgermq.remoting.refusal import Cause, Refusal
from store.cleaning.cleaner import Cleaner, store_space
from store.cleaning.config import CleaningConfig
from store.log.flusher import FlushMode
from store.opening import OpenStore
from tests.store.support import Outcomes, bodies_of, eventually, open_classic, put_all, queued

FILE_SIZE = 128 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where this process may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.fixture
async def opened(small_disk: Path) -> AsyncIterator[OpenStore]:
    opened = await open_classic(
        small_disk / "store", flush_mode=FlushMode.SYNC, file_size=FILE_SIZE, queue_file_size=2000
    )
    yield opened
    await opened.close()


def cleaner_of(opened: OpenStore, root: Path) -> Cleaner:
    config = CleaningConfig(delete_hours=frozenset(), log_pause_ms=0, queue_pause_ms=0)
    return Cleaner(config, opened.store, measure=lambda: store_space(root, root / "commitlog", count=False))


async def test_a_disk_that_fills_loses_the_oldest_files_and_takes_messages_on(
    small_disk: Path, opened: OpenStore
) -> None:
    root, queue = small_disk / "store", opened.store.queues.get("T", 0)
    cleaner = cleaner_of(opened, root)
    for number in range(120):  # twice what the disk holds
        await put_all(opened, [queued(queue, b"%03d" % number + bytes(8000)) for _ in range(8)])
        await cleaner.run_round()
        await eventually(lambda: len(list((root / "commitlog").iterdir())) <= 29)
    assert cleaner.deleted_files > 20
    assert store_space(root, root, count=False).log.ratio <= 0.90
    assert opened.store.disk_full is None
    bodies = bodies_of(opened, queue)
    assert bodies[-1][:3] == b"119"
    assert len(bodies) == queue.max_offset - queue.min_offset < 8 * 120


async def test_another_hand_that_fills_the_disk_has_messages_refused_until_it_lets_go(
    small_disk: Path, opened: OpenStore
) -> None:
    root, queue = small_disk / "store", opened.store.queues.get("T", 0)
    await put_all(opened, [queued(queue, b"first")])
    cleaner = cleaner_of(opened, root)
    space = store_space(root, root, count=False).log
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(int(space.total * 0.93) - space.used))
    await cleaner.run_round()
    # The log makes its next file ahead, 3 % of this disk, before or after the ballast was measured.
    with pytest.raises(Refusal, match=r"disk is 9\d % full, more than 90 %") as refused:
        opened.store.put([queued(queue)], Outcomes())
    assert refused.value.cause is Cause.DISK_FULL
    assert bodies_of(opened, queue) == [b"first"]
    ballast.unlink()
    await cleaner.run_round()
    await put_all(opened, [queued(queue, b"again")])
    assert bodies_of(opened, queue) == [b"first", b"again"]
