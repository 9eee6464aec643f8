"""Sends numbered messages, each of which a broker stores once, however often a task sends it.

    lane     producer `ID/PARTITION` and a queue
    number   (batch id << 32) + place of the row among those of the lane in this batch

A task that runs again has the same rows in the same order, and gives them the same numbers. It asks what is stored of a
lane first, and sends the rest, one request of a lane at a time. A request whose answer is lost is sent again.

The queues of a topic may change before a batch runs again:

    in one job            the plan names the queues, so all runs of its tasks have the same ones, registered or not
    a later run           rows that name no queue go on in the lane where an earlier run of the batch began
    the option `queues`   a topic with fewer queues is waited for, as while a broker is away; then it is refused
"""

import asyncio
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.client import InvalidArgumentError, LedgerMQError, MessageQueue, NoRouteError, Outgoing
from ledgermq.client.core.calls import back_off_s
from ledgermq.client.producer.outgoing import check_body, encode_properties
from ledgermq.client.producer.send_request import STORED_CODES, send_ext
from ledgermq.message.batch import encode_batch
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.spark.errors import ClusterError
from ledgermq.spark.topic_client import Access, AccessAdmin, Opened
from ledgermq.wall_clock import wall_clock_ms

WRITE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,50}")
_ROWS_OF_BATCH: Final = 1 << 32
_REQUEST_BYTES: Final = 256 << 10
_REQUEST_MESSAGES: Final = 1024
_ANSWERS_TO_QUESTION: Final = STORED_CODES | {ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL}
"""Accepted answers; the last two are those of brokers that do not know the question, and would never change."""
_GROUP: Final = "ledgermq-spark"

Addressed = tuple[str, int | None, Outgoing]
"""A message, its topic, and the number of its queue among all of the topic; None: the queue of the task."""
Queues = tuple[MessageQueue, ...]


@dataclass(frozen=True)
class Identity:
    """What a task writes: equal in each of its runs, and different in any other task.

    Attributes:
        write_id: of a streaming query, which a restart from its checkpoint keeps; or what the user gave.
        batch: number of the micro-batch; 0 for a batch job.
        partition: number of the task.
    """

    write_id: str
    batch: int
    partition: int

    @property
    def producer(self) -> str:
        """The name under which brokers keep the numbers."""
        return f"{self.write_id}/{self.partition}"


@dataclass(slots=True)
class _Lane:
    next_number: int
    stored: int


class LaneCaller(AccessAdmin):
    """An admin that sends batches to the leader of a queue."""

    async def written_queues(self, topic: str, count: int | None) -> Queues:
        """Return the queues of a topic that may be written; with `count` wait until it has as many.

        Raises:
            ClusterError: it has none, more, or still fewer after `fetchTimeoutMs`.
            LedgerMQError: nobody knows the topic, or answers.
        """
        deadline, tries = time.monotonic() + self._deadline_s, 0
        while True:
            try:
                queues = await self.queues(topic)
            except NoRouteError:
                if count is None:
                    raise
                queues = ()
            if queues and count in (None, len(queues)):
                return queues
            if count is None or len(queues) > count or time.monotonic() > deadline:
                break
            tries += 1
            await asyncio.sleep(back_off_s(tries, random.random))
        if count is None:
            raise ClusterError(f"topic {topic!r} has no queue that may be written")
        why = "its number was changed" if len(queues) > count else "a broker is away, or their number was changed"
        raise ClusterError(f"topic {topic!r} has {len(queues)} queues that may be written, not queues={count}: {why}")

    async def send(
        self, queue: MessageQueue, producer: str, first: int, body: bytes, accepted: frozenset[int] = STORED_CODES
    ) -> Command:
        """Send a numbered batch, again until it is answered; without messages ask what is stored."""
        fields = send_ext(_GROUP, queue.topic, wall_clock_ms())
        fields |= {"e": str(queue.queue_id), "n": queue.broker, "m": "true", "i": ""}
        fields |= {"numberedBy": producer, "firstNumber": str(first)}
        code = RequestCode.SEND_BATCH_MESSAGE
        answered = await self._session.calls.at_leader(
            queue.topic, queue.broker, code, fields, body=body, accepted=accepted
        )
        return answered.response


