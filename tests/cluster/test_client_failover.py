"""Failovers as RocketMQ's unmodified Java client feels them: a count and an order; times are for the driver itself."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.limits import SLOWNESS

DRIVER = Path(__file__).resolve().parents[2] / "benchmarks" / "client_failover" / "drive.py"
TAKEN_OVER_S = 40.0 * SLOWNESS
"""Most seconds from a send to its delivery while a consumer dies: less than the 60 s for which RocketMQ keeps locks."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.java,
    pytest.mark.skipif(
        shutil.which("mvn") is None or shutil.which("java") is None, reason="Java 17 and Maven are not here"
    ),
]


def drive(fault: str) -> dict[str, Any]:
    """What the Java client felt of one fault."""
    words = [sys.executable, str(DRIVER), "--fault", fault, "--rounds", "1", "--clients", "java"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["java"]
    return found


def test_a_hand_over_costs_the_java_client_no_send() -> None:
    felt = drive("transfer")
    assert felt["failed"]["max"] == 0, felt
    assert felt["undelivered"] == 0, felt


def test_a_dead_java_consumers_queues_are_taken_over_in_order() -> None:
    felt = drive("consumer")
    assert (felt["undelivered"], felt["disordered"]) == (0, 0), felt
    assert felt["delivery_s"]["max"] < TAKEN_OVER_S, felt
