"""Metrics: numbers that the hot path updates, written as Prometheus text at each scrape.

    counter.add(n)  gauge.set(x)  histogram.observe(s)      registry.render()
    one int or float addition each               --->   text format 0.0.4, once a scrape

A series is looked up by its labels once, when it is made, and then kept by the code that counts: there is no look-up
per event. Numbers that a node already counts as plain ints are read by a function at the scrape. Use it on the event
loop's thread; it is not thread-safe.

Source: Prometheus' exposition formats, text format 0.0.4.
"""

import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from telemetry.families import Distribution, Number, escape, number

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Bucket bounds in seconds for durations from 0.1 ms to 5 s: flushes, loop lag, answers."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SERIES_MAX = 10_000


class MetricError(ValueError):
    """A metric was declared in a way that Prometheus would refuse; the text has the name and the reason."""


class Counter:
    """A number that only grows."""

    __slots__ = ("_read", "_value")
    kind = "counter"

    def __init__(self) -> None:
        self._value: Number = 0
        self._read: Callable[[], Number] | None = None

    def add(self, count: Number = 1) -> None:
        """Add `count`, which must be 0 or more."""
        self._value += count

    def function(self, read: Callable[[], Number]) -> None:
        """Read the value by `read` at each scrape, for numbers that are counted elsewhere."""
        self._read = read

    @property
    def value(self) -> Number:
        """The present value; NaN when the function that reads it fails."""
        return self._value if self._read is None else _read_safely(self._read)

    def samples(self) -> Iterator[tuple[str, str, Number]]:
        """Yield `(suffix of the name, further label, value)` of each line."""
        yield "", "", self.value


class Gauge(Counter):
    """A number that goes up and down."""

    __slots__ = ()
    kind = "gauge"

    def set(self, value: Number) -> None:
        """Replace the value."""
        self._value = value


class Histogram(Distribution):
    """A histogram of the registry; values are in the unit of its name."""

    __slots__ = ()
    kind = "histogram"

    def samples(self) -> Iterator[tuple[str, str, Number]]:
        """Yield `(suffix of the name, further label, value)` of each line; buckets are cumulative."""
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield "_bucket", f'le="{number(float(bound))}"', total
        yield "_sum", "", self.sum
        yield "_count", "", total


M = TypeVar("M", "Counter", "Gauge", "Histogram")


class _Family:
    """All series of one name."""

    def __init__(self, kind: str, explanation: str, label_names: tuple[str, ...]) -> None:
        self.kind = kind
        self.explanation = explanation
        self.label_names = label_names
        self.series: dict[str, Counter | Histogram] = {}


class Registry:
    """The metrics of one process.

    Args:
        labels: put on every series, such as `{"cluster": "DefaultCluster", "node": "n0"}`.
        series_max: largest number of label sets of a family; further ones are counted in
            `ledgermq_metric_series_dropped_total` and not shown.
    """

    def __init__(self, labels: Mapping[str, str] | None = None, *, series_max: int = _SERIES_MAX) -> None:
        self._labels = dict(labels or {})
        self._series_max = series_max
        self._families: dict[str, _Family] = {}
        self._dropped = self.counter(
            "ledgermq_metric_series_dropped_total", "Label sets not shown because their metric has too many."
        )

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of every series."""
        return self._labels

    def counter(self, name: str, explanation: str, labels: Mapping[str, str] | None = None) -> Counter:
        """Return the counter of that name and label set, made at the first call. Its name should end in `_total`.

        Raises:
            MetricError: a name that Prometheus refuses, or that is in use with another type or other label names.
        """
        return self._series(name, explanation, labels, Counter)

    def gauge(self, name: str, explanation: str, labels: Mapping[str, str] | None = None) -> Gauge:
        """Return the gauge of that name and label set; raises what `counter` raises."""
        return self._series(name, explanation, labels, Gauge)

    def histogram(
        self,
        name: str,
        explanation: str,
        labels: Mapping[str, str] | None = None,
        *,
        bounds: Sequence[float] = LATENCY_SECONDS,
    ) -> Histogram:
        """Return the histogram of that name and label set; raises what `counter` raises.

        `bounds` are finite upper bounds, rising.
        """
        if not bounds or list(bounds) != sorted(set(bounds)) or not all(map(math.isfinite, bounds)):
            raise MetricError(f"histogram {name}: bounds {list(bounds)} are not finite and strictly rising")
        return self._series(name, explanation, labels, lambda: Histogram(bounds))

    def render(self) -> str:
        """Return all series as Prometheus text, families and series in the order in which they were made."""
        lines: list[str] = []
        for name, family in self._families.items():
            lines.append(f"# HELP {name} {escape(family.explanation)}")
            lines.append(f"# TYPE {name} {family.kind}")
            for labels, metric in family.series.items():
                for suffix, further, value in metric.samples():
                    joined = ",".join(filter(None, (labels, further)))
                    lines.append(f"{name}{suffix}{'{' + joined + '}' if joined else ''} {number(value)}")
        lines.append("")
        return "\n".join(lines)

    async def page(self) -> AsyncIterator[bytes]:
        """Yield the same as pieces of a page for `HealthServer`."""
        yield self.render().encode()

    def _series(self, name: str, explanation: str, labels: Mapping[str, str] | None, make: Callable[[], M]) -> M:
        all_labels = self._labels | dict(labels or {})
        metric = make()
        family = self._family(name, explanation, metric.kind, tuple(all_labels))
        text = ",".join(f'{key}="{escape(value, quote=True)}"' for key, value in all_labels.items())
        if (known := family.series.get(text)) is not None and type(known) is type(metric):
            return known
        if len(family.series) >= self._series_max:
            self._dropped.add()
            return metric
        family.series[text] = metric
        return metric

    def _family(self, name: str, explanation: str, kind: str, label_names: tuple[str, ...]) -> _Family:
        family = self._families.get(name)
        if family is None:
            _check_names(name, label_names)
            family = self._families[name] = _Family(kind, explanation, label_names)
        elif (family.kind, family.label_names) != (kind, label_names):
            was = f"a {family.kind} with labels {family.label_names}"
            raise MetricError(f"metric {name} is {was}, asked for as a {kind} with labels {label_names}")
        return family


def _check_names(name: str, label_names: tuple[str, ...]) -> None:
    if not _NAME.fullmatch(name):
        raise MetricError(f"metric name {name!r} is not of the form {_NAME.pattern}")
    for label in label_names:
        if not _LABEL.fullmatch(label) or label.startswith("__") or label == "le":
            raise MetricError(f"metric {name}: label name {label!r} is reserved or not of the form {_LABEL.pattern}")


def _read_safely(read: Callable[[], Number]) -> Number:
    # A value that cannot be read (a log being closed) must not make the whole page fail.
    try:
        return read()
    except Exception:
        return math.nan
