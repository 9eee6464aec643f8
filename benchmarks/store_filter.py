"""What a filter costs: CPU microseconds a message scanned, one in ten wanted; bodies of 1 KiB, in memory, one thread.

    python -m benchmarks.store_filter [--records N] [--rounds N] [--directory DIR]

all_us     without a filter
tag_us     `T9`
tags_us    `T8||T9`, one in five wanted
sql_us     `a > 8 AND region = 'eu'`
never_us   `a > 8 AND region = 'nowhere'`
"""

import time

from benchmarks.store_bench import BATCH, QUEUES, TOPIC, Batch, Figures, Options, main, make_batches, open_scratch, put
from broker.groups.subscription import SQL, TAG, make_subscription
from ledgermq.message.hashing import tags_code
from ledgermq.message.record import record_size
from store.message_store import MessageStore

_BYTES_MAX = 1 << 20
_FILTERS = {
    "all_us": (TAG, "*"),
    "tag_us": (TAG, "T9"),
    "tags_us": (TAG, "T8||T9"),
    "sql_us": (SQL, "a > 8 AND region = 'eu'"),
    "never_us": (SQL, "a > 8 AND region = 'nowhere'"),
}


def label(batch: Batch) -> Batch:
    """Tags T0 to T9 in turn, and the properties `a` (0 to 9) and `region`."""
    for number, draft in enumerate(batch):
        digit = (draft.queue_id + number) % 10
        tag, unique = f"T{digit}", "0123456789ABCDEF" * 2
        draft.properties = (
            f"UNIQ_KEY\x01{unique}\x02WAIT\x01true\x02TAGS\x01{tag}\x02a\x01{digit}\x02region\x01eu\x02".encode()
        )
        draft.tags_code = tags_code(tag)
        draft.size = record_size(len(draft.body), len(draft.topic), len(draft.properties), 0, v2=False)
    return batch


def scan(store: MessageStore, kind: str, expression: str) -> int:
    """Every queue from end to end; answer how many units were looked at."""
    wanted = make_subscription(TOPIC.decode(), expression, kind)
    scanned = 0
    for queue_id in range(QUEUES):
        queue = store.queues.get(TOPIC, queue_id)
        offset = 0
        while offset < queue.max_offset:
            offset = store.reader.get(
                queue, offset, BATCH, _BYTES_MAX, wanted.tag_filter, wanted.record_filter
            ).next_offset
        scanned += offset
    return scanned


async def measure(options: Options) -> Figures:
    best = dict.fromkeys(_FILTERS, 1e9)
    async with open_scratch(options.directory) as opened:
        await put(opened.store, list(map(label, make_batches(opened.store, options.records))))
        for _ in range(options.rounds):
            for name, (kind, expression) in _FILTERS.items():
                began = time.thread_time()
                scanned = scan(opened.store, kind, expression)
                best[name] = min(best[name], (time.thread_time() - began) * 1e6 / scanned)
    return best


if __name__ == "__main__":
    main("filter", __doc__, measure, records=50_000, digits=3)
