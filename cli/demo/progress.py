"""Progress on standard error: one line that is redrawn on a terminal, else a line from time to time."""

import sys
import time
from typing import TextIO

_LINE_INTERVAL_S = 2.0
_BAR_WIDTH = 24


class ProgressLine:
    """Shows how far the stream is.

    Args:
        total: number of messages.
        stream: output; on a terminal one line is redrawn.
    """

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self._total = total
        self._stream = stream
        self._moves = stream.isatty()
        self._began_s = self._shown_s = time.monotonic()

    def show(self, acked: int, consumed: int) -> None:
        """Show the present state; cheap to call often."""
        now_s = time.monotonic()
        if not self._moves and now_s - self._shown_s < _LINE_INTERVAL_S:
            return
        rate = acked / max(now_s - self._began_s, 1e-9)
        done = round(_BAR_WIDTH * acked / self._total)
        text = (
            f"[{'#' * done}{'.' * (_BAR_WIDTH - done)}] acknowledged {acked:,} of {self._total:,}"
            f"  consumed {consumed:,}  {rate:,.0f}/s"
        )
        self._write(f"\r{text}\x1b[K" if self._moves else f"{text}\n")
        self._shown_s = now_s

    def event(self, text: str) -> None:
        """Print one event on a line of its own."""
        stamp = f"{time.monotonic() - self._began_s:6.2f} s  {text}"
        self._write(f"\r{stamp}\x1b[K\n" if self._moves else f"{stamp}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
