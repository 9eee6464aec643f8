"""A line chart as SVG text."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 900
HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 20, 50, 60
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
_TICKS: Final = 5
_LINES_MAX: Final = len(_COLOURS)
_NAMES_A_ROW: Final = 4
_NAME_LENGTH: Final = 32


def line_chart(title: str, unit: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return a chart of values over time; the lines with the largest sums are drawn, 8 at most.

    Args:
        title: above the chart.
        unit: of the values, beside the axis.
        lines: by name, pairs of a time (seconds since 1970) and a value of 0 or more, times rising.
    """
    drawn = sorted(lines, key=lambda name: (-sum(value for _, value in lines[name]), name))[:_LINES_MAX]
    times = [at for name in drawn for at, _ in lines[name]] or [0]
    first, last = min(times), max(times)
    top = max((value for name in drawn for _, value in lines[name]), default=0.0) or 1.0
    width, height = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return round(_LEFT + width * (at - first) / max(last - first, 1), 1)

    def y(value: float) -> float:
        return round(_TOP + height * (1 - value / top), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)} ({escape(unit)})</text>',
    ]
    for tick in range(_TICKS + 1):
        value, at = top * tick / _TICKS, first + (last - first) * tick / _TICKS
        moment = datetime.fromtimestamp(at, UTC)
        parts += [
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{y(value) + 4}" font-size="11" text-anchor="end">{value:,.6g}</text>',
            f'<text x="{x(at)}" y="{HEIGHT - _BOTTOM + 18}" font-size="11" text-anchor="middle">'
            f"{moment:%m-%d %H:%M}</text>",
        ]
    for number, name in enumerate(drawn):
        points = " ".join(f"{x(at)},{y(value)}" for at, value in lines[name])
        colour, row, column = _COLOURS[number], *divmod(number, _NAMES_A_ROW)
        place = f'x="{_LEFT + column * (width // _NAMES_A_ROW)}" y="{34 + 13 * row}"'
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<circle cx="{x(lines[name][-1][0])}" cy="{y(lines[name][-1][1])}" r="2.5" fill="{colour}"/>',
            f'<text {place} font-size="11" fill="{colour}">{escape(name[:_NAME_LENGTH])}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
