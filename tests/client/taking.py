"""What a SimpleConsumer must do at any broker: called with ours and with the real Java one."""

import asyncio

from ledgermq.client import Admin, PoppedMessage, Producer, SimpleConsumer
from tests.limits import WAIT_S


async def take(consumer: SimpleConsumer, count: int, *, invisible_s: float = 20.0) -> list[PoppedMessage]:
    """So many messages."""
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(2 * WAIT_S):
        while len(messages) < count:
            messages += await consumer.receive(min(32, count - len(messages)), invisible_s=invisible_s, wait_s=5)
    return messages


async def shared_without_owning(namesrv: str, topic: str) -> None:
    """Two consumers take from one queue, each message goes to one of them, and what is acknowledged stays away."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, queue_count=1)
        await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(40)))
        async with (
            SimpleConsumer(namesrv, f"{topic}-g", topic) as one,
            SimpleConsumer(namesrv, f"{topic}-g", topic) as two,
        ):
            first = await one.receive(20, invisible_s=20, wait_s=10)
            rest = await take(two, 40 - len(first))
            assert sorted(int(message.body) for message in first + rest) == list(range(40))
            assert {message.topic for message in first + rest} == {topic}
            await one.ack(*first)
            for message in rest:
                await two.ack(message)
            assert await one.receive(20, wait_s=0.3) == []


async def given_again(namesrv: str, topic: str) -> None:
    """What is not acknowledged comes again, as does what is given back; a longer time holds."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, queue_count=1)
        for body in (b"forgotten", b"given back", b"kept"):
            await producer.send(topic, body, keys="k")
        async with SimpleConsumer(namesrv, f"{topic}-g", topic) as consumer:
            taken = {message.body: message for message in await take(consumer, 3, invisible_s=3)}
            await consumer.change_invisible(taken[b"kept"], 60)
            await consumer.change_invisible(taken[b"given back"], 1)
            again = await take(consumer, 2)
            assert {message.body for message in again} == {b"forgotten", b"given back"}
            assert all(message.topic == topic and message.keys == ["k"] for message in again)
            await consumer.ack(*again, taken[b"kept"])
            assert await consumer.receive(3, wait_s=0.5) == []


async def filtered(namesrv: str, topic: str) -> None:
    """Only what is subscribed to is given, and waiting ends when it comes."""
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic(topic, queue_count=2)
        async with SimpleConsumer(namesrv, f"{topic}-g", {topic: "a || b"}) as consumer:
            await producer.send(topic, b"no", tags="c")
            waiting = asyncio.ensure_future(take(consumer, 1))
            await producer.send(topic, b"yes", tags="b")
            (message,) = await waiting
            assert (message.body, message.tags) == (b"yes", "b")
            await consumer.ack(message)
