"""Who waits for the classic log's flush, and for how long.

add --> (end, deadline, done) ... --> settle: everything below `confirmed`      --> refused: past its deadline
"""

import asyncio

from ledgermq.remoting.refusal import Cause, Refusal
from store.log.waiting_batches import WaitingBatches
from store.replicated_log import AppendReceipt, Done

_WRITTEN = AppendReceipt(generation=0, copies=1, durable_copies=0)
_DURABLE = AppendReceipt(generation=0, copies=1, durable_copies=1)
_BEFORE_ALL = -1


class FlushWaiters:
    """Batches of a log that has no other members. On the loop's thread.

    Args:
        limit_ms: how long a batch waits for its flush.
        has_deadlines: whether they are refused then; else they wait for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_ms: int, *, has_deadlines: bool) -> None:
        self._loop = loop
        self._limit_ms = limit_ms
        self._has_deadlines = has_deadlines
        self._batches = WaitingBatches()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, end_offset: int, done: Done) -> None:
        """A batch that ends at `end_offset`, the last one so far."""
        self._batches.add(end_offset, self._loop.time() + self._limit_ms / 1000, done)
        if self._has_deadlines:
            self._arm()

    def settle(self, confirmed: int, flushed: int) -> None:
        """Answer what lies below `confirmed`; what lies below `flushed` is durable."""
        self._batches.complete(min(confirmed, flushed), lambda: _DURABLE)
        self._batches.complete(confirmed, lambda: _WRITTEN)

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing will be confirmed any more."""
        self._batches.refuse_after(_BEFORE_ALL, lambda: refusal)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        deadline_s = self._batches.next_deadline_s
        if self._timer is None and deadline_s is not None:
            self._timer = self._loop.call_at(deadline_s, self._refuse_late)

    def _refuse_late(self) -> None:
        """Senders hear that their records are in the log and not known to be durable."""
        self._timer = None
        late = Refusal(Cause.FLUSH_TIMEOUT, f"stored, but not flushed within {self._limit_ms} ms")
        self._batches.refuse_late(self._loop.time(), lambda _: late)
        self._arm()
