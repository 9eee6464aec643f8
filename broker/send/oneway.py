"""One-way messages: nobody waits for their answers, so a client may send them faster than the log takes them.

    placed -> counted for its connection -> above `UNSETTLED_MAX_BYTES`: nothing more is read from there
                                         -> committed or refused, below half of that: read on

So messages of other clients wait behind at most 2 MiB of each flood.
"""

import asyncio
from typing import Final

from broker.append.appender import Appender
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt

UNSETTLED_MAX_BYTES: Final = 2 << 20


class OnewayMessages:
    """Counts the one-way messages of each connection from their place in a batch until that is settled."""

    def __init__(self, appender: Appender, loop: asyncio.AbstractEventLoop) -> None:
        self._appender = appender
        self._loop = loop
        self._batch: dict[Connection, int] = {}  # those of this turn
        self._unsettled: dict[Connection, int] = {}

    def placed(self, connection: Connection, size: int) -> None:
        """A message of `size` bytes was put into this turn's batch, which has begun."""
        if not self._batch:
            batch = self._batch
            self._appender.listeners.append(lambda outcome: self._settle(batch, outcome))
            self._loop.call_soon(self._end_batch)  # runs when the batch is placed
        self._batch[connection] = self._batch.get(connection, 0) + size
        self._unsettled[connection] = unsettled = self._unsettled.get(connection, 0) + size
        if unsettled > UNSETTLED_MAX_BYTES:
            connection.hold_back()

    def _end_batch(self) -> None:
        self._batch = {}

    def _settle(self, batch: dict[Connection, int], _: AppendReceipt | Refusal) -> None:
        if batch is self._batch:  # refused before the turn has ended: what follows is of another batch
            self._batch = {}
        for connection, size in batch.items():
            left = self._unsettled.pop(connection, 0) - size  # one without a body, which removes its key, counts 0
            if left:
                self._unsettled[connection] = left
            if left <= UNSETTLED_MAX_BYTES // 2:
                connection.go_on()
