"""The live views of drills."""

import io
import os

import pytest

from chaos.drills.record import DrillRecord
from chaos.fabric.contract import ClusterView, NodeView
from cli.drill import _display
from cli.live import LineDisplay, ScreenDisplay, progress_bar, sparkline
from node.errors import UsageError

VIEW = ClusterView((NodeView("n0", "h:1", "master", "up", True), NodeView("n1", "h:2", "down", "down")), "namesrv")


def test_a_bar_and_a_line_of_blocks_show_shares() -> None:
    assert [progress_bar(share, 4) for share in (-1.0, 0.5, 7.0)] == ["[....]", "[##..]", "[####]"]
    assert sparkline([1, 4, 8, 0], 3) == "▄█ "
    assert sparkline([], 3) == ""


def test_without_a_terminal_there_is_one_plain_line_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    display = LineDisplay(stream, 10.0)
    for _ in range(3):
        display.sampled(DrillRecord(0.0), VIEW)
    display.event("kill n1: gone")
    first, second = stream.getvalue().splitlines()
    assert "leader n0" in first and "lost 0" in first and "\x1b" not in stream.getvalue()
    assert second.endswith("kill n1: gone")


def test_the_screen_has_nodes_and_events_and_the_terminal_is_given_back_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: (60, 12))
    stream = io.StringIO()
    display = ScreenDisplay(stream, "kill-leader", 10.0)
    for number in range(30):
        display.event(f"event {number}")
    display.sampled(DrillRecord(0.0), VIEW)
    picture = stream.getvalue().rsplit("\x1b[H", 1)[1]
    rows = picture.removesuffix("\x1b[J").split("\r\n")
    assert len(rows) <= 11 and all(len(row.removesuffix("\x1b[K")) <= 60 for row in rows)
    assert "kill-leader" in rows[0] and rows[-1].endswith("event 29\x1b[K")
    assert any(row.startswith("n1") and "down" in row for row in rows)
    display.close()
    display.close()
    assert stream.getvalue().count("\x1b[?1049l") == 1
    assert stream.getvalue().endswith("event 29\n")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_the_line_of_the_second_does_not_wrap_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
    stream = _Terminal()
    LineDisplay(stream, 10.0).sampled(DrillRecord(0.0), VIEW)
    line = stream.getvalue().removeprefix("\r").removesuffix("\x1b[K")
    assert len(line) < columns
    assert "leader n0" in line and ("lost 0" in line) == (columns > 60)


def test_watching_without_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with pytest.raises(UsageError, match="--watch needs a terminal"):
        _display(object(), is_watched=True)  # type: ignore[arg-type]
