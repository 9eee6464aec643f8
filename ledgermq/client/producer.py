"""The producer: messages in, results out, retries and redirects in between.

send ──> room in flight ──> queue ──> leader ──> SendResult
                             ^  not leader, lost, no answer: another queue, or the same queue's next leader
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from ledgermq.client.assembly import Assembly
from ledgermq.client.errors import ClosedError, unreachable_from
from ledgermq.client.in_flight import InFlight
from ledgermq.client.lanes import Lanes
from ledgermq.client.outgoing import Body, Keys, Outgoing, check_group
from ledgermq.client.queue_choice import QueueChoice
from ledgermq.client.route import MessageQueue
from ledgermq.client.send_plan import SendPlan
from ledgermq.client.sending import SendResult
from ledgermq.client.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.signature import Credentials

DEFAULT_GROUP: Final = "ledgermq-producers"
IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
UNYIELDED_BYTES_MAX: Final = 256 * 1024
DRAIN_POLL_S: Final = 0.002


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
        tls: True: TLS, with the system's authorities; or an `ssl.SSLContext` of your own, which may show a certificate.
        credentials: signs every request, for brokers that ask who sends it.
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
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_group(group)
        self._group = group
        self._create_topics = create_topics
        self._session = Session(
            namesrv,
            content=self._heartbeat,
            attempt_timeout_s=attempt_timeout_s,
            deadline_s=deadline_s,
            tls=tls,
            credentials=credentials,
        )
        self._in_flight = InFlight(in_flight_max, in_flight_bytes_max)
        self._lanes = Lanes()
        self._assembly: Assembly | None = None
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
        choice = QueueChoice(self._session.routes, may_create=self._create_topics)
        self._assembly = Assembly(self._group, choice, self._session.own_address)

    async def close(self, *, drain: bool = True) -> None:
        """Close it. With `drain`, sends under way are finished first; else they end with `ClosedError`."""
        self._assembly = None
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
        assembly = self._opened()
        where = assembly.where(topic, queue, order_key)
        plan = assembly.single(topic, body, tags, keys, properties, where)
        results = await self._run(plan, order_key, deadline_s, max_attempts)
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
        assembly = self._opened()
        plan = assembly.batch(topic, messages, assembly.where(topic, queue, order_key))
        return await self._run(plan, order_key, deadline_s, max_attempts)

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
        assembly = self._opened()
        plan = assembly.single(topic, body, tags, keys, properties, assembly.where(topic, queue, None))
        target = await self._session.calls.found(topic, lambda: plan.choose(None), plan.describe)
        try:
            connection = await self._session.remoting.connection(target.address)
        except RemotingError as error:
            failure = unreachable_from(target.address, error)
            self._session.routes.report_failure(topic, target.broker, target.address, failure)
            raise failure from error
        connection.oneway(plan.command(target))
        await self._let_it_out(connection, plan.size)
        return plan.message_ids[0]

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker name and queue id, led at this moment or not.

        Raises:
            NoRouteError, DeadlineExceededError: no nameserver tells.
        """
        assembly = self._opened()
        assembly.where(topic, None, None)  # a name that is none is refused
        choice = assembly.choice
        found = self._session.calls.found(topic, lambda: choice.route(topic), lambda: f"queues of topic {topic!r}")
        return (await found).write_queues

    # -- inside

    async def _run(
        self, plan: SendPlan, order_key: str | None, deadline_s: float | None, max_attempts: int | None
    ) -> list[SendResult]:
        if order_key is None:
            return await self._run_in_room(plan, deadline_s, max_attempts)
        async with self._lanes.lane((plan.topic, order_key)):
            return await self._run_in_room(plan, deadline_s, max_attempts)

    async def _run_in_room(
        self, plan: SendPlan, deadline_s: float | None, max_attempts: int | None
    ) -> list[SendResult]:
        size = plan.size
        await self._in_flight.enter(size)
        try:
            answered = await self._session.calls.run(plan, deadline_s=deadline_s, attempts_max=max_attempts)
        finally:
            self._in_flight.leave(size)
        return plan.results(answered)

    async def _let_it_out(self, connection: Connection, size: int) -> None:
        """Back-pressure where no answer brings it: yield now and then, and wait for a connection that does not take."""
        self._unyielded_bytes += size
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await asyncio.sleep(0)  # what is queued goes out at the end of the loop's turn
        while connection.unsent_bytes > UNSENT_BYTES_MAX and not connection.is_closed:
            await asyncio.sleep(DRAIN_POLL_S)

    def _opened(self) -> Assembly:
        if self._assembly is None:
            raise ClosedError("the producer is not open: use it inside `async with`")
        return self._assembly

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": self._group}]}
