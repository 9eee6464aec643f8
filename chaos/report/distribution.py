"""The distribution of RTOs as inline SVG: for each time the share of faults whose RTO was at most that."""

import math
from collections.abc import Sequence

_WIDTH, _HEIGHT = 1000, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 980, 10, 140
_MARKS_MS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000)
DLEDGER_MS = 6_300
"""Time in ms in which RocketMQ's DLedger, with default settings, elects a leader after a kill; drawn for comparison."""


def distribution(rtos_ms: Sequence[float]) -> str:
    """Return the SVG element; times are on a logarithmic scale, from 10 ms to the longest RTO or DLedger's time."""
    longest_ms = max(DLEDGER_MS, *rtos_ms)

    def x(ms: float) -> float:
        share = math.log(max(ms, _MARKS_MS[0]) / _MARKS_MS[0]) / math.log(1.1 * longest_ms / _MARKS_MS[0])
        return _LEFT + (_RIGHT - _LEFT) * share

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share

    points = [f"{_LEFT},{_BOTTOM}"]
    for number, ms in enumerate(sorted(rtos_ms)):
        points += [f"{x(ms):.1f},{y((number + part) / len(rtos_ms)):.1f}" for part in (0, 1)]
    points.append(f"{_RIGHT},{_TOP}")
    marks = [
        f'<text class="tick" x="{x(ms):.1f}" y="{_BOTTOM + 18}">{f"{ms} ms" if ms < 1000 else f"{ms // 1000} s"}</text>'
        for ms in _MARKS_MS
        if ms <= longest_ms
    ]
    scale = f'x1="{x(DLEDGER_MS):.1f}" x2="{x(DLEDGER_MS):.1f}" y1="{_TOP}" y2="{_BOTTOM}"'
    return (
        f'<svg id="distribution" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="distribution of RTOs">'
        f'<text class="axis" x="{_LEFT - 8}" y="{_TOP + 10}">100 %</text>'
        f'<text class="axis" x="{_LEFT - 8}" y="{_BOTTOM}">0 %</text>'
        f'<line class="base" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
        f'<g class="scale"><line {scale}/><text class="axis" x="{x(DLEDGER_MS) - 4:.1f}" y="{_TOP + 24}">'
        "DLedger&#39;s defaults</text></g>"
        f'<polyline class="acks" points="{" ".join(points)}"><title>share of faults with at most this RTO</title>'
        f"</polyline>{''.join(marks)}</svg>"
    )
