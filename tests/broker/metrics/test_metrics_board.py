"""Board and alerts name only what the pages of a broker and a nameserver have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.refusal import Cause
from nameserver.core.routes import RouteTable
from nameserver.metrics import NameserverMetrics
from node.broker_assembly import Broker
from telemetry.metrics import Registry
from tests.broker.conftest import small_config
from tests.broker.metrics.test_metrics_page import GOLDEN, Shown, read_page, text_of

CONF = Path(__file__).parents[3] / "conf"
RULES = (CONF / "prometheus/rules.yml").read_text()
BOARD = json.loads((CONF / "grafana/ledgermq.json").read_text())

_SELECTOR = re.compile(r"\b([a-z_][a-z0-9_]*)(?:\{([^}]*)\})?(?:\[[^\]]*\])?")
_WORDS = {"sum", "max", "by", "rate", "increase", "histogram_quantile", "le", "up", "without"}
_LABELS = re.compile(r'(\w+)\s*[=!]~?\s*"')
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
_OF_A_RAFT_GROUP = {"ledgermq_replica_lag_entries": "peer", "ledgermq_replica_durable_lag_entries": "peer"}
_OF_PROMETHEUS = {"instance", "job", "le"}


def board_expressions() -> Iterator[str]:
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def rule_expressions() -> list[str]:
    return re.findall(r"^ +expr: (.+)$", RULES, re.MULTILINE)


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Metrics of an expression, with the labels by which they are chosen."""
    without_labels_of_by = re.sub(r"\bby \([^)]*\)", "", expression)
    for match in _SELECTOR.finditer(re.sub(r'"[^"]*"', '""', without_labels_of_by)):
        if match[1] not in _WORDS and "_" in match[1]:
            yield match[1], set(_LABELS.findall(match[2] or ""))


@pytest.fixture
async def pages(tmp_path: Path) -> dict[str, Any]:
    """What is on the page of a broker (what is only counted later included) and of a nameserver."""
    broker = Broker(small_config(tmp_path, bindAddress="127.0.0.1"))
    await broker.start()
    try:
        shown = read_page(await text_of(broker.metrics_page()))
    finally:
        await broker.close()
    nameserver = Registry()
    figures = NameserverMetrics(nameserver, RouteTable(0), lambda: 0)
    figures.request(105)
    figures.refusal(Cause.NOT_SUPPORTED)
    for name, found in read_page(nameserver.render()).items():
        shown.setdefault(name, found)
    for name, golden in GOLDEN.items():
        shown[name] = Shown(golden["type"], golden["help"], {tuple(labels) for labels in golden["labels"]})
    for name, label in _OF_A_RAFT_GROUP.items():
        shown[name] = Shown("gauge", "", {("broker", "cluster", "node", label)})
    return shown


async def test_board_and_alerts_choose_series_and_labels_that_are_there(pages: dict[str, Shown]) -> None:
    expressions = [*board_expressions(), *rule_expressions()]
    assert len(expressions) > 60
    for expression in expressions:
        for name, labels in selectors(expression):
            base = name if name in pages else _SUFFIX.sub("", name)
            assert base in pages, expression
            assert base == name or pages[base].kind == "histogram", expression
            known = {label for names in pages[base].label_sets for label in names} | _OF_PROMETHEUS
            assert labels <= known, expression


async def test_counters_are_shown_as_rates_and_gauges_are_not(pages: dict[str, Shown]) -> None:
    for expression in [*board_expressions(), *rule_expressions()]:
        for name, _ in selectors(expression):
            base = name if name in pages else _SUFFIX.sub("", name)
            is_counted = pages[base].kind != "gauge"
            assert is_counted == bool(re.search(rf"(rate|increase)\({name}\b", expression)), expression


def test_panels_do_not_overlap_and_each_has_a_title() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert panel["title"]
        assert not taken & cells
        taken |= cells
