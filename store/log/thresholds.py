"""When gathered bytes are flushed or committed without a request: at an interval, by RocketMQ's three numbers.

    every interval:   least_pages whole pages more than last time?  or a file full?  or `thorough_s` since all was done?

Source: apache/rocketmq `store/.../CommitLog.java` (FlushRealTimeService, CommitRealTimeService) and
`logfile/DefaultMappedFile.java` (isAbleToFlush, isAbleToCommit, 5.3.3).
"""

import asyncio
from collections.abc import Callable

PAGE_SHIFT = 12


class IntervalTimer:
    """Calls a function at an interval on the loop, from `start` to `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        self._loop = loop
        self._action = action
        self._handle: asyncio.TimerHandle | None = None

    def start(self, interval_s: float) -> None:
        """Call the function every `interval_s` seconds from now on; 0 stops the timer."""
        self.stop()
        if interval_s > 0:
            self._handle = self._loop.call_later(interval_s, self._run, interval_s)

    def stop(self) -> None:
        """Stop the timer; the function may call this."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self, interval_s: float) -> None:
        self.start(interval_s)
        self._action()


class Threshold:
    """The threshold of gathered bytes, by offsets in the log.

    Args:
        file_size: bytes of a file of the log; a full file reaches the threshold.
        least_pages: pages of 4096 bytes begun since the last time; 0: any byte reaches it.
        thorough_s: seconds after which any byte reaches it.
        now: seconds, on the clock of `is_reached`.
    """

    __slots__ = ("_file_size", "_least_pages", "_thorough_at", "_thorough_s")

    def __init__(self, file_size: int, least_pages: int, thorough_s: float, now: float) -> None:
        self._file_size = file_size
        self._least_pages = least_pages
        self._thorough_s = thorough_s
        self._thorough_at = now + thorough_s

    def is_reached(self, done_offset: int, end_offset: int, now: float) -> bool:
        """Return whether `[done_offset, end_offset)` is to be flushed or committed now."""
        if now >= self._thorough_at:
            self._thorough_at = now + self._thorough_s
            return end_offset > done_offset
        if end_offset // self._file_size > done_offset // self._file_size:
            return True
        if self._least_pages == 0:
            return end_offset > done_offset
        return (end_offset >> PAGE_SHIFT) - (done_offset >> PAGE_SHIFT) >= self._least_pages
