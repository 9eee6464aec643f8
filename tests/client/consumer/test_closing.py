"""Closing at awkward moments: inside one's own callbacks, under load, and cancelled half-way."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledgermq.client import Admin, Consumer, Decision, Message, MessageQueue, Producer
from ledgermq.client.consumer import assigned
from ledgermq.client.consumer.handling import Order
from ledgermq.client.errors import ClosedError, DeadlineExceededError, LedgerMQError
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.consumer.test_consumer import fill
from tests.client.consumer.test_handling import committed
from tests.client.fake import FakeCluster, eventually, hang_up, ignore

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
LIMIT_S = 8  # well below the 30 s for which an ordered handler may hold its queue


@pytest.fixture
async def topic(namesrv: str) -> AsyncIterator[str]:
    async with Admin(namesrv) as admin, Producer(namesrv) as producer:
        await admin.create_topic("T", queue_count=1)
        await producer.send("T", b"one")
        await producer.send("T", b"two")
    yield "T"


# -- a consumer


@pytest.mark.parametrize("order", ["none", "key", "queue"])
@pytest.mark.parametrize("in_a_task", [False, True])
async def test_close_inside_a_handler_is_done_by_run_when_the_handler_has_ended(
    namesrv: str, topic: str, order: Order, in_a_task: bool
) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        if in_a_task:
            await asyncio.wait_for(consumer.close(), LIMIT_S)
        else:
            await consumer.close()
        await asyncio.sleep(0)
        seen.append(message.body)

    consumer = Consumer(namesrv, "g", topic)
    await consumer.start()
    async with asyncio.timeout(LIMIT_S):
        await consumer.run(handle, order=order, concurrency=1)
    assert seen == [b"one"]
    assert not consumer.assignment
    with pytest.raises(ClosedError, match="not open"):
        await consumer.commit()
    assert await committed(namesrv, "g") == 1, "what was handled is committed"


async def test_a_task_that_a_handler_has_left_behind_closes_at_once(namesrv: str, topic: str) -> None:
    closing: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    async def close_later() -> None:
        await ended.wait()
        await consumer.close()
        assert not consumer.assignment

    async def handle(message: Message) -> None:
        closing.append(asyncio.create_task(close_later()))
        consumer.stop()

    async with Consumer(namesrv, "g", topic) as consumer, asyncio.timeout(LIMIT_S):
        await consumer.run(handle, concurrency=1)
        ended.set()
        await asyncio.gather(*closing)


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
async def test_close_inside_a_listener_is_refused_and_says_what_to_do(cluster: FakeCluster, when: str) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 1)
    failures: list[ClosedError] = []

    async def listen(queues: tuple[MessageQueue, ...]) -> None:
        try:
            await consumer.close()
        except ClosedError as error:
            failures.append(error)

    listeners: dict[str, Any] = {when: listen}
    async with asyncio.timeout(LIMIT_S):
        async with Consumer(cluster.namesrv, "g", "T", **listeners) as consumer:
            assert (await anext(consumer)).body == b"0"
        await eventually(lambda: bool(failures))
    assert when in str(failures[0])
    assert "stop()" in str(failures[0])
    assert len(failures) == 1


async def test_a_listener_that_awaits_what_was_cancelled_does_not_end_the_membership(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})

    async def listen(queues: tuple[MessageQueue, ...]) -> None:
        cancelled = asyncio.ensure_future(asyncio.sleep(60))
        cancelled.cancel()
        await cancelled

    async with Consumer(cluster.namesrv, "g", "T", on_assigned=listen) as consumer, asyncio.timeout(LIMIT_S):
        with pytest.raises(LedgerMQError, match="on_assigned"):
            await anext(consumer)
        await cluster.add("c", topics={"T": 1})
        await eventually(lambda: len(consumer.assignment) == 2)


async def test_a_consumer_whose_close_is_cancelled_is_no_ghost_in_its_group(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 1)
    before = asyncio.all_tasks()
    consumer = Consumer(cluster.namesrv, "g", "T")
    await consumer.start()
    await anext(consumer)
    await consumer.commit()
    broker.plan(RequestCode.UPDATE_CONSUMER_OFFSET, ignore)
    consumer.seek(MessageQueue("T", "b", 0), 0)  # so that there is something to commit, which hangs
    committed_count = broker.count(RequestCode.UPDATE_CONSUMER_OFFSET)
    closing = asyncio.ensure_future(consumer.close())
    await eventually(lambda: broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) > committed_count)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await eventually(lambda: not broker.members["g"])
    await eventually(lambda: asyncio.all_tasks() - before == set())
    await consumer.close()


async def test_iterating_over_a_consumer_that_was_never_opened_is_refused(cluster: FakeCluster) -> None:
    consumer = Consumer(cluster.namesrv, "g", "T")
    with pytest.raises(ClosedError, match="async with"):
        await anext(consumer)


# -- a producer


@pytest.mark.parametrize("in_a_task", [False, True])
async def test_a_checker_may_close_its_producer(namesrv: str, in_a_task: bool) -> None:
    closed: list[float] = []

    async def check(message: Message) -> Decision:
        if in_a_task:
            await asyncio.wait_for(asker.close(), LIMIT_S)
        else:
            await asker.close()
        closed.append(time.monotonic())
        return Decision.COMMIT

    async with Producer(namesrv, "shop") as producer, producer.transaction("T", b"x") as tx:
        tx.defer()
    asker = Producer(namesrv, "shop", checker=check)
    await asker.start()
    await eventually(lambda: bool(closed))
    assert not asker._session.is_open
    with pytest.raises(ClosedError):
        await asker.send("T", b"x")


@pytest.mark.parametrize("linger_s", [None, 0.0])
async def test_a_block_that_ends_has_sent_what_waits_for_its_turn(cluster: FakeCluster, linger_s: float | None) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    async with Producer(cluster.namesrv, linger_s=linger_s) as producer:
        sends = [asyncio.ensure_future(producer.send("T", b"%d" % n, order_key="k")) for n in range(20)]
        sends += [asyncio.ensure_future(producer.send("T", b"large" * 40_000)) for _ in range(3)]
        await asyncio.sleep(0)
    results = await asyncio.gather(*sends)
    assert len(results) == len(broker.ledger.bodies("T")) == 23


async def test_a_block_that_ends_has_sent_all_of_many(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, batch_bytes=1000) as producer:
        sending = asyncio.ensure_future(producer.send_many("T", [b"x" * 400] * 400, queue=0))
        await eventually(lambda: broker.count(RequestCode.SEND_BATCH_MESSAGE) > 0)
    assert len(await sending) == 400


async def test_what_was_sent_and_not_answered_when_it_was_closed_may_be_stored(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    producer = Producer(cluster.namesrv)
    await producer.start()
    broker.plan(RequestCode.SEND_MESSAGE_V2, ignore)
    sending = asyncio.ensure_future(producer.send("T", b"x"))
    await eventually(lambda: broker.count(RequestCode.SEND_MESSAGE_V2) == 1)
    await producer.close(drain=False)
    with pytest.raises(ClosedError) as told:
        await sending
    assert not told.value.outcome_known
    assert "may have been carried out" in str(told.value)


async def test_a_request_under_way_ends_when_its_producer_is_closed(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        asking = asyncio.ensure_future(producer.request("T", b"?", timeout_s=60))
        assert producer._parts is not None
        replies = producer._parts.replies
        await eventually(lambda: len(replies) == 1)
        await asyncio.sleep(0.1)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ClosedError) as told:
            await asking
    assert not told.value.outcome_known


async def test_a_producer_whose_close_is_cancelled_leaves_nothing_running(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    before = asyncio.all_tasks()
    producer = Producer(cluster.namesrv)
    await producer.start()
    broker.plan(RequestCode.SEND_MESSAGE_V2, *[ignore] * 9)
    sending = asyncio.ensure_future(producer.send("T", b"x"))
    await eventually(lambda: broker.count(RequestCode.SEND_MESSAGE_V2) == 1)
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not producer._session.is_open
    with pytest.raises(ClosedError):
        await sending
    await eventually(lambda: asyncio.all_tasks() - before == set())


async def test_two_closes_at_once_commit_what_is_handled(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    for queue_id in range(4):
        fill(broker, 5, queue_id=queue_id)
    consumer = Consumer(cluster.namesrv, "g", "T")
    await consumer.start()
    for _ in range(21):
        await consumer.get_many(1)
        if sum(consumer.positions.values()) >= 19:
            break
    handled = sum(consumer.positions.values())
    await asyncio.gather(*(consumer.close() for _ in range(3)))
    assert sum(offset for (topic, *_), offset in broker.ledger.offsets.items() if topic == "T") == handled > 0


def test_a_client_may_be_opened_again_in_another_event_loop() -> None:
    producer: Producer | None = None
    consumer: Consumer | None = None

    async def life() -> None:
        nonlocal producer, consumer
        cluster = FakeCluster()
        cluster.nameserver.port = port
        await cluster.nameserver.start()
        (broker,) = await cluster.add(topics={"T": 1})
        producer = producer or Producer(cluster.namesrv, in_flight_max=1)
        consumer = consumer or Consumer(cluster.namesrv, "g", "T", prefetch_messages=2)
        broker.plan(RequestCode.SEND_MESSAGE_V2, hang_up)
        async with asyncio.timeout(LIMIT_S), consumer:
            async with producer:
                sends = [asyncio.ensure_future(producer.send("T", b"%d" % n)) for n in range(9)]
                await asyncio.sleep(0)
            assert len(await asyncio.gather(*sends)) == 9
            for _ in range(9):
                await anext(consumer)
                await asyncio.sleep(0.002)  # the reader waits for room meanwhile
        await cluster.close()

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asyncio.run(life())
    asyncio.run(life())


# -- deadlines


async def test_a_commit_ends_by_its_deadline_though_an_earlier_one_hangs(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 2)
    async with Consumer(cluster.namesrv, "g", "T", attempt_timeout_s=600, deadline_s=600) as consumer:
        await anext(consumer)
        broker.plan(COMMIT, ignore)
        committed_count = broker.count(COMMIT)
        hanging = asyncio.ensure_future(consumer.commit())
        await eventually(lambda: broker.count(COMMIT) > committed_count)
        assert consumer._parts is not None
        with pytest.raises(DeadlineExceededError, match="an earlier commit is still under way"):
            async with asyncio.timeout(LIMIT_S):
                await consumer._parts.commits.commit(consumer._parts.queues.turns.readers(), 0.05)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)


async def test_closing_does_not_wait_for_a_background_commit_that_hangs(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 2)
    options: dict[str, Any] = {"attempt_timeout_s": 600, "deadline_s": 600, "auto_commit_s": 0.01}
    consumer = Consumer(cluster.namesrv, "g", "T", **options)
    await consumer.start()
    await anext(consumer)
    broker.plan(COMMIT, ignore)
    committed_count = broker.count(COMMIT)
    await anext(consumer)
    await eventually(lambda: broker.count(COMMIT) > committed_count, "a commit in the background hangs")
    async with asyncio.timeout(LIMIT_S):
        await consumer.close()
    assert broker.ledger.offsets["T", "g", 0] == 1, "closing has committed what is handled"


async def test_closing_commits_for_no_longer_than_the_consumers_deadline(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    fill(broker, 2)
    consumer = Consumer(cluster.namesrv, "g", "T", attempt_timeout_s=600, deadline_s=0.2, auto_commit_s=600)
    await consumer.start()
    await anext(consumer)
    await consumer.get_many(1)
    broker.plan(COMMIT, *[ignore] * 9)
    began_at = time.monotonic()
    await consumer.close()
    assert time.monotonic() - began_at < assigned.LEAVING_DEADLINE_S
