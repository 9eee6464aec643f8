"""Handlers over a real broker in this process: order, failures, dead letters, commits, what administrators ask."""

import asyncio
import collections
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import Admin, Consumer, DeadLetter, Message, MessageQueue, Producer, Retry
from ledgermq.client.consumer import handling, sending_back
from ledgermq.client.consumer.handling import Order
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.fake import FakeCluster, eventually
from tests.limits import WAIT_S


@asynccontextmanager
async def handled(
    consumer: Consumer, handler: Callable[[Message], Awaitable[None]], **options: object
) -> AsyncIterator[None]:
    """Handle in the background; it ends well."""
    async with consumer:
        task = asyncio.ensure_future(consumer.run(handler, **options))  # type: ignore[arg-type]
        try:
            yield
            consumer.stop()
            async with asyncio.timeout(WAIT_S):
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def producer(namesrv: str) -> AsyncIterator[Producer]:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=2)
        yield producer


async def committed(namesrv: str, group: str, topic: str = "T") -> int:
    async with Admin(namesrv) as admin:
        return sum(progress.committed or 0 for progress in await admin.progress(group, topic))


async def test_messages_are_handled_side_by_side_and_all_committed(namesrv: str, producer: Producer) -> None:
    seen: list[bytes] = []
    under_way = most = 0

    async def handle(message: Message) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.002)
        seen.append(message.body)
        under_way -= 1

    await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(200)))
    async with handled(Consumer(namesrv, "g", "T"), handle, concurrency=8):
        await eventually(lambda: len(seen) == 200)
    assert (most, len(set(seen))) == (8, 200)
    assert await committed(namesrv, "g") == 200


async def test_what_lies_behind_an_unhandled_message_is_not_committed(namesrv: str, producer: Producer) -> None:
    go_on = asyncio.Event()
    seen: list[int] = []

    async def handle(message: Message) -> None:
        if message.queue_offset == 3:
            await go_on.wait()
        seen.append(message.queue_offset)

    for n in range(10):
        await producer.send("T", b"%d" % n, queue=MessageQueue("T", (await producer.queues("T"))[0].broker, 0))
    consumer = Consumer(namesrv, "g", "T")
    async with handled(consumer, handle, concurrency=4):
        await eventually(lambda: len(seen) == 9)
        await consumer.commit()
        assert await committed(namesrv, "g") == 3
        go_on.set()
        await eventually(lambda: len(seen) == 10)
    assert await committed(namesrv, "g") == 10


async def test_a_key_keeps_its_order_and_holds_up_no_other(namesrv: str, producer: Producer) -> None:
    seen: dict[str, list[int]] = collections.defaultdict(list)
    failures = 0
    blocked = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal failures
        key, number = message.keys[0], int(message.body)
        if key == "0" and number == 10:
            await blocked.wait()
        if key == "1" and number == 11 and failures < 2:
            failures += 1
            raise Retry(after_s=0.01)
        await asyncio.sleep(0.001)
        seen[key].append(number)

    for n in range(100):
        await producer.send("T", b"%d" % n, keys=str(n % 10), order_key=str(n % 10))
    async with handled(Consumer(namesrv, "g", "T"), handle, order="key"):
        await eventually(lambda: sum(map(len, seen.values())) == 91, "all but the nine behind the blocked one")
        assert seen["0"] == [0]
        blocked.set()
        await eventually(lambda: sum(map(len, seen.values())) == 100)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert failures == 2
    assert await committed(namesrv, "g") == 100


async def test_a_queue_keeps_its_order_under_its_lock(namesrv: str, producer: Producer) -> None:
    seen: dict[int, list[int]] = collections.defaultdict(list)
    under_way: collections.Counter[int] = collections.Counter()
    tries = 0

    async def handle(message: Message) -> None:
        nonlocal tries
        under_way[message.queue_id] += 1
        assert under_way[message.queue_id] == 1
        await asyncio.sleep(0.001)
        under_way[message.queue_id] -= 1
        if message.queue_offset == 5 and message.queue_id == 0 and tries < 3:
            tries += 1
            raise Retry(after_s=0.01)
        seen[message.queue_id].append(message.queue_offset)

    await asyncio.gather(*(producer.send("T", b"%d" % n) for n in range(60)))
    consumer = Consumer(namesrv, "g", "T")
    async with handled(consumer, handle, order="queue"):
        await eventually(lambda: sum(map(len, seen.values())) == 60)
        assert consumer._parts is not None
        assert consumer._parts.queues.locks is not None
        assert {queue for queue in consumer._parts.queues.locks.held if queue.topic == "T"} == {
            queue for queue in consumer.assignment if queue.topic == "T"
        }
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())
    assert tries == 3


async def test_a_locked_queue_goes_to_another_member_when_the_handler_has_ended(
    namesrv: str, producer: Producer
) -> None:
    seen: dict[int, list[int]] = collections.defaultdict(list)

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.01)
        seen[message.queue_id].append(int(message.body))

    first, second = (Consumer(namesrv, "g", "T") for _ in range(2))
    for n in range(100):
        await producer.send("T", b"%d" % n, queue=(await producer.queues("T"))[n % 2])
    async with handled(first, handle, order="queue"):
        await eventually(lambda: sum(map(len, seen.values())) > 10)
        async with handled(second, handle, order="queue"):
            await eventually(lambda: sum(map(len, seen.values())) >= 100)
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values()), "in order, none twice"


