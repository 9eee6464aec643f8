"""Families of series, and their text.

Rows are plain tuples while they are collected; labels are joined and escaped only when the text is written, which
happens in a thread: see `pages`.

Source: Prometheus' exposition formats, text format 0.0.4.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

Number = int | float
Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are written."""


class Buckets(NamedTuple):
    """A histogram's state: counts by bucket, the last one above all bounds, and the sum of the observed values."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: Number


class Distribution:
    """One histogram: observations by upper bound, and their sum.

    Args:
        bounds: finite upper bounds, rising.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: Number = 0.0

    def observe(self, value: Number, count: int = 1) -> None:
        """Count `value` `count` times; a value equal to a bound is in the bucket of that bound."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Number of observations so far."""
        return sum(self.counts)

    def buckets(self) -> Buckets:
        """Return bounds, counts and sum."""
        return Buckets(self.bounds, tuple(self.counts), self.sum)


Row = tuple[Labels, Number | Buckets]


class Family(NamedTuple):
    """All series of one name. `kind` is counter, gauge or histogram; a histogram's rows have `Buckets`.

    Rows may be produced lazily; None stands for a step of work that produced no row.
    """

    name: str
    kind: str
    explanation: str
    rows: Iterable[Row | None]


Collector = Iterable[Family | None]
"""Yields families that are complete, and None between two steps of work; a step takes well below a millisecond."""


class FamilyPart(NamedTuple):
    """Some rows of a family; its first rows have `is_first`."""

    family: Family
    is_first: bool
    rows: list[Row]


class _Form(NamedTuple):
    """The text for labels of these names: `%s` for each value, and the order of the values."""

    text: str
    order: tuple[int, ...]
    quotes: int
    backslashes: int


class TextWriter:
    """Writes families as text.

    Args:
        common: labels that every series gets, first.
        scope: OpenTelemetry's name of the meter: its label comes first, all others follow in alphabetical order.
    """

    def __init__(self, common: Labels = (), scope: str | None = None) -> None:
        self._common = common
        self._scope = scope
        self._forms: dict[tuple[str, ...], _Form] = {}  # bounded: the names of labels come from the code, not from data

    def write(self, parts: Iterable[FamilyPart]) -> bytes:
        """Return the parts as lines of text."""
        lines: list[str] = []
        for family, is_first, rows in parts:
            if is_first:
                lines.append(f"# HELP {family.name} {escape(family.explanation)}\n# TYPE {family.name} {family.kind}")
            lines += [self._line(family.name, labels, value) for labels, value in rows]
        lines.append("")
        return "\n".join(lines).encode()

    def _line(self, name: str, labels: Labels, value: Number | Buckets) -> str:
        text = self._labels(labels)
        if isinstance(value, Buckets):
            return "\n".join(_histogram_lines(name, text, value))
        return f"{name}{{{text}}} {number(value)}" if text else f"{name} {number(value)}"

    def _labels(self, labels: Labels) -> str:
        names = tuple([name for name, _ in labels])
        form = self._forms.get(names)
        if form is None:
            form = self._forms[names] = self._form(names)
        text = form.text % tuple([labels[place][1] for place in form.order])
        if text.count('"') == form.quotes and text.count("\\") == form.backslashes and "\n" not in text:
            return text
        return form.text % tuple([escape(labels[place][1], quote=True) for place in form.order])

    def _form(self, names: tuple[str, ...]) -> _Form:
        fixed = [(name, escape(value, quote=True).replace("%", "%%"), -1) for name, value in self._common]
        pairs = fixed + [(name, "%s", place) for place, name in enumerate(names)]
        if self._scope is not None:
            pairs = [("otel_scope_name", escape(self._scope, quote=True), -1), *sorted(pairs)]
        text = ",".join(f'{name}="{value}"' for name, value, _ in pairs)
        order = tuple(place for _, _, place in pairs if place >= 0)
        return _Form(text, order, text.count('"'), text.count("\\"))


def _histogram_lines(name: str, labels: str, buckets: Buckets) -> Iterator[str]:
    total = 0
    before = f'{name}_bucket{{{labels},le="' if labels else f'{name}_bucket{{le="'
    for bound, count in zip(_bound_texts(tuple(buckets.bounds)), buckets.counts, strict=True):
        total += count
        yield f'{before}{bound}"}} {total}'
    among = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{among} {number(buckets.sum)}"
    yield f"{name}_count{among} {total}"


@cache
def _bound_texts(bounds: tuple[float, ...]) -> list[str]:
    return [number(float(bound)) for bound in (*bounds, math.inf)]


def escape(text: str, *, quote: bool = False) -> str:
    """Escape a help text, or with `quote` a label's value, as the format requires."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def number(value: Number) -> str:
    """Return a value in the form that Prometheus reads."""
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    if math.isnan(value):
        return "NaN"
    return "+Inf" if value > 0 else "-Inf"
