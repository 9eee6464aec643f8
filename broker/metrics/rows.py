"""Makes families from counts, with label names for the values of each key."""

from collections.abc import Iterable

from broker.counting.tallies import Counts, Distributions, Key
from telemetry.families import Buckets, Family, Labels, Number, Row

COUNTER_HELP = "default view for counter."
GAUGE_HELP = "default view for gauge."
_OVERFLOW: Labels = (("otel_metric_overflow", "true"),)


def labelled(names: tuple[str, ...], key: Key) -> Labels:
    """Return the labels of a key; an empty key of a metric with labels means the counts beyond the limit."""
    return tuple(zip(names, map(str, key), strict=True)) if key or not names else _OVERFLOW


def gauge(name: str, rows: Iterable[Row | None]) -> Family:
    """Return a gauge of RocketMQ's."""
    return Family(name, "gauge", GAUGE_HELP, rows)


def single(name: str, value: Number, labels: Labels = ()) -> Family:
    """Return a gauge with one series."""
    return gauge(name, [(labels, value)])


def counter(name: str, label_names: tuple[str, ...], counts: Counts, more: Labels = ()) -> Family:
    """Return a counter of RocketMQ's."""
    return Family(name, "counter", COUNTER_HELP, ((labelled(label_names, k) + more, v) for k, v in counts.items()))


def histogram(
    name: str, explanation: str, label_names: tuple[str, ...], rows: Distributions | Iterable[tuple[Key, Buckets]]
) -> Family:
    """Return a histogram of RocketMQ's."""
    pairs = rows.items() if isinstance(rows, Distributions) else rows
    return Family(name, "histogram", explanation, ((labelled(label_names, key), value) for key, value in pairs))
