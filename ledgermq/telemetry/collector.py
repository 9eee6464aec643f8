"""Python's garbage collector in a server: seldom, and never over what was there when serving began.

Messages, frames and tables make no cycles: with the default threshold of 700 the collector would walk the young objects
for nothing, and the old ones, tens of milliseconds of them, in the middle of a request.
"""

import gc
from typing import Final

_THRESHOLDS: Final = (50_000, 20, 100)


class QuietCollector:
    """From `begin` to `end` the process's collector is tuned for serving."""

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """What is there now stays: it is looked at no more."""
        self._before = self._before or gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)

    def end(self) -> None:
        """As it was before; harmless when it was never begun."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None
