"""Traffic: numbered messages, sent at fixed times whatever the answers are.

The body of message 7 is `000000000007`, the CRC-32 of the rest, and a rest whose length and bytes follow from 7.
"""

import asyncio
import bisect
import contextlib
import time
import zlib
from collections.abc import AsyncIterator
from random import Random

from chaos.checkers.operations import CheckedSend, missing
from chaos.drills.java_client import JavaProducer, java_producer
from chaos.drills.record import DrillRecord
from chaos.drills.workloads import STEADY, Workload, delay_of, is_committed, is_left_to_check, key_of
from ledgermq.client import (
    Admin,
    Decision,
    LedgerMQError,
    Message,
    MessageQueue,
    Producer,
    SendResult,
    SendStatus,
    TransactionUndecidedError,
)
from ledgermq.history import Outcome
from node.errors import CommandError

_QUEUE_COUNT = 8
_NUMBER_SIZE, _CRC_SIZE = 12, 8
_REST = Random(20).randbytes(4096)
_REST_LEAST, _REST_SPREAD = 64, 960
_POLL_S = 0.05
_ANSWERS_LIMIT_S = 30.0
READ_LIMIT_S = 60.0
_TRIES_UNKNOWN = 255
"""A transaction does not tell the number of tries; each try that was stored may be committed."""
_TIMER_SLOT_S = 1.0
"""Seconds by which RocketMQ may deliver a timer message early: it delivers all messages of a slot together."""
WAITING_MAX = 3000
"""Most sends without an answer, below the producer's own limit; messages due beyond it are not sent, but failed."""


def body_of(number: int) -> bytes:
    """Return the body of a message."""
    start = number * 37 % (len(_REST) - _REST_LEAST - _REST_SPREAD)
    rest = _REST[start : start + _REST_LEAST + number * 101 % _REST_SPREAD]
    return b"%012d%08x" % (number, zlib.crc32(rest)) + rest


def number_of(body: bytes) -> int | None:
    """Return the number of a message; None if the body was not made by `body_of`."""
    digits = body[:_NUMBER_SIZE]
    if len(digits) < _NUMBER_SIZE or not digits.isdigit():
        return None
    number = int(digits)
    return number if body == body_of(number) else None


def place_of(queue: MessageQueue) -> str:
    """Return the name of a queue in records."""
    return f"{queue.broker}/{queue.queue_id}"


