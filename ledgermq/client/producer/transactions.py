"""Transactions: a message that consumers get if, and only if, the producer's own work succeeds.

    half message --stored--> the block runs --commit or rollback (37)--> broker
                                             lost on the way, or the producer is gone
                              broker --asks a producer of the group (39)--> decision (37, fromTransactionCheck)

A check by a broker is not answered while the block runs; a decision that this producer has made is repeated (it
remembers 10,000 of them); otherwise the `checker` decides. Decisions go to the leader of the broker name.

Source: apache/rocketmq `client/.../impl/producer/DefaultMQProducerImpl.java` (sendMessageInTransaction,
checkTransactionState), `remoting/.../protocol/header/{EndTransaction,CheckTransactionState}RequestHeader.java`.
"""

import asyncio
import collections
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Self

from ledgermq.client.core.callbacks import Callback
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import (
    ClosedError,
    HalfMessageError,
    LedgerMQError,
    TransactionUndecidedError,
    UndecodableError,
)
from ledgermq.client.producer.send_request import SendResult, SendStatus
from ledgermq.message.errors import InvalidMessageIdError, MessageFormatError
from ledgermq.message.flags import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from ledgermq.message.ids import parse_offset_message_id
from ledgermq.message.properties import PRODUCER_GROUP
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue

_log: Final = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 10_000
CHECKS_MAX: Final = 2_000  # most checks under way; brokers repeat further ones
CHECKS_AT_ONCE: Final = 16
CLOSE_WAIT_S: Final = 1.0


class Decision(enum.Enum):
    """The decision about a transaction's message; the value is the one on the wire."""

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NONE  # not decided yet: the broker will ask again


Checker = Callable[[Message], Decision | Awaitable[Decision]]
"""Decides about a transaction of the group by its message; a function or a coroutine function."""


class SentHalf(NamedTuple):
    """A half message as its broker knows it.

    Attributes:
        topic: topic to which it will go.
        broker: name of the broker that stores it.
        physical_offset: position in the broker's log.
        queue_offset: offset in the queue of half messages.
        message_id: UNIQ_KEY.
    """

    topic: str
    broker: str
    physical_offset: int
    queue_offset: int
    message_id: str

    @classmethod
    def of(cls, sent: SendResult) -> "SentHalf":
        """Return the half message that a send has stored.

        Raises:
            UndecodableError: the answer's offset message id cannot be parsed.
        """
        try:
            _, physical_offset = parse_offset_message_id(sent.offset_message_id)
        except InvalidMessageIdError as error:
            raise UndecodableError(f"half message {sent.message_id}: {error}") from error
        return cls(sent.topic, sent.broker, physical_offset, sent.queue_offset, sent.message_id)


