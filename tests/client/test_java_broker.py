"""The producer against the real Java broker: every kind of message that it sends."""

import asyncio

from ledgermq.client import Outgoing, Producer, SendStatus
from tests.client.reading import fresh, read


async def test_single_messages_and_batches_come_back_whole(java_broker: str) -> None:
    topic = fresh("T")
    async with Producer(java_broker) as producer:
        one = await producer.send(topic, b"one", tags="a", keys=["k1", "k2"], properties={"colour": "gr\u00fcn"})
        two, three = await producer.send_batch(topic, [Outgoing(b"two", tags="b"), b"three"], queue=one.queue)
    messages = await read(java_broker, topic, 3)
    assert [message.body for message in messages] == [b"one", b"two", b"three"]
    assert [message.message_id for message in messages] == [one.message_id, two.message_id, three.message_id]
    assert (messages[0].tags, messages[0].keys, messages[0].properties["colour"]) == ("a", ["k1", "k2"], "gr\u00fcn")
    assert (one.status, one.term) == (SendStatus.OK, None)


async def test_a_key_keeps_its_order(java_broker: str) -> None:
    topic = fresh("T")
    async with Producer(java_broker) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % n, order_key=str(n % 5)) for n in range(200)))
    numbers = [int(message.body) for message in await read(java_broker, topic, 200)]
    for key in range(5):
        mine = [number for number in numbers if number % 5 == key]
        assert mine == sorted(mine)
