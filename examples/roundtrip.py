"""Send numbered messages in order and read them back. It continues by itself if you kill the leader meanwhile.

python examples/roundtrip.py [nameserver] [messages]
"""

import asyncio
import secrets
import sys

from ledgermq.client import Admin, Consumer, Producer

CUSTOMERS = 8


async def send(namesrv: str, topic: str, count: int) -> None:
    """Send each customer's messages in order, those of different customers concurrently."""
    async with Producer(namesrv) as producer:
        sends = (producer.send(topic, b"%d" % n, order_key=f"customer-{n % CUSTOMERS}") for n in range(count))
        results = await asyncio.gather(*sends)
    print(f"sent {count}; {sum(result.attempts > 1 for result in results)} of them had to be sent again")


async def receive(namesrv: str, topic: str, count: int) -> None:
    """Receive every message once, even if it was stored twice; check the order of each customer's."""
    seen: set[str] = set()
    next_number = list(range(CUSTOMERS))
    async with Consumer(namesrv, group=f"{topic}-readers", topics=topic) as consumer:
        async for message in consumer:
            if message.message_id not in seen:
                seen.add(message.message_id)
                number = int(message.body)
                assert number == next_number[number % CUSTOMERS], f"{number} is out of order"
                next_number[number % CUSTOMERS] += CUSTOMERS
            if len(seen) == count:
                break
    print(f"received {count}, each customer's in order")


async def main(namesrv: str = "127.0.0.1:9876", count: str = "10000") -> None:
    topic = f"roundtrip-{secrets.token_hex(4)}"
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic)
    await asyncio.gather(send(namesrv, topic, int(count)), receive(namesrv, topic, int(count)))


asyncio.run(main(*sys.argv[1:]))
