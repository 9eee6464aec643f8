"""Time slice: a bounded piece of the loop's time for work that can go on later.

It is measured in CPU time of the thread, so that a busy machine does not cut the work short. Reading that clock is a
system call; it is done only when the wall clock says that the slice may be over.
"""

import asyncio
import time


class TimeSlice:
    """One slice; it begins when it is made.

    Args:
        seconds: CPU time of the calling thread; infinity for a slice that never ends.
    """

    __slots__ = ("_cpu_end", "_seconds", "_wall_end")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin()

    def _begin(self) -> None:
        seconds = self._seconds
        self._cpu_end = time.thread_time() + seconds
        self._wall_end = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Return whether the time is used up; cheap, to be asked after each step."""
        now = time.monotonic()
        if now <= self._wall_end:
            return False
        left = self._cpu_end - time.thread_time()
        self._wall_end = now + left  # CPU time is at most wall time
        return left < 0

    async def give_way(self) -> None:
        """Let other callbacks of the loop run if the time is used up, then begin anew; await it after each step."""
        if self.is_over():
            await asyncio.sleep(0)
            self._begin()
