"""One-way messages: nobody waits for their answers, so a client may send them faster than the log takes them.

    placed -> counted for its connection -> above its share: nothing more is read from there
                                         -> committed or refused, below half of that: read on

All connections share `UNSETTLED_MAX_BYTES` equally. So messages of other clients wait behind at most 1 MiB of a flood,
however many connections it has.
"""

import asyncio
from typing import Final

from broker.append.appender import Appender
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt

UNSETTLED_MAX_BYTES: Final = 1 << 20
RECORD_BYTES: Final = 256
"""Bytes that each message counts in addition to its body."""


class Unsettled:
    """Bytes of the one-way messages of each connection that are not in the log yet."""

    def __init__(self) -> None:
        self._of: dict[Connection, int] = {}

    def __len__(self) -> int:
        """Return how many connections have any."""
        return len(self._of)

    def add(self, connection: Connection, size: int) -> None:
        """Count bytes; nothing more is read from a connection that has more than its share."""
        self._of[connection] = unsettled = self._of.get(connection, 0) + size
        if unsettled > UNSETTLED_MAX_BYTES // len(self._of):
            connection.hold_back()

    def settle(self, connection: Connection, size: int) -> None:
        """Stop counting bytes that are in the log, or will never be."""
        left = self._of.pop(connection) - size
        if left:
            self._of[connection] = left
        if not left or left <= UNSETTLED_MAX_BYTES // len(self._of) // 2:
            connection.go_on()


class OnewayMessages:
    """Counts the one-way messages of each connection from when they are put into a batch until that is settled."""

    def __init__(self, appender: Appender, loop: asyncio.AbstractEventLoop) -> None:
        self._appender = appender
        self._loop = loop
        self._batch: dict[Connection, int] = {}  # those of this turn
        self.unsettled = Unsettled()

    def placed(self, connection: Connection, size: int) -> None:
        """Count a message with a body of `size` bytes that was put into this turn's batch."""
        if not self._batch:
            batch = self._batch
            self._appender.listeners.append(lambda outcome: self._settle(batch, outcome))
            self._loop.call_soon(self._end_batch)  # runs when the batch is placed
        size += RECORD_BYTES
        self._batch[connection] = self._batch.get(connection, 0) + size
        self.unsettled.add(connection, size)

    def _end_batch(self) -> None:
        self._batch = {}

    def _settle(self, batch: dict[Connection, int], _: AppendReceipt | Refusal) -> None:
        if batch is self._batch:  # refused before the turn has ended: what follows is of another batch
            self._batch = {}
        for connection, size in batch.items():
            self.unsettled.settle(connection, size)
