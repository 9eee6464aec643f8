"""Values of the keys about metrics; see `node.values`."""

import re

from broker.config import MetricsExporter
from node.values import ValueRefusedError

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN = frozenset({"cluster", "node_id", "node_type", "aggregation", "otel_scope_name", "le"})


def metrics_exporter(text: str) -> MetricsExporter:
    """DISABLE or PROM.

    Raises:
        ValueRefusedError: a way out that is not here.
    """
    if text not in MetricsExporter.__members__:
        raise ValueRefusedError(f"is {text}: only PROM is served here; OpenTelemetry's collector can scrape it")
    return MetricsExporter[text]


def metric_labels(text: str) -> tuple[tuple[str, str], ...]:
    """`name:value,name:value`; empty parts are left out.

    Raises:
        ValueRefusedError: a part is no such pair, or names a label that is taken or that Prometheus refuses.
    """
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.partition(":")
        if not colon or ":" in value or not value:
            raise ValueRefusedError(f"has {part!r}, not name:value")
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise ValueRefusedError(f"has {name!r}, which is no name of a label")
        if name in _TAKEN or name in labels:
            raise ValueRefusedError(f"has {name!r}, which is taken")
        labels[name] = value
    return tuple(labels.items())


def show_metric_labels(labels: tuple[tuple[str, str], ...]) -> str:
    """The labels as `metric_labels` reads them."""
    return ",".join(f"{name}:{value}" for name, value in labels)
