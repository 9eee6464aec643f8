"""One after another per key: what keeps sends with the same order key in order, also when one is tried again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable


class Lanes:
    """A lock per key, for as long as somebody uses it. Waiters pass in the order in which they came."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @contextlib.asynccontextmanager
    async def lane(self, key: Hashable) -> AsyncIterator[None]:
        """Hold the key's lane."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
