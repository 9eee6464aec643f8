"""Requests that wait for a leader: in the order of their deadlines, bounded in number and bytes. Does no I/O."""

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

_COUNT_MAX: Final = 10_000
_BYTES_MAX: Final = 32 << 20


class Waiting(NamedTuple):
    """A request of a client. They are held in the order of their deadlines, then of arrival.

    Attributes:
        deadline: until when it is held for a leader, seconds of the loop's clock.
        since: end of what was dispatched here when it arrived; what it places lies behind.
        arrived: seconds of the loop's clock.
    """

    deadline: float
    number: int
    connection: Connection
    command: Command
    since: int
    arrived: float

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes that it takes while it is kept; a header may have more than the body."""
        ext = self.command.ext
        return len(self.command.body) + len("".join(ext)) + len("".join(ext.values()))


class HeldRequests:
    """A bounded queue of requests, by deadline."""

    def __init__(self) -> None:
        self._heap: list[Waiting] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def deadline(self) -> float | None:
        """The earliest deadline; None: no request is held."""
        return self._heap[0].deadline if self._heap else None

    def put(self, waiting: Waiting) -> None:
        """Hold a request.

        Raises:
            Refusal: BUSY, too much is held already.
        """
        command, size = waiting.command, waiting.size_bytes
        share = 2 if command.is_oneway else 1  # who waits for no answer is not slowed down, and leaves room to others
        if len(self._heap) >= _COUNT_MAX // share or self._size_bytes + size > _BYTES_MAX // share:
            remark = f"{len(self._heap)} requests of {self._size_bytes} bytes wait for a leader already"
            raise Refusal(Cause.BUSY, remark, retry_after_ms=100)
        command.body = bytes(command.body)  # a view would keep all of what was received with it
        heapq.heappush(self._heap, waiting)
        self._size_bytes += size

    def take(self) -> Waiting:
        """Remove and return the request with the earliest deadline. Raises `IndexError` when none is held."""
        waiting = heapq.heappop(self._heap)
        self._size_bytes -= waiting.size_bytes
        return waiting

    def take_late(self, now: float) -> Iterator[Waiting]:
        """Remove and yield the requests whose deadline is not after `now`."""
        while self._heap and self._heap[0].deadline <= now:
            yield self.take()

    def take_relayed(self) -> list[Waiting]:
        """Remove and return the requests that other members passed on."""
        relayed = [waiting for waiting in self._heap if waiting.connection.is_relayed]
        if relayed:
            self._heap = [waiting for waiting in self._heap if not waiting.connection.is_relayed]
            heapq.heapify(self._heap)
            self._size_bytes -= sum(waiting.size_bytes for waiting in relayed)
        return relayed