class NumberedSender:
    """Sends the messages of one task.

    Args:
        caller: to the cluster; it is open.
        identity: of what the task writes.
        planned: the queues of topics that the plan names; those of others are asked for.
        count: queues that a topic must have; None: any number.
        searches: no message names a queue, and a lane in which this batch was begun is looked for in all of them.
    """

    def __init__(
        self,
        caller: LaneCaller,
        identity: Identity,
        planned: Mapping[str, Queues],
        count: int | None,
        *,
        searches: bool,
    ) -> None:
        self._identity = identity
        self._count = count
        self._searches = searches
        self._caller = caller
        self._ids = UniqueIdGenerator(bytes((127, 0, 0, 1)), os.getpid(), random.getrandbits(31))
        self._queues = dict(planned)
        self._own: dict[str, MessageQueue] = {}
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._begun: set[MessageQueue] = set()

    async def send(self, messages: Sequence[Addressed]) -> None:
        """Send messages; returns when all are stored.

        Raises:
            LedgerMQError: the cluster refuses, or does not answer in time.
            ClusterError: a broker does not keep numbers.
        """
        works: dict[MessageQueue, list[Outgoing]] = {}
        for topic, number, message in messages:
            works.setdefault(await self._queue(topic, number), []).append(message)
        await asyncio.gather(*(self._send(queue, own) for queue, own in works.items()))

    async def _queue(self, topic: str, number: int | None) -> MessageQueue:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._caller.written_queues(topic, self._count)
        if number is None:
            own = self._own.get(topic)
            if own is None:
                own = self._own[topic] = await self._task_queue(queues)
            return own
        if not 0 <= number < len(queues):
            raise InvalidArgumentError(f"queue {number} of topic {topic!r}: it has queues 0 to {len(queues) - 1}")
        return queues[number]

    async def _task_queue(self, queues: Queues) -> MessageQueue:
        """Return the queue for messages that name none: where an earlier run of this batch has put some, if any.

        Each broker is asked once, whatever number of queues it has.
        """
        usual = queues[self._identity.partition % len(queues)]
        if not self._searches:
            return usual
        asked = {queue.broker: queue for queue in (*queues, usual)}
        await asyncio.gather(*map(self._opened, asked.values()))
        begun = [queue for queue in queues if queue in self._begun]
        return begun[0] if begun and usual not in begun else usual

    async def _send(self, queue: MessageQueue, messages: Sequence[Outgoing]) -> None:
        lane = self._lanes.get(queue) or await self._opened(queue)
        first = lane.next_number
        lane.next_number += len(messages)
        missing = messages[max(lane.stored + 1 - first, 0) :]
        first = lane.next_number - len(missing)
        for count, body in self._requests(missing):
            await self._caller.send(queue, self._identity.producer, first, body)
            first += count

    async def _opened(self, queue: MessageQueue) -> _Lane:
        first = self._identity.batch * _ROWS_OF_BATCH
        answer = await self._caller.send(queue, self._identity.producer, first, b"", _ANSWERS_TO_QUESTION)
        try:
            stored = int(answer.ext["lastNumber"])
            self._begun |= {queue._replace(queue_id=int(each)) for each in answer.ext["begunIn"].split(",") if each}
        except (KeyError, ValueError):
            if "cause" in answer.ext:
                raise ClusterError(f"{queue}: {answer.remark}") from None
            why = f"broker {queue.broker} keeps no numbers of messages"
            raise ClusterError(f"{why}: write without idempotent=true") from None
        lane = self._lanes[queue] = _Lane(first, stored)
        return lane

    def _requests(self, messages: Sequence[Outgoing]) -> Iterator[tuple[int, bytes]]:
        """Yield the number of messages and the body of each request."""
        batch: list[tuple[int, bytes, bytes]] = []
        size = 0
        for message in messages:
            check_body(message.body)
            body = bytes(message.body)
            key = self._ids.next(wall_clock_ms())
            properties = encode_properties(key, message.tags, message.keys, message.properties).encode()
            if batch and (size + len(body) + len(properties) > _REQUEST_BYTES or len(batch) == _REQUEST_MESSAGES):
                yield len(batch), encode_batch(batch)
                batch, size = [], 0
            batch.append((0, body, properties))
            size += len(body) + len(properties)
        if batch:
            yield len(batch), encode_batch(batch)


def planned_queues(access: Access, topic: str, count: int | None) -> Queues:
    """Return the queues of a topic for all tasks of a job.

    Raises:
        ClusterError: the cluster does not answer, or as `written_queues`.
    """
    try:
        with Opened(LaneCaller, access) as opened:
            return opened.run(opened.client.written_queues(topic, count))
    except LedgerMQError as error:
        raise ClusterError(str(error)) from None
