"""Appending to a warm file, in batches of 32 messages of 1 KiB, on one thread.

    python -m benchmarks.store_append [--records N] [--rounds N] [--directory DIR]

thread_mb_per_s    of the thread's CPU time in `MessageStore.put`: queue offsets, encoding, writing
stored_mb_per_s    of its CPU time until the units are in the queues and the senders have their answers
wall_mb_per_s      of the clock, all of that and the machine's other work included
"""

import time

from benchmarks.store_bench import Figures, Options, main, make_batches, open_scratch, put, rate


async def measure(options: Options) -> Figures:
    best = {"thread_mb_per_s": 0.0, "stored_mb_per_s": 0.0, "wall_mb_per_s": 0.0}
    async with open_scratch(options.directory, warm=True) as opened:
        for _ in range(options.rounds):
            batches = make_batches(opened.store, options.records)
            start = opened.store.log.max_offset
            began, cpu = time.perf_counter(), time.thread_time()
            putting = await put(opened.store, batches)
            stored, wall = time.thread_time() - cpu, time.perf_counter() - began
            written = opened.store.log.max_offset - start
            for name, seconds in zip(best, (putting, stored, wall), strict=True):
                best[name] = max(best[name], rate(written, seconds))
    return best


if __name__ == "__main__":
    main("append", __doc__, measure, records=100_000)
