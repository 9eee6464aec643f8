"""Taking without owning, from a real broker in this process."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from ledgermq.client import Admin, Producer, SimpleConsumer
from ledgermq.client.consumer.popping import (
    PoppedMessage,
    batch_ack_body,
    fits_batch,
    message_ext,
    message_handle,
)
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.message.pop_handle import PopHandle, real_topic
from ledgermq.remoting.route import MessageQueue
from tests.client import taking


async def test_two_consumers_take_from_one_queue(namesrv: str) -> None:
    await taking.shared_without_owning(namesrv, "T")


async def test_what_is_not_acknowledged_is_given_again(namesrv: str) -> None:
    await taking.given_again(namesrv, "T")


async def test_only_the_tags_asked_for_are_taken(namesrv: str) -> None:
    await taking.filtered(namesrv, "T")


async def test_of_several_topics_that_comes_first_which_has_something(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        for topic in ("A", "B", "C"):
            await admin.create_topic(topic, queue_count=1)
        async with SimpleConsumer(namesrv, "g", ["A", "B", "C"]) as consumer:
            assert await consumer.receive(1, wait_s=0.1) == []
            waiting = asyncio.ensure_future(taking.take(consumer, 1))
            await producer.send("B", b"here")
            (message,) = await waiting
            assert (message.topic, message.body) == ("B", b"here")


async def test_in_order_nothing_is_given_while_earlier_ones_are_out(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=1)
        for n in range(4):
            await producer.send("T", b"%d" % n)
        async with SimpleConsumer(namesrv, "g", "T", ordered=True) as consumer:
            first = await consumer.receive(2, invisible_s=20)
            assert [message.body for message in first] == [b"0", b"1"]
            assert await consumer.receive(2, wait_s=0.2) == []
            await consumer.ack(*first)
            assert [message.body for message in await taking.take(consumer, 2)] == [b"2", b"3"]


async def test_numbers_out_of_range_are_refused_here(namesrv: str) -> None:
    async with SimpleConsumer(namesrv, "g", "T") as consumer:
        for arguments in ((0, 1.0, 1.0), (33, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, -1.0)):
            with pytest.raises(InvalidArgumentError):
                await consumer.receive(arguments[0], invisible_s=arguments[1], wait_s=arguments[2])


def test_a_message_far_from_the_first_of_its_delivery_is_not_acknowledged_in_a_batch() -> None:
    near = message_handle("5 100 200 3 0 broker-a 0 7")
    assert fits_batch(near)
    assert not fits_batch(near._replace(offset=10**12))
    assert not fits_batch(near._replace(offset=4))


def test_a_batch_names_the_topic_that_was_asked_for_and_its_retry_topic_by_a_flag() -> None:
    record: Any = SimpleNamespace(topic="T", property_map={})
    for retry in ("0", "1", "2"):
        handle = message_handle(f"5 100 200 3 {retry} broker-a 0 7")
        message = PoppedMessage(record, MessageQueue("T", "broker-a", 0), handle, None)
        (ack,) = orjson.loads(batch_ack_body("g", "broker-a", [message]))["acks"]  # as Java's MQClientAPIImpl
        assert (ack["t"], ack["r"]) == ("T", retry)
        assert message_ext("g", message)["topic"] == real_topic("T", "g", retry)


def test_a_handle_is_read_as_it_is_written_and_names_the_topic_it_came_from() -> None:
    handle = message_handle("5 100 200 3 1 broker-a 0 7")
    for bad in ("5 100 200 3 1 broker-a 0", "5 100 200 3 9 broker-a 0 7", f"{1 << 70} 100 200 3 1 broker-a 0 7"):
        with pytest.raises(ValueError, match=r"retry flag|out of range|has no offset"):
            message_handle(bad)
    assert handle == PopHandle(5, 100, 200, 3, "1", "broker-a", 0, 7)
    assert str(handle) == "5 100 200 3 1 broker-a 0 7"
    assert real_topic("T", "g", handle.retry) == "%RETRY%g_T"
    assert real_topic("T", "g", "2") == "%RETRY%g+T"
    assert real_topic("T", "g", "0") == "T"
