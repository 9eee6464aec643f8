"""Batching by size and time: messages to the same topic that are sent within a short time share one request.

    send, send, send ... -> a filling batch per (topic, queue) -- full, or its time is over --> request 320 -> results

Batches to any queue take the queues in turn, and many are under way at once. Batches to one given queue go one after
another, so that retries keep the order; the next one fills meanwhile. When a broker refuses a batch because of its
content, its messages are sent one by one, so that only the invalid ones fail.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ledgermq.client.errors import (
    ClosedError,
    DeadlineExceededError,
    InvalidRequestError,
    LedgerMQError,
    MessageRejectedError,
    UndecodableError,
    another,
)
from ledgermq.client.producer.outgoing import Body, Keys, check_limits
from ledgermq.client.producer.send_request import SendResult
from ledgermq.client.producer.sender import BatchPart, Sender
from ledgermq.remoting.route import MessageQueue

BATCH_BYTES: Final = 128 * 1024
BATCH_COUNT_MAX: Final = 1024
REFUSED_FOR_CONTENT: Final = (MessageRejectedError, InvalidRequestError)


class BatchTerms(NamedTuple):
    """Options that messages of one batch share; `deadline_s` counts from the batch's first message."""

    topic: str
    queue: MessageQueue | None
    deadline_s: float
    attempts_max: int | None


_Place = tuple[str, MessageQueue | None]


class _Entry(NamedTuple):
    part: BatchPart
    result: asyncio.Future[SendResult]


@dataclass(slots=True)
class _Filling:
    """A batch that is not full yet, since `began_at` (seconds of the loop's clock)."""

    terms: BatchTerms
    began_at: float
    timer: asyncio.Handle
    entries: list[_Entry] = field(default_factory=list)
    size: int = 0


