"""One transaction, as a block: see `Producer.transaction`."""

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from ledgermq.client.errors import (
    ClosedError,
    HalfMessageError,
    LedgerMQError,
    TransactionUndecidedError,
    UndecodableError,
)
from ledgermq.client.producer.sending import SendResult, SendStatus
from ledgermq.client.producer.transactions import Decision, Half, Transactions
from ledgermq.message.errors import InvalidMessageIdError

_log: Final = logging.getLogger(__name__)

SendHalf = Callable[[], Awaitable[SendResult]]


class Transaction:
    """A message that readers see once, and only if, it is committed.

    Committed when its block ends, rolled back when the block raises. `commit` and `rollback` decide earlier, `defer`
    leaves it to the checker.

    Attributes:
        message_id: of the message; its transaction id, too. Known before the block begins.
        decision: once it is made; None before.
    """

    def __init__(self, message_id: str, send_half: SendHalf, transactions: Transactions) -> None:
        self.message_id = message_id
        self.decision: Decision | None = None
        self._send_half = send_half
        self._transactions = transactions
        self._half: Half | None = None
        self._begun = False

    async def __aenter__(self) -> Self:
        """Store the half message.

        Raises:
            HalfMessageError: it is not as safe as it should be.
            ClosedError: it has begun already.
            LedgerMQError: as in `Producer.send`.
        """
        if self._begun or self.decision is not None:
            raise ClosedError(f"transaction {self.message_id} has begun already: each is a block of its own")
        self._begun = True
        self._transactions.begin(self.message_id)
        try:
            sent = await self._send_half()
            self._half = _half(sent)
        except BaseException:  # it may be stored all the same: whoever asks is told that no block was run
            self._decide(Decision.ROLLBACK)
            raise
        if sent.status is not SendStatus.OK:
            await self._roll_back_quietly()
            raise HalfMessageError(f"half message {self.message_id}: {sent.status.name}", code=sent.status.value)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.decision is not None:
            return
        if kind is None:
            await self.commit()
        else:
            await self._roll_back_quietly()

    async def commit(self) -> None:
        """Let readers see it; returns when the broker has stored it so.

        Raises:
            TransactionUndecidedError: the decision has not arrived in time. It stands: the broker will ask for it.
        """
        await self._end(Decision.COMMIT)

    async def rollback(self) -> None:
        """Let it vanish.

        Raises:
            TransactionUndecidedError: as in `commit`.
        """
        await self._end(Decision.ROLLBACK)

    def defer(self) -> None:
        """Decide nothing: the broker will ask, and the checker of a producer of the group will say."""
        self._decide(Decision.UNKNOWN)

    def _decide(self, decision: Decision) -> None:
        if self.decision is not None:
            raise ClosedError(f"transaction {self.message_id} is decided already: {self.decision.name}")
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
        """What made it fail is what the caller must see."""
        try:
            await self.rollback()
        except LedgerMQError as error:
            _log.warning("%s", error)


def _half(sent: SendResult) -> Half:
    try:
        return Half.of(sent)
    except InvalidMessageIdError as error:
        raise UndecodableError(f"half message {sent.message_id}: {error}") from error
