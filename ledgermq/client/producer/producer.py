"""The producer: messages in, results out, retries and redirects in between.

send ──> room in flight ──> queue ──> leader ──> SendResult
                             ^  not leader, lost, no answer: another queue, or the same queue's next leader

How it sends: `sends`. What it is made of: `producing`; there `outbox` (every send), `batcher`, `transactions`,
`replies`, `fault_watch`.
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self, Unpack

from ledgermq.client.consumer.message import Message
from ledgermq.client.core.calls import OnRetry
from ledgermq.client.core.checks import check_callable, check_count, check_flag, check_kind, check_seconds, check_wait
from ledgermq.client.core.compression import Codec, Compression
from ledgermq.client.core.fault_strategy import FaultStrategy
from ledgermq.client.core.fault_watch import FaultWatch
from ledgermq.client.core.leader_plan import LeaderPlan
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.producer.assembly import Assembly, Kind
from ledgermq.client.producer.batcher import BATCH_BYTES, Batcher
from ledgermq.client.producer.in_flight import InFlight
from ledgermq.client.producer.options import MessageOptions
from ledgermq.client.producer.outbox import Outbox
from ledgermq.client.producer.outgoing import BODY_BYTES_MAX, Body, check_body, check_group
from ledgermq.client.producer.producing import Producing
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.sending import TEMPLATE_TOPIC, SendResult
from ledgermq.client.producer.sends import Sends
from ledgermq.client.producer.timing import RecallHandle
from ledgermq.client.producer.transaction import Transaction
from ledgermq.client.producer.transactions import Checker, Transactions, half_text
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import Credentials

DEFAULT_GROUP: Final = "ledgermq-producers"
IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
COMPRESS_OVER_BYTES: Final = 4096
REQUEST_TIMEOUT_S: Final = 3.0


class Producer(Sends):
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
        group: producer group: brokers ask any of its members about a transaction whose producer is gone.
        attempt_timeout_s: for one try.
        deadline_s: for a whole send with its retries; a failover takes about a second of it.
        in_flight_max: sends under way.
        in_flight_bytes_max: their bodies' bytes.
        linger_s: `send` waits so long for other messages to the same topic, and shares a request with them; 0: with
            those of the same turn of the event loop; None: each is a request of its own.
        batch_bytes: at most so large is a request that messages share; up to 4 MiB.
        compression: "zlib", or "lz4" or "zstd" where their modules are installed.
        compress_over_bytes: bodies of at least so many bytes are compressed, unless they share a request; None: none.
        checker: says what has become of a transaction, when a broker asks and this producer does not know.
        faults: avoids brokers that were slow or failing; None: only the one that has just failed. See `FaultStrategy`.
        on_retry: told of each try of any request that failed and is followed by another.
        create_topics: let brokers create unknown topics, if they are configured to.
        tls: True: TLS, with the system's authorities; or an `ssl.SSLContext` of your own, which may show a certificate.
        credentials: signs every request, for brokers that ask who sends it.

    Raises:
        InvalidArgumentError: an address, the group or a setting is malformed.
        CompressionUnavailableError: the compression's module is not installed.
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
        linger_s: float | None = None,
        batch_bytes: int = BATCH_BYTES,
        compression: Codec = "zlib",
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
        checker: Checker | None = None,
        faults: FaultStrategy | None = None,
        on_retry: OnRetry | None = None,
        create_topics: bool = True,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_group(group)
        if linger_s is not None:
            check_wait(linger_s=linger_s)
        check_count(in_flight_max=in_flight_max, in_flight_bytes_max=in_flight_bytes_max)
        check_count(most=BODY_BYTES_MAX, batch_bytes=batch_bytes)
        check_flag(create_topics=create_topics)
        check_callable(checker=checker)
        check_kind((FaultStrategy, type(None)), faults=faults)
        self._group = group
        self._create_topics = create_topics
        super().__init__(linger_s, batch_bytes, Compression(compression, compress_over_bytes))
        self._checker = checker
        self._faults = None if faults is None else FaultWatch(faults)
        self._session = Session(
            namesrv,
            content=self._heartbeat,
            on_request=self._on_request,
            attempt_timeout_s=attempt_timeout_s,
            deadline_s=deadline_s,
            tls=tls,
            credentials=credentials,
            on_retry=on_retry,
            on_try=None if self._faults is None else self._faults.on_try,
        )
        self._in_flight_limits = in_flight_max, in_flight_bytes_max

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
        session = self._session
        await session.open()
        choice = QueueChoice(session.routes, may_create=self._create_topics, faults=self._faults)
        assembly = Assembly(self._group, choice, session.own_address)
        self._in_flight = InFlight(*self._in_flight_limits)  # of this event loop
        outbox = Outbox(assembly, session.calls, self._in_flight, self._compression)
        batcher = Batcher(outbox, self._linger_s or 0.0, self._batch_bytes)
        transactions = Transactions(self._group, session, self._checker)
        self._producing = Producing(session, outbox, batcher, transactions, self._faults)
        if self._checker is not None:
            session.routes.route(
                TEMPLATE_TOPIC
            )  # as Java's does: brokers must know whom to ask before we send anything

    async def close(self, *, drain: bool = True) -> None:
        """Close it. With `drain`, sends under way are finished first; else they end with `ClosedError`."""
        check_flag(drain=drain)
        producing, self._producing = self._producing, None
        if producing is not None:
            await producing.close(self._group, drain=drain)

    async def flush(self) -> None:
        """Send what waits for others to share a request with; returns when all of it has become something."""
        await self._opened().batcher.flush()

    # -- more than sending

    def transaction(
        self, topic: str, body: Body, *, check_after_s: float | None = None, **options: Unpack[MessageOptions]
    ) -> Transaction:
        """A message that readers see only if the block does not fail.

            async with producer.transaction("orders", b"one apple") as tx:
                ...  # what must be done if, and only if, the message is seen

        The message is stored before the block runs, hidden; it is committed at the block's end, rolled back when the
        block raises. Should the decision not arrive, or this program die, the broker asks: this producer as long as it
        lives, else any producer of the group, whose `checker` answers.

        Args:
            topic: where to.
            body: as in `send`.
            check_after_s: the broker does not ask before (whole seconds); default as it is configured.
            options: tags, keys, properties.
        """
        producing = self._opened()
        if check_after_s is not None:
            check_wait(check_after_s=check_after_s)
        message_id = producing.outbox.assembly.next_id()
        kind = Kind(half_text(self._group, check_after_s), TRANSACTION_PREPARED, message_id=message_id)

        async def send_half() -> SendResult:
            return await producing.outbox.send(topic, body, **options, kind=kind)

        return Transaction(message_id, send_half, producing.transactions)

    async def request(
        self, topic: str, body: Body, *, timeout_s: float = REQUEST_TIMEOUT_S, **options: Unpack[MessageOptions]
    ) -> Message:
        """Send a message, and return the reply that whoever consumes it sends back.

        Args:
            topic: where to.
            body: as in `send`.
            timeout_s: for all of it.
            options: tags, keys, properties.

        Raises:
            NoReplyError: none came in time; the request may be carried out all the same.
            LedgerMQError: the request could not be sent, as in `send`.
        """
        producing = self._opened()
        check_seconds(timeout_s=timeout_s)
        producing.outbox.assembly.where(topic, None, None)  # a name that is none is refused
        check_body(body)

        def send(kind: Kind) -> asyncio.Future[SendResult]:
            sending = producing.outbox.send(topic, body, **options, deadline_s=timeout_s, kind=kind)
            return asyncio.ensure_future(sending)

        return await producing.request(topic, timeout_s, send)

    async def reply(self, request: Message, body: Body, *, deadline_s: float | None = None) -> SendResult:
        """Reply to a message that was sent as a request; returns when the requester has the reply.

        Raises:
            InvalidArgumentError: the message is no request.
            RefusedError: the requester is gone.
            LedgerMQError: as in `send`.
        """
        check_kind(Message, request=request)
        if deadline_s is not None:
            check_seconds(deadline_s=deadline_s)
        return await self._opened().reply(request, body, deadline_s)

    async def recall(self, handle: SendResult | str) -> str:
        """Take a message back that was sent with `delay` or `deliver_at`, before readers see it.

        Args:
            handle: what the send has returned, or its `recall_handle`.

        Returns:
            The message's id.

        Raises:
            InvalidArgumentError: no recall handle.
            InvalidRequestError: too late, or the broker does not know it.
        """
        check_kind((SendResult, str), handle=handle)
        text = handle.recall_handle if isinstance(handle, SendResult) else handle
        if text is None:
            raise InvalidArgumentError("only a message sent with delay or deliver_at can be recalled")
        timer = RecallHandle.decode(text)
        ext = {"producerGroup": self._group, "topic": timer.topic, "recallHandle": text, "bname": timer.broker}
        session = self._session
        plan = LeaderPlan(session.routes, timer.topic, timer.broker, RequestCode.RECALL_MESSAGE, ext)
        return (await session.calls.run(plan)).response.ext.get("msgId", "")

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker name and queue id, led at this moment or not.

        Raises:
            NoRouteError, DeadlineExceededError: no nameserver tells.
        """
        assembly = self._opened().outbox.assembly
        assembly.where(topic, None, None)  # a name that is none is refused
        choice = assembly.choice
        found = self._session.calls.found(topic, lambda: choice.route(topic), lambda: f"queues of topic {topic!r}")
        return (await found).write_queues

    # -- inside

    def _on_request(self, connection: Connection, command: Command) -> None:
        if self._producing is None:
            raise Refusal(Cause.NOT_SUPPORTED, "the producer is being closed")
        self._producing.on_request(connection, command)

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": self._group}]}
