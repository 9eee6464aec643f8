"""Python's garbage collector in a server: seldom, and never over what was there when serving began.

Messages, frames and tables make no cycles: with the default threshold of 700 the collector would walk the young objects
for nothing, and the old ones, tens of milliseconds of them, in the middle of a request.
"""

import gc
from typing import ClassVar, Final

_THRESHOLDS: Final = (50_000, 20, 100)


class QuietCollector:
    """From `begin` to `end` the process's collector is tuned for serving; of several servers, to the last end.

    On one thread.
    """

    _serving: ClassVar[int] = 0
    _before: ClassVar[tuple[int, int, int]] = gc.get_threshold()

    def __init__(self) -> None:
        self._has_begun = False

    def begin(self) -> None:
        """What is there now stays: it is looked at no more. To be called once."""
        if not QuietCollector._serving:
            QuietCollector._before = gc.get_threshold()
        QuietCollector._serving += 1
        self._has_begun = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def end(self) -> None:
        """As it was before; harmless when it was never begun."""
        if not self._has_begun:
            return
        self._has_begun = False
        QuietCollector._serving -= 1
        if not QuietCollector._serving:
            gc.set_threshold(*QuietCollector._before)
            gc.unfreeze()