async def test_what_fails_comes_again_and_at_last_is_a_dead_letter(namesrv: str, producer: Producer) -> None:
    tries: dict[bytes, list[int]] = collections.defaultdict(list)

    async def handle(message: Message) -> None:
        tries[message.body].append(message.reconsume_times)
        assert message.topic == "T"
        if message.body == b"hopeless":
            raise DeadLetter
        if message.body == b"never":
            raise Retry(after_s=1)
        if message.body == b"later" and message.reconsume_times == 0:
            raise Retry(after_s=0.5)

    for body in (b"fine", b"later", b"hopeless", b"never"):
        await producer.send("T", body, keys="k", properties={"colour": "red"})
    async with handled(Consumer(namesrv, "g", "T"), handle, tries_max=1):
        await eventually(lambda: len(tries[b"later"]) == 2 and len(tries[b"never"]) == 2)
        async with Consumer(namesrv, "dead", "%DLQ%g") as dead, asyncio.timeout(WAIT_S):
            letters = [await anext(dead), await anext(dead)]
    assert (tries[b"fine"], tries[b"later"], tries[b"never"]) == ([0], [0, 1], [0, 1])
    assert {letter.body for letter in letters} == {b"hopeless", b"never"}
    assert all((letter.keys, letter.properties["colour"]) == (["k"], "red") for letter in letters)
    assert await committed(namesrv, "g") == 4


@pytest.mark.parametrize("order", ["key", "queue"])
async def test_in_order_a_failure_is_tried_again_in_its_place_as_often_as_asked_then_is_a_dead_letter(
    namesrv: str, producer: Producer, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    monkeypatch.setattr(handling, "AGAIN_AFTER_S", 0.3)
    (queue, *_) = await producer.queues("T")
    for body in (b"bad", b"good"):
        await producer.send("T", body, keys="k", queue=queue)
    loop, seen, tried_at = asyncio.get_running_loop(), list[bytes](), list[float]()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            tried_at.append(loop.time())
            raise RuntimeError("never")

    async with handled(Consumer(namesrv, "g", "T"), handle, order=order, tries_max=2):
        await eventually(lambda: b"good" in seen)
        async with Consumer(namesrv, "dead", "%DLQ%g") as dead, asyncio.timeout(WAIT_S):
            assert (await anext(dead)).body == b"bad"
    assert seen == [b"bad"] * 3 + [b"good"], "the first try and two more"
    assert min(later - earlier for earlier, later in itertools.pairwise(tried_at)) >= 0.3


@pytest.mark.parametrize("order", ["none", "key"])
async def test_what_cannot_be_sent_back_stays_unhandled_and_is_tried_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    monkeypatch.setattr(handling, "NOT_SENT_BACK_S", 0.02)
    monkeypatch.setattr(sending_back, "DEADLINE_S", 0.2)
    (broker,) = await cluster.add(topics={"T": 1})
    broker.ledger.append("T", 0, b"x", b"")
    tries = 0
    offset_at_second_try: int | None = None

    async def handle(message: Message) -> None:
        nonlocal tries, offset_at_second_try
        tries += 1
        if tries == 1:
            raise DeadLetter
        await consumer.commit()
        offset_at_second_try = broker.ledger.offsets["T", "g", 0]

    consumer = Consumer(cluster.namesrv, "g", "T")
    async with handled(consumer, handle, order=order):
        await eventually(lambda: tries == 2, "neither the broker nor the retry topic takes it: it comes again here")
        assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1
        await eventually(lambda: offset_at_second_try is not None)
    assert offset_at_second_try == 0, "a message that was neither handled nor sent back must not be committed"
    assert broker.ledger.offsets["T", "g", 0] == 1


async def test_a_handler_that_takes_too_long_is_cancelled_and_has_failed(namesrv: str, producer: Producer) -> None:
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.reconsume_times)
        if len(seen) == 1:
            await asyncio.Event().wait()

    await producer.send("T", b"slow")
    async with handled(Consumer(namesrv, "g", "T"), handle, order="key", timeout_s=0.05):
        await eventually(lambda: len(seen) == 2)


async def test_while_iterating_messages_can_be_sent_back(namesrv: str, producer: Producer) -> None:
    await producer.send("T", b"now or later")
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        first = await anext(consumer)
        await consumer.retry(first, after_s=1)
        again = await anext(consumer)
        assert (again.body, again.topic, again.reconsume_times) == (b"now or later", "T", 1)
        assert again.message_id == first.message_id


async def test_run_stops_at_a_signal_and_commits(namesrv: str, producer: Producer) -> None:
    async def handle(message: Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)

    await producer.send("T", b"the last one")
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        await consumer.run(handle, stop_on=(signal.SIGTERM,))
    assert await committed(namesrv, "g") == 1


async def test_options_that_make_no_sense_are_refused(namesrv: str, producer: Producer) -> None:
    async def handle(message: Message) -> None: ...

    async with Consumer(namesrv, "g", "T") as consumer:
        for options in ({"concurrency": 0}, {"order": "time"}, {"key": len}, {"timeout_s": 0}, {"tries_max": -1}):
            with pytest.raises(InvalidArgumentError):
                await consumer.run(handle, **options)
        await producer.send("T", b"x")
        with pytest.raises(InvalidArgumentError, match="async def"):
            await consumer.run(lambda message: None)  # type: ignore[arg-type,return-value]


async def test_what_a_cancelled_run_had_in_hand_is_given_again(namesrv: str, producer: Producer) -> None:
    began: list[int] = []

    async def handle(message: Message) -> None:
        began.append(message.queue_offset)
        if message.queue_offset != 1:
            await asyncio.Event().wait()

    queue = (await producer.queues("T"))[0]
    for n in range(4):
        await producer.send("T", b"%d" % n, queue=queue)
    async with Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        task = asyncio.ensure_future(consumer.run(handle, concurrency=3))
        await eventually(lambda: len(began) == 4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [(await anext(consumer)).queue_offset for _ in range(4)] == [0, 1, 2, 3]
