"""Our client with default settings: own_client.py NAMESRV TOPIC GROUP produce|consume|orderly RATE.

Lines: "A n us" acknowledged, "F n us why" failed, "G n sent_us us queue offset" delivered; times since the epoch.
"""

import asyncio
import sys
import time

from ledgermq.client import Consumer, LedgerMQError, Message, Producer


def now() -> int:
    return time.time_ns() // 1000


def say(line: str) -> None:
    print(line, flush=True)


async def send(producer: Producer, topic: str, number: int) -> None:
    try:
        await producer.send(topic, f"{number} {now()}".encode())
    except LedgerMQError as error:
        say(f"F {number} {now()} {error}".replace("\n", " "))
    else:
        say(f"A {number} {now()}")


async def produce(namesrv: str, topic: str, rate: int) -> None:
    loop = asyncio.get_running_loop()
    async with Producer(namesrv) as producer:
        began, number, tasks = loop.time(), 0, set[asyncio.Task[None]]()
        while True:
            await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
            task = asyncio.create_task(send(producer, topic, number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1


async def consume(namesrv: str, topic: str, group: str, *, orderly: bool) -> None:
    async def handle(message: Message) -> None:
        say(f"G {message.body.decode()} {now()} {message.queue.broker}/{message.queue_id} {message.queue_offset}")

    async with Consumer(namesrv, group, topic) as consumer:
        await consumer.run(handle, order="queue" if orderly else "none")


if __name__ == "__main__":
    _, namesrv, topic, group, role, rate = sys.argv
    asyncio.run(
        produce(namesrv, topic, int(rate))
        if role == "produce"
        else consume(namesrv, topic, group, orderly=role == "orderly")
    )
