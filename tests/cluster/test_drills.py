"""`ledgermq drill`: faults on real processes, with verdict, figures and history; `make drills` has more of them."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.history import Op, parse_operation
from tests.cluster.processes import LEDGERMQ, Cluster
from tests.limits import COMPILE_LITTLE, STRANGER_WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Command = Callable[..., subprocess.CompletedProcess[str]]
LIGHT = ("--rate", "200", "--hold", "1")


@pytest.mark.java
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in ("mvn", "java")), reason="Java 17 and Maven needed")
def test_the_java_client_sends_and_reads_and_its_history_is_judged(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "rocketmq"
    jars = subprocess.run([sys.executable, str(launcher), "jars"], stdout=subprocess.PIPE, text=True, check=True)
    monkeypatch.setenv("ROCKETMQ_JARS", jars.stdout.strip())
    monkeypatch.setenv("JDK_JAVA_OPTIONS", COMPILE_LITTLE)
    figures_path, history_path = tmp_path / "out.json", tmp_path / "history.jsonl"
    files = ("--json", str(figures_path), "--history", str(history_path))
    words = ("drill", "kill-leader", "--client", "java", "--quiet", "5", *LIGHT, *files)
    done = command(*words, limit_s=STRANGER_WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(figures_path.read_text())
    assert (figures["lost"], figures["phantom"], figures["undelivered"]) == (0, 0, 0)
    assert figures["acked"] > 0 and figures["consumed"] >= figures["acked"]
    lines = [parse_operation(line) for line in history_path.read_bytes().splitlines()]
    acked, read = (
        {(line.number, line.queue, line.offset) for line in lines if line and line.op is op}
        for op in (Op.OK, Op.DELIVER)
    )
    assert len(acked) == figures["acked"] and acked <= read
    assert command("chaos", "check", str(history_path)).returncode == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("isolate-leader", "--mode", "controller"), "is for mode async, raft, sync, not controller"),
        (("kill-leader", "--report", "/nowhere/out.html"), "/nowhere/out.html: No such file"),
    ],
)
def test_a_drill_that_cannot_begin_says_why_and_starts_nothing(
    command: Command, words: tuple[str, ...], error: str
) -> None:
    done = command("drill", *words)
    assert done.returncode != 0
    assert error in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_cluster_that_runs_is_drilled_by_its_socket_and_by_commands_for_each_verb(
    group: Cluster, command: Command, tmp_path: Path
) -> None:
    here = f"--dir {group.directory}"
    verbs = {verb: f"{shlex.join(LEDGERMQ)} cluster {verb} {here}" for verb in ("kill", "start")}
    nodes = [{"name": node["name"], "address": node["address"]} for node in group.description["nodes"]]
    described = tmp_path / "described.json"
    described.write_text(json.dumps({"namesrv": group.namesrv, "mode": "raft", "nodes": nodes, "verbs": verbs}))
    for which, is_compared in ((group.directory, True), (described, False)):
        history_path = tmp_path / f"compared-{is_compared}.jsonl"
        files = ("--json", str(tmp_path / "out.json"), "--history", str(history_path))
        done = command("drill", "kill-leader", *LIGHT, "--attach", str(which), *files)
        assert done.returncode == 0, done.stdout + done.stderr
        figures = json.loads((tmp_path / "out.json").read_text())
        assert (figures["verdict"], figures["mode"], figures["lost"]) == ("pass", "raft", 0)
        assert figures["logs_identical"] is (True if is_compared else None)
        [fault] = figures["faults"]
        assert [step["verb"] for step in fault["steps"]] == ["kill", "start"]
        assert fault["leader_before"] == figures["killed"]
        assert 0 < figures["rto_ms"] < 30_000
        lines = [parse_operation(line) for line in history_path.read_bytes().splitlines()]
        invoked, acked = ({line.number for line in lines if line and line.op is op} for op in (Op.INVOKE, Op.OK))
        assert (len(invoked), len(acked)) == (figures["sent"], figures["acked"]), "the history has every send"
        assert re.search(r"leader n[012] +term +\d+ .* ok/s +p99 .* lag .* lost 0", done.stderr)
        assert ("L14" in done.stdout) is is_compared
        if not is_compared:
            proofs = [step["proof"] for step in fault["steps"]]
            assert proofs == [f"{figures['killed']} does not answer", f"{figures['killed']} answers"]


@pytest.mark.parametrize(
    ("description", "drill", "error"),
    [
        ("{", "kill-leader", "not a description of a cluster"),
        ('{"namesrv": "127.0.0.1:1"}', "kill-leader", "lacks 'dir'"),
        ('{"namesrv": "127.0.0.1:1", "nodes": [], "verbs": {"smash": "x"}}', "kill-leader", "'smash'"),
        ('{"namesrv": "127.0.0.1:1", "mode": "sync", "nodes": [], "verbs": {}}', "transfer", "not sync"),
        ('{"dir": "/nowhere"}', "kill-leader", "no cluster runs in /nowhere"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused(
    command: Command, tmp_path: Path, description: str, drill: str, error: str
) -> None:
    (tmp_path / "cluster.json").write_text(description)
    done = command("drill", drill, "--attach", str(tmp_path / "cluster.json"))
    assert done.returncode != 0
    assert error in done.stderr and len(done.stderr.splitlines()) == 1
