"""What the benchmarks of the store share: a store on a scratch directory, messages to put, one JSON line at the end.

Messages are those of `java_store/StoreBench.java`: bodies of 1 KiB, batches of 32, 8 queues, no index. Times of one
thread are its CPU time, which a busy machine disturbs least; all are the best of the rounds.
"""

import argparse
import asyncio
import contextlib
import json
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ledgermq.message.hashing import tags_code
from store.log.commit_log import CommitLogConfig
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.message_store import MessageStore
from store.opening import OpenStore, open_classic_store
from store.replicated_log import AppendReceipt
from store.store_config import StoreConfig

BATCH = 32
QUEUES = 8
TOPIC = b"BenchmarkTopic"
BODY = bytes(1024)
HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
PROPERTIES = b"k\x01v\x02WAIT\x01true\x02TAGS\x01TagA\x02"
TAG = tags_code("TagA")
FILE_SIZE = 1 << 30
QUEUE_FILE_SIZE = 200_000
_WARM_UP_LIMIT_S = 60.0
_TURN_BATCHES = 8

Batch = Sequence[QueuedDraft]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    directory: Path
    records: int
    rounds: int


@contextlib.asynccontextmanager
async def open_scratch(
    root: Path, *, flush: FlushMode = FlushMode.ASYNC, warm: bool = False
) -> AsyncIterator[OpenStore]:
    """A store at `root`; closed cleanly behind the block."""
    config = StoreConfig(root=root, queue_file_size_bytes=QUEUE_FILE_SIZE)
    log_config = CommitLogConfig(
        directory=root / "commitlog", store_host=HOST, file_size_bytes=FILE_SIZE, flush_mode=flush, warms_up=warm
    )
    opened = await open_classic_store(config, log_config)
    if warm:
        await _await_warm(opened.store)
    try:
        yield opened
    finally:
        await opened.close()


async def _await_warm(store: MessageStore) -> None:
    """The first file is made, and its pages touched, by a thread: the first put that does not have to wait ends it."""
    deadline = time.monotonic() + _WARM_UP_LIMIT_S
    while True:
        try:
            await put(store, [make_batch(store, 0)])
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return


def make_batch(store: MessageStore, queue_id: int, topics: Sequence[bytes] = (TOPIC,), first: int = 0) -> Batch:
    """32 messages for one queue, or for the queue of each topic in turn from number `first` on."""
    drafts = []
    for number in range(first, first + BATCH):
        draft = QueuedDraft()
        draft.messages = 1
        topic = topics[number % len(topics)]
        draft.queue = store.queues.get(topic, queue_id)
        drafts.append(draft.fill(topic, queue_id, BODY, PROPERTIES, born=(1_700_000_000_000, HOST), tags=TAG))
    return drafts


def make_batches(store: MessageStore, records: int) -> list[Batch]:
    """So many messages, the batches over the queues in turn."""
    return [make_batch(store, number % QUEUES) for number in range(records // BATCH)]


async def put(store: MessageStore, batches: Sequence[Batch]) -> float:
    """Put them all, some a turn of the loop, until all are dispatched and acknowledged; CPU seconds of the puts."""
    seconds = 0.0
    for start in range(0, len(batches), _TURN_BATCHES):
        began = time.thread_time()
        for batch in batches[start : start + _TURN_BATCHES]:
            store.put(batch, _done)
        seconds += time.thread_time() - began
        await asyncio.sleep(0)
    while store.dispatched_offset < store.log.max_offset:
        await asyncio.sleep(0)
    return seconds


def _done(outcome: object) -> None:
    assert isinstance(outcome, AppendReceipt), outcome


def rate(byte_count: int, seconds: float) -> float:
    """MB/s."""
    return byte_count / seconds / 1e6


def main(
    name: str,
    doc: str,
    measure: Callable[[Options], Awaitable[Figures]],
    records: int,
    rounds: int = 5,
    digits: int = 1,
) -> None:
    """Parse the options, measure, print the line."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--directory", help="where the scratch store is made")
    said = parser.parse_args()

    async def run() -> Figures:
        with tempfile.TemporaryDirectory(dir=said.directory, prefix="ledgermq-bench-") as directory:
            return await measure(Options(Path(directory), said.records, said.rounds))

    figures = {key: round(value, digits) for key, value in asyncio.run(run()).items()}
    print(json.dumps({"benchmark": name, "system": "ledgermq", **figures}))
