"""A progress bar for long work, on standard error, and only at a terminal."""

import sys
import time
from typing import TextIO

_WIDTH = 30
_INTERVAL_S = 0.1


class ProgressBar:
    """Counts bytes.

    Args:
        word: the work shown.
        total: bytes in all.
        stream: written to only if it is a terminal; standard error by default.
    """

    def __init__(self, word: str, total: int, stream: TextIO | None = None) -> None:
        self._word = word
        self._total = max(total, 1)
        self._stream = stream if stream is not None else sys.stderr
        self._is_shown = self._stream.isatty()
        self._done = 0
        self._began_s = self._drawn_s = time.monotonic()

    def __call__(self, count: int) -> None:
        """Note that `count` more bytes are done."""
        self._done += count
        now_s = time.monotonic()
        if self._is_shown and now_s - self._drawn_s >= _INTERVAL_S:
            self._drawn_s = now_s
            self._draw(now_s - self._began_s)

    def close(self) -> None:
        """Clear the line."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self, seconds: float) -> None:
        share = min(self._done / self._total, 1.0)
        filled = round(_WIDTH * share)
        rate = self._done / max(seconds, 1e-9) / 1e6
        left_s = seconds / max(share, 1e-9) - seconds
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write(f"\r{self._word} [{bar}] {share:4.0%}  {rate:,.0f} MB/s  {left_s:,.0f} s left\x1b[K")
        self._stream.flush()
