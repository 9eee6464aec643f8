"""What the index by key costs a message: collected, hashed, entered; and a query. Prints one JSON line.

    python benchmarks/bench_index.py [--records 100000] [--body 1024] [--keys 0] [--directory DIR]

CPU time of all threads of the process, microseconds a message, best round: `sent_index_us` is what it adds where
messages are sent, `started_index_us` where it is made from the log, as on a follower and at a start. Files have
RocketMQ's sizes (5,000,000 slots, 20,000,000 entries). `--keys` user keys a message besides its unique key.
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
from store.index.config import IndexConfig
from store.log.commit_log import CommitLogConfig
from store.log.drafts import QueuedDraft
from store.opening import OpenStore, open_classic_store
from store.queues.queue_table import QueueTable
from store.store_config import StoreConfig

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
    draft.messages = 1
    user_keys = " ".join(f"order{number}-{key}" for key in range(keys))
    properties = f"UNIQ_KEY\x01FD000000000000000000000000000002{number:024X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    if user_keys:
        properties = f"KEYS\x01{user_keys}\x02" + properties
    draft.queue = queues.get(TOPIC, number % 8)
    born = 1_700_000_000_000, HOST
    return draft.fill(TOPIC, number % 8, body, properties.encode(), born=born, tags=tags_code("TagA"))


async def fill(root: Path, arguments: argparse.Namespace, *, is_indexed: bool) -> float:
    """Send all messages to an empty store; microseconds of CPU a message, of all threads, until it is closed."""
    shutil.rmtree(root, ignore_errors=True)
    opened = await open_at(root, is_indexed=is_indexed)
    spent = 0.0
    for start in range(0, arguments.records, BATCH):
        numbers = range(start, start + BATCH)
        drafts = [make_draft(opened.store.queues, n, bytes(arguments.body), arguments.keys) for n in numbers]
        started = time.process_time()
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        opened.store.put(drafts, done.set_result)
        await done
        spent += time.process_time() - started
    started = time.process_time()
    await opened.close()
    return (spent + time.process_time() - started) / int(arguments.records) * 1e6


async def best(step: Callable[[], Awaitable[int]]) -> float:
    """Least microseconds of CPU a unit over the rounds; the step answers how many units it did."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        count = await step()
        times.append((time.process_time() - started) / count * 1e6)
    return round(min(times), 3)


async def measure(root: Path, arguments: argparse.Namespace) -> dict[str, float]:
    sent = {name: [await fill(root, arguments, is_indexed=name) for _ in range(3)] for name in (False, True)}

    async def started(*, is_indexed: bool) -> int:
        shutil.rmtree(root / "index", ignore_errors=True)
        opened = await open_at(root, is_indexed=is_indexed)
        await opened.close()
        return int(arguments.records)

    figures = {
        "send_us": round(min(sent[False]), 3),
        "send_and_index_us": round(min(sent[True]), 3),
        "start_us": await best(lambda: started(is_indexed=False)),
        "start_and_index_us": await best(lambda: started(is_indexed=True)),
    }
    figures["sent_index_us"] = round(figures["send_and_index_us"] - figures["send_us"], 3)
    figures["started_index_us"] = round(figures["start_and_index_us"] - figures["start_us"], 3)
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
