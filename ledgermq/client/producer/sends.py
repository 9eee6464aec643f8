"""Sending, in all its ways; half of a `Producer`.

send, send_json            one message, and its result
send_soon                  one message, and a future of its result: requests are shared
send_batch, send_many      many messages: in one request, or in as few as may be
send_oneway                one message, and no result
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Unpack

from ledgermq.client.core.checks import listed
from ledgermq.client.core.compression import Compression
from ledgermq.client.core.json_body import encode_json
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.errors import ClosedError, ConnectionLostError, unreachable_from
from ledgermq.client.producer.assembly import PLAIN, Kind
from ledgermq.client.producer.options import SendOptions, SoonOptions
from ledgermq.client.producer.outgoing import Body, Keys, Outgoing, check_body, check_limits
from ledgermq.client.producer.producing import Producing
from ledgermq.client.producer.sending import SendResult
from ledgermq.client.producer.timing import Delay, timing_text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import RemotingError

UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
UNYIELDED_BYTES_MAX: Final = 256 * 1024
DRAIN_POLL_S: Final = 0.002
MESSAGE: Final = (Outgoing, bytes, bytearray, memoryview)


class Sends:
    """What a program that sends needs; whoever is this opens and closes it.

    Args:
        linger_s, batch_bytes: see `Producer`.
        compression: of large bodies.
    """

    def __init__(self, linger_s: float | None, batch_bytes: int, compression: Compression) -> None:
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._compression = compression
        self._producing: Producing | None = None
        self._unyielded_bytes = 0

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
        """Send one message; returns when the cluster has stored it as safely as its mode promises.

        Args:
            topic: where to.
            body: 1 byte to 4 MiB.
            tags: one tag, by which consumers filter.
            keys: business keys, by which it can be looked up.
            properties: further properties.
            delay: readers see it so many seconds (or a timedelta) after it was stored, as exactly as the brokers'
                timers are; `SendResult.recall_handle` takes it back until then.
            delay_level: readers see it after the brokers' delay of that level (1 to 18: 1 s to 2 h, if not configured
                otherwise).
            deliver_at: readers see it at that time.
            queue: this queue, or the one of this number among `queues(topic)`. Sends to one queue keep their order
                when each is awaited before the next; of several at the same time, a retried one may fall behind.
            order_key: sends with the same key go to the same queue, one after another, in the order of the calls.
            deadline_s: for this send with its retries; default as given to the producer.
            attempts_max: give up after so many tries; the last failure is raised as it is.

        Raises:
            InvalidArgumentError: refused here; nothing was sent.
            RefusedError: refused for good by the broker; nothing of it is stored unless `outcome_known` is False.
            DeadlineExceededError: not acknowledged in time; it may be stored when `outcome_known` is False.
            NoRouteError: the topic does not exist, and may not be created.
        """
        producing = self._opened()
        check_limits(deadline_s, attempts_max)
        own = timing_text(delay, delay_level, deliver_at)
        if self._linger_s is not None and not own and self._shares(body, order_key):
            sending = await producing.into_batch(
                topic, body, tags=tags, keys=keys, properties=properties, queue=queue, order_key=order_key,
                deadline_s=deadline_s, attempts_max=attempts_max,
            )  # fmt: skip
            return await sending
        kind = Kind(own) if own else PLAIN
        return await producing.outbox.send(
            topic, body, tags, keys, properties, queue, order_key, deadline_s, attempts_max, kind
        )

    async def send_json(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> SendResult:
        """Send a value as JSON (by orjson: dataclasses, datetimes, UUIDs and numpy arrays, too); as `send`.

        Raises:
            InvalidArgumentError: JSON cannot say it.
            LedgerMQError: as in `send`.
        """
        return await self.send(topic, encode_json(value), **options)

    async def send_soon(self, topic: str, body: Body, **options: Unpack[SoonOptions]) -> asyncio.Future[SendResult]:
        """What will become of a message; returns as soon as there is room for it.

        Messages of the same turn of the event loop, or within `linger_s`, share a request. Cancelled before it leaves,
        it is not sent.

        Raises:
            InvalidArgumentError: refused here; nothing was sent. All other errors come with the future.
        """
        return await self._opened().into_batch(topic, body, **options)

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
        """Send messages to one queue in one request: all of them are stored, next to each other, or none.

        Args:
            topic: where to.
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
        outbox = self._opened().outbox
        check_limits(deadline_s, attempts_max)
        several = listed(MESSAGE, "messages", messages)
        where = outbox.assembly.where(topic, queue, order_key)
        plan = outbox.assembly.batch(topic, [outbox.assembly.part(message, order_key) for message in several], where)
        return await outbox.run_in_order(plan, order_key, deadline_s, attempts_max)

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

        The requests go side by side to different queues, or one after another with `queue` or `order_key`.

        Returns:
            One result for each message, in order.

        Raises:
            SendManyError: not all were acknowledged; `outcomes` says which.
            InvalidArgumentError: one of them cannot be sent; none was.
        """
        producing = self._opened()
        check_limits(deadline_s, attempts_max)
        several = listed(MESSAGE, "messages", messages)
        return await producing.many(topic, several, queue, order_key, deadline_s, attempts_max, self._batch_bytes)

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
            ConnectionLostError: the broker has not taken what was sent before for `attempt_timeout_s`.
            LedgerMQError: it cannot be sent at all (no leader in time, no connection, not allowed).
        """
        producing = self._opened()
        session, assembly = producing.session, producing.outbox.assembly
        check_body(body)
        plan = assembly.single(topic, body, tags, keys, properties, assembly.where(topic, queue, None))
        target = await session.calls.found(topic, lambda: plan.choose(None), plan.describe)
        try:
            connection = await session.remoting.connection(target.address)
        except RemotingError as error:
            failure = unreachable_from(target.address, error)
            session.routes.report_failure(topic, target.broker, target.address, failure)
            raise failure from error
        connection.oneway(plan.command(target))
        await self._let_it_out(connection, plan.size, session.calls.attempt_timeout_s)
        return plan.message_ids[0]

    # -- inside

    def _shares(self, body: Body, order_key: str | None) -> bool:
        """Whether a message may share a request; one that is to be compressed does not, unless order asks for it."""
        check_body(body)
        return order_key is not None or not self._compression.wants(len(body))

    async def _let_it_out(self, connection: Connection, size: int, limit_s: float) -> None:
        """Back-pressure where no answer brings it: yield now and then, and wait for a connection that does not take."""
        self._unyielded_bytes += size
        if self._unyielded_bytes > UNYIELDED_BYTES_MAX:
            self._unyielded_bytes = 0
            await asyncio.sleep(0)  # what is queued goes out at the end of the loop's turn
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while connection.unsent_bytes > UNSENT_BYTES_MAX and not connection.is_closed:
            if loop.time() >= deadline:
                raise ConnectionLostError(connection.address, f"{connection.address} takes nothing more")
            await asyncio.sleep(DRAIN_POLL_S)

    def _opened(self) -> Producing:
        if self._producing is None:
            raise ClosedError("the producer is not open: use it inside `async with`")
        return self._producing
