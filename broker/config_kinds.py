"""Kinds of values that only a broker's keys have."""

import enum
import re

from ledgermq.remoting.addresses import is_port
from ledgermq.remoting.config_key import INT, ValueKind, checked, converted, one_of

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN = frozenset({"cluster", "node_id", "node_type", "aggregation", "otel_scope_name", "le"})


class MetricsExporter(enum.StrEnum):
    """How metrics leave the broker; the page of the health port is there in any case."""

    DISABLE = "DISABLE"
    PROM = "PROM"


def _read_exporter(text: str) -> MetricsExporter:
    if text not in MetricsExporter.__members__:
        raise ValueError(f"is {text}: only PROM is supported here; an OpenTelemetry collector can scrape it")
    return MetricsExporter[text]


def _read_labels(text: str) -> tuple[tuple[str, str], ...]:
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.partition(":")
        if not colon or ":" in value or not value:
            raise ValueError(f"has {part!r}, not name:value")
        if not _LABEL.fullmatch(name) or name.startswith("__"):
            raise ValueError(f"has {name!r}, which is not a valid label name")
        if name in _TAKEN or name in labels:
            raise ValueError(f"has {name!r}, which the broker's own metrics use")
        labels[name] = value
    return tuple(labels.items())


def _read_addresses(text: str) -> tuple[str, ...]:
    places = [part.strip() for part in text.split(";") if part.strip()]
    for place in places:
        host, _, number = place.rpartition(":")
        if not host or not is_port(number):
            raise ValueError(f"has {place!r}, not host:port")
        if places.count(place) > 1:
            raise ValueError(f"has {place!r} twice")
    return tuple(places)


METRICS_EXPORTER = converted(one_of("DISABLE", "OTLP_GRPC", "PROM", "LOG"), _read_exporter, str)
METRIC_LABELS = ValueKind("text", _read_labels, lambda labels: ",".join(f"{name}:{value}" for name, value in labels))
"""`name:value,name:value`; empty parts are left out."""
ADDRESSES = ValueKind("text", _read_addresses, ";".join)
"""`host:port;host:port`."""
PERMISSION = checked(INT, lambda bits: bits in (0, 2, 4, 6), "not 2 (write), 4 (read), 6 (both) or 0")
REGISTER_INTERVAL = converted(INT, lambda number: max(10_000, min(number, 60_000)), int)
"""RocketMQ limits this time silently to [10000, 60000]; so do we."""
