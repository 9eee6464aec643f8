"""Waiting batches: placed in the log, and not yet answered. The oldest is answered first.

add --> (end, deadline, done) ... --> settle: everything below `confirmed`      --> refuse_late: past its deadline
"""

import asyncio
from collections import deque

from ledgermq.remoting.refusal import Cause, Refusal
from store.replicated_log import AppendReceipt, Done

_WRITTEN = AppendReceipt(generation=0, copies=1, durable_copies=0)
_DURABLE = AppendReceipt(generation=0, copies=1, durable_copies=1)


class WaitingBatches:
    """Batches of a log that has no other members. On the loop's thread.

    Args:
        limit_ms: how long a batch waits for its flush.
        has_deadlines: whether they are refused then; else they wait for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_ms: int, *, has_deadlines: bool) -> None:
        self._loop = loop
        self._limit_ms = limit_ms
        self._has_deadlines = has_deadlines
        self._batches: deque[tuple[int, float, Done]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, end_offset: int, done: Done) -> None:
        """A batch that ends at `end_offset`, the last one so far."""
        self._batches.append((end_offset, self._loop.time() + self._limit_ms / 1000, done))
        if self._has_deadlines:
            self._arm()

    def settle(self, confirmed: int, flushed: int) -> None:
        """Answer what lies below `confirmed`; what lies below `flushed` is durable."""
        batches = self._batches
        while batches and batches[0][0] <= confirmed:
            end, _, done = batches.popleft()
            done(_DURABLE if end <= flushed else _WRITTEN)

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing will be confirmed any more."""
        batches, self._batches = self._batches, deque()
        for _, _, done in batches:
            done(refusal)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._batches:
            self._timer = self._loop.call_at(self._batches[0][1], self._refuse_late)

    def _refuse_late(self) -> None:
        """Senders hear that their records are in the log and not known to be durable."""
        self._timer = None
        now = self._loop.time()
        while self._batches and self._batches[0][1] <= now:
            end, _, done = self._batches.popleft()
            done(Refusal(Cause.FLUSH_TIMEOUT, f"stored up to {end}, but not flushed within {self._limit_ms} ms"))
        self._arm()
