"""RocketMQ's released Go client (v2.1.2) on clusters of ours, in each way of use, and through the death of a leader."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Cluster
from tests.limits import STRANGER_WAIT_S

Start = Callable[..., Cluster]

SCENARIOS = ("admin", "broadcast", "delay", "orderly", "send", "share", "transaction")
CHECK_BACK = ("transactionCheckInterval=1000", "transactionTimeOut=1000", "transactionCheckMax=200")

pytestmark = pytest.mark.cluster


def start_for_go(start: Start, mode: str) -> Cluster:
    """A cluster that asks about open transactions every second, and not in vain soon."""
    return start("--mode", mode, *(word for setting in CHECK_BACK for word in ("--conf", setting)))


@contextlib.contextmanager
def running(program: Path, cluster: Cluster, home: Path, *scenarios: str) -> Iterator[subprocess.Popen[str]]:
    """The program on this cluster, ended with the block; broadcasting groups keep their offsets under `home`."""
    leader = cluster.nodes("master")[0]["address"]
    words = [str(program), "-namesrv", cluster.namesrv, "-broker", leader, *scenarios]
    environment, pipe = {**os.environ, "HOME": str(home)}, subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def answer_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the program saw, once all its scenarios have finished."""
    output, _ = process.communicate("the leader is dead\n", STRANGER_WAIT_S)
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert process.returncode == 0, {name: seen.get("error") for name, seen in answer.items()}
    return answer


@pytest.mark.parametrize("mode", ["standalone", "raft"])
def test_the_go_client_sends_and_consumes_in_every_way(
    go_client: Path, start: Start, tmp_path: Path, mode: str
) -> None:
    with running(go_client, start_for_go(start, mode), tmp_path, *SCENARIOS) as process:
        seen = answer_of(process)
    assert seen["send"]["acknowledged"] == {"sync": 20, "async": 20, "batch": 20, "oneway": 0}
    ways = ("sync", "async", "batch", "oneway")
    assert sorted(set(seen["send"]["read"])) == sorted(f"{way}-{number}" for way in ways for number in range(20))
    assert seen["send"]["wrong"] == []
    assert all(share > 0 for share in seen["share"]["read"])
    assert seen["broadcast"]["read"] == [20, 20]
    assert seen["orderly"]["by_key"] == {
        f"key-{key}": [str(number) for number in range(key, 100, 5)] for key in range(5)
    }
    assert seen["orderly"]["queues_read_twice_at_once"] == 0
    assert seen["delay"]["late_ms"]["level-1"] >= 990
    assert seen["delay"]["late_ms"]["after-1500-ms"] >= 1490
    assert sorted(seen["transaction"]["read"]) == ["asked-commit", "commit"]
    assert seen["transaction"]["asked"].keys() == {"asked-commit", "asked-rollback"}
    by_both_followers = 2 if mode == "raft" else 1
    assert (seen["admin"]["queues"], seen["admin"]["groups"] > 0) == (3 * by_both_followers, True)


def test_a_hand_over_costs_the_go_client_no_send(
    go_client: Path, start: Start, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The node that led follows now, and passes sends on."""
    cluster = start_for_go(start, "raft")
    with running(go_client, cluster, tmp_path, "handover") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hand over now\n"
        cluster.cluster("transfer", cluster.nodes("slave")[0]["name"])
        seen = answer_of(process)["handover"]
    record_property("gap_ms", seen["gap_ms"])
    assert seen["refusals"] == []
    assert (seen["acknowledged"], seen["unread"], seen["read_again"]) == (600, 0, 0)


def test_a_leader_that_stays_dead_costs_the_go_client_no_send(
    go_client: Path, start: Start, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Its sends go to followers from the first one on."""
    cluster = start_for_go(start, "raft")
    with running(go_client, cluster, tmp_path, "handover") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hand over now\n"
        cluster.cluster("kill", "leader")
        seen = answer_of(process)["handover"]
    record_property("gap_ms", seen["gap_ms"])
    assert seen["refusals"] == []
    assert (seen["acknowledged"], seen["unread"]) == (600, 0)


def test_through_the_death_of_a_leader_the_go_client_reads_all_that_was_acknowledged(
    go_client: Path, start: Start, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster = start_for_go(start, "raft")
    with running(go_client, cluster, tmp_path, "failover") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "kill the leader now\n"
        cluster.cluster("kill", "leader")
        seen = answer_of(process)["failover"]
    record_property("gap_ms", seen["gap_ms"])
    assert (seen["unread"], seen["unread_orderly"]) == (0, 0)
    assert seen["acknowledged"] >= 200
    for bodies in seen["by_key"].values():
        firsts = list(dict.fromkeys(int(body) for body in bodies))
        assert all(earlier < later for earlier, later in pairwise(firsts))
    assert sorted(seen["later"]) == ["delayed", "open"]
    assert seen["asked"] > 0
