"""What the index by key costs a message: collected, hashed, entered; and a query. Prints one JSON line.

    python benchmarks/bench_index.py [--records 100000] [--body 1024] [--keys 0] [--directory DIR]

CPU time of all threads of the process, walking the log included, as on a follower and at a start; microseconds a
message, best of five rounds. Files have RocketMQ's sizes (5,000,000 slots, 20,000,000 entries). `--keys` user keys a
message besides its unique key.
"""

import argparse
import asyncio
import json
import platform
import shutil
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from ledgermq.message.hashing import tags_code
from ledgermq.message.record import record_size
from store.commit_log import CommitLogConfig
from store.index.config import IndexConfig
from store.message_store import QueuedDraft
from store.opening import OpenStore, StoreConfig, open_classic_store
from store.queue_table import QueueTable

ROUNDS = 5
BATCH = 1000
TOPIC = b"BenchmarkTopic"
HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)


async def open_at(root: Path, *, is_indexed: bool) -> OpenStore:
    index = IndexConfig(directory=root / "index", is_safe=True) if is_indexed else None
    return await open_classic_store(
        StoreConfig(root=root, checkpoint_interval_ms=3_600_000, index=index),
        CommitLogConfig(directory=root / "commitlog", store_host=HOST, file_size_bytes=1 << 28),
    )


def make_draft(queues: QueueTable, number: int, body: bytes, keys: int) -> QueuedDraft:
    draft = QueuedDraft()
    user_keys = " ".join(f"order{number}-{key}" for key in range(keys))
    properties = f"UNIQ_KEY\x01FD000000000000000000000000000002{number:024X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    if user_keys:
        properties = f"KEYS\x01{user_keys}\x02" + properties
    draft.topic, draft.queue_id, draft.flag, draft.sys_flag = TOPIC, number % 8, 0, 0
    draft.born_timestamp, draft.born_host, draft.reconsume_times = 1_700_000_000_000, HOST, 0
    draft.prepared_transaction_offset, draft.body, draft.properties = 0, body, properties.encode()
    draft.tags_code = tags_code("TagA")
    draft.size = record_size(len(body), len(TOPIC), len(draft.properties), 0, v2=False)
    draft.queue = queues.get(TOPIC, draft.queue_id)
    return draft


async def fill(root: Path, count: int, body: bytes, keys: int) -> None:
    opened = await open_at(root, is_indexed=False)
    for start in range(0, count, BATCH):
        drafts = [make_draft(opened.store.queues, start + n, body, keys) for n in range(BATCH)]
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        opened.store.put(drafts, done.set_result)
        await done
    await opened.close()


async def best(step: Callable[[], Awaitable[int]]) -> float:
    """Least microseconds of CPU a unit over the rounds; the step answers how many units it did."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        count = await step()
        times.append((time.process_time() - started) / count * 1e6)
    return round(min(times), 3)


async def measure(root: Path, arguments: argparse.Namespace) -> dict[str, float]:
    await fill(root, arguments.records, bytes(arguments.body), arguments.keys)

    async def started(*, is_indexed: bool) -> int:
        shutil.rmtree(root / "index", ignore_errors=True)
        opened = await open_at(root, is_indexed=is_indexed)
        await opened.close()
        return int(arguments.records)

    figures = {
        "start_us": await best(lambda: started(is_indexed=False)),
        "start_and_index_us": await best(lambda: started(is_indexed=True)),
    }
    figures["index_us"] = round(figures["start_and_index_us"] - figures["start_us"], 3)
    opened = await open_at(root, is_indexed=True)
    index = opened.store.index
    assert index is not None

    async def asked() -> int:
        for number in range(1000):
            key = f"FD000000000000000000000000000002{number:024X}"
            assert (await index.query(TOPIC.decode(), key, 32, 0, 1 << 62)).offsets
        return 1000

    figures["query_us"] = await best(asked)
    await opened.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        figures = asyncio.run(measure(Path(directory), arguments))
    print(json.dumps({"bench": "index", "machine": platform.machine(), **vars(arguments), **figures}, default=str))


if __name__ == "__main__":
    main()
