"""How a producer's send becomes a request: checks, unique key, properties, queue, compression, order, room in flight.

check -> turn of its order key -> compress -> plan -> room in flight -> calls (retries, redirects) -> results

Messages that no broker accepts are refused here, before anything is sent.
"""

import asyncio
import contextlib
import functools
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from ledgermq.client.core.calls import Calls
from ledgermq.client.core.checks import check_count, check_queue, check_text, check_topic
from ledgermq.client.core.compression import Compression
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError, SendManyError
from ledgermq.client.producer.flow import InFlight, Lanes
from ledgermq.client.producer.outgoing import (
    BODY_BYTES_MAX,
    Body,
    Keys,
    Outgoing,
    check_body,
    encode_properties,
    order_text,
)
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.recorded_calls import RecordedCalls
from ledgermq.client.producer.send_request import SendPlan, SendResult, Where, send_ext
from ledgermq.message.batch import encode_batch
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.route import QUEUE_ID_MAX, MessageQueue
from ledgermq.wall_clock import wall_clock_ms

_PORT_LENGTH: Final = 4
_PART_OVERHEAD: Final = len(encode_batch([(0, b"", b"")]))


class SendKind(NamedTuple):
    """How a message differs from a plain one.

    Attributes:
        own: properties that the client adds, encoded.
        sys_flag: of the message.
        code: of the request.
        message_id: the message's unique key, if it has one already.
    """

    own: str = ""
    sys_flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2
    message_id: str | None = None


PLAIN: Final = SendKind()


