"""Reading by queue, in pulls of 32 messages of 1 KiB, out of memory, on one thread.

    python -m benchmarks.store_read [--records N] [--rounds N] [--directory DIR]

get_mb_per_s       `MessageReader.get`: views of the log's own bytes
copied_mb_per_s    the same, and the bytes copied once into one buffer, as for an answer
"""

import time

from benchmarks.store_bench import BATCH, QUEUES, TOPIC, Figures, Options, main, make_batches, open_scratch, put, rate
from store.message_store import MessageStore

_BYTES_MAX = 1 << 20


def read_all(store: MessageStore, *, copied: bool) -> int:
    """Every queue from end to end; answer how many bytes."""
    total = 0
    for queue_id in range(QUEUES):
        queue = store.queues.get(TOPIC, queue_id)
        offset = 0
        while offset < queue.max_offset:
            found = store.reader.get(queue, offset, BATCH, _BYTES_MAX)
            offset = found.next_offset
            total += len(b"".join(found.records)) if copied else found.size_bytes
    return total


async def measure(options: Options) -> Figures:
    best = {"get_mb_per_s": 0.0, "copied_mb_per_s": 0.0}
    async with open_scratch(options.directory) as opened:
        await put(opened.store, make_batches(opened.store, options.records))
        for _ in range(options.rounds):
            for name, copied in zip(best, (False, True), strict=True):
                began = time.thread_time()
                total = read_all(opened.store, copied=copied)
                best[name] = max(best[name], rate(total, time.thread_time() - began))
    return best


if __name__ == "__main__":
    main("read", __doc__, measure, records=100_000)
