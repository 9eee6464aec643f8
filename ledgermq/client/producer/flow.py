"""Flow of sends: each waits for room among those in flight, and for the earlier sends of its order key."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator


class InFlight:
    """A bound on requests and bytes under way.

    A request larger than the bound on bytes is sent when nothing else is under way.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._pending = 0
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def count(self) -> int:
        """Requests under way."""
        return self._count

    async def enter(self, size: int) -> None:
        """Take room for one request of `size` bytes; waits in turn until there is room."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)  # `leave` has taken the room for us
            else:
                self._admit()  # the next one may be smaller
            raise

    def leave(self, size: int) -> None:
        """Give room back."""
        self._count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()
        self._check_idle()

    @contextlib.contextmanager
    def pending(self) -> Iterator[None]:
        """Let `wait_idle` wait for the block; for a send that cannot `enter` yet."""
        self._pending += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._pending -= 1
            self._check_idle()

    async def wait_idle(self) -> None:
        """Return when nothing is under way or pending."""
        while self._count or self._pending:
            await self._idle.wait()

    def _check_idle(self) -> None:
        if not self._count and not self._pending:
            self._idle.set()

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][1].done() or self._fits(waiting[0][0])):
            size, turn = waiting.popleft()
            if not turn.done():
                self._take(size)
                turn.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._count == 0 or (self._count < self._count_max and self._bytes + size <= self._bytes_max)

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size
        self._idle.clear()


class Lanes:
    """A lock for each key, kept while it is used. Waiters get it in the order in which they asked."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def lane(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lock within the block."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
