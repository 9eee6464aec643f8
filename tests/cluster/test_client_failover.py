"""Failovers as RocketMQ's unmodified Java and Go clients feel them: counts and an order; the driver shows the times."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.limits import COMPILE_LITTLE, SLOWNESS

DRIVER = Path(__file__).resolve().parents[2] / "benchmarks" / "client_failover" / "drive.py"
TAKEN_OVER_S = 40.0 * SLOWNESS
"""Most seconds from a send to its delivery while a consumer dies: less than the 60 s for which RocketMQ keeps locks."""
RATE = 40
FAILED_MAX = RATE
"""Most sends that fail of those of a second: none where elections take their usual time, all of two seconds, in which
the node that led is dead, where producers know no other."""
REPORTED_EVERY_S = 5
"""Java's and Go's consumers report what they have read so often."""
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.java,
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in ("mvn", "java", "go")), reason="Java 17, Maven and Go are not here"
    ),
]


def drive(clients: str, *words: str) -> dict[str, dict[str, Any]]:
    """What the clients felt, by fault and client: two consumers of each group, which read in order.

    They are told of followers at once, not after 30 s.
    """
    words = (*words, "--rounds", "1", "--warm", "4", "--rate", str(RATE), "--consumers", "2", "--orderly")
    words += ("--conf", "spreadSendsAfter=0", "--clients", clients)
    environment = {**os.environ, "JDK_JAVA_OPTIONS": COMPILE_LITTLE}
    done = subprocess.run([sys.executable, str(DRIVER), *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["faults"]
    return found


def check(fault: str, client: str, its: dict[str, Any]) -> None:
    """Few sends failed; all was delivered, in order; twice only what was sent again because its answer was lost.

    A dead consumer's last messages are read again by the next one, since it has not said that it has them. So are those
    of the last seconds, since a client last said what it has read, when its route has lacked a broker name for a while:
    it drops the queues there, and its report of what it has read goes to the dead machine.
    """
    assert its["failed"]["max"] < FAILED_MAX, (fault, client, its)
    assert (its["undelivered"], its["disordered"]) == (0, 0), (fault, client, its)
    assert its["twice_without_loss"] == 0, (fault, client, its)
    again_max = REPORTED_EVERY_S * RATE if fault == "dead" else 0
    assert fault == "consumer" or its["read_again"] <= again_max, (fault, client, its["again"])


def test_a_leader_that_dies_stands_still_or_hands_over_and_a_dead_consumer() -> None:
    felt = drive("java,go", "--fault", "kill,pause,transfer,consumer", "--paused", "5")
    for fault, by_client in felt.items():
        for client, its in by_client.items():
            check(fault, client, its)
    for client, its in felt["consumer"].items():
        assert its["delivery_s"]["max"] < TAKEN_OVER_S, (client, its)


def test_a_dead_machine_of_three_groups_with_the_first_nameserver_dead() -> None:
    """Go tries four queues: with three on each broker name, as topics have here, one of them is on another machine."""
    for client, its in drive("java,go", "--fault", "dead", "--dead", "4", "--dead-nameserver")["dead"].items():
        check("dead", client, its)
