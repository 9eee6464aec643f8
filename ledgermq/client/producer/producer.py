"""The producer: messages in, results out, retries and redirects in between.

send ──> room in flight ──> queue ──> leader ──> SendResult
                             ^  not leader, lost, no answer: another queue, or the same queue's next leader

`sender` makes every message a request; `batcher` lets messages share one; `transactions` and `replies` serve what
brokers ask; `queue_choice` and `faults` choose where to send.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, Unpack

import orjson

from ledgermq.client.core.calls import OnRetry
from ledgermq.client.core.checks import (
    check_callable,
    check_count,
    check_flag,
    check_group,
    check_kind,
    check_seconds,
    check_wait,
    given,
    listed,
)
from ledgermq.client.core.compression import Codec, Compression
from ledgermq.client.core.message import Message
from ledgermq.client.core.routes import TEMPLATE_TOPIC
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import ClosedError, ConnectionLostError, InvalidArgumentError, unreachable_from
from ledgermq.client.producer.batcher import BATCH_BYTES, Batcher
from ledgermq.client.producer.faults import FaultStrategy, FaultWatch
from ledgermq.client.producer.flow import InFlight
from ledgermq.client.producer.outgoing import (
    BODY_BYTES_MAX,
    Body,
    Keys,
    MessageOptions,
    Outgoing,
    SendOptions,
    SoonOptions,
    check_body,
    check_limits,
)
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.recorded_calls import RecordedCalls
from ledgermq.client.producer.replies import Replies
from ledgermq.client.producer.send_request import SendResult
from ledgermq.client.producer.sender import PLAIN, Sender, SendKind
from ledgermq.client.producer.timing import Delay, parse_recall_handle, timing_text
from ledgermq.client.producer.transactions import Checker, Transaction, Transactions, half_text
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue
from ledgermq.remoting.signature import Credentials

DEFAULT_GROUP: Final = "ledgermq-producers"
IN_FLIGHT_MAX: Final = 4096
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
COMPRESS_OVER_BYTES: Final = 4096
REQUEST_TIMEOUT_S: Final = 3.0
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
UNYIELDED_BYTES_MAX: Final = 256 * 1024
DRAIN_POLL_S: Final = 0.002
MESSAGE: Final = (Outgoing, bytes, bytearray, memoryview)


class _Parts(NamedTuple):
    """The parts of an open producer."""

    sender: Sender
    batcher: Batcher
    transactions: Transactions
    replies: Replies


class Producer:
    """Sends messages.

        async with Producer("127.0.0.1:9876") as producer:
            result = await producer.send("orders", b"one apple", tags="fruit", keys="order-7")

    Sends may be under way at the same time; they share one connection per broker. When `in_flight_max` of them are
    under way, `send` waits for room.

    **A message may be stored twice.** When a connection breaks or an answer does not come, it is unknown whether the
    message was stored, so it is sent again. All copies have the same `message_id`, by which consumers can drop
    copies; `SendResult.attempts` above 1 says that there may be some.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: producer group; brokers ask any of its members about a transaction whose producer is gone.
        attempt_timeout_s: seconds for one try of a request. A send that only one broker can take waits on while its
            connection stands, since that broker may have it.
        deadline_s: seconds for a whole send with its retries; a failover takes about one of them.
        in_flight_max: most sends under way at once.
        in_flight_bytes_max: most bytes of bodies under way at once.
        linger_s: seconds for which `send` gathers messages to the same topic into one request; 0: it gathers those of
            the same turn of the event loop; None: each message is a request of its own.
        batch_bytes: largest body of a request that messages share, in bytes; up to 4 MiB.
        compression: "zlib", or "lz4" or "zstd" where their modules are installed.
        compress_over_bytes: bodies of at least so many bytes are compressed, unless they share a request; None for no
            compression.
        checker: called when a broker asks about a transaction that this producer does not know; returns its decision.
        faults: avoids brokers that were slow or failed; None avoids only the one that has just failed a send.
        on_retry: called after each failed try of a request that is followed by another.
        create_topics: let brokers create unknown topics, if their configuration allows that.
        tls: False: plain connections; True: TLS with the system's authorities; or an `ssl.SSLContext`, which may hold
            a client certificate.
        credentials: sign every request, for brokers with access control.
        history: file to which the outcome of each message is appended, as JSON Lines, for `ledgermq pipeline audit`.

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
        history: str | Path | None = None,
    ) -> None:
        check_group(group)
        check_kind((str, Path, type(None)), history=history)
        check_wait(**given(linger_s=linger_s))
        check_count(in_flight_max=in_flight_max, in_flight_bytes_max=in_flight_bytes_max)
        check_count(most=BODY_BYTES_MAX, batch_bytes=batch_bytes)
        check_flag(create_topics=create_topics)
        check_callable(checker=checker)
        check_kind((FaultStrategy, type(None)), faults=faults)
        self._group = group
        self._create_topics = create_topics
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._compression = Compression(compression, compress_over_bytes)
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
        self._history = history
        self._recorded: RecordedCalls | None = None
        self._parts: _Parts | None = None
        self._unyielded_bytes = 0

    # -- opening and closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        await self.close(drain=kind is None)

    async def start(self) -> None:
        """Open it, for programs that do not use `async with`. Nothing is sent yet."""
        session = self._session
        await session.open()
        if self._history is not None:
            try:
                self._recorded = RecordedCalls(session.calls, self._history, session.client_id)
            except InvalidArgumentError:
                await session.close()
                raise
        choice = QueueChoice(session.routes, may_create=self._create_topics, faults=self._faults)
        self._in_flight = InFlight(*self._in_flight_limits)  # futures and locks belong to this event loop
        sender = Sender(
            self._group, choice, session.own_address, session.calls, self._in_flight, self._compression, self._recorded
        )
        self._parts = _Parts(
            sender,
            Batcher(sender, self._linger_s or 0.0, self._batch_bytes),
            Transactions(self._group, session, self._checker),
            Replies(session, sender),
        )
        if self._faults is not None:
            self._faults.start(session.remoting, session.routes)
        if self._checker is not None:  # brokers must know the members before a send, as with Java's
            session.routes.route(TEMPLATE_TOPIC)

    async def close(self, *, drain: bool = True) -> None:
        """Close it. With `drain`, sends under way finish first; without, they end with `ClosedError`.

        Each send under way ends by its own deadline; leaving the group and closing connections take 1 s each at most.
        """
        check_flag(drain=drain)
        parts, self._parts = self._parts, None
        if parts is None:
            return
        session = self._session
        async with contextlib.AsyncExitStack() as last:  # also when the wait is cancelled
            if self._recorded is not None:
                last.callback(self._recorded.close)
            last.push_async_callback(parts.batcher.close)
            last.push_async_callback(session.close, {"clientID": session.client_id, "producerGroup": self._group})
            last.callback(parts.replies.close)
            last.callback(parts.transactions.cancel)
            if self._faults is not None:
                last.push_async_callback(self._faults.close)
            if drain and session.is_open:
                parts.batcher.hurry()
                await parts.sender.in_flight.wait_idle()
            await parts.transactions.close(drain=drain)

    async def flush(self) -> None:
        """Send what waits to share a request with others; returns when all of it has a result or an error."""
        await self._opened().batcher.flush()

    # -- sending

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        tags: str | None = None,
        keys: Keys | None = None,
        properties: Mapping[str, str] | None = None,
        delay: Delay | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        attempts_max: int | None = None,
    ) -> SendResult:
        """Send one message; returns when the cluster has stored it as durably as its mode promises.

        Args:
            topic: topic to send to.
            body: 1 byte to 4 MiB.
            tags: one tag, by which consumers filter.
            keys: business keys, by which it can be looked up.
            properties: further properties.
            delay: seconds (or a timedelta) after which consumers get it; `recall` takes it back until then.
            delay_level: level of the broker's delay after which consumers get it (1 to 18 are 1 s to 2 h by default).
            deliver_at: time at which consumers get it; with a time zone.
            queue: the queue to send to, or its index in `queues(topic)`. Sends to one queue keep their order when each
                is awaited before the next; of concurrent ones, a retried send may fall behind.
            order_key: sends with the same key go to the same queue, one after another, in the order of the calls.
            deadline_s: seconds for this send with its retries; None for the producer's.
            attempts_max: give up after so many tries, and raise the last failure as it is.

        Raises:
            InvalidArgumentError: an argument is invalid; nothing was sent.
            RefusedError: the broker refused for good; nothing is stored unless `outcome_known` is False.
            DeadlineExceededError: not acknowledged in time; it may be stored if `outcome_known` is False.
            NoRouteError: the topic does not exist, and may not be created.
        """
        parts = self._opened()
        check_limits(deadline_s, attempts_max)
        own = timing_text(delay, delay_level, deliver_at)
        if self._linger_s is not None and not own and self._shares(body, order_key):
            sending = await parts.batcher.put(
                topic, body, tags=tags, keys=keys, properties=properties, queue=queue, order_key=order_key,
                deadline_s=deadline_s, attempts_max=attempts_max,
            )  # fmt: skip
            return await sending
        kind = SendKind(own) if own else PLAIN
        return await parts.sender.send(
            topic, body, tags, keys, properties, queue, order_key, deadline_s, attempts_max, kind
        )

    async def send_json(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> SendResult:
        """Send a value as JSON; options as in `send`. orjson also encodes dataclasses, datetimes, UUIDs, numpy arrays.

        Raises:
            InvalidArgumentError: the value cannot be encoded as JSON.
            LedgerMQError: as in `send`.
        """
        try:
            body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:  # orjson's JSONEncodeError is a TypeError
            raise InvalidArgumentError(f"{type(value).__name__} as JSON: {error}") from error
        return await self.send(topic, body, **options)

    async def send_soon(self, topic: str, body: Body, **options: Unpack[SoonOptions]) -> asyncio.Future[SendResult]:
        """Return a future of the result of a message; wait only until there is room for the message.

        Messages of the same turn of the event loop, or within `linger_s`, share a request. When the future is
        cancelled before that leaves, the message is not sent.

        Raises:
            InvalidArgumentError: an argument is invalid; nothing was sent. All other errors come with the future.
        """
        return await self._opened().batcher.put(topic, body, **options)

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[Outgoing | Body],
        *,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        attempts_max: int | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue in one request: they are stored together, next to each other, or not at all.

        Args:
            topic: topic to send to.
            messages: bodies, or `Outgoing` with tags, keys and properties; at most 4 MiB in all.
            queue: as in `send`.
            order_key: as in `send`.
            deadline_s: as in `send`.
            attempts_max: as in `send`.

        Returns:
            One result for each message, in order.

        Raises:
            LedgerMQError: as in `send`.
        """
        sender = self._opened().sender
        check_limits(deadline_s, attempts_max)
        several = listed(MESSAGE, "messages", messages)
        where = sender.where(topic, queue, order_key)
        plan = sender.batch(topic, sender.parts(several, order_key), where)
        async with sender.turn(topic, order_key):
            return await sender.run(plan, deadline_s, attempts_max)

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing | Body],
        *,
        queue: MessageQueue | int | None = None,
        order_key: str | None = None,
        deadline_s: float | None = None,
        attempts_max: int | None = None,
    ) -> list[SendResult]:
        """Send any number of messages in as few requests as `batch_bytes` allows.

        The requests go to different queues at the same time, or one after another with `queue` or `order_key`.

        Returns:
            One result for each message, in order.

        Raises:
            SendManyError: not all were acknowledged; `outcomes` has a result or an error for each.
            InvalidArgumentError: one of the messages is invalid; none was sent.
        """
        sender = self._opened().sender
        check_limits(deadline_s, attempts_max)
        several = listed(MESSAGE, "messages", messages)
        return await sender.send_many(topic, several, self._batch_bytes, queue, order_key, deadline_s, attempts_max)

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
        """Send one message without an answer: a failure after the write is not noticed and loses the message.

        Returns:
            The message id, once the request was handed to the connection.

        Raises:
            ConnectionLostError: the broker has not read earlier requests for `attempt_timeout_s`.
            LedgerMQError: it cannot be sent at all (no leader in time, no connection, an invalid argument).
        """
        session, sender = self._session, self._opened().sender
        check_body(body)
        plan = sender.single(topic, body, tags, keys, properties, sender.where(topic, queue, None))
        target = await session.calls.wait_until(topic, lambda: plan.choose(None), plan.describe)
        try:
            connection = await session.remoting.connection(target.address)
        except RemotingError as error:
            failure = unreachable_from(target.address, error)
            session.routes.report_failure(topic, target.broker, target.address, failure)
            raise failure from error
        connection.oneway(plan.command(target))
        await self._wait_for_writes(connection, plan.size, session.calls.attempt_timeout_s)
        return plan.message_ids[0]

    # -- transactions, requests, recalls

    def transaction(
        self, topic: str, body: Body, *, check_after_s: float | None = None, **options: Unpack[MessageOptions]
    ) -> Transaction:
        """Return a transaction: its message is delivered only if the block does not raise.

            async with producer.transaction("orders", b"one apple") as tx:
                ...  # the work that belongs to the message

        The message is stored, hidden, before the block runs; it is committed at the block's end, and rolled back when
        the block raises. If the decision does not arrive, or this program dies, the broker asks for it: this producer
        as long as it is open, else any producer of the group, whose `checker` answers.

        Args:
            topic: topic to send to.
            body: as in `send`.
            check_after_s: seconds before the broker asks, rounded to whole ones; None for the broker's configuration.
            options: tags, keys, properties.
        """
        parts = self._opened()
        check_wait(**given(check_after_s=check_after_s))
        message_id = parts.sender.next_id()
        kind = SendKind(half_text(self._group, check_after_s), TRANSACTION_PREPARED, message_id=message_id)

        async def send_half() -> SendResult:
            return await parts.sender.send(topic, body, **options, kind=kind)

        return Transaction(message_id, send_half, parts.transactions)

    async def request(
        self, topic: str, body: Body, *, timeout_s: float = REQUEST_TIMEOUT_S, **options: Unpack[MessageOptions]
    ) -> Message:
        """Send a message, and return the reply that its consumer sends.

        Args:
            topic: topic to send to.
            body: as in `send`.
            timeout_s: seconds for sending and for the reply together.
            options: tags, keys, properties.

        Raises:
            NoReplyError: no reply came in time; the request may have been carried out all the same.
            LedgerMQError: the request could not be sent, as in `send`.
        """
        parts = self._opened()
        check_seconds(timeout_s=timeout_s)
        parts.sender.where(topic, None, None)  # checks the topic name
        check_body(body)
        return await parts.replies.request(topic, body, timeout_s, options)

    async def reply(self, request: Message, body: Body, *, deadline_s: float | None = None) -> SendResult:
        """Reply to a message that was sent as a request; returns when the requester has got the reply.

        Raises:
            InvalidArgumentError: the message is not a request.
            RefusedError: the requester is not connected any more.
            LedgerMQError: as in `send`.
        """
        check_kind(Message, request=request)
        check_seconds(**given(deadline_s=deadline_s))
        return await self._opened().replies.reply(request, body, deadline_s)

    async def recall(self, handle: SendResult | str) -> str:
        """Take back a message that was sent with `delay` or `deliver_at`, before consumers get it.

        Args:
            handle: the result of the send, or its `recall_handle`.

        Returns:
            The message's id.

        Raises:
            InvalidArgumentError: not a recall handle.
            InvalidRequestError: it is too late, or the broker does not know the message.
        """
        check_kind((SendResult, str), handle=handle)
        text = handle.recall_handle if isinstance(handle, SendResult) else handle
        if text is None:
            raise InvalidArgumentError("only a message sent with delay or deliver_at can be recalled")
        topic, broker = parse_recall_handle(text)
        ext = {"producerGroup": self._group, "topic": topic, "recallHandle": text, "bname": broker}
        answered = await self._session.calls.at_leader(topic, broker, RequestCode.RECALL_MESSAGE, ext)
        return answered.response.ext.get("msgId", "")

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues with write permission, sorted by broker name and queue id, led at this moment or not.

        Raises:
            NoRouteError: no nameserver knows the topic.
            DeadlineExceededError: no nameserver answered in time.
        """
        sender = self._opened().sender
        sender.where(topic, None, None)  # checks the topic name
        choice = sender.choice
        found = self._session.calls.wait_until(topic, lambda: choice.route(topic), lambda: f"queues of topic {topic!r}")
        return (await found).write_queues

    # -- internals

    def _on_request(self, connection: Connection, command: Command) -> None:
        """Serve a broker's check of a transaction, or a reply that it brings.

        Raises:
            Refusal: a request that producers do not serve, or that cannot be read.
        """
        if self._parts is None:
            raise Refusal(Cause.NOT_SUPPORTED, "the producer is being closed")
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._parts.transactions.on_check(connection, command)
        elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            self._parts.replies.on_reply(command)
            connection.respond(command, ResponseCode.SUCCESS)
        else:
            raise Refusal(Cause.NOT_SUPPORTED, f" request type {command.code} not supported")

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return {"clientID": client_id, "consumerDataSet": [], "producerDataSet": [{"groupName": self._group}]}

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise ClosedError("the producer is not open: use it inside `async with`")
        return self._parts

    def _shares(self, body: Body, order_key: str | None) -> bool:
        """Return whether a message may share a request; one that would be compressed does so only with an order key."""
        check_body(body)
        return order_key is not None or not self._compression.wants(len(body))

    async def _wait_for_writes(self, connection: Connection, size: int, limit_s: float) -> None:
        """Slow down one-way sends: yield now and then, and wait while the connection has 4 MiB unsent."""
        self._unyielded_bytes += size
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await asyncio.sleep(0)  # queued bytes are written at the end of the loop's turn
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while connection.unsent_bytes > UNSENT_BYTES_MAX and not connection.is_closed:
            if loop.time() >= deadline:
                raise ConnectionLostError(connection.address, f"{connection.address} does not read what was sent")
            await asyncio.sleep(DRAIN_POLL_S)
