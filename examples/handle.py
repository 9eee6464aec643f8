"""Handle messages concurrently, until SIGTERM or Ctrl-C: python examples/handle.py [nameserver]."""

import asyncio
import signal
import sys

from ledgermq.client import Consumer, Message, Retry


async def handle(message: Message) -> None:
    if message.reconsume_times == 0 and message.body.endswith(b"7"):
        raise Retry(after_s=1)  # as if a service were down
    print(f"{message.keys} {message.body!r} handled, try {message.reconsume_times + 1}")


async def main(namesrv: str) -> None:
    async with Consumer(namesrv, group="handlers", topics="greetings") as consumer:
        await consumer.run(handle, concurrency=8, stop_on=(signal.SIGTERM, signal.SIGINT))


asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
