"""Requests and replies between clients on a real broker, and what is refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from ledgermq.client import Consumer, Message, MessageQueue, Producer
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError, NoReplyError, ServerError
from ledgermq.client.producer.replies import reply_address
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from tests.client.fake import FakeCluster, Ledger
from tests.limits import WAIT_S


@contextlib.asynccontextmanager
async def responder(
    namesrv: str, topic: str, answer: Callable[[Message], bytes | None], tries: int = 1
) -> AsyncIterator[Producer]:
    """Somebody who replies to every request, unless `answer` says None."""

    async def serve(producer: Producer, consumer: Consumer) -> None:
        async for message in consumer:
            assert message.expects_reply
            body = answer(message)
            for _ in range(tries if body is not None else 0):
                await producer.reply(message, body or b"")

    async with Producer(namesrv, "responders") as producer, Consumer(namesrv, "answering", topic) as consumer:
        task = asyncio.ensure_future(serve(producer, consumer))
        try:
            yield producer
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_each_request_gets_its_own_reply(namesrv: str) -> None:
    async with (
        Producer(namesrv) as producer,
        responder(namesrv, "T", lambda message: b"re: " + message.body),
        asyncio.timeout(WAIT_S),
    ):
        asked = [producer.request("T", b"%d" % n, timeout_s=WAIT_S, tags="q") for n in range(50)]
        assert [reply.body for reply in await asyncio.gather(*asked)] == [b"re: %d" % n for n in range(50)]
        assert len(producer._opened().replies) == 0


async def test_a_second_reply_is_dropped_and_a_large_one_comes_whole(namesrv: str) -> None:
    big = b"x" * 100_000
    async with Producer(namesrv) as producer, responder(namesrv, "T", lambda _: big, tries=2):
        for _ in range(2):
            assert (await producer.request("T", b"?", timeout_s=WAIT_S)).body == big


async def test_no_reply_in_time_is_an_error_of_its_own(namesrv: str) -> None:
    async with Producer(namesrv) as producer:
        with pytest.raises(NoReplyError, match="'T'") as caught:
            await producer.request("T", b"anyone?", timeout_s=0.5)
        assert not caught.value.outcome_known
        assert caught.value.is_retryable
        assert len(producer._opened().replies) == 0


async def test_a_reply_to_who_has_gone_says_so(namesrv: str) -> None:
    async with Producer(namesrv) as asking, Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        task = asyncio.ensure_future(asking.request("T", b"?", timeout_s=WAIT_S))
        request = await anext(consumer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asking.close()
        async with Producer(namesrv) as producer:
            with pytest.raises(ServerError, match="not found"):
                await producer.reply(request, b"too late")


async def test_only_a_request_can_be_replied_to(namesrv: str) -> None:
    async with Producer(namesrv) as producer, Consumer(namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        await producer.send("T", b"just so")
        message = await anext(consumer)
        assert not message.expects_reply
        with pytest.raises(InvalidArgumentError, match="REPLY_TO_CLIENT"):
            await producer.reply(message, b"?")


async def test_a_request_that_cannot_be_sent_fails_as_a_send_does(namesrv: str) -> None:
    async with Producer(namesrv, create_topics=False) as producer:
        with pytest.raises(LedgerMQError, match="nowhere"):
            await producer.request("nowhere", b"?", timeout_s=WAIT_S)
        with pytest.raises(InvalidArgumentError):
            await producer.request("T", b"", timeout_s=WAIT_S)


async def test_a_reply_that_cannot_be_read_is_refused_and_hurts_nobody(cluster: FakeCluster) -> None:
    (broker,) = await cluster.add(topics={"T": 1})
    async with Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x")
        for ext in ({}, {"topic": "T", "queueId": "x"}):
            broker.tell_all(Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=ext))
        whole = {"topic": "T", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "storeTimestamp": "1"}
        broker.tell_all(Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext=whole | {"bornHost": "/1.2.3.4:x"}))
        await producer.send("T", b"y")


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("3000", 3.0), ("", None), ("0", None), ("-1", None), ("soon", None), ("9" * 5000, None)]
)
def test_what_a_requester_says_of_its_patience_is_believed_if_it_is_sane(ttl: str, seconds: float | None) -> None:
    properties = f"CLUSTER\x01c\x02REPLY_TO_CLIENT\x01me\x02CORRELATION_ID\x01id\x02TTL\x01{ttl}\x02"
    record = Ledger().append("T", 0, b"?", properties.encode())
    topic, _, ttl_s = reply_address(Message(record, MessageQueue("T", "b", 0)))
    assert (topic, ttl_s) == ("c_REPLY_TOPIC", seconds)
