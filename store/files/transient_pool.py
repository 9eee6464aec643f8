"""Transient pool: locked anonymous memory into which records are placed before they reach their file.

    borrow --> placed into by the loop --> copied to the file by the committer's thread --> given back when full

Placing is a copy in memory, which neither the page cache nor a disk that writes back can delay. Records that are not
committed yet are lost with the process, so they are neither confirmed nor acknowledged (`store.log.committer`).

Source: apache/rocketmq `store/.../TransientStorePool.java` (5.3.3).
"""

import logging
import mmap
import os
from collections import deque

from store.errors import PoolUnavailableError
from store.files import pages

log = logging.getLogger(__name__)


class TransientPool:
    """Buffers of one size. `borrow` and `give_back` may be called in any thread.

    Args:
        count: buffers.
        size_bytes: of each: that of a log file.
        refuses: when none is left, refuse rather than write the file directly (fastFailIfNoBufferInStorePool).
    """

    def __init__(self, count: int, size_bytes: int, *, refuses: bool = False) -> None:
        self.count = count
        self.size_bytes = size_bytes
        self._refuses = refuses
        self._free: deque[memoryview] = deque()

    def open(self) -> None:
        """Take the memory and lock it; blocks while the system clears it.

        Raises:
            PoolUnavailableError: there is not that much memory.
        """
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if self.count * self.size_bytes >= memory_bytes:
            raise PoolUnavailableError(self.count, self.size_bytes, f"this machine has {memory_bytes} bytes of memory")
        for number in range(self.count):
            try:
                buffer = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError as error:
                raise PoolUnavailableError(self.count, self.size_bytes, f"no memory: {error}") from error
            refusal = pages.lock(buffer)
            if refusal is not None and number == 0:
                log.warning("the transient pool is not locked, and may be swapped out: %s", refusal)
            self._free.append(memoryview(buffer))

    @property
    def free_count(self) -> int:
        """Number of buffers that are not in use."""
        return len(self._free)

    def borrow(self) -> memoryview | None:
        """Return a buffer with any content; None when all are in use.

        Raises:
            PoolUnavailableError: all are in use, and the pool refuses then.
        """
        try:
            return self._free.popleft()
        except IndexError:
            if self._refuses:
                raise PoolUnavailableError(self.count, self.size_bytes, "all are in use") from None
            return None

    def give_back(self, buffer: memoryview) -> None:
        """Give a buffer back for the next file."""
        self._free.append(buffer)

    def close(self) -> None:
        """Free the memory."""
        self._free.clear()
