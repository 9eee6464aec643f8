"""The producer against the real Java broker, every kind of message that it sends; and with Java clients beside it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from ledgermq.client import Admin, Consumer, Decision, Message, Outgoing, Producer, SendStatus
from ledgermq.client.core.compression import Codec
from ledgermq.client.errors import InvalidRequestError, NoReplyError
from tests.client.java import java_peer
from tests.client.reading import fresh, read
from tests.limits import WAIT_S

CODECS: tuple[Codec, ...] = ("zlib", "lz4", "zstd")


async def test_single_messages_and_batches_come_back_whole(java_broker: str) -> None:
    topic = fresh("T")
    async with Producer(java_broker) as producer:
        one = await producer.send(topic, b"one", tags="a", keys=["k1", "k2"], properties={"colour": "gr\u00fcn"})
        two, three = await producer.send_batch(topic, [Outgoing(b"two", tags="b"), b"three"], queue=one.queue)
        big = await producer.send(topic, b"x" * 100_000, queue=one.queue)
        await producer.send_json(topic, {"fruit": ["apple", 7]}, queue=one.queue)
        await producer.send_oneway(topic, b"last", queue=one.queue)
    messages = await read(java_broker, topic, 6)
    assert [message.body[:5] for message in messages] == [b"one", b"two", b"three", b"xxxxx", b'{"fru', b"last"]
    assert [message.message_id for message in messages[:4]] == [sent.message_id for sent in (one, two, three, big)]
    assert (messages[0].tags, messages[0].keys, messages[0].properties["colour"]) == ("a", ["k1", "k2"], "gr\u00fcn")
    assert (len(messages[3].body), len(messages[3].record.body) < 1000) == (100_000, True)
    assert messages[4].json() == {"fruit": ["apple", 7]}
    assert (one.status, one.term) == (SendStatus.OK, None)


async def test_a_key_keeps_its_order_one_by_one_and_in_batches(java_broker: str) -> None:
    for linger_s in (None, 0.002):
        topic = fresh("T")
        async with Producer(java_broker, linger_s=linger_s) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n, order_key=str(n % 5)) for n in range(300)))
        numbers = [int(message.body) for message in await read(java_broker, topic, 300)]
        for key in range(5):
            mine = [number for number in numbers if number % 5 == key]
            assert mine == sorted(mine)


async def test_many_share_few_requests(java_broker: str) -> None:
    topic = fresh("T")
    async with Producer(java_broker, linger_s=0.0, batch_bytes=20_000) as producer:
        await producer.send(topic, b"creates the topic")
        sent = await asyncio.gather(*(producer.send(topic, b"%d" % n, tags="t") for n in range(1000)))
        many = await producer.send_many(topic, [Outgoing(b"%d" % n, keys=f"k{n}") for n in range(1000, 2000)])
        bodies = {message.message_id: message.body for message in await read(java_broker, topic, 2001)}
    assert [bodies[result.message_id] for result in [*sent, *many]] == [b"%d" % n for n in range(2000)]


async def test_delays_of_every_kind_and_recall(java_broker: str) -> None:
    topic = fresh("T")
    async with Producer(java_broker) as producer, asyncio.timeout(WAIT_S):
        began = time.time()
        await producer.send(topic, b"level", delay_level=2)
        await producer.send(topic, b"after", delay=3)
        await producer.send(topic, b"at", deliver_at=datetime.now(UTC) + timedelta(seconds=4))
        taken_back = await producer.send(topic, b"taken back", delay=6)
        assert await producer.recall(taken_back) == taken_back.message_id
        await producer.send(topic, b"last", delay=8)
        messages = await read(java_broker, topic, 4)
        assert {message.body for message in messages} == {b"level", b"after", b"at", b"last"}
        assert time.time() - began > 6
        with pytest.raises(InvalidRequestError):
            await producer.recall(taken_back)


async def test_transactions_with_and_without_a_check(java_broker: str) -> None:
    topic, group = fresh("T"), fresh("shop")
    asked: list[Message] = []

    def check(message: Message) -> Decision:
        asked.append(message)
        return Decision.COMMIT if message.body == b"checked" else Decision.ROLLBACK

    async with Admin(java_broker) as admin:
        await admin.create_topic(topic, queue_count=1)
    async with Producer(java_broker, group) as first:
        async with first.transaction(topic, b"committed", tags="a"):
            pass
        with pytest.raises(ZeroDivisionError):
            async with first.transaction(topic, b"rolled back"):
                raise ZeroDivisionError
        for body in (b"checked", b"checked and rolled back"):
            async with first.transaction(topic, body, keys="order-1") as tx:
                tx.defer()
    async with Producer(java_broker, group, checker=check) as second, asyncio.timeout(WAIT_S):
        await second.queues(topic)
        async with Consumer(java_broker, fresh("g"), topic) as consumer:
            came = [await anext(consumer) for _ in range(2)]
            assert [message.body for message in came] == [b"committed", b"checked"]
            assert came[1].message_id == next(message.message_id for message in asked if message.body == b"checked")
            while not {message.body for message in asked} >= {b"checked", b"checked and rolled back"}:
                await asyncio.sleep(0.05)
            again = await consumer.get_many(10, wait_s=2)  # asked before it has seen a decision, it stores copies
            assert {message.message_id for message in again} <= {message.message_id for message in came}
    of_ours = [message for message in asked if message.body.startswith(b"checked")]  # it asks about decided ones, too
    assert all((message.topic, message.keys) == (topic, ["order-1"]) for message in of_ours)


async def test_requests_between_python_and_java_both_ways(java_broker: str) -> None:
    topic, ours = fresh("T"), fresh("T")
    async with Admin(java_broker) as admin:
        for name in (topic, ours):
            await admin.create_topic(name, queue_count=2)
    async with Producer(java_broker) as producer, asyncio.timeout(2 * WAIT_S):
        with pytest.raises(NoReplyError):
            await producer.request(fresh("nobody"), b"anyone?", timeout_s=2)
        async with java_peer(java_broker, topic, "respond"):
            asked = [producer.request(topic, b"%d" % n, timeout_s=WAIT_S) for n in range(10)]
            assert [reply.body for reply in await asyncio.gather(*asked)] == [b"java: %d" % n for n in range(10)]
        async with java_peer(java_broker, ours, "request") as peer, Consumer(java_broker, fresh("g"), ours) as consumer:
            peer.tell("one\ntwo")
            for text in ("one", "two"):
                message = await anext(consumer)
                await producer.reply(message, b"python: " + message.body)
                assert await peer.said("reply") == f"python: {text}"


async def test_the_java_client_reads_what_python_compresses(java_broker: str) -> None:
    topic = fresh("T")
    for codec in CODECS:
        async with Producer(java_broker, compression=codec) as producer:
            await producer.send(topic, b"compressed " * 1000, tags="big", keys="k", order_key="one")
    async with java_peer(java_broker, topic, "read") as peer:
        for _ in CODECS:
            assert await peer.said("message") == "11000 compressed compresse big k"
