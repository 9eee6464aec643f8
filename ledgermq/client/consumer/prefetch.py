"""How far readers may read ahead of the program: messages of each queue, bytes of all together."""

import asyncio
from collections.abc import Callable


class Prefetch:
    """The bound shared by the readers of one consumer. A reader with nothing waiting may always read.

    Args:
        messages_max: about so many may wait in one queue's buffer (it is filled again when half of them are taken).
        bytes_max: of record bytes that wait in all buffers.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_low = messages_max // 2
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting_count = 0
        self._freed = asyncio.Event()

    def is_full(self, count: int) -> bool:
        """Whether a reader with so many messages buffered must wait."""
        return count > 0 and (count > self._messages_low or self._bytes >= self._bytes_max)

    async def wait_room(self, is_full: Callable[[], bool]) -> None:
        """Return when `is_full` says no: asked again whenever messages are taken, or `look` is called."""
        self._waiting_count += 1
        try:
            while is_full():
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._waiting_count -= 1

    def add(self, size: int) -> None:
        """So many bytes wait now."""
        self._bytes += size

    def free(self, size: int, buffered_count: int) -> None:
        """They are taken, or dropped; the reader has so many messages left."""
        before = self._bytes
        self._bytes = before - size
        if self._waiting_count and (
            buffered_count in (0, self._messages_low) or self._bytes < self._bytes_max <= before
        ):
            self._freed.set()

    def look(self) -> None:
        """Let those who wait ask again."""
        if self._waiting_count:
            self._freed.set()
