"""Send the same messages one by one and in shared requests, those of each customer in order.

python examples/batching.py [nameserver] [messages]
"""

import asyncio
import sys
import time

from ledgermq.client import Producer

CUSTOMERS = 20


async def send(namesrv: str, count: int, linger_s: float | None) -> float:
    """Return the seconds that `count` messages take."""
    async with Producer(namesrv, linger_s=linger_s) as producer:
        await producer.send("steps", b"to begin with")
        began = time.monotonic()
        await asyncio.gather(
            *(producer.send("steps", b"%d" % n, order_key=f"customer-{n % CUSTOMERS}") for n in range(count))
        )
        return time.monotonic() - began


async def main(namesrv: str = "127.0.0.1:9876", count: str = "5000") -> None:
    for name, linger_s in [("one by one", None), ("sharing requests", 0.0), ("lingering 2 ms", 0.002)]:
        seconds = await send(namesrv, int(count), linger_s)
        print(f"{name}: {int(count) / seconds:.0f} messages a second")


asyncio.run(main(*sys.argv[1:]))
