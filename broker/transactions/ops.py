"""Op records: they name decided half messages. Offsets are gathered for a while and written as one record.

    decided(offset) --gather--> "17,18,21," in the op topic, tag `d`     earlier when the record would be too long

Source: apache/rocketmq `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (deletePrepareMessage,
batchSendOpMessage), 5.3.3.
"""

import asyncio
from collections.abc import Callable

from broker.context import BrokerContext
from broker.state import names
from broker.transactions.halves import OP_SEPARATOR
from ledgermq.remoting.refusal import Refusal
from store.replicated_log import AppendReceipt

_TAG = "d"
_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d\x02"
_RETRY_SECONDS = 0.5


class OpWriter:
    """Gathers the offsets of decided half messages and writes op records.

    Args:
        on_written: called with the queue offsets of half messages whose op record is committed.
    """

    def __init__(self, context: BrokerContext, on_written: Callable[[list[int]], None]) -> None:
        self._config = context.config
        self._targets = context.targets
        self._drafts = context.drafts
        self._appender = context.appender
        self._loop = context.loop
        self._on_written = on_written
        self._clock_ms = context.clock_ms
        self._gathered: list[int] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run = 0

    def decided(self, queue_offset: int) -> None:
        """Gather the queue offset of a decided half message."""
        self._gathered.append(queue_offset)
        self._size += len(str(queue_offset)) + 1
        if self._size > self._config.transaction_op_size_bytes:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._config.transaction_op_interval_ms / 1000, self.flush)

    def flush(self) -> None:
        """Append the gathered offsets now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered, self._size = self._gathered, [], 0
        if not gathered:
            return
        run = self._run

        def done(outcome: AppendReceipt | Refusal) -> None:
            if run != self._run:
                return
            if isinstance(outcome, Refusal):
                self._loop.call_later(_RETRY_SECONDS, self._again, run, gathered)
            else:
                self._on_written(gathered)

        body = "".join(f"{offset}{OP_SEPARATOR}" for offset in gathered).encode()
        target = self._targets.target(names.OP_HALF_TOPIC, 0)
        self._appender.add(self._drafts.own(target, body, _PROPERTIES, born_ms=self._clock_ms(), tags=_TAG), done)

    def forget(self) -> None:
        """Drop the gathered offsets: this node leads no longer. The next leader finds the commits, or asks again."""
        self._run += 1
        self._gathered, self._size = [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self, run: int, offsets: list[int]) -> None:
        if run == self._run:
            for offset in offsets:
                self.decided(offset)
