"""Print messages as they arrive, until Ctrl-C: python examples/consume.py [nameserver]."""

import asyncio
import contextlib
import sys

from ledgermq.client import Consumer


async def main(namesrv: str) -> None:
    async with Consumer(namesrv, group="greeters", topics="greetings") as consumer:
        async for message in consumer:
            print(f"{message.queue} offset {message.queue_offset}: {message.body!r}")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
