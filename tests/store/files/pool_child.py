"""Puts batches into a pooled log of the folder given, prints each acknowledged body, and is killed some time."""

import asyncio
import sys
from pathlib import Path

from ledgermq.remoting.refusal import Refusal
from store.log.commit_log import CommitLogConfig
from store.log.flusher import FlushMode
from store.opening import open_classic_store
from store.replicated_log import AppendReceipt
from store.store_config import StoreConfig
from tests.store.support import HOST, queued


async def main(root: Path, flush_mode: FlushMode) -> None:
    config = CommitLogConfig(
        directory=root / "commitlog",
        store_host=HOST,
        file_size_bytes=1 << 20,
        flush_mode=flush_mode,
        transient_pool=True,
        pool_count=3,
    )
    store = await open_classic_store(StoreConfig(root=root, queue_file_size_bytes=20_000), config)
    queue = store.store.queues.get("T", 0)
    for number in range(1_000_000):
        bodies = [b"%d-%d" % (number, index) + bytes(500) for index in range(20)]
        acknowledged = asyncio.get_running_loop().create_future()

        def done(outcome: AppendReceipt | Refusal, acknowledged: "asyncio.Future[None]" = acknowledged) -> None:
            assert isinstance(outcome, AppendReceipt), outcome
            acknowledged.set_result(None)

        store.store.put([queued(queue, body) for body in bodies], done)
        await acknowledged
        print(number, flush=True)


asyncio.run(main(Path(sys.argv[1]), FlushMode(sys.argv[2])))