class Traffic:
    """One producer on a topic.

    Args:
        producer: open.
        topic: its topic.
        rate: messages a second.
        record: records all observations.
        workload: how messages are sent.
    """

    def __init__(
        self,
        producer: Producer | JavaProducer,
        topic: str,
        rate: float,
        record: DrillRecord,
        workload: Workload = STEADY,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._rate = rate
        self._record = record
        self._workload = workload
        self._under_way: set[asyncio.Task[None]] = set()

    async def send_forever(self) -> None:
        """Send at the message's times until cancelled; a late loop sends up to `WAITING_MAX` due messages at once."""
        began_s = time.monotonic()
        first = len(self._record.sends)
        is_ordered = self._workload.name == "ordered"
        while True:
            due_s = began_s + (len(self._record.sends) - first) / self._rate
            if (early_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
            key = key_of(len(self._record.sends)) if is_ordered else ""
            send = self._record.invoked(time.monotonic(), key)
            if len(self._under_way) >= WAITING_MAX:
                self._record.failed(send, time.monotonic(), Outcome.FAIL)
                await asyncio.sleep(0)
                continue
            task = asyncio.ensure_future(self._send(send))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def drained(self) -> str:
        """Return when every send has its answer, and every acknowledged message is delivered or no more are.

        It waits 30 s for sends, and for each next delivery as long as the workload says. Returns what is missing; empty
        if nothing is.
        """
        deadline = time.monotonic() + _ANSWERS_LIMIT_S
        while self._under_way and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        count, deadline = -1, 0.0
        while self._record.undelivered_count and (len(self._record.deliveries) > count or time.monotonic() < deadline):
            if len(self._record.deliveries) > count:
                count, deadline = len(self._record.deliveries), time.monotonic() + self._workload.progress_s
            await asyncio.sleep(_POLL_S)
        missing = []
        if self._under_way:
            missing.append(f"{len(self._under_way):,} sends have no answer after {_ANSWERS_LIMIT_S:g} s")
        if self._record.undelivered_count:
            missing.append(
                f"{self._record.undelivered_count:,} messages, and none came for {self._workload.progress_s:g} s"
            )
        return "; ".join(missing)

    async def abandon(self) -> None:
        """End the sends that still have no answer; their outcome is unknown."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _send(self, send: CheckedSend) -> None:
        try:
            if self._workload.name == "transactional":
                await self._transact(send)
                return
            result = await self._result(send)
        except LedgerMQError as error:
            outcome = Outcome.FAIL if error.outcome_known else Outcome.INFO
            self._record.failed(send, time.monotonic(), outcome)
            return
        if result.status is not SendStatus.OK:  # stored less durably than the mode promises: the outcome is unknown
            self._record.failed(send, time.monotonic(), Outcome.INFO)
            return
        self._record.term = result.term or self._record.term
        queue, offset = ("", -1) if send.due_s else (place_of(result.queue), result.queue_offset)
        self._record.acknowledged(send, time.monotonic(), queue, offset, result.attempts)

    async def _result(self, send: CheckedSend) -> SendResult:
        body = body_of(send.number)
        if isinstance(self._producer, JavaProducer):
            return await self._producer.send(self._topic, body)
        if self._workload.name == "ordered":
            return await self._producer.send(self._topic, body, order_key=key_of(send.number))
        if self._workload.name == "delayed":
            delay_s = delay_of(send.number)
            send.due_s = send.invoked_s + delay_s - _TIMER_SLOT_S
            return await self._producer.send(self._topic, body, delay=delay_s)
        return await self._producer.send(self._topic, body)

    async def _transact(self, send: CheckedSend) -> None:
        """Send by a transaction. One that is rolled back must never be delivered: its send counts as refused."""
        assert isinstance(self._producer, Producer), "transactions are sent by our client"
        commits = is_committed(send.number)
        transaction = self._producer.transaction(self._topic, body_of(send.number), check_after_s=1.0)
        try:
            async with transaction:
                send.due_s = time.monotonic()
                if is_left_to_check(send.number):
                    transaction.defer()
                elif not commits:
                    await transaction.rollback()
        except TransactionUndecidedError:  # the broker will ask for the decision
            self._record.failed(send, time.monotonic(), Outcome.INFO if commits else Outcome.FAIL)
        except LedgerMQError:  # the half message may be stored, and will be rolled back
            self._record.failed(send, time.monotonic(), Outcome.FAIL)
        else:
            if commits:
                self._record.acknowledged(send, time.monotonic(), "", -1, _TRIES_UNKNOWN)
            else:
                self._record.failed(send, time.monotonic(), Outcome.FAIL)


def _check(message: Message) -> Decision:
    """Answer a broker's check of a transaction."""
    number = number_of(message.body)
    if number is None:
        return Decision.UNKNOWN
    return Decision.COMMIT if is_committed(number) else Decision.ROLLBACK


@contextlib.asynccontextmanager
async def traffic(
    namesrv: str, topic: str, rate: float, record: DrillRecord, history: str | None, workload: Workload, client: str
) -> AsyncIterator[Traffic]:
    """Create the topic and open the producer of `client`; the Python producer appends its outcomes to `history`.

    Raises:
        CommandError: the cluster refuses the topic or the clients.
    """
    try:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, queue_count=_QUEUE_COUNT)
        async with _producer(namesrv, topic, history, workload, client) as producer:
            sender = Traffic(producer, topic, rate, record, workload)
            try:
                yield sender
            finally:
                await sender.abandon()
    except (LedgerMQError, ExceptionGroup) as error:
        failure = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        if isinstance(failure, CommandError):
            raise failure from error
        if not isinstance(failure, LedgerMQError):
            raise
        raise CommandError(f"the consumer or a producer failed: {failure}") from error


def _producer(
    namesrv: str, topic: str, history: str | None, workload: Workload, client: str
) -> contextlib.AbstractAsyncContextManager[Producer | JavaProducer]:
    group = f"drill-producers-{topic}"
    if client == "java":
        return java_producer(namesrv, topic, group)
    checker = _check if workload.name == "transactional" else None
    return Producer(namesrv, group=group, history=history, checker=checker)


async def still_in_log(namesrv: str, topic: str, record: DrillRecord) -> frozenset[int]:
    """Return the numbers of acknowledged undelivered messages that lie at their acknowledged places.

    Each queue is read in batches, from the first of these messages on. Messages that could not be looked for within a
    minute are returned, too, since they are not known to be lost; `record.unread_count` is their number, and
    `record.troubles` has the reason.
    """
    by_queue: dict[str, list[CheckedSend]] = {}
    for send in missing(record.sends, record.deliveries):
        by_queue.setdefault(send.queue, []).append(send)
    found: set[int] = set()
    if not by_queue:
        return frozenset()
    deadline = time.monotonic() + READ_LIMIT_S
    async with Admin(namesrv) as admin:
        queues: dict[str, MessageQueue] = {}
        for name, sends in by_queue.items():
            placed = sorted((send for send in sends if send.offset >= 0), key=lambda send: send.offset)
            try:
                queues = queues or {place_of(queue): queue for queue in await admin.queues(topic)}
                while placed:
                    placed = await _look_for(admin, queues[name], placed, found, deadline)
            except (LedgerMQError, KeyError, TimeoutError) as error:
                found.update(send.number for send in placed)
                record.unread_count += len(placed)
                what = f"{len(placed):,} undelivered messages could not be looked for in {name}"
                record.troubles.append(f"{what}: they may be lost ({type(error).__name__}: {error})")
    return frozenset(found)


async def _look_for(
    admin: Admin, queue: MessageQueue, sends: list[CheckedSend], found: set[int], deadline: float
) -> list[CheckedSend]:
    """Read one batch from the offset of the first of `sends`; return those whose offsets are behind the batch.

    Raises:
        LedgerMQError: the broker does not answer.
        TimeoutError: the time is over.
    """
    if time.monotonic() > deadline:
        raise TimeoutError(f"not within {READ_LIMIT_S:g} s")
    read = {one.queue_offset: number_of(one.body) for one in await admin.read(queue, sends[0].offset)}
    end = max(read, default=sends[0].offset)
    behind = bisect.bisect_right(sends, end, key=lambda send: send.offset)
    found.update(send.number for send in sends[:behind] if read.get(send.offset) == send.number)
    return sends[behind:]


async def gone_from_log(namesrv: str, topic: str, record: DrillRecord) -> frozenset[int]:
    """Return which queues' last acknowledged messages were delivered and are not in the log any more.

    Then the log was cut after the delivery, which consumers that read on do not notice.

    Raises:
        CommandError: the cluster does not answer, or has no route to a queue.
    """
    last: dict[str, CheckedSend] = {}
    for send in record.acks:
        if send.offset >= 0 and send.offset > last.setdefault(send.queue, send).offset:
            last[send.queue] = send
    absent = {send.number for send in missing(last.values(), record.deliveries)}
    delivered = [send for send in last.values() if send.number not in absent]
    try:
        async with Admin(namesrv) as admin:
            queues = {place_of(queue): queue for queue in await admin.queues(topic)}
            return frozenset([one.number for one in delivered if not await _reads(admin, queues[one.queue], one)])
    except (LedgerMQError, KeyError) as error:
        raise CommandError(f"the log could not be read at the end: {error}") from error


async def _reads(admin: Admin, queue: MessageQueue, send: CheckedSend) -> bool:
    messages = await admin.read(queue, send.offset, 1)
    return any(message.queue_offset == send.offset and number_of(message.body) == send.number for message in messages)
