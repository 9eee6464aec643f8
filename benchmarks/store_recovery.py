"""Recovery behind a crash that left no checkpoint: the whole log is walked, checked, and dispatched again.

    python -m benchmarks.store_recovery [--records N] [--rounds N] [--directory DIR]

mb_per_s           log bytes by the clock, from opening the directory until the store takes messages
"""

import time

from benchmarks.store_bench import Figures, Options, main, make_batches, open_scratch, put, rate
from ledgermq.store_progress import CHECKPOINT_NAME
from store.directory.abort_file import AbortFile


async def measure(options: Options) -> Figures:
    async with open_scratch(options.directory) as opened:
        await put(opened.store, make_batches(opened.store, options.records))
        size = opened.store.log.max_offset
    best = 0.0
    for _ in range(options.rounds):
        AbortFile(options.directory).create()
        (options.directory / CHECKPOINT_NAME).unlink()
        began = time.perf_counter()
        async with open_scratch(options.directory) as opened:
            assert opened.store.is_writable and opened.store.log.max_offset == size
            best = max(best, rate(size, time.perf_counter() - began))
    return {"mb_per_s": best}


if __name__ == "__main__":
    main("recovery", __doc__, measure, records=400_000, rounds=3)
