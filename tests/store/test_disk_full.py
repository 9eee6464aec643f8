"""A file system that is really full: messages are refused before anything is placed, and taken when there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.remoting.refusal import Cause, Refusal
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from tests.store.support import Outcomes, bodies_of, eventually, open_classic, put_all, queued

FILE_SIZE = 256 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where this process may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system is not permitted here")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_full_disk_refuses_and_comes_back_by_itself(small_disk: Path, flush_mode: FlushMode) -> None:
    store = await open_classic(small_disk / "store", flush_mode=flush_mode, file_size=FILE_SIZE, queue_file_size=20_000)
    log = store.store.log
    assert isinstance(log, CommitLog)
    log.local._allocator._clock = lambda: 0.0
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    queue = store.store.queues.get("T", 0)
    written = 0
    with pytest.raises(Refusal) as caught:
        while written < 10_000:
            await put_all(store, [queued(queue, b"%d" % number) for number in range(written, written + 50)])
            written += 50
    assert caught.value.cause is Cause.DISK_FULL
    end = log.max_offset
    with pytest.raises(Refusal):
        store.store.put([queued(queue, bytes(FILE_SIZE // 2))], Outcomes())
    assert (log.max_offset, queue.next_offset, queue.max_offset) == (end, written, written)
    assert len(bodies_of(store, queue)) == written

    ballast.unlink()
    log.local._allocator._clock = lambda: 10.0
    await put_all(store, [queued(queue, b"%d" % number) for number in range(written, written + 50)])
    await eventually(lambda: queue.max_offset == written + 50)
    await store.close()
    again = await open_classic(small_disk / "store", file_size=FILE_SIZE, queue_file_size=20_000)
    bodies = bodies_of(again, again.store.queues.get("T", 0))
    assert bodies == [b"%d" % number for number in range(written + 50)]
    await again.close()
