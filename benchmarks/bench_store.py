"""What the store costs a message: place, dispatch, read. Prints one JSON line.

    python benchmarks/bench_store.py [--records 200000] [--body 1024] [--batch 32] [--directory DIR]

CPU time of the one thread (which a loaded machine disturbs least), on warm pages, best of five rounds; microseconds a
record unless the name says otherwise.
"""

import argparse
import asyncio
import json
import platform
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ledgermq.message.hashing import tags_code
from ledgermq.message.record import record_size
from store.commit_log import CommitLog, CommitLogConfig
from store.message_store import MessageStore, QueuedDraft
from store.queue_table import QueueTable
from store.replicated_log import AppendReceipt

ROUNDS = 5
TOPIC = b"BenchmarkTopic"
QUEUES = 8
HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
PROPERTIES = b"UNIQ_KEY\x01FD00000000000000000000000000000261C04E0E2F2A68F8E7B40000\x02WAIT\x01true\x02TAGS\x01TagA\x02"


def make_drafts(queues: QueueTable, count: int, body: bytes) -> list[QueuedDraft]:
    drafts = []
    for number in range(count):
        draft = QueuedDraft()
        draft.topic, draft.queue_id, draft.flag, draft.sys_flag = TOPIC, number % QUEUES, 0, 0
        draft.born_timestamp, draft.born_host, draft.reconsume_times = 1_700_000_000_000, HOST, 0
        draft.prepared_transaction_offset, draft.body, draft.properties = 0, body, PROPERTIES
        draft.tags_code = tags_code("TagA")
        draft.size = record_size(len(body), len(TOPIC), len(PROPERTIES), 0, v2=False)
        draft.queue = queues.get(TOPIC, draft.queue_id)
        drafts.append(draft)
    return drafts


def best(step: Callable[[], int]) -> float:
    """Least seconds a unit over the rounds; the step answers how many units it did."""
    times = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        count = step()
        times.append((time.thread_time() - started) / count)
    return min(times)


class Bench:
    def __init__(self, directory: Path, arguments: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
        self.batch = arguments.batch
        self.queues = QueueTable(directory / "consumequeue")
        drafts = make_drafts(self.queues, arguments.records, bytes(range(256)) * (arguments.body // 256))
        self.batches = [drafts[start : start + self.batch] for start in range(0, len(drafts), self.batch)]
        self.bytes = sum(draft.size for draft in drafts)
        self.count = len(drafts)
        size = 1 << max(self.bytes * 2 // 10 * 10, 1 << 24).bit_length()
        self.log = CommitLog(CommitLogConfig(directory=directory / "log", store_host=HOST, file_size_bytes=size), loop)
        self.log.start()
        self.store = MessageStore(self.log, self.queues, loop)
        self.store.start()
        self.acknowledged = 0

    def done(self, outcome: object) -> None:
        assert isinstance(outcome, AppendReceipt), outcome
        self.acknowledged += 1

    def append_all(self) -> int:
        append, done = self.log.append, self.done
        for batch in self.batches:
            append(batch, done)
        return self.count

    def put_all(self) -> int:
        put, done = self.store.put, self.done
        for batch in self.batches:
            put(batch, done)
        return self.count

    def settle(self) -> int:
        self.log._settle()
        return self.count

    def rewind(self) -> None:
        """Place over the same, warm pages again."""
        self.log._waiting.clear()
        self.log._confirm_offset = 0
        self.store._kept.clear()
        self.store.dispatched_offset = 0
        file = self.log._queue.files[0]
        file.write_position = 0
        for queue in self.queues:
            queue.max_offset = queue.next_offset = 0

    def append(self) -> float:
        def step() -> int:
            return self.append_all()

        self.put_all()
        times = []
        for _ in range(ROUNDS):
            self.rewind()
            self._number()
            started = time.thread_time()
            step()
            times.append(time.thread_time() - started)
        return min(times)

    def _number(self) -> None:
        for batch in self.batches:
            for draft in batch:
                draft.queue_offset = draft.queue.next_offset
                draft.queue.next_offset += 1

    def put_and_dispatch(self) -> tuple[float, float]:
        puts, dispatches = [], []
        for _ in range(ROUNDS):
            self.rewind()
            started = time.thread_time()
            self.put_all()
            placed = time.thread_time()
            self.settle()
            puts.append(placed - started)
            dispatches.append(time.thread_time() - placed)
        return min(puts), min(dispatches)

    def follow(self) -> float:
        times = []
        for _ in range(ROUNDS):
            self.store.dispatched_offset = 0
            for queue in self.queues:
                queue.max_offset = 0
            started = time.thread_time()
            while not self.store._dispatch_walk(self.log.confirm_offset):
                pass
            times.append(time.thread_time() - started)
        return min(times)

    def get(self, max_count: int) -> float:
        queue = self.queues.get(TOPIC, 0)

        def step() -> int:
            offset, calls = 0, 0
            while offset < queue.max_offset:
                offset = self.store.get(queue, offset, max_count, 1 << 20).next_offset
                calls += 1
            return calls

        return best(step)


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        bench = Bench(Path(name), arguments, asyncio.get_running_loop())
        append = bench.append()
        put, dispatch = bench.put_and_dispatch()
        follow = bench.follow()
        get = bench.get(32)
        await bench.log.close()
        bench.queues.close()
    micro = 1e6 / bench.count
    return {
        "benchmark": "store",
        "python": platform.python_version(),
        "records": bench.count,
        "record_bytes": bench.bytes // bench.count,
        "batch": arguments.batch,
        "append_mb_per_s": round(bench.bytes / append / 1e6),
        "append_us": round(append * micro, 3),
        "put_us": round(put * micro, 3),
        "dispatch_us": round(dispatch * micro, 3),
        "follower_dispatch_us": round(follow * micro, 3),
        "get_32_us": round(get * 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--directory", help="where the scratch store is made")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
