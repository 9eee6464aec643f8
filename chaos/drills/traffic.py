"""Steady traffic: numbered messages sent by the clock, whatever the answers are, and a consumer that reads them.

The body of message 7 is `000000000007`, the CRC-32 of the rest, and a rest whose length and bytes follow from 7.
"""

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator
from random import Random

from chaos.checkers.operations import Delivery, Send, missing
from chaos.drills.record import DrillRecord
from ledgermq.client import Admin, Consumer, LedgerMQError, MessageQueue, Producer, SendStatus
from ledgermq.history import Outcome
from node.errors import CommandError

_QUEUE_COUNT = 8
_NUMBER_SIZE, _CRC_SIZE = 12, 8
_REST = Random(20).randbytes(4096)
_REST_LEAST, _REST_SPREAD = 64, 960
_POLL_S = 0.05
_ANSWERS_LIMIT_S = 30.0
_PROGRESS_LIMIT_S = 20.0
_READ_LIMIT = 200
WAITING_MAX = 3000
"""Most sends without an answer, below the producer's own limit: what is due beyond them is not sent, and has failed."""


def body_of(number: int) -> bytes:
    """Return the body of a message."""
    start = number * 37 % (len(_REST) - _REST_LEAST - _REST_SPREAD)
    rest = _REST[start : start + _REST_LEAST + number * 101 % _REST_SPREAD]
    return b"%012d%08x" % (number, zlib.crc32(rest)) + rest


def number_of(body: bytes) -> int | None:
    """Return the number of a message; None when the body is not one of `body_of`."""
    digits = body[:_NUMBER_SIZE]
    if len(digits) < _NUMBER_SIZE or not digits.isdigit():
        return None
    number = int(digits)
    return number if body == body_of(number) else None


def _place(queue: MessageQueue) -> str:
    """Return the name of a queue in records."""
    return f"{queue.broker}/{queue.queue_id}"


class Traffic:
    """One producer and one consumer on a topic.

    Args:
        producer, consumer: open.
        topic: the topic of both.
        rate: messages a second.
        record: gets everything that is seen.
    """

    def __init__(self, producer: Producer, consumer: Consumer, topic: str, rate: float, record: DrillRecord) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._rate = rate
        self._record = record
        self._under_way: set[asyncio.Task[None]] = set()

    async def send_forever(self) -> None:
        """Send by the clock until cancelled; a late loop sends at once what is due, up to `WAITING_MAX` at a time."""
        began_s = time.monotonic()
        first = len(self._record.sends)
        while True:
            due_s = began_s + (len(self._record.sends) - first) / self._rate
            if (early_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
            send = self._record.invoked(time.monotonic())
            if len(self._under_way) >= WAITING_MAX:
                self._record.failed(send, time.monotonic(), Outcome.FAIL)
                await asyncio.sleep(0)
                continue
            task = asyncio.ensure_future(self._send(send))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def receive_forever(self) -> None:
        """Record what the consumer gets, until cancelled.

        Raises:
            LedgerMQError: an error that a retry cannot solve.
        """
        async for message in self._consumer:
            number, queue = number_of(message.body), _place(message.queue)
            self._record.delivered(Delivery(number, time.monotonic(), queue, message.queue_offset))

    async def drained(self) -> str:
        """Return when every send has its answer, and every acknowledged message is delivered or none comes any more.

        Sends are waited for 30 s, each next delivery 20 s. Returns what did not come; empty: everything has.
        """
        deadline = time.monotonic() + _ANSWERS_LIMIT_S
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        count, deadline = -1, 0.0
        while self._record.undelivered_count and (len(self._record.deliveries) > count or time.monotonic() < deadline):
            if len(self._record.deliveries) > count:
                count, deadline = len(self._record.deliveries), time.monotonic() + _PROGRESS_LIMIT_S
            await asyncio.sleep(_POLL_S)
        missing = []
        if self._under_way:
            missing.append(f"{len(self._under_way):,} sends have no answer after {_ANSWERS_LIMIT_S:g} s")
        if self._record.undelivered_count:
            missing.append(f"{self._record.undelivered_count:,} messages, and none came for {_PROGRESS_LIMIT_S:g} s")
        return "; ".join(missing)

    async def abandon(self) -> None:
        """End the sends that still have no answer: nobody knows what became of them."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        try:
            result = await self._producer.send(self._topic, body_of(send.number))
        except LedgerMQError as error:
            outcome = Outcome.FAIL if error.outcome_known else Outcome.INFO
            self._record.failed(send, time.monotonic(), outcome)
            return
        if result.status is not SendStatus.OK:  # stored, but not as durably as the mode promises
            self._record.failed(send, time.monotonic(), Outcome.INFO)
            return
        self._record.term = result.term or self._record.term
        self._record.acknowledged(send, time.monotonic(), _place(result.queue), result.queue_offset, result.attempts)


@contextlib.asynccontextmanager
async def traffic(
    namesrv: str, topic: str, rate: float, record: DrillRecord, history: str | None
) -> AsyncIterator[Traffic]:
    """Create the topic and open both clients; the producer appends its history to the file `history`.

    Raises:
        CommandError: the cluster does not take the topic or the clients.
    """
    try:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queue_count=_QUEUE_COUNT)
        async with (
            Producer(namesrv, group="drill-producers", history=history) as producer,
            Consumer(namesrv, f"drill-consumers-{topic}", topic) as consumer,
        ):
            clients = Traffic(producer, consumer, topic, rate, record)
            try:
                yield clients
            finally:
                await clients.abandon()
    except LedgerMQError as error:
        raise CommandError(f"the consumer or a producer failed: {error}") from error


async def still_in_log(namesrv: str, topic: str, record: DrillRecord) -> frozenset[int]:
    """Return the numbers of acknowledged, undelivered messages that lie where their acknowledgement said.

    At most 200 are looked for: a run that lost more has failed anyhow.
    """
    found: set[int] = set()
    absent = missing(record.sends, record.deliveries)[:_READ_LIMIT]
    if not absent:
        return frozenset()
    async with Admin(namesrv) as admin:
        queues = {_place(queue): queue for queue in await admin.queues(topic)}
        for send in absent:
            if await _lies_there(admin, queues.get(send.queue), send):
                found.add(send.number)
    return frozenset(found)


async def gone_from_log(namesrv: str, topic: str, record: DrillRecord) -> frozenset[int]:
    """Return the last acknowledged message of each queue where it was delivered, and lies there no more.

    Its log was cut after the delivery; nobody who reads on would notice.

    Raises:
        CommandError: the cluster does not answer, or has no route to a queue.
    """
    last: dict[str, Send] = {}
    for send in record.acks:
        if send.offset > last.setdefault(send.queue, send).offset:
            last[send.queue] = send
    absent = {send.number for send in missing(last.values(), record.deliveries)}
    delivered = [send for send in last.values() if send.number not in absent]
    try:
        async with Admin(namesrv) as admin:
            queues = {_place(queue): queue for queue in await admin.queues(topic)}
            return frozenset([one.number for one in delivered if not await _reads(admin, queues[one.queue], one)])
    except (LedgerMQError, KeyError) as error:
        raise CommandError(f"the log could not be read at the end: {error}") from error


async def _lies_there(admin: Admin, queue: MessageQueue | None, send: Send) -> bool:
    if queue is None:
        return False
    try:
        return await _reads(admin, queue, send)
    except LedgerMQError:
        return False


async def _reads(admin: Admin, queue: MessageQueue, send: Send) -> bool:
    messages = await admin.read(queue, send.offset, 1)
    return any(message.queue_offset == send.offset and number_of(message.body) == send.number for message in messages)
