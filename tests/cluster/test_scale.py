"""Many connections, many topics: the benchmarks run, find every topic, and a connection costs what it may."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.limits import TEST_S

KB_PER_CONNECTION_MAX = 30
"""300 MB for 10,000."""

pytestmark = pytest.mark.cluster


def run(*words: str) -> dict[str, Any]:
    """What a benchmark prints; its bounds on time are not this test's business."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=TEST_S)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_idle_client_costs_a_broker_little_memory() -> None:
    found = run("benchmarks.idle_connections", "--connections", "700", "--rounds", "1")
    assert found["connections"] == 700
    assert found["kb_per_connection"] < KB_PER_CONNECTION_MAX, found


def test_many_topics_are_made_registered_and_routed() -> None:
    calls = run("benchmarks.many_topics", "--topics", "300", "--java-brokers", "1")["calls_ms"]
    counts = {kind: spread["count"] for kind, spread in calls.items()}
    assert counts["create"] == counts["route"] == 300
    assert counts["register"] == 3
