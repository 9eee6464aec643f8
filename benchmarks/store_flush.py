"""Group commit with SYNC_FLUSH: four batches of 32 messages of 1 KiB are on their way at any time.

    python -m benchmarks.store_flush [--records N] [--rounds N] [--directory DIR]

messages_per_s     acknowledged, each behind the sync that covers it
bare_per_s         what a bare loop of one pwrite of a batch's bytes and one fdatasync reaches, times 32
over_bare          bare_per_s / messages_per_s
"""

import asyncio
import os
import time
from pathlib import Path

from benchmarks.store_bench import BATCH, Batch, Figures, Options, main, make_batches, open_scratch
from store.log.flusher import FlushMode
from store.message_store import MessageStore

_IN_FLIGHT = 4


async def put_synced(store: MessageStore, batches: list[Batch]) -> float:
    """Put them all, a few in flight; seconds until the last is acknowledged."""
    room = asyncio.Semaphore(_IN_FLIGHT)
    began = time.perf_counter()
    for batch in batches:
        await room.acquire()
        store.put(batch, lambda _: room.release())
    for _ in range(_IN_FLIGHT):
        await room.acquire()
    return time.perf_counter() - began


def sync_bare(path: Path, size: int, count: int) -> float:
    """Seconds for so many writes of `size` bytes, one behind the other, with a sync each, into a file made before."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    data = bytes(size)
    try:
        os.posix_fallocate(descriptor, 0, size * count)
        os.fsync(descriptor)
        began = time.perf_counter()
        for number in range(count):
            os.pwrite(descriptor, data, number * size)
            os.fdatasync(descriptor)
        return time.perf_counter() - began
    finally:
        os.close(descriptor)
        path.unlink()


async def measure(options: Options) -> Figures:
    synced, bare = 0.0, 0.0
    async with open_scratch(options.directory, flush=FlushMode.SYNC) as opened:
        for _ in range(options.rounds):
            batches = make_batches(opened.store, options.records)
            size = sum(draft.size for draft in batches[0])
            count = len(batches) * BATCH
            synced = max(synced, count / await put_synced(opened.store, batches))
            bare = max(bare, count / sync_bare(options.directory / "bare", size, len(batches)))
    return {"messages_per_s": synced, "bare_per_s": bare, "over_bare": bare / synced}


if __name__ == "__main__":
    main("flush", __doc__, measure, records=16_000, rounds=3)