class Batcher:
    """Gathers the messages of one producer.

    Args:
        sender: sends the batches.
        linger_s: seconds that the first message waits for others; 0: only for those of the same turn of the loop.
        bytes_max: largest body of a batch, in bytes.
    """

    def __init__(self, sender: Sender, linger_s: float, bytes_max: int) -> None:
        self._sender = sender
        self._linger_s = linger_s
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._filling: dict[_Place, _Filling] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: dict[_Place, asyncio.Task[None]] = {}

    async def put(
        self, topic: str, body: Body, *, tags: str | None = None, keys: Keys | None = None,
        properties: Mapping[str, str] | None = None, queue: MessageQueue | int | None = None,
        order_key: str | None = None, deadline_s: float | None = None, attempts_max: int | None = None,
    ) -> asyncio.Future[SendResult]:  # fmt: skip
        """Return a future of the result of a message that is sent with others; wait for room for the message.

        When the future is cancelled before the batch leaves, the message is not sent.

        Raises:
            LedgerMQError: it cannot be sent, or no route names its queue in time.
        """
        sender = self._sender
        check_limits(deadline_s, attempts_max)
        where = sender.where(topic, queue, order_key)
        part = sender.part(body, tags, keys, properties, order_key)
        limit_s = sender.calls.deadline_s if deadline_s is None else deadline_s
        if where is None:
            await sender.in_flight.enter(part.size)
            return self._add(BatchTerms(topic, None, limit_s, attempts_max), part)
        async with sender.turn(topic, order_key):
            place = await sender.calls.wait_until(topic, where, lambda: f"queue of a message to topic {topic!r}")
            await sender.in_flight.enter(part.size)
            return self._add(BatchTerms(topic, place, limit_s, attempts_max), part)

    def _add(self, terms: BatchTerms, part: BatchPart) -> asyncio.Future[SendResult]:
        place = terms.topic, terms.queue
        filling = self._filling.get(place)
        if filling is not None and (filling.terms != terms or filling.size + part.size > self._bytes_max):
            self._depart(place)
            filling = None
        if filling is None:
            filling = self._filling[place] = _Filling(terms, self._loop.time(), self._later(place))
        result: asyncio.Future[SendResult] = self._loop.create_future()
        filling.entries.append(_Entry(part, result))
        filling.size += part.size
        if filling.size >= self._bytes_max or len(filling.entries) >= BATCH_COUNT_MAX:
            self._depart(place)
        return result

    def hurry(self) -> None:
        """Send the gathered messages, and from now on send each message without waiting for others."""
        self._linger_s = 0.0
        self.depart_all()

    def depart_all(self) -> None:
        """Send everything gathered so far."""
        for place in list(self._filling):
            self._depart(place)

    async def flush(self) -> None:
        """Send what is gathered; returns when every message has a result or an error."""
        self.depart_all()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Fail what is gathered with `ClosedError`; returns when the batches under way have ended."""
        for filling in self._filling.values():
            filling.timer.cancel()
            self._fail(filling.entries, ClosedError("the producer was closed before the batch was sent"))
        self._filling.clear()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # -- internals

    def _later(self, place: _Place) -> asyncio.Handle:
        if self._linger_s > 0:
            return self._loop.call_later(self._linger_s, self._depart, place)
        return self._loop.call_soon(self._depart, place)

    def _depart(self, place: _Place) -> None:
        filling = self._filling.pop(place)
        filling.timer.cancel()
        topic, queue = place
        before = None if queue is None else self._last.get(place)
        task = self._loop.create_task(self._deliver(filling, before), name=f"batch to {topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if queue is not None:
            self._last[place] = task
            task.add_done_callback(lambda done: self._ended(place, done))

    def _ended(self, place: _Place, task: asyncio.Task[None]) -> None:
        if self._last.get(place) is task:
            del self._last[place]

    async def _deliver(self, filling: _Filling, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        wanted = [entry for entry in filling.entries if not entry.result.done()]
        self._free_room([entry for entry in filling.entries if entry.result.done()])
        if not wanted:
            return
        try:
            results = await self._send(filling, wanted)
        except LedgerMQError as error:
            if len(wanted) > 1 and isinstance(error, REFUSED_FOR_CONTENT) and error.outcome_known:
                await self._one_by_one(filling, wanted)
            else:
                self._fail(wanted, error)
        except Exception as error:  # a bug; the futures must not wait for ever
            self._fail(wanted, UndecodableError(f"batch to {filling.terms.topic}: {error!r}"))
            raise
        else:
            self._settle(wanted, results)

    async def _one_by_one(self, filling: _Filling, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            try:
                self._settle([entry], await self._send(filling, [entry]))
            except LedgerMQError as error:
                self._fail([entry], error)

    async def _send(self, filling: _Filling, entries: Sequence[_Entry]) -> list[SendResult]:
        sender, terms = self._sender, filling.terms
        queue = terms.queue
        where = None if queue is None else lambda: queue
        if len(entries) == 1:
            plan = sender.alone(terms.topic, entries[0].part, where)
        else:
            plan = sender.batch(terms.topic, [entry.part for entry in entries], where)
        left_s = filling.began_at + terms.deadline_s - self._loop.time()
        if left_s <= 0:
            raise DeadlineExceededError(plan.describe(), terms.deadline_s, 0, ())
        answered = await sender.sends.run(plan, deadline_s=left_s, attempts_max=terms.attempts_max)
        return plan.results(answered)

    def _settle(self, entries: Sequence[_Entry], results: Sequence[SendResult]) -> None:
        for entry, result in zip(entries, results, strict=True):
            if not entry.result.done():
                entry.result.set_result(result)
        self._free_room(entries)

    def _fail(self, entries: Sequence[_Entry], error: LedgerMQError) -> None:
        for entry in entries:
            if not entry.result.done():
                entry.result.set_exception(another(error))
        self._free_room(entries)

    def _free_room(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            self._sender.in_flight.leave(entry.part.size)
