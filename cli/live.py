"""The live view of a drill on standard error: each event, and one line a second."""

import time
from typing import TextIO

from chaos.drills.record import DrillRecord
from chaos.fabric.contract import ClusterView

_INTERVAL_S = 1.0


class LiveDisplay:
    """`chaos.drills.run.Display` as lines of text; on a terminal the line of the second is redrawn.

    Args:
        stream: the output.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._began_s = time.monotonic()
        self._shown_s = 0.0

    def event(self, text: str) -> None:
        """Print one event on a line of its own."""
        stamp = f"{time.monotonic() - self._began_s:6.2f} s  {text}"
        self._write(f"\r{stamp}\x1b[K\n" if self._moves else f"{stamp}\n")

    def sampled(self, record: DrillRecord, view: ClusterView | None) -> None:
        """Print leader, term, rate, p99, lag and losses, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._shown_s < _INTERVAL_S:
            return
        self._shown_s = now_s
        second = record.second(now_s)
        leader = (view.leader if view is not None else None) or "none"
        epoch = view.epoch if view is not None and view.epoch is not None else record.term
        text = (
            f"{now_s - self._began_s:6.2f} s  leader {leader:4} term {'-' if epoch is None else epoch!s:3}"
            f" {second.acked:6,} ok/s  p99 {second.p99_ms:7.1f} ms  waiting {second.waiting:5,}"
            f"  lag {second.lag:5,}  lost {second.lost:,}"
        )
        self._write(f"\r{text}\x1b[K" if self._moves else f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
