"""Consumers against the real Java broker: handlers, order, retries, broadcasting, conditions, taking, resets."""

import asyncio
import collections
from pathlib import Path

from ledgermq.client import Admin, Consumer, DeadLetter, Message, Producer, Retry, Sql
from tests.client import taking
from tests.client.consumer.test_handling import handled
from tests.client.fake import eventually
from tests.client.reading import fresh
from tests.limits import STRANGER_WAIT_S


async def test_failures_come_again_and_at_last_are_dead_letters(java_broker: str) -> None:
    topic = fresh("T")
    tries: dict[bytes, list[int]] = collections.defaultdict(list)

    async def handle(message: Message) -> None:
        tries[message.body].append(message.reconsume_times)
        assert message.topic == topic
        if message.body == b"hopeless":
            raise DeadLetter
        if message.body == b"never":
            raise Retry(after_s=1)

    group = f"{topic}-g"
    async with Admin(java_broker) as admin, Producer(java_broker) as producer:
        await admin.create_topic(topic, queue_count=2)
        for body in (b"fine", b"hopeless", b"never"):
            await producer.send(topic, body)
        async with handled(Consumer(java_broker, group, topic), handle, tries_max=1):
            await eventually(lambda: len(tries[b"never"]) == 2 and len(tries) == 3)
            async with (
                Consumer(java_broker, f"{topic}-dead", f"%DLQ%{group}") as dead,
                asyncio.timeout(STRANGER_WAIT_S),
            ):
                letters = {(await anext(dead)).body for _ in range(2)}
        assert letters == {b"hopeless", b"never"}
        assert tries == {b"fine": [0], b"hopeless": [0], b"never": [0, 1]}
        assert all(progress.lag == 0 for progress in await admin.progress(group, topic))


async def test_queues_are_handled_in_order_under_their_locks(java_broker: str) -> None:
    topic = fresh("T")
    seen: dict[int, list[int]] = collections.defaultdict(list)

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.005)
        seen[message.queue_id].append(int(message.body))

    async with Admin(java_broker) as admin, Producer(java_broker) as producer:
        queues = (await admin.create_topic(topic, queue_count=2)).write_queues
        for n in range(100):
            await producer.send(topic, b"%d" % n, queue=queues[n % 2])
        first, second = (Consumer(java_broker, f"{topic}-g", topic) for _ in range(2))
        async with handled(first, handle, order="queue"):
            await eventually(lambda: sum(map(len, seen.values())) > 10)
            async with handled(second, handle, order="queue"):
                await eventually(lambda: sum(map(len, seen.values())) >= 100)
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())


async def test_in_broadcasting_each_member_gets_everything_once(java_broker: str, tmp_path: Path) -> None:
    topic = fresh("T")
    async with Admin(java_broker) as admin, Producer(java_broker) as producer:
        await admin.create_topic(topic, queue_count=2)
        for life in range(2):
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(10)))
            for member in ("a", "b"):
                consumer = Consumer(
                    java_broker, f"{topic}-g", topic, mode="broadcasting", offsets_dir=tmp_path / member
                )
                async with consumer, asyncio.timeout(STRANGER_WAIT_S):
                    assert sorted([int((await anext(consumer)).body) for _ in range(10)]) == list(range(10)), life


async def test_a_condition_chooses_messages(java_broker: str) -> None:
    topic = fresh("T")
    async with Admin(java_broker) as admin, Producer(java_broker) as producer:
        await admin.create_topic(topic, queue_count=1)
        for price in range(10):
            await producer.send(topic, b"%d" % price, properties={"price": str(price)})
        async with Consumer(java_broker, f"{topic}-g", {topic: Sql("price > 6")}) as consumer:
            async with asyncio.timeout(STRANGER_WAIT_S):
                assert [(await anext(consumer)).body for _ in range(3)] == [b"7", b"8", b"9"]


async def test_taking_is_shared(java_broker: str) -> None:
    await taking.shared_without_owning(java_broker, fresh("T"))


async def test_what_is_taken_and_not_acknowledged_is_given_again(java_broker: str) -> None:
    await taking.given_again(java_broker, fresh("T"))


async def test_taking_is_filtered(java_broker: str) -> None:
    await taking.filtered(java_broker, fresh("T"))