class BatchPart(NamedTuple):
    """A message that is ready to be sent with others: its id, body and encoded properties."""

    message_id: str
    body: bytes
    properties: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a batch."""
        return _PART_OVERHEAD + len(self.body) + len(self.properties)


class Sender:
    """Sends messages for one producer.

    Args:
        own_address: IP address that unique keys begin with.
        recorded: runs the plans instead of `calls`, and records their outcomes; None: nothing is recorded.

    Attributes:
        sends: runs the plans.
    """

    def __init__(
        self,
        group: str,
        choice: QueueChoice,
        own_address: str,
        calls: Calls,
        in_flight: InFlight,
        compression: Compression,
        recorded: RecordedCalls | None = None,
    ) -> None:
        self.sends: Calls | RecordedCalls = recorded or calls
        self.choice = choice
        self.calls = calls
        self.in_flight = in_flight
        self.lanes = Lanes()
        self._group = group
        self._compression = compression
        address = encode_host(Host(own_address, 0))[:-_PORT_LENGTH]
        self._ids = UniqueIdGenerator(address, os.getpid(), random.getrandbits(31))
        self._checked_topics: set[str] = set()

    # -- sending

    async def send(
        self,
        topic: str,
        body: Body,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        attempts_max: int | None = None,
        kind: SendKind = PLAIN,
    ) -> SendResult:
        """Send one message; arguments as in `Producer.send`, and how it differs from a plain message.

        Raises:
            LedgerMQError: as in `Producer.send`.
        """
        where = self.where(topic, queue, order_key)
        check_body(body)
        if order_key is None and not self._compression.wants(len(body)):
            plan = self.single(topic, body, tags, keys, properties, where, kind)
            return (await self.run(plan, deadline_s, attempts_max))[0]
        if order_key is not None:
            kind = kind._replace(own=kind.own + order_text(order_key, properties))
        async with self.turn(topic, order_key):
            body, flag = await self._compression.pack(body)
            kind = kind._replace(sys_flag=kind.sys_flag | flag)
            plan = self.single(topic, body, tags, keys, properties, where, kind)
            return (await self.run(plan, deadline_s, attempts_max))[0]

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing | Body],
        bytes_max: int,
        queue: MessageQueue | int | None,
        order_key: str | None,
        deadline_s: float | None,
        attempts_max: int | None,
    ) -> list[SendResult]:
        """Send messages in batches of at most `bytes_max` bytes; arguments and errors as in `Producer.send_many`."""
        where = self.where(topic, queue, order_key)
        groups = _groups(self.parts(messages, order_key), bytes_max)

        async def run(parts: Sequence[BatchPart]) -> list[SendResult] | LedgerMQError:
            try:
                async with self.turn(topic, order_key):
                    return await self.run(self.batch(topic, parts, where), deadline_s, attempts_max)
            except LedgerMQError as error:
                return error

        with self.in_flight.pending():
            if where is None:
                outcomes = await asyncio.gather(*(run(parts) for parts in groups))
            else:
                outcomes = [await run(parts) for parts in groups]
        return _all_or_error(groups, outcomes)

    async def run(
        self, plan: SendPlan, deadline_s: float | None = None, attempts_max: int | None = None
    ) -> list[SendResult]:
        """Run a plan once there is room for it; return the results of its messages."""
        size = plan.size
        await self.in_flight.enter(size)
        try:
            answered = await self.sends.run(plan, deadline_s=deadline_s, attempts_max=attempts_max)
        finally:
            self.in_flight.leave(size)
        return plan.results(answered)

    @contextlib.asynccontextmanager
    async def turn(self, topic: str, order_key: str | None) -> AsyncIterator[None]:
        """Wait for the order key's earlier sends, and hold its turn within the block, which `wait_idle` waits for."""
        with self.in_flight.pending():
            if order_key is None:
                yield
            else:
                async with self.lanes.lane((topic, order_key)):
                    yield

    # -- plans

    def next_id(self) -> str:
        """Return a new message id, for a message whose id must be known before it is sent."""
        return self._ids.next(wall_clock_ms())

    def single(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        where: Where | None,
        kind: SendKind = PLAIN,
    ) -> SendPlan:
        """Return the plan of one message whose body was checked (request 310, or another of the same shape).

        Raises:
            InvalidArgumentError: a property or key that cannot be sent.
        """
        own, sys_flag, code, message_id = kind
        born_ms = wall_clock_ms()
        if message_id is None:
            message_id = self._ids.next(born_ms)
        ext = send_ext(self._group, topic, born_ms, sys_flag)
        ext["i"] = encode_properties(message_id, tags, keys, properties, own)
        content = bytes(body) if isinstance(body, bytearray) else body
        return SendPlan(self.choice, topic, where, (message_id,), code, ext, content)

    def part(
        self,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        order_key: str | None,
    ) -> BatchPart:
        """Return one message of a batch.

        Raises:
            InvalidArgumentError: it cannot be sent.
        """
        check_body(body)
        message_id = self._ids.next(wall_clock_ms())
        own = "" if order_key is None else order_text(order_key, properties)
        text = encode_properties(message_id, tags, keys, properties, own)
        return BatchPart(message_id, bytes(body), text.encode())

    def parts(self, messages: Sequence[Outgoing | Body], order_key: str | None) -> list[BatchPart]:
        """Return the messages of a batch; errors as in `part`."""
        several = [message if isinstance(message, Outgoing) else Outgoing(message) for message in messages]
        return [self.part(one.body, one.tags, one.keys, one.properties, order_key) for one in several]

    def batch(self, topic: str, parts: Sequence[BatchPart], where: Where | None) -> SendPlan:
        """Return the plan of a batch (request 320).

        The request has no properties of its own: brokers append them to those of every message, where a UNIQ_KEY of
        the batch would hide the messages' own.

        Raises:
            InvalidArgumentError: no messages, or too many bytes in all.
        """
        if not parts:
            raise InvalidArgumentError("a batch of no messages")
        encoded = encode_batch((0, part.body, part.properties) for part in parts)
        if len(encoded) > BODY_BYTES_MAX:
            raise InvalidArgumentError(f"a batch of {len(encoded)} bytes, {BODY_BYTES_MAX} are allowed")
        ext = send_ext(self._group, topic, wall_clock_ms())
        ext["m"] = "true"
        message_ids = [part.message_id for part in parts]
        return SendPlan(self.choice, topic, where, message_ids, RequestCode.SEND_BATCH_MESSAGE, ext, encoded)

    def alone(self, topic: str, part: BatchPart, where: Where | None) -> SendPlan:
        """Return the plan of a message that was to be part of a batch, by itself."""
        ext = send_ext(self._group, topic, wall_clock_ms())
        ext["i"] = part.properties.decode()
        return SendPlan(self.choice, topic, where, (part.message_id,), RequestCode.SEND_MESSAGE_V2, ext, part.body)

    def where(self, topic: str, queue: MessageQueue | int | None, order_key: str | None) -> Where | None:
        """Return the function that finds the requested queue; None for any queue.

        Raises:
            InvalidArgumentError: not a topic name, or a queue that contradicts topic or key.
        """
        if not isinstance(topic, str) or topic not in self._checked_topics:
            check_topic(topic)
            self._checked_topics.add(topic)
        if order_key is not None:
            check_text(order_key, "order_key")
        if queue is None:
            return None if order_key is None else functools.partial(self.choice.by_key, topic, order_key)
        if order_key is not None:
            raise InvalidArgumentError(f"both queue {queue} and order_key {order_key!r}: either names the queue")
        if isinstance(queue, int):
            check_count(least=0, most=QUEUE_ID_MAX, queue=queue)
            return functools.partial(self.choice.by_number, topic, queue)
        if not isinstance(queue, MessageQueue):
            raise InvalidArgumentError(f"queue is {queue!r}: neither a MessageQueue nor the number of one")
        check_queue(queue)
        if queue.topic != topic:
            raise InvalidArgumentError(f"queue {queue} is not one of topic {topic!r}")
        return lambda: queue


def _groups(parts: Sequence[BatchPart], bytes_max: int) -> list[list[BatchPart]]:
    """Divide parts into consecutive groups that fit into one batch each."""
    groups: list[list[BatchPart]] = []
    left = 0
    for part in parts:
        if part.size > left or not groups:
            groups.append([])
            left = bytes_max
        groups[-1].append(part)
        left -= part.size
    return groups


def _all_or_error(
    groups: Sequence[Sequence[BatchPart]], outcomes: Sequence[list[SendResult] | LedgerMQError]
) -> list[SendResult]:
    """Return the result of each message; raise SendManyError with the outcome of each if a group failed."""
    each: list[SendResult | LedgerMQError] = []
    for parts, outcome in zip(groups, outcomes, strict=True):
        each += [outcome] * len(parts) if isinstance(outcome, LedgerMQError) else outcome
    failures = [outcome for outcome in outcomes if isinstance(outcome, LedgerMQError)]
    if failures:
        raise SendManyError(failures, each)
    return [outcome for outcome in each if isinstance(outcome, SendResult)]
