"""An open producer: its parts, how they are put together and taken apart, and what they do together."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ledgermq.client.consumer.message import Message
from ledgermq.client.core.fault_watch import FaultWatch
from ledgermq.client.core.route import MessageQueue
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError, NoReplyError, SendManyError
from ledgermq.client.producer.assembly import BatchPart, Kind
from ledgermq.client.producer.batcher import Batcher, Lot
from ledgermq.client.producer.outbox import Outbox
from ledgermq.client.producer.outgoing import Body, Keys, Outgoing, check_limits
from ledgermq.client.producer.replies import Replies, return_of
from ledgermq.client.producer.send_plan import SendPlan, Where
from ledgermq.client.producer.sending import SendResult
from ledgermq.client.producer.transactions import Transactions
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

REPLY_ATTEMPTS: Final = 8  # each that fails for a requester who is gone leaves a copy in the reply topic


class Producing:
    """The parts of one open producer."""

    def __init__(
        self,
        session: Session,
        outbox: Outbox,
        batcher: Batcher,
        transactions: Transactions,
        faults: FaultWatch | None,
    ) -> None:
        self.session = session
        self.outbox = outbox
        self.batcher = batcher
        self.transactions = transactions
        self.replies = Replies(session)
        self._faults = faults
        if faults is not None:
            faults.start(session.remoting, session.routes)

    async def close(self, group: str, *, drain: bool) -> None:
        """Take it apart; with `drain` once nothing is under way any more."""
        async with contextlib.AsyncExitStack() as last:  # done when the waiting is cancelled, too
            last.push_async_callback(self.batcher.close)
            last.push_async_callback(self.session.close, {"clientID": self.session.client_id, "producerGroup": group})
            last.callback(self.replies.close)
            last.callback(self.transactions.cancel)
            if self._faults is not None:
                last.push_async_callback(self._faults.close)
            if drain and self.session.is_open:
                self.batcher.hurry()
                await self.outbox.in_flight.wait_idle()
            await self.transactions.close(drain=drain)

    def on_request(self, connection: Connection, command: Command) -> None:
        """A broker asks or tells.

        Raises:
            Refusal: nothing that a producer serves, or it cannot be read.
        """
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.transactions.on_check(connection, command)
        elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            self.replies.on_reply(command)
            connection.respond(command, ResponseCode.SUCCESS)
        else:
            raise Refusal(Cause.NOT_SUPPORTED, f" request type {command.code} not supported")

    # -- many messages

    async def into_batch(
        self, topic: str, body: Body, *, tags: str | None = None, keys: Keys | None = None,
        properties: Mapping[str, str] | None = None, queue: MessageQueue | int | None = None,
        order_key: str | None = None, deadline_s: float | None = None, attempts_max: int | None = None,
    ) -> asyncio.Future[SendResult]:  # fmt: skip
        """What becomes of a message that is sent with others; returns once there is room for it.

        Raises:
            LedgerMQError: it cannot be sent, or no route tells its queue in time.
        """
        outbox = self.outbox
        check_limits(deadline_s, attempts_max)
        where = outbox.assembly.where(topic, queue, order_key)
        part = outbox.assembly.part_of(body, tags, keys, properties, order_key)
        limit_s = outbox.calls.deadline_s if deadline_s is None else deadline_s
        if where is None:
            return await self._gather(topic, None, part, limit_s, attempts_max)
        with outbox.in_flight.coming():
            if order_key is None:
                return await self._gather(topic, where, part, limit_s, attempts_max)
            async with outbox.lanes.lane((topic, order_key)):
                return await self._gather(topic, where, part, limit_s, attempts_max)

    async def _gather(
        self, topic: str, where: Where | None, part: BatchPart, deadline_s: float, attempts_max: int | None
    ) -> asyncio.Future[SendResult]:
        place = None
        if where is not None:
            place = await self.outbox.calls.found(topic, where, lambda: f"queue of a message to topic {topic!r}")
        await self.outbox.in_flight.enter(part.size)
        return self.batcher.add(Lot(topic, place, deadline_s, attempts_max), part)

    async def many(
        self, topic: str, messages: Sequence[Outgoing | Body], queue: MessageQueue | int | None, order_key: str | None,
        deadline_s: float | None, attempts_max: int | None, bytes_max: int,
    ) -> list[SendResult]:  # fmt: skip
        """Any number of messages in as few requests as may be: side by side, or one after another to one queue.

        Raises:
            SendManyError: not all were acknowledged.
            InvalidArgumentError: one cannot be sent; none was.
        """
        outbox = self.outbox
        where = outbox.assembly.where(topic, queue, order_key)
        groups = _groups([outbox.assembly.part(message, order_key) for message in messages], bytes_max)

        def plan(parts: Sequence[BatchPart]) -> SendPlan:
            return outbox.assembly.batch(topic, parts, where)

        async def run(parts: Sequence[BatchPart]) -> list[SendResult] | LedgerMQError:
            try:
                return await outbox.run_in_order(plan(parts), order_key, deadline_s, attempts_max)
            except LedgerMQError as error:
                return error

        if where is None:
            outcomes = await asyncio.gather(*(run(parts) for parts in groups))
        else:
            with outbox.in_flight.coming():
                outcomes = [await run(parts) for parts in groups]
        return _all_or_error(groups, outcomes)

    # -- request and reply

    async def request(
        self, topic: str, timeout_s: float, send: Callable[[Kind], "asyncio.Future[SendResult]"]
    ) -> Message:
        """The reply to what `send` sends.

        Raises:
            NoReplyError: none in time.
            LedgerMQError: the request could not be sent.
        """
        correlation_id, reply = self.replies.expect()
        calls, choice = self.outbox.calls, self.outbox.assembly.choice
        try:
            async with asyncio.timeout(timeout_s):
                await calls.found(topic, lambda: choice.route(topic), lambda: f"request to topic {topic!r}")
                await self.replies.introduce(topic)
                sending = send(self.replies.kind_of(correlation_id, timeout_s))
                both: set[asyncio.Future[Any]] = {sending, reply}
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if not reply.done():
                        sending.result()
                    return await reply
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except TimeoutError:
            raise NoReplyError(topic, correlation_id, timeout_s) from None
        finally:
            self.replies.forget(correlation_id)

    async def reply(self, request: Message, body: Body, deadline_s: float | None) -> SendResult:
        """Send a reply to whoever has sent `request`.

        Raises:
            InvalidArgumentError: it is no request.
            RefusedError: the requester is not connected to the broker any more.
        """
        topic, kind, ttl_s = return_of(request)
        limits = [limit for limit in (deadline_s, ttl_s) if limit is not None]
        deadline_s = min(limits, default=None)
        return await self.outbox.send(topic, body, deadline_s=deadline_s, attempts_max=REPLY_ATTEMPTS, kind=kind)


def _groups(parts: Sequence[BatchPart], bytes_max: int) -> list[list[BatchPart]]:
    """Consecutive parts that fit into one batch each."""
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
    results: list[SendResult] = []
    each: list[SendResult | LedgerMQError] = []
    failures: list[LedgerMQError] = []
    for parts, outcome in zip(groups, outcomes, strict=True):
        if isinstance(outcome, LedgerMQError):
            failures.append(outcome)
            each += [outcome] * len(parts)
        else:
            results += outcome
            each += outcome
    if failures:
        raise SendManyError(failures, each)
    return results
