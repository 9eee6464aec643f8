"""A metrics page from rows: gathered in slices on the event loop, written as text in a thread.

    collector: yields families, and None now and then  --gather-->  [Family, ...]  --write-->  Prometheus text
               (on the loop, at most `SLICE_S` at a time)             (in a thread, letting go of the GIL often)

Rows are plain tuples while they are gathered; labels are joined and escaped only when they are written.

Source: Prometheus' exposition formats, text format 0.0.4.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

SLICE_S: Final = 0.002
"""Longest time the gathering keeps the loop, but for one step of a collector."""

_LINES_A_TURN: Final = 200
_LET_GO_S: Final = 0.0002

Number = int | float
Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are written."""


class Buckets(NamedTuple):
    """A histogram's state: counts by bucket, the last one above all bounds, and the sum of what was observed."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: Number


Row = tuple[Labels, Number | Buckets]


class Family(NamedTuple):
    """All series of one name. `kind` is counter, gauge or histogram; a histogram's rows hold `Buckets`."""

    name: str
    kind: str
    explanation: str
    rows: Iterable[Row]


Collector = Iterable[Family | None]
"""Yields what is ready, and None between two steps of work; every step is well below a millisecond."""


async def gather(collectors: Iterable[Collector]) -> list[Family]:
    """All families, in order; other callbacks of the loop run in between."""
    families: list[Family] = []
    deadline = time.monotonic() + SLICE_S
    for collector in collectors:
        for family in collector:
            if family is not None:
                families.append(family)
            if time.monotonic() > deadline:
                await asyncio.sleep(0)
                deadline = time.monotonic() + SLICE_S
    return families


def write(families: Iterable[Family], common: Labels = (), *, scope: str | None = None) -> bytes:
    """The families as text. Runs in a thread: lets others run now and then.

    Args:
        families: in this order.
        common: labels that every series gets, first.
        scope: OpenTelemetry's name of the meter: its label comes first, all others follow in the order of the alphabet.
    """
    pieces: list[str] = []
    lines: list[str] = []
    for family in families:
        for line in family_lines(family, common, scope):
            lines.append(line)
            if len(lines) == _LINES_A_TURN:
                pieces.append("\n".join(lines))
                lines.clear()
                time.sleep(_LET_GO_S)  # the loop's thread gets the GIL at once, not after the switch interval
    pieces.append("\n".join([*lines, ""]))
    return "\n".join(pieces).encode()


def family_lines(family: Family, common: Labels = (), scope: str | None = None) -> Iterator[str]:
    """The lines of one family; see `write`."""
    name = family.name
    yield f"# HELP {name} {escape(family.explanation)}"
    yield f"# TYPE {name} {family.kind}"
    for labels, value in family.rows:
        pairs: Iterable[tuple[str, str]] = (*common, *labels)
        if scope is not None:
            pairs = (("otel_scope_name", scope), *sorted(pairs))
        text = ",".join(f'{key}="{escape(label, quote=True)}"' for key, label in pairs)
        if isinstance(value, Buckets):
            yield from _histogram_lines(name, text, value)
        else:
            yield f"{name}{{{text}}} {number(value)}" if text else f"{name} {number(value)}"


def _histogram_lines(name: str, labels: str, buckets: Buckets) -> Iterator[str]:
    total = 0
    before = f"{labels}," if labels else ""
    for bound, count in zip((*buckets.bounds, math.inf), buckets.counts, strict=True):
        total += count
        yield f'{name}_bucket{{{before}le="{number(float(bound))}"}} {total}'
    among = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{among} {number(buckets.sum)}"
    yield f"{name}_count{among} {total}"


def escape(text: str, *, quote: bool = False) -> str:
    """A help text, or with `quote` a label's value, as the format wants it."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def number(value: Number) -> str:
    """A value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"
