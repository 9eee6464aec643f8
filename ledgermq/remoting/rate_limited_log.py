"""Rate-limited warnings, for events that clients can cause at will: they must not fill the disk with logs."""

import logging
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 10.0


class RateLimitedLog:
    """Logs the first warning, and then at most one in ten seconds, with the number of those left out.

    Args:
        log: the logger.
        clock: returns monotonic seconds.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._quiet_until = 0.0
        self._suppressed = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log a warning, unless one was logged in the last ten seconds."""
        now = self._clock()
        if now < self._quiet_until:
            self._suppressed += 1
            return
        if self._suppressed:
            text, arguments = f"{text} (%d more of such warnings before)", (*arguments, self._suppressed)
        self._quiet_until, self._suppressed = now + INTERVAL_S, 0
        self._log.warning(text, *arguments)
