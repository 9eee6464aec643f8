"""A bounded piece of the loop's time for work that can go on later.

By the thread's CPU time, so that a machine that is busy elsewhere cuts nothing short. It costs a system call, and is
asked for only when the wall clock says that the time may be over.
"""

import time


class TimeSlice:
    """Begins when it is made.

    Args:
        seconds: how much CPU time it is.
    """

    __slots__ = ("_cpu_end", "_wall_end")

    def __init__(self, seconds: float) -> None:
        self._cpu_end = time.thread_time() + seconds
        self._wall_end = time.monotonic() + seconds

    def is_over(self) -> bool:
        """To be asked as often as one likes."""
        now = time.monotonic()
        if now <= self._wall_end:
            return False
        left = self._cpu_end - time.thread_time()
        self._wall_end = now + left  # it takes at least as long
        return left < 0
