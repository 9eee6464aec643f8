"""Watches whether this process can still open files, and logs when it cannot, and when it can again.

Without free descriptors no file can be opened, and the event loop closes new connections without a message.
"""

import asyncio
import logging
import os
import resource
import time
from typing import Final

from ledgermq.durable_files import NO_DESCRIPTORS
from telemetry.metrics import Registry

_log: Final = logging.getLogger(__name__)


class DescriptorWatch:
    """Tries from `start()` to `close()`, at intervals, to open a file.

    Args:
        registry: gets `ledgermq_descriptors_exhausted` and `ledgermq_descriptors_exhausted_seconds_total`.
        interval_s: time between two tries.
    """

    def __init__(self, registry: Registry, *, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._since: float | None = None
        self._before_s = 0.0
        self._handle: asyncio.TimerHandle | None = None
        registry.gauge("ledgermq_descriptors_exhausted", "1 while this process may open no more files.").function(
            lambda: int(self._since is not None)
        )
        registry.counter(
            "ledgermq_descriptors_exhausted_seconds_total", "Time in which this process could open no files."
        ).function(self._exhausted_s)

    def start(self) -> None:
        """Start to watch, on the running loop."""
        self._handle = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def close(self) -> None:
        """Stop; the measured values remain."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None

    def _exhausted_s(self) -> float:
        return self._before_s + (0.0 if self._since is None else time.monotonic() - self._since)

    def _look(self) -> None:
        self.start()
        is_exhausted = _is_exhausted()
        if is_exhausted and self._since is None:
            self._since = time.monotonic()
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.error(
                "no file descriptor is left (ulimit -n is %d): new connections are closed, files are not opened", limit
            )
        elif not is_exhausted and self._since is not None:
            _log.warning("files can be opened again, after %.0f s", time.monotonic() - self._since)
            self._before_s, self._since = self._exhausted_s(), None


def allow_all_descriptors() -> None:
    """Raise the limit of open files to the maximum: the usual limit of 1024 is too low for a server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _is_exhausted() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in NO_DESCRIPTORS
    return False
