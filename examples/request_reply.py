"""Send requests and replies through a topic: python examples/request_reply.py [nameserver]."""

import asyncio
import sys

from ledgermq.client import Consumer, NoReplyError, Producer

PRICES = {"apple": 7, "pear": 9}


async def answer(namesrv: str) -> None:
    """Reply with the price of a fruit; do not reply if it is not for sale."""
    async with Producer(namesrv, "pricing") as producer, Consumer(namesrv, "pricing", "prices") as consumer:
        async for question in consumer:
            price = PRICES.get(question.json()["fruit"])
            if price is not None:
                await producer.reply(question, b"%d cents" % price)


async def ask(producer: Producer, fruit: str) -> str:
    """Return the price of a fruit."""
    try:
        reply = await producer.request("prices", b'{"fruit":"%b"}' % fruit.encode(), timeout_s=5)
    except NoReplyError:
        return "nobody knows"
    return reply.body.decode()


async def main(namesrv: str) -> None:
    answering = asyncio.create_task(answer(namesrv))
    async with Producer(namesrv) as producer:
        fruits = ["apple", "pear", "moon"]
        for fruit, price in zip(fruits, await asyncio.gather(*(ask(producer, fruit) for fruit in fruits)), strict=True):
            print(f"{fruit}: {price}")
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


asyncio.run(main(*sys.argv[1:2] or ["127.0.0.1:9876"]))
