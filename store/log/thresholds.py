"""The threshold at which gathered bytes are flushed or committed: RocketMQ's three numbers.

    every interval:   least_pages whole pages more than last time?  or a file full?  or `thorough_s` since all was done?

Source: apache/rocketmq `store/.../CommitLog.java` (FlushRealTimeService, CommitRealTimeService) and
`logfile/DefaultMappedFile.java` (isAbleToFlush, isAbleToCommit, 5.3.3).
"""

PAGE_SHIFT = 12


class Threshold:
    """Decides by offsets in the log.

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
