"""Ends a run of which a stage exceeds its limit: in order, as Ctrl-C does, or at once if that does not help."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Self

UNDO_LIMIT_S = 60.0
_POLL_S = 0.1


class Watchdog:
    """Watches the stages of one run from a thread, since the event loop itself may hang.

    A context manager, used on the main thread around everything that may hang, the end of the event loop included. When
    a stage is overdue, the process gets SIGINT, which cancels the run, even if SIGINT was ignored until now, as in
    background jobs of shells. If the run has not ended `undo_limit_s` seconds later, `leave` is called.

    Args:
        leave: called on the watchdog's thread with the name of the stage; must end the process.
        undo_limit_s: seconds for an orderly end.

    Attributes:
        overdue: the stage that took too long, with its limit; empty if none did.
    """

    def __init__(self, leave: Callable[[str], None], undo_limit_s: float = UNDO_LIMIT_S) -> None:
        self.overdue = ""
        self._leave = leave
        self._undo_limit_s = undo_limit_s
        self._stage = ("", float("inf"), float("inf"))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def stage(self, what: str, limit_s: float) -> None:
        """Begin a stage named `what`, which must end within `limit_s` seconds; it ends the stage before."""
        if not self.overdue:
            self._stage = what, limit_s, time.monotonic() + limit_s

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()
        signal.signal(signal.SIGINT, self._before)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_S):
            what, limit_s, due_s = self._stage
            if time.monotonic() < due_s:
                continue
            if self.overdue:
                self._leave(f"{self.overdue}, and the end of the run not within {limit_s:g} s more")
                return
            self._stage = "", self._undo_limit_s, time.monotonic() + self._undo_limit_s
            self.overdue = f"waited for {what}: not within {limit_s:g} s"
            os.kill(os.getpid(), signal.SIGINT)
