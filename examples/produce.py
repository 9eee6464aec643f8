"""Send ten messages: python examples/produce.py [nameserver]."""

import asyncio
import sys

from ledgermq.client import Producer


async def main(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        for number in range(10):
            result = await producer.send("greetings", b"hello %d" % number, tags="hello", keys=f"greeting-{number}")
            print(f"{result.queue} offset {result.queue_offset}, on {result.copies} nodes in term {result.term}")


asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
