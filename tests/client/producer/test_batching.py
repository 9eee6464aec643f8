"""Messages that share a request: by linger and size, in order, with a result or an error of their own."""

import asyncio
import random

import pytest

from ledgermq.client import Admin, Outgoing, Producer, SendResult
from ledgermq.client.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LedgerMQError,
    MessageRejectedError,
    SendManyError,
)
from ledgermq.client.producer.sender import BatchPart
from ledgermq.message.batch import encode_batch
from ledgermq.remoting.codec.codes import RequestCode
from tests.client.fake import FakeCluster, eventually, hang_up, refuse
from tests.client.reading import read
from tests.limits import WAIT_S
from tests.wire import split_batch

BATCH, SINGLE = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2


async def test_sends_that_come_together_share_a_request_and_get_results_of_their_own(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    async with Producer(cluster.namesrv, linger_s=0.0) as producer:
        results = await asyncio.gather(*(producer.send("T", b"%d" % n, tags=f"t{n}") for n in range(100)))
        alone = await producer.send("T", b"alone")
    assert (broker.count(BATCH), broker.count(SINGLE)) == (1, 1)
    assert [result.queue_offset for result in results] == list(range(100))
    assert len({result.message_id for result in [*results, alone]}) == 101
    stored = [record for records in broker.ledger.queues.values() for record in records]
    assert {record.unique_id: record.body for record in stored}[results[7].message_id] == b"7"
    assert {record.tags for record in stored[:100]} <= {f"t{n}" for n in range(100)} | {None}


async def test_a_batch_leaves_when_it_is_full_or_its_time_is_over(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1, "U": 1})
    async with Producer(cluster.namesrv, linger_s=60, batch_bytes=10_000) as producer:
        full = [await producer.send_soon("T", bytes(1000)) for _ in range(30)]
        await eventually(lambda: broker.count(BATCH) == 3)
        assert sum(future.done() for future in full) in range(28)
        other = await producer.send_soon("U", b"waits")
        await producer.flush()
        assert other.done()
        assert all(future.done() for future in full)
    for command in broker.seen:
        if command.code == BATCH:
            assert len(command.body) <= 10_000
    async with Producer(cluster.namesrv, linger_s=0.05) as producer, asyncio.timeout(WAIT_S):
        await asyncio.gather(producer.send("T", b"a"), producer.send("T", b"b"))


async def test_a_key_keeps_its_order_through_batches_that_are_tried_again(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 4})
    broker.plan(BATCH, hang_up, refuse(2, "busy"), hang_up)
    async with Producer(cluster.namesrv, linger_s=0.0, batch_bytes=400) as producer:
        sends = [producer.send("T", b"%d" % n, order_key=f"k{n % 3}") for n in range(300)]
        await asyncio.gather(*sends)
    for key in range(3):
        bodies = [int(body) for body in broker.ledger.bodies("T") if int(body) % 3 == key]
        assert bodies == sorted(bodies)
        assert len(bodies) == 100
    for records in broker.ledger.queues.values():
        for record in records:
            assert record.property_map["__SHARDINGKEY"] == f"k{int(record.body) % 3}"


