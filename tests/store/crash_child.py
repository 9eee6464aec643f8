"""A process that writes until it is killed: prints the number of each acknowledged message, in order."""

import asyncio
import sys
from pathlib import Path

from ledgermq.remoting.refusal import Refusal
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt
from tests.store.support import open_classic, queued

BATCH = 7
QUEUES = 3


async def main(root: Path, flush_mode: FlushMode, start: int) -> None:
    store = await open_classic(
        root, flush_mode=flush_mode, file_size=16384, queue_file_size=2000, checkpoint_interval_ms=5
    )
    number = start
    queues = [store.store.queues.get("T", queue_id) for queue_id in range(QUEUES)]
    while True:
        drafts = [
            queued(queues[n % QUEUES], b"%d " % n + b"x" * (n % 700), tags=f"tag{n % 4}")
            for n in range(number, number + BATCH)
        ]

        def done(outcome: AppendReceipt | Refusal, end: int = number + BATCH) -> None:
            print(end if isinstance(outcome, AppendReceipt) else f"refused {outcome}", flush=True)

        store.store.put(drafts, done)
        number += BATCH
        await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), FlushMode[sys.argv[2]], int(sys.argv[3])))
