"""Appending to 1, 100 and 10,000 topics, in batches of 32 messages of 1 KiB that go to the topics in turn.

    python -m benchmarks.store_topics [--records N] [--rounds N] [--directory DIR]

topics_N_mb_per_s          of the thread's CPU time in `MessageStore.put`, once each topic has its queue
topics_N_stored_mb_per_s   of its CPU time until the units are in the queues as well

All topics share one log, so the number of files written to does not grow with them; the queues' units do spread.
"""

import time

from benchmarks.store_bench import BATCH, Figures, Options, main, make_batch, open_scratch, put, rate
from store.message_store import MessageStore

COUNTS = (1, 100, 10_000)


async def round_of(store: MessageStore, topics: list[bytes], records: int) -> tuple[float, float]:
    """MB/s of the puts, and until all is in the queues."""
    batches = [make_batch(store, 0, topics, first) for first in range(0, records, BATCH)]
    start, cpu = store.log.max_offset, time.thread_time()
    putting = await put(store, batches)
    written = store.log.max_offset - start
    return rate(written, putting), rate(written, time.thread_time() - cpu)


async def measure(options: Options) -> Figures:
    figures: Figures = {}
    async with open_scratch(options.directory, warm=True) as opened:
        all_topics = {count: [b"Topic%05d" % number for number in range(count)] for count in COUNTS}
        for topics in all_topics.values():
            await round_of(opened.store, topics, len(topics))  # queue files are made by the first messages
        for _ in range(options.rounds):  # turn about, so that what changes with time falls on all
            for count, topics in all_topics.items():
                put_rate, stored_rate = await round_of(opened.store, topics, options.records)
                for name, value in ((f"topics_{count}", put_rate), (f"topics_{count}_stored", stored_rate)):
                    figures[f"{name}_mb_per_s"] = max(figures.get(f"{name}_mb_per_s", 0.0), value)
    return figures


if __name__ == "__main__":
    main("topics", __doc__, measure, records=40_000)