async def test_only_those_that_are_wrong_fail_when_a_batch_is_refused_for_its_content(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(BATCH, refuse(13, "one of them"))
    broker.plan(SINGLE, refuse(13, "this one"))
    async with Producer(cluster.namesrv, linger_s=0.0) as producer:
        sends = [producer.send("T", b"%d" % n) for n in range(3)]
        first, *others = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(first, MessageRejectedError)
    assert all(isinstance(other, SendResult) for other in others)
    assert broker.ledger.bodies("T") == [b"1", b"2"]


async def test_a_batch_that_is_lost_fails_for_each_with_an_error_of_its_own(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=0.0, deadline_s=0.4, attempt_timeout_s=0.1) as producer:
        await producer.queues("T")
        broker.silent = True
        failures = await asyncio.gather(*(producer.send("T", b"x") for _ in range(3)), return_exceptions=True)
    assert len({id(failure) for failure in failures}) == 3
    for failure in failures:
        assert isinstance(failure, DeadlineExceededError)
        assert not failure.outcome_known


async def test_a_batch_that_waits_for_another_still_ends_at_its_deadline(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=0.0, attempt_timeout_s=0.5) as producer, asyncio.timeout(WAIT_S):
        (queue,) = await producer.queues("T")
        broker.silent = True
        first = await producer.send_soon("T", b"1", queue=queue, deadline_s=1.0)
        await asyncio.sleep(0.05)
        second = await producer.send_soon("T", b"2", queue=queue, deadline_s=0.1)
        for future in (first, second):
            with pytest.raises(DeadlineExceededError):
                await future


async def test_a_message_cancelled_before_its_batch_leaves_is_not_sent(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=60) as producer:
        kept, dropped = [await producer.send_soon("T", body) for body in (b"kept", b"dropped")]
        dropped.cancel()
        await producer.flush()
        assert kept.done()
        assert producer._in_flight.count == 0
    assert broker.ledger.bodies("T") == [b"kept"]


async def test_closing_sends_what_waits_unless_something_went_wrong(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=60) as producer:
        sent = await producer.send_soon("T", b"sent")
    assert sent.done()
    producer = Producer(cluster.namesrv, linger_s=60)
    await producer.start()
    never = await producer.send_soon("T", b"never")
    await producer.close(drain=False)
    with pytest.raises(ClosedError):
        await never
    assert broker.ledger.bodies("T") == [b"sent"]


async def test_closing_hurries_those_that_still_wait_for_room(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    producer = Producer(cluster.namesrv, linger_s=60, in_flight_max=1)
    await producer.start()
    sends = [asyncio.ensure_future(producer.send("T", b"%d" % n)) for n in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await producer.close()
        await asyncio.gather(*sends)
    assert broker.ledger.bodies("T") == [b"0", b"1", b"2"]


async def test_sending_soon_waits_for_room_only(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, in_flight_max=2, attempt_timeout_s=10) as producer:
        await producer.queues("T")
        broker.silent = True
        futures = [await producer.send_soon("T", b"x") for _ in range(2)]
        third = asyncio.ensure_future(producer.send_soon("T", b"y"))
        await asyncio.sleep(0.05)
        assert not third.done()
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        broker.silent = False
        broker.hang_up_on_all()
        await asyncio.gather(*futures)
        assert producer._in_flight.count == 0


async def test_what_cannot_be_sent_is_refused_at_once_and_takes_no_room(cluster: FakeCluster) -> None:
    await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv, linger_s=0.0) as producer:
        for body in (b"", "text"):
            with pytest.raises(InvalidArgumentError):
                await producer.send("T", body)  # type: ignore[arg-type]  # the point
            with pytest.raises(InvalidArgumentError):
                await producer.send_soon("T", body)  # type: ignore[arg-type]  # the point
        assert producer._in_flight.count == 0
    for wrong in ({"linger_s": -1.0}, {"batch_bytes": 0}, {"batch_bytes": 5 << 20}):
        with pytest.raises(InvalidArgumentError):
            Producer(cluster.namesrv, **wrong)


async def test_many_messages_go_in_few_requests_and_come_back_in_order(namesrv: str) -> None:
    async with Admin(namesrv) as admin, Producer(namesrv, batch_bytes=5000) as producer:
        await admin.create_topic("T", queue_count=4)
        results = await producer.send_many("T", [Outgoing(b"%d" % n, keys=f"k{n}") for n in range(500)])
        ordered = await producer.send_many("U", [b"%d" % n for n in range(200)], order_key="one")
    assert len({result.message_id for result in results}) == 500
    assert len({result.queue for result in results}) == 4
    assert [result.queue_offset for result in ordered] == list(range(200))
    bodies = {message.message_id: message.body for message in await read(namesrv, "T", 500)}
    assert [bodies[result.message_id] for result in results] == [b"%d" % n for n in range(500)]


async def test_many_messages_of_which_some_fail_say_which(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    broker.plan(BATCH, refuse(13, "no"))
    async with Producer(cluster.namesrv, batch_bytes=200) as producer:
        with pytest.raises(SendManyError, match="of 9 messages") as caught:
            await producer.send_many("T", [b"%d" % n for n in range(9)])
        outcomes = caught.value.outcomes
        stored = {int(body) for body in broker.ledger.bodies("T")}
        assert [isinstance(outcome, SendResult) for outcome in outcomes] == [n in stored for n in range(9)]
        assert isinstance(caught.value, LedgerMQError)
        assert [type(failure) for failure in caught.value.exceptions] == [MessageRejectedError]
        with pytest.raises(InvalidArgumentError):
            await producer.send_many("T", [b"fine", b""])
        assert await producer.send_many("T", []) == []


def test_a_part_says_how_large_it_is_in_a_batch() -> None:
    part = BatchPart("ID", b"body", b"A\x01b\x02")
    encoded = encode_batch([(0, part.body, part.properties)])
    assert len(encoded) == part.size
    assert len(split_batch(encoded)) == 1


@pytest.mark.parametrize("linger_s", [None, 0.0, 0.001])
async def test_sends_cancelled_at_any_moment_give_their_room_back(cluster: FakeCluster, linger_s: float | None) -> None:
    (broker,) = await cluster.add(topics={"T": 2})
    chance = random.Random(7)
    async with Producer(cluster.namesrv, linger_s=linger_s, in_flight_max=8) as producer:
        await producer.queues("T")
        for _ in range(20):
            broker.plan(BATCH, *chance.choices([hang_up, refuse(2, "busy")], k=1))
            sends = [
                asyncio.ensure_future(producer.send("T", b"x", order_key=chance.choice([None, "a", "b"])))
                for _ in range(20)
            ]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            cancelled = chance.sample(sends, 10)
            for send in cancelled:
                send.cancel()
            outcomes = await asyncio.gather(*(send for send in sends if send not in cancelled))
            assert len(outcomes) == 10
        async with asyncio.timeout(WAIT_S):
            await producer.flush()
            await producer._in_flight.wait_idle()
        assert len(producer._opened().sender.lanes) == 0
