"""What is shown on standard error while the demo or a drill runs: lines, or with `--watch` the whole screen."""

import shutil
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, TextIO

from chaos.drills.record import DrillRecord
from chaos.fabric.contract import ClusterView
from cli.output import drop

_INTERVAL_S = 1.0
_BAR_WIDTH = 20
_STREAM_INTERVAL_S, _STREAM_BAR_WIDTH = 2.0, 24
_HISTORY = 240
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the terminal's alternate screen, without a cursor


class EventLines:
    """Events, each on a line; on a terminal another line below them shows the present state.

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

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # nobody reads any more; the run and its verdict continue
            drop(self._stream)


class StreamDisplay(EventLines):
    """The progress of the demo's stream.

    Args:
        total: number of messages.
    """

    def __init__(self, stream: TextIO, total: int) -> None:
        super().__init__(stream)
        self._total = total
        self._shown_s = self._began_s

    def show(self, acked: int, consumed: int) -> None:
        """Show the present state; cheap to call often."""
        now_s = time.monotonic()
        if not self._moves and now_s - self._shown_s < _STREAM_INTERVAL_S:
            return
        rate = acked / max(now_s - self._began_s, 1e-9)
        bar = progress_bar(acked / self._total, _STREAM_BAR_WIDTH)
        text = f"{bar} acknowledged {acked:,} of {self._total:,}  consumed {consumed:,}  {rate:,.0f}/s"
        self._write(f"\r{text}\x1b[K" if self._moves else f"{text}\n")
        self._shown_s = now_s


class LineDisplay(EventLines):
    """The figures of the last second; with a progress bar on a terminal.

    Args:
        expected_s: expected length of the run in seconds, if known.
    """

    def __init__(self, stream: TextIO, expected_s: float) -> None:
        super().__init__(stream)
        self._expected_s = expected_s

    def sampled(self, record: DrillRecord, view: ClusterView | None) -> None:
        """Print leader, term, rate, p99, lag and losses, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._shown_s < _INTERVAL_S:
            return
        self._shown_s = now_s
        text = f"{now_s - self._began_s:6.2f} s  {_figures(record, view, now_s)}"
        if not self._moves:
            self._write(f"{text}\n")
            return
        bar = progress_bar((now_s - self._began_s) / self._expected_s, _BAR_WIDTH // 2)
        width = shutil.get_terminal_size().columns - 1
        line = f"{bar} {text}" if len(bar) + 1 + len(text) <= width else " ".join(text.split())
        self._write(f"\r{line[:width]}\x1b[K")  # a wrapped line cannot be redrawn

    def close(self) -> None:
        """Do nothing."""


class ScreenDisplay:
    """The whole terminal, redrawn twice a second.

    Args:
        stream: a terminal.
        title: of the run.
        expected_s: expected length in seconds, if known.
    """

    def __init__(self, stream: TextIO, title: str, expected_s: float) -> None:
        self._stream = stream
        self._title = title
        self._expected_s = expected_s
        self._began_s = time.monotonic()
        self._events: deque[str] = deque(maxlen=_HISTORY)
        self._rates: deque[int] = deque(maxlen=_HISTORY)
        self._is_open = True
        stream.write(_ENTER)

    def event(self, text: str) -> None:
        """Keep the event for the next picture."""
        self._events.append(f"{time.monotonic() - self._began_s:7.2f} s  {text}")

    def sampled(self, record: DrillRecord, view: ClusterView | None) -> None:
        """Redraw the screen with the new sample, at most twice a second."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._began_s
        self._rates.append(record.second(now_s).acked)
        width, height = shutil.get_terminal_size()
        bar = progress_bar(elapsed_s / self._expected_s, _BAR_WIDTH)
        head = [f"{self._title}   {bar} {elapsed_s:.0f} s", "", _figures(record, view, now_s), ""]
        lines = [*head, *_node_rows(view), "", f"ok/s  {sparkline(self._rates, width - 6)}", "", *self._events]
        if len(lines) > height - 1:  # the last events
            fixed = len(lines) - len(self._events)
            lines = lines[:fixed] + list(self._events)[fixed - height + 1 :]
        text = "\r\n".join(f"{line[:width]}\x1b[K" for line in lines[: height - 1])
        self._stream.write(f"\x1b[H{text}\x1b[J")
        self._stream.flush()

    def close(self) -> None:
        """Restore the terminal's content, and print the events below it."""
        if self._is_open:
            self._is_open = False
            self._stream.write(_LEAVE + "".join(f"{event}\n" for event in tuple(self._events)))
            self._stream.flush()


LiveDisplay = LineDisplay | ScreenDisplay


def progress_bar(share: float, width: int) -> str:
    """Return a bar of `width` characters, filled to a share from 0 to 1; larger shares count as 1."""
    done = round(width * min(max(share, 0.0), 1.0))
    return f"[{'#' * done}{'.' * (width - done)}]"


def sparkline(values: Sequence[int] | deque[int], width: int) -> str:
    """Return the last `width` values as blocks; the highest value has a full block."""
    last = list(values)[-max(width, 1) :]
    highest = max(last, default=0) or 1
    return "".join(_BLOCKS[-(-value * (len(_BLOCKS) - 1) // highest)] for value in last)


def _figures(record: DrillRecord, view: ClusterView | None, now_s: float) -> str:
    second = record.second(now_s)
    leader = (view.leader if view is not None else None) or "none"
    epoch = view.epoch if view is not None and view.epoch is not None else record.term
    return (
        f"leader {leader:4} term {'-' if epoch is None else epoch!s:3}"
        f" {second.acked:6,} ok/s  p99 {second.p99_ms:7.1f} ms  waiting {second.waiting:5,}"
        f"  lag {second.lag:5,}  lost {second.lost:,}"
    )


def _node_rows(view: ClusterView | None) -> list[str]:
    if view is None:
        return ["the cluster does not answer"]
    marks = {None: "", True: "in sync", False: "behind"}
    return [
        f"{node.name:6} {node.address:21} {node.state:7} {node.role:8} {marks[node.in_sync]}" for node in view.nodes
    ]
