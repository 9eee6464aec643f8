"""Send reminders that are delivered later, and recall one: python examples/delay.py [nameserver]."""

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta

from ledgermq.client import Consumer, LedgerMQError, Producer


async def main(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Consumer(namesrv, "reminded", "reminders") as consumer:
        began = time.monotonic()
        await producer.send("reminders", b"in two seconds", delay=2)
        await producer.send("reminders", b"at that time", deliver_at=datetime.now(UTC) + timedelta(seconds=3))
        unwanted = await producer.send("reminders", b"never mind", delay=timedelta(seconds=4))
        try:
            await producer.recall(unwanted)
        except LedgerMQError as error:
            print("cannot be recalled (is recallMessageEnable=true set?):", error)
        for _ in range(2):
            message = await anext(consumer)
            print(f"{message.body.decode()}: after {time.monotonic() - began:.1f} s")


asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
