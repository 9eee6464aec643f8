"""A process that writes into a classic store until its standard input ends; prints a line once it writes."""

import asyncio
import sys
import threading
from pathlib import Path

from tests.store.support import open_classic, put_all, queued


async def write(root: Path, stop: threading.Event) -> None:
    opened = await open_classic(root, file_size=1 << 16, queue_file_size=2000)
    number = 0
    while not stop.is_set():
        queues = [opened.store.queues.get(b"Live", queue_id) for queue_id in range(3)]
        await put_all(opened, [queued(queue, b"live %d" % number, tags="A") for queue in queues])
        number += 1
        if number == 20:
            print("writing", flush=True)
    await opened.close()


def main() -> None:
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    asyncio.run(write(Path(sys.argv[1]), stop))


if __name__ == "__main__":
    main()
