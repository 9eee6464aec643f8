"""The requests of one connection that wait for an answer, by opaque.

Deadlines are checked in one pass when the nearest is due, since nearly all requests are answered in time: no timer and
no future per request.
"""

from collections.abc import Callable
from typing import NamedTuple

from ledgermq.remoting.command import Command
from ledgermq.remoting.errors import RemotingError

Settle = Callable[[Command | RemotingError], None]
"""Called exactly once with the answer, or with why there is none. Must not raise."""


class Waiting(NamedTuple):
    """One request: when it was sent and must be answered (seconds of the loop's clock), its code, who waits."""

    deadline: float
    sent_at: float
    code: int
    settle: Settle


class PendingRequests:
    """The table. The owner asks for `next_deadline` and takes what has expired."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opaque: int, waiting: Waiting) -> None:
        self._waiting[opaque] = waiting

    def take(self, opaque: int) -> Waiting | None:
        """Who waits for this answer; None when nobody does (any more)."""
        return self._waiting.pop(opaque, None)

    def take_expired(self, now: float) -> list[Waiting]:
        """Those whose deadline is not after `now`."""
        expired = [opaque for opaque, waiting in self._waiting.items() if waiting.deadline <= now]
        return [self._waiting.pop(opaque) for opaque in expired]

    def take_all(self) -> list[Waiting]:
        """Everything, when the connection ends."""
        everything = list(self._waiting.values())
        self._waiting.clear()
        return everything

    def next_deadline(self) -> float | None:
        """The nearest one; None when nothing waits."""
        return min((waiting.deadline for waiting in self._waiting.values()), default=None)
