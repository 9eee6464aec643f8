"""The requests that one end of a connection has sent and that are not answered yet, by opaque.

Deadlines are checked together when the nearest one is due, since nearly all requests are answered in time: a request
needs neither a timer nor a future.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from ledgermq.remoting.codec.codes import request_name
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.errors import RemotingError, RequestTimeoutError

Settle = Callable[[Command | RemotingError], None]
"""Called exactly once, with the answer or with the error. Must not raise."""

Patience = Callable[[], float]
"""Called when a request has timed out: returns the seconds for which to wait on for the answer, or 0."""

OPAQUE_MAX: Final = 0x7FFFFFFF
"""Largest opaque of a request."""


class _Waiting(NamedTuple):
    deadline: float
    sent_at: float
    code: int
    settle: Settle
    patience: Patience | None


class OutgoingRequests:
    """The table of one connection. Times are seconds of the loop's clock.

    Args:
        loop: for the time and the timer.
        peer: returns the peer's address, for errors.
        on_time_out: called after requests have timed out, with the time at which the latest of them was sent; not if
            none of them had patience and others wait that have, since these are not to be sent again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, peer: Callable[[], str], on_time_out: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._peer = peer
        self._on_time_out = on_time_out
        self._waiting: dict[int, _Waiting] = {}
        self._opaque = 0
        self._timer: asyncio.Handle | None = None
        self._timer_at = math.inf  # kept here: uvloop's handle of a time that is already due does not tell it

    def __len__(self) -> int:
        """Return how many requests wait for their answers."""
        return len(self._waiting)

    def next_opaque(self) -> int:
        """Return the next opaque; a number is used again after 2^31 requests."""
        opaque = self._opaque
        self._opaque = (opaque + 1) & OPAQUE_MAX
        return opaque

    def add(self, opaque: int, code: int, timeout_s: float, settle: Settle, patience: Patience | None = None) -> None:
        """Wait for the answer to the request with this opaque and code, which is being sent."""
        now = self._loop.time()
        deadline = now + timeout_s
        self._waiting[opaque] = _Waiting(deadline, now, code, settle, patience)
        if deadline < self._timer_at:
            self._set_timer(deadline)

    def settle(self, answer: Command) -> None:
        """Complete the request that this answers; ignored when the request has timed out."""
        waiting = self._waiting.pop(answer.opaque, None)
        if waiting is not None:
            waiting.settle(answer)

    def fail_all(self, error: Callable[[], RemotingError]) -> None:
        """Complete every request with `error()`, since the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
        everything, self._waiting = self._waiting, {}
        for waiting in everything.values():
            waiting.settle(error())

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(deadline, self._expire), deadline

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._loop.time()
        expired = sorted(
            (waiting.deadline, opaque) for opaque, waiting in self._waiting.items() if waiting.deadline <= now
        )
        latest, had_patience = -math.inf, False
        for deadline, opaque in expired:  # in order of their deadlines, since a late loop may find several
            waiting = self._waiting.pop(opaque)
            if waiting.patience is not None and (more_s := waiting.patience()) > 0:
                self._waiting[opaque] = waiting._replace(deadline=now + more_s)
                continue
            waiting.settle(RequestTimeoutError(self._peer(), request_name(waiting.code), deadline - waiting.sent_at))
            latest, had_patience = max(latest, waiting.sent_at), had_patience or waiting.patience is not None
        if latest > -math.inf and (had_patience or all(other.patience is None for other in self._waiting.values())):
            self._on_time_out(latest)
        nearest = min((waiting.deadline for waiting in self._waiting.values()), default=math.inf)
        if nearest < self._timer_at:  # what was added meanwhile may be due later
            self._set_timer(nearest)
