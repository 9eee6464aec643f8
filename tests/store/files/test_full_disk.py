"""An ext4 file system that is really full: said at allocation, nothing placed, and it ends by itself."""

from collections.abc import Callable

import pytest

from ledgermq.remoting.refusal import Cause, Refusal
from store.log.commit_log import CommitLog
from store.log.flusher import FlushMode
from tests.store.files.conftest import MEBIBYTE, Disk
from tests.store.support import bodies_of, eventually, open_classic, put_all, queued

FILE_SIZE = MEBIBYTE


@pytest.mark.parametrize("flush_mode", FlushMode)
async def test_a_full_disk_is_met_at_allocation_and_ends_when_there_is_room(
    make_disk: Callable[..., Disk], flush_mode: FlushMode
) -> None:
    disk = make_disk(24 * MEBIBYTE)
    ballast = disk.mount / "ballast"
    ballast.write_bytes(bytes(8 * MEBIBYTE))
    store = await open_classic(disk.mount / "store", flush_mode=flush_mode, file_size=FILE_SIZE, queue_file_size=20_000)
    log = store.store.log
    assert isinstance(log, CommitLog)
    queue = store.store.queues.get("T", 0)
    bodies: list[bytes] = []
    with pytest.raises(Refusal, match="no room on the disk for 1048576 bytes") as caught:
        while len(bodies) < 1000:
            batch = [b"%d" % number + bytes(100_000) for number in range(len(bodies), len(bodies) + 3)]
            await put_all(store, [queued(queue, body) for body in batch])
            bodies += batch
    assert caught.value.cause is Cause.DISK_FULL
    assert (queue.next_offset, queue.max_offset) == (len(bodies), len(bodies))
    assert bodies_of(store, queue) == bodies

    ballast.unlink()
    log.local._allocator._clock = lambda: float("inf")  # the next try is due
    await put_all(store, [queued(queue, b"again" + bytes(100_000)) for _ in range(12)])
    await eventually(lambda: queue.max_offset == len(bodies) + 12)
    await store.close()
    store = await open_classic(disk.mount / "store", file_size=FILE_SIZE, queue_file_size=20_000)
    assert bodies_of(store, store.store.queues.get("T", 0))[: len(bodies)] == bodies
    await store.close()
