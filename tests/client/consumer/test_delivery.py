"""What a program may do to a consumer without a message being lost, held up or handled twice at a time."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import Admin, Consumer, LedgerMQError, Message, Outgoing, Producer, Retry
from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.errors import ClosedError, ServerError
from tests.client.consumer.test_handling import committed, handled
from tests.client.fake import eventually
from tests.limits import WAIT_S


@pytest.fixture
async def producer(namesrv: str) -> AsyncIterator[Producer]:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=1)
        yield producer


async def reader_of(consumer: Consumer) -> QueueReader:
    """The reader of the topic's only queue."""
    await eventually(lambda: any(queue.topic == "T" for queue in consumer.assignment))
    (queue,) = [queue for queue in consumer.assignment if queue.topic == "T"]
    return consumer._opened().queues.turns.reader(queue)


@asynccontextmanager
async def running(consumer: Consumer, handler: Callable[[Message], Awaitable[None]]) -> AsyncIterator[None]:
    """Handle in the background; the consumer is open before and after."""
    task = asyncio.ensure_future(consumer.run(handler))
    try:
        yield
    finally:
        consumer.stop()
        await task


async def test_messages_that_are_wanted_lie_far_apart(namesrv: str, producer: Producer) -> None:
    rare = Outgoing(b"rare", tags="rare")
    await producer.send_many("T", [rare, *[Outgoing(b"other", tags="other")] * 2500, rare], queue=0)
    async with Consumer(namesrv, "g", {"T": "rare"}) as consumer, asyncio.timeout(WAIT_S):
        reader = await reader_of(consumer)
        await eventually(lambda: len(reader.backlog.buffer) == 2)
        assert len(await consumer.get_many(2)) == 2
        await producer.send("T", b"one more", tags="rare")
        assert [message.body for message in await consumer.get_many(2, WAIT_S)] == [b"one more"]


async def test_a_batch_that_is_not_delivered_is_read_again(namesrv: str, producer: Producer) -> None:
    await producer.send("T", b"0")
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(consumer.batches(wait_s=WAIT_S))
        assert [message.body for message in await anext(consumer.batches(wait_s=0.1))] == [b"0"]


async def test_what_fails_while_a_batch_is_gathered_is_told_after_it(namesrv: str, producer: Producer) -> None:
    await producer.send("T", b"0")
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        batches = consumer.batches(wait_s=WAIT_S)
        first = asyncio.ensure_future(anext(batches))
        reader = await reader_of(consumer)
        await eventually(lambda: bool(reader.backlog.in_hand))
        consumer._opened().queues.turns.on_failed(ServerError("b", 1, "broken"))
        assert [message.body for message in await first] == [b"0"]
        with pytest.raises(LedgerMQError, match="broken"):
            await anext(batches)


async def test_a_handler_whose_own_task_was_cancelled_has_failed(namesrv: str, producer: Producer) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            raise asyncio.CancelledError("something that it has awaited")

    await producer.send("T", b"0")
    async with handled(Consumer(namesrv, "g", "T"), handle, order="queue"):
        await eventually(lambda: len(seen) == 2)
    assert await committed(namesrv, "g") == 1


async def test_a_time_that_cannot_be_is_a_failure_of_the_handler(namesrv: str, producer: Producer) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"0":
            raise Retry(after_s=-1)

    await producer.send("T", b"0")
    await producer.send("T", b"1")
    async with handled(Consumer(namesrv, "g", "T"), handle, concurrency=1):
        await eventually(lambda: b"1" in seen)
    assert await committed(namesrv, "g") == 2


async def test_a_key_that_changes_while_its_message_is_handled_does_no_harm(namesrv: str, producer: Producer) -> None:
    seen: list[bytes] = []
    keys: dict[bytes, str] = {}

    async def handle(message: Message) -> None:
        keys[message.body] = "another"
        seen.append(message.body)

    for n in range(3):
        await producer.send("T", b"%d" % n)
    consumer = Consumer(namesrv, "g", "T")
    async with handled(consumer, handle, order="key", key=lambda message: keys.get(message.body, "one")):
        await eventually(lambda: len(seen) == 3)
    assert seen == [b"0", b"1", b"2"]


async def test_iteration_and_a_handler_do_not_mix(namesrv: str, producer: Producer) -> None:
    go_on = asyncio.Event()
    begun: list[bytes] = []

    async def handle(message: Message) -> None:
        begun.append(message.body)
        await go_on.wait()

    for n in range(2):
        await producer.send("T", b"%d" % n)
    consumer = Consumer(namesrv, "g", "T")
    async with consumer, asyncio.timeout(WAIT_S):
        assert (await anext(consumer)).body == b"0"
        async with running(consumer, handle):
            await eventually(lambda: begun == [b"1"])
            await consumer.commit()
            assert await committed(namesrv, "g") == 1
            with pytest.raises(ClosedError, match="handler"):
                await anext(consumer)
            with pytest.raises(ClosedError, match="handler"):
                await consumer.get_many(1)
            go_on.set()
    assert await committed(namesrv, "g") == 2


async def test_a_signal_stops_all_that_run_until_it(namesrv: str, producer: Producer) -> None:
    async def handle(message: Message) -> None:
        """Nothing to do."""

    before = signal.getsignal(signal.SIGUSR1)
    async with Consumer(namesrv, "g", "T") as one, Consumer(namesrv, "h", "T") as two, asyncio.timeout(WAIT_S):
        runs = [asyncio.ensure_future(each.run(handle, stop_on=signal.SIGUSR1)) for each in (one, two)]
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.gather(*runs)
    assert signal.getsignal(signal.SIGUSR1) is before


async def test_what_is_open_is_not_opened_again(namesrv: str, producer: Producer) -> None:
    async with Consumer(namesrv, "g", "T") as consumer:
        with pytest.raises(ClosedError, match="already open"):
            await consumer.start()
    with pytest.raises(ClosedError, match="already open"):
        await producer.start()
    assert (await producer.send("T", b"still there")).queue_offset == 0


@pytest.mark.parametrize("order", ["key", "queue"])
async def test_what_waits_for_another_try_takes_no_handler_from_others(namesrv: str, order: str) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise Retry(after_s=WAIT_S)
        seen.append(message.body)

    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=3)
        for n, body in enumerate([b"bad", b"bad", b"good"]):
            await producer.send("T", body, queue=n, keys=f"key-{n}")
        async with handled(Consumer(namesrv, "g", "T"), handle, order=order, concurrency=1):
            await eventually(lambda: seen == [b"good"])
        assert await committed(namesrv, "g") == 1
