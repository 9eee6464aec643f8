"""Tunes Python's garbage collector for a server: it runs rarely, and skips objects from before serving began.

Messages, frames and tables form no cycles. With the default threshold of 700 the collector would scan the young objects
in vain, and the old ones for tens of milliseconds in the middle of a request.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import ClassVar, Final

_THRESHOLDS: Final = (50_000, 20, 100)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Suspend collections while modules are imported, and exclude what they made from later collections.

    Modules, classes and functions live as long as the process, so each collection during the imports would scan them in
    vain: a tenth of the processor time in which a broker starts.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class QuietCollector:
    """Tunes the collector from `begin` to `end`; with several servers in a process, until the last `end`.

    Use it on one thread.
    """

    _serving: ClassVar[int] = 0
    _before: ClassVar[tuple[int, int, int]] = gc.get_threshold()

    def __init__(self) -> None:
        self._has_begun = False

    def begin(self) -> None:
        """Make collections rare.

        Call it once, before tables are read: with the default thresholds they would be scanned again and again.
        """
        if not QuietCollector._serving:
            QuietCollector._before = gc.get_threshold()
        QuietCollector._serving += 1
        self._has_begun = True
        gc.set_threshold(*_THRESHOLDS)

    @staticmethod
    def skip_present() -> None:
        """Exclude the objects that exist now from later collections, when a server begins to serve."""
        gc.collect()
        gc.freeze()

    def end(self) -> None:
        """Restore the collector's settings; does nothing without `begin`."""
        if not self._has_begun:
            return
        self._has_begun = False
        QuietCollector._serving -= 1
        if not QuietCollector._serving:
            gc.set_threshold(*QuietCollector._before)
            gc.unfreeze()