class Transactions:
    """The transactions of one producer; without a checker, those that it does not know stay undecided."""

    def __init__(self, group: str, session: Session, checker: Checker | None) -> None:
        self._group = group
        self._session = session
        self._checker = checker
        self._running: set[str] = set()
        self._decided: collections.OrderedDict[str, Decision] = collections.OrderedDict()
        self._checking: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Semaphore(CHECKS_AT_ONCE)

    # -- from the producer's side

    def begin(self, message_id: str) -> None:
        """Note that a transaction's block begins: checks of it are not answered until it is decided."""
        self._running.add(message_id)

    def decide(self, message_id: str, decision: Decision) -> None:
        """Remember the decision of a transaction; UNKNOWN leaves it to the checker."""
        self._running.discard(message_id)
        if decision is Decision.UNKNOWN:
            return
        self._decided[message_id] = decision
        if len(self._decided) > REMEMBERED_MAX:
            self._decided.popitem(last=False)

    async def end(self, half: SentHalf, decision: Decision) -> None:
        """Send the decision to the broker; the request goes on when the waiting task is cancelled.

        Raises:
            LedgerMQError: the broker has not accepted it in time.
        """
        sending = self._send_decision(half, decision, is_answer=False)
        await asyncio.shield(self._spawn(sending, f"end of transaction {half.message_id}"))

    async def close(self, *, drain: bool) -> None:
        """Answer no more checks, and wait for the decisions under way: with `drain` to their deadline, else 1 s."""
        others = self._awaitable_tasks()
        for task in others:
            if task.get_name().startswith("check"):
                task.cancel()
        if others:
            await asyncio.wait(others, timeout=None if drain else CLOSE_WAIT_S)
        self.cancel()

    def cancel(self) -> None:
        """Cancel everything under way."""
        for task in self._awaitable_tasks():
            task.cancel()

    def _awaitable_tasks(self) -> list[asyncio.Task[None]]:
        """Return the open tasks without a check whose checker closes the producer, since it cannot wait for itself."""
        inside = Callback.around(self)
        return [task for task in self._tasks if inside is None or task is not inside.task]

    # -- from the broker's side

    def on_check(self, connection: Connection, command: Command) -> None:
        """Serve a broker's check of a transaction (39); the decision is sent as a request of its own.

        Raises:
            Refusal: the check cannot be decoded.
        """
        half, message = self._read(connection, command)
        if message.properties.get(PRODUCER_GROUP) != self._group or half.message_id in self._running:
            return
        if half.message_id in self._checking or len(self._checking) >= CHECKS_MAX:
            return
        known = self._decided.get(half.message_id)
        if known is None and self._checker is None:
            _log.warning("group %s has no checker: transaction %s stays undecided", self._group, half.message_id)
            return
        self._checking.add(half.message_id)
        self._spawn(self._answer(half, message, known), f"check of transaction {half.message_id}")

    def _read(self, connection: Connection, command: Command) -> tuple[SentHalf, Message]:
        try:
            record = decode_record(command.body, check_crc=False)  # the check has the message as a new record
        except MessageFormatError as error:
            raise Refusal(Cause.INVALID_PARAMETER, f"body of a transaction's check: {error}") from error
        physical_offset, queue_offset = long(command.ext, "commitLogOffset"), long(command.ext, "tranStateTableOffset")
        known = self._session.routes.addresses()
        broker = command.ext.get("bname") or known.get(connection.address, "")  # missing before RocketMQ 5.0
        message = Message(record, MessageQueue(record.topic, broker, record.queue_id))
        return SentHalf(record.topic, broker, physical_offset, queue_offset, message.message_id), message

    async def _answer(self, half: SentHalf, message: Message, known: Decision | None) -> None:
        try:
            async with self._turn:
                decision = known or await self._ask(message)
            if decision is not Decision.UNKNOWN:
                await self._send_decision(half, decision, is_answer=True)
        except LedgerMQError as error:
            _log.warning("transaction %s: the answer could not be sent, the broker will ask again: %s", half[-1], error)
        finally:
            self._checking.discard(half.message_id)

    async def _ask(self, message: Message) -> Decision:
        assert self._checker is not None, "on_check accepts no check without one"
        try:
            with Callback(self, "checker"):
                answer = self._checker(message)
                decision = Decision(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            _log.exception("the checker of group %s failed for %s: the broker will ask again", self._group, message)
            return Decision.UNKNOWN
        return decision

    async def _send_decision(self, half: SentHalf, decision: Decision, *, is_answer: bool) -> None:
        ext = {
            "topic": half.topic,
            "producerGroup": self._group,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "commitOrRollback": str(decision.value),
            "fromTransactionCheck": "true" if is_answer else "false",
            "msgId": half.message_id,
            "transactionId": half.message_id,
            "bname": half.broker,
        }
        await self._session.calls.at_leader(half.topic, half.broker, RequestCode.END_TRANSACTION, ext)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.debug("%s: %s", task.get_name(), failure)


def half_text(group: str, check_after_s: float | None) -> str:
    """Return the encoded properties that make a message a half message.

    Args:
        group: producer group.
        check_after_s: seconds before the broker asks for the decision; None for the broker's configuration.
    """
    immune = "" if check_after_s is None else f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{max(1, round(check_after_s))}\x02"
    return f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02{immune}"


SendHalf = Callable[[], Awaitable[SendResult]]


class Transaction:
    """A message that consumers get when, and only if, it is committed; see `Producer.transaction`.

    It is committed when its block ends, and rolled back when the block raises. `commit` and `rollback` decide earlier,
    `defer` leaves the decision to the checker.

    Attributes:
        message_id: id of the message and of the transaction, known before the block begins.
        decision: the decision; None until it is made.
    """

    def __init__(self, message_id: str, send_half: SendHalf, transactions: Transactions) -> None:
        self.message_id = message_id
        self.decision: Decision | None = None
        self._send_half = send_half
        self._transactions = transactions
        self._half: SentHalf | None = None
        self._begun = False

    async def __aenter__(self) -> Self:
        """Store the half message.

        Raises:
            HalfMessageError: it was not stored as durably as the cluster promises.
            ClosedError: it has begun already.
            LedgerMQError: as in `Producer.send`.
        """
        if self._begun or self.decision is not None:
            raise ClosedError(
                f"transaction {self.message_id} has already begun: use a new transaction for each `async with`"
            )
        self._begun = True
        self._transactions.begin(self.message_id)
        try:
            sent = await self._send_half()
            self._half = SentHalf.of(sent)
        except BaseException:  # it may be stored, so checks are answered with a rollback
            self._decide(Decision.ROLLBACK)
            raise
        if sent.status is not SendStatus.OK:
            await self._roll_back_quietly()
            raise HalfMessageError(f"half message {self.message_id}: {sent.status.name}", code=sent.status.value)
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        if self.decision is not None:
            return
        if kind is None:
            await self.commit()
        else:
            await self._roll_back_quietly()

    async def commit(self) -> None:
        """Commit: let consumers get the message; returns when the broker has stored the decision.

        Raises:
            TransactionUndecidedError: the decision has not arrived in time. It stands: the broker will ask for it.
        """
        await self._end(Decision.COMMIT)

    async def rollback(self) -> None:
        """Roll back: consumers never get the message.

        Raises:
            TransactionUndecidedError: as in `commit`.
        """
        await self._end(Decision.ROLLBACK)

    def defer(self) -> None:
        """Leave the decision to the `checker` of a producer of the group: the broker will ask for it."""
        self._decide(Decision.UNKNOWN)

    def _decide(self, decision: Decision) -> None:
        if self.decision is not None:
            raise ClosedError(f"transaction {self.message_id} is already decided: {self.decision.name}")
        self.decision = decision
        self._transactions.decide(self.message_id, decision)

    async def _end(self, decision: Decision) -> None:
        if self._half is None:
            raise ClosedError(f"transaction {self.message_id} has not begun: use it inside `async with`")
        self._decide(decision)
        try:
            await self._transactions.end(self._half, decision)
        except LedgerMQError as error:
            raise TransactionUndecidedError(self.message_id, error) from error

    async def _roll_back_quietly(self) -> None:
        """Roll back and only log a failure, so that the caller sees the exception that caused the rollback."""
        try:
            await self.rollback()
        except LedgerMQError as error:
            _log.warning("%s", error)
