"""The producer: messages in, results out, retries and redirects in between.

send ──> room in flight ──> queue ──> leader ──> SendResult
                             ^  not leader, lost, no answer: another queue, or the same queue's next leader
"""

import asyncio
import functools
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from ledgermq.client.errors import ClosedError, InvalidArgumentError, unreachable_from
from ledgermq.client.in_flight import InFlight
from ledgermq.client.lanes import Lanes
from ledgermq.client.outgoing import (
    BODY_BYTES_MAX,
    Body,
    Keys,
    Outgoing,
    check_body,
    check_group,
    check_topic,
    encode_properties,
)
from ledgermq.client.queue_choice import QueueChoice
from ledgermq.client.route import MessageQueue
from ledgermq.client.send_plan import SendPlan, Where, batch_send, single_send
from ledgermq.client.sending import SendResult
from ledgermq.client.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session
from ledgermq.message.batch import BatchMessage, encode_batch
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError

DEFAULT_GROUP: Final = "ledgermq-producers"
IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
UNYIELDED_BYTES_MAX: Final = 256 * 1024
DRAIN_POLL_S: Final = 0.002

_PORT_LENGTH: Final = 4


class Producer:
    """Sends messages.

        async with Producer("127.0.0.1:9876") as producer:
            result = await producer.send("orders", b"one apple", tags="fruit", keys="order-7")

    Any number of sends may be under way at the same time; they share one connection per broker. Beyond
    `in_flight_max` of them, `send` waits for room.

    **A message may be stored twice.** When a connection breaks or an answer does not come, nobody can know whether
    the message was stored; it is then sent again. All copies have the same `message_id`, by which a reader drops
    those it has seen, and `SendResult.attempts` says when there may be copies.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: producer group, for the brokers' statistics.
        attempt_timeout_s: for one try.
        deadline_s: for a whole send with its retries; a failover takes about a second of it.
        in_flight_max: sends under way.
        in_flight_bytes_max: their bodies' bytes.
        create_topics: let brokers create unknown topics, if they are configured to.

    Raises:
        InvalidArgumentError: an address or the group is malformed.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        group: str = DEFAULT_GROUP,
        *,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        create_topics: bool = True,
    ) -> None:
        check_group(group)
        self._group = group
        self._create_topics = create_topics
        self._session = Session(
            namesrv, content=self._heartbeat, attempt_timeout_s=attempt_timeout_s, deadline_s=deadline_s
        )
        self._in_flight = InFlight(in_flight_max, in_flight_bytes_max)
        self._lanes = Lanes()
        self._checked_topics: set[str] = set()
        self._choice: QueueChoice | None = None
        self._ids: UniqueIdGenerator | None = None
        self._unyielded_bytes = 0

    # -- opening and closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=kind is None)

    async def start(self) -> None:
        """Open it, for those who do not use `async with`. Nothing is sent yet."""
        await self._session.open()
        self._choice = QueueChoice(self._session.routes, may_create=self._create_topics)
        address = encode_host(Host(self._session.own_address, 0))[:-_PORT_LENGTH]
        self._ids = UniqueIdGenerator(address, os.getpid(), random.getrandbits(31))

    async def close(self, *, drain: bool = True) -> None:
        """Close it. With `drain`, sends under way are finished first; else they end with `ClosedError`."""
        self._choice = None
        if drain and self._session.is_open:
            await self._in_flight.wait_idle()
        farewell = {"clientID": self._session.client_id, "producerGroup": self._group}
        await self._session.close(farewell)

    # -- sending

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        max_attempts: int | None = None,
    ) -> SendResult:
        """Send one message; returns when the cluster has stored it as safely as its mode promises.

        Args:
            topic: where to.
            body: 1 byte to 4 MiB.
            tags: one tag, by which consumers filter.
            keys: business keys, by which it can be looked up.
            properties: further properties.
            queue: this queue, or the one of this number among `queues(topic)`. Sends to one queue keep their order
                when each is awaited before the next; of several at the same time, a retried one may fall behind.
            order_key: sends with the same key go to the same queue, one after another, in the order of the calls.
            deadline_s: for this send with its retries; default as given to the producer.
            max_attempts: give up after so many tries; the last failure is raised as it is.

        Raises:
            InvalidArgumentError: refused here; nothing was sent.
            RefusedError: refused for good by the broker; nothing of it is stored unless `outcome_known` is False.
            DeadlineExceededError: not acknowledged in time; it may be stored when `outcome_known` is False.
            NoRouteError: the topic does not exist, and may not be created.
        """
        plan, size = self._single(topic, body, tags, keys, properties, queue, order_key)
        results = await self._run(plan, size, order_key, deadline_s, max_attempts)
        return results[0]

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[Outgoing | Body],
        *,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        max_attempts: int | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue in one request: all of them are stored, next to each other, or none.

        Args:
            topic: where to.
            messages: bodies, or `Outgoing` with tags, keys and properties; at most 4 MiB in all.
            queue: as in `send`.
            order_key: as in `send`.
            deadline_s: as in `send`.
            max_attempts: as in `send`.

        Returns:
            One result for each message, in order.

        Raises:
            LedgerMQError: as in `send`.
        """
        choice, where = self._opened(), self._where(topic, queue, order_key)
        born_ms = time.time_ns() // 1_000_000
        message_ids, encoded = self._encode(messages, born_ms)
        plan = batch_send(choice, self._group, topic, where, born_ms, message_ids, encoded)
        return await self._run(plan, len(encoded), order_key, deadline_s, max_attempts)

    async def send_oneway(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
    ) -> str:
        """Send one message without asking for an answer: fast, and lost without a word if anything goes wrong.

        Returns:
            Its message id, once the request is on its way.

        Raises:
            LedgerMQError: it cannot be sent at all (no leader in time, no connection, not allowed).
        """
        plan, size = self._single(topic, body, tags, keys, properties, queue, None)
        target = await self._session.calls.found(topic, lambda: plan.choose(None), plan.describe)
        try:
            connection = await self._session.remoting.connection(target.address)
        except RemotingError as error:
            failure = unreachable_from(target.address, error)
            self._session.routes.report_failure(topic, target.broker, target.address, failure)
            raise failure from error
        connection.oneway(plan.command(target))
        await self._let_it_out(connection, size)
        return plan.message_ids[0]

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker name and queue id, led at this moment or not.

        Raises:
            NoRouteError, DeadlineExceededError: no nameserver tells.
        """
        choice = self._opened()
        check_topic(topic)
        found = self._session.calls.found(topic, lambda: choice.route(topic), lambda: f"queues of topic {topic!r}")
        return (await found).write_queues

    # -- inside

    def _single(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        queue: MessageQueue | int | None,
        order_key: str | None,
    ) -> tuple[SendPlan, int]:
        choice, where = self._opened(), self._where(topic, queue, order_key)
        check_body(body)
        born_ms = time.time_ns() // 1_000_000
        message_id = self._new_id(born_ms)
        text = encode_properties(message_id, tags, keys, properties)
        content = bytes(body) if isinstance(body, bytearray) else body
        return single_send(choice, self._group, topic, where, born_ms, message_id, text, content), len(body)

    def _encode(self, messages: Sequence[Outgoing | Body], born_ms: int) -> tuple[list[str], bytes]:
        """Unique keys, and the body of a batch."""
        if not messages:
            raise InvalidArgumentError("a batch of no messages")
        message_ids, parts = [], []
        for message in messages:
            one = message if isinstance(message, Outgoing) else Outgoing(message)
            check_body(one.body)
            message_id = self._new_id(born_ms)
            text = encode_properties(message_id, one.tags, one.keys, one.properties)
            message_ids.append(message_id)
            parts.append(BatchMessage(0, bytes(one.body), text.encode()))
        encoded = encode_batch(parts)
        if len(encoded) > BODY_BYTES_MAX:
            raise InvalidArgumentError(f"a batch of {len(encoded)} bytes, {BODY_BYTES_MAX} are allowed")
        return message_ids, encoded

    async def _run(
        self, plan: SendPlan, size: int, order_key: str | None, deadline_s: float | None, max_attempts: int | None
    ) -> list[SendResult]:
        if order_key is None:
            return await self._run_in_room(plan, size, deadline_s, max_attempts)
        async with self._lanes.lane((plan.topic, order_key)):
            return await self._run_in_room(plan, size, deadline_s, max_attempts)

    async def _run_in_room(
        self, plan: SendPlan, size: int, deadline_s: float | None, max_attempts: int | None
    ) -> list[SendResult]:
        in_flight = self._in_flight
        await in_flight.enter(size)
        try:
            answered = await self._session.calls.run(plan, deadline_s=deadline_s, attempts_max=max_attempts)
        finally:
            in_flight.leave(size)
        return plan.results(answered)

    async def _let_it_out(self, connection: Connection, size: int) -> None:
        """Back-pressure where no answer brings it: yield now and then, and wait for a connection that does not take."""
        self._unyielded_bytes += size
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await asyncio.sleep(0)  # what is queued goes out at the end of the loop's turn
        while connection.unsent_bytes > UNSENT_BYTES_MAX and not connection.is_closed:
            await asyncio.sleep(DRAIN_POLL_S)

    def _where(self, topic: str, queue: MessageQueue | int | None, order_key: str | None) -> Where | None:
        if topic not in self._checked_topics:
            check_topic(topic)
            self._checked_topics.add(topic)
        if queue is None and order_key is None:
            return None
        choice = self._opened()
        if queue is None:
            assert order_key is not None, "just compared"
            return functools.partial(choice.by_key, topic, order_key)
        if order_key is not None:
            raise InvalidArgumentError(f"both queue {queue} and order_key {order_key!r}: either names the queue")
        if isinstance(queue, int):
            return functools.partial(choice.by_number, topic, queue)
        if queue.topic != topic:
            raise InvalidArgumentError(f"queue {queue} is not one of topic {topic!r}")
        return lambda: queue

    def _new_id(self, now_ms: int) -> str:
        assert self._ids is not None, "made at start"
        return self._ids.next(now_ms)

    def _opened(self) -> QueueChoice:
        if self._choice is None:
            raise ClosedError("the producer is not open: use it inside `async with`")
        return self._choice

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": self._group}]}
