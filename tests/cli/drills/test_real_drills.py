"""Drills on real processes, with real faults: every promise kept, and nothing left on the machine (`make drills`)."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import LEDGERMQ, is_alive, run, wait_until
from tests.limits import SLOWNESS, WAIT_S

pytestmark = [pytest.mark.drills, pytest.mark.timeout(600 * SLOWNESS)]

DRILLS = [
    *((name, "processes") for name in ("kill-leader", "pause-leader", "bridge")),
    *((name, "processes") for name in ("power-cut", "lose-disk", "clock-jump")),
    *((name, "namespaces") for name in ("isolate-leader", "one-way")),
]


def traces() -> list[str]:
    """What faults could leave on the machine: network devices, and mounts. Other programs make some of their own."""
    devices = {line.partition(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()}
    mounts = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return [*(devices & {"bridge", "namesrv", "n0", "n1", "n2"}), *(mount for mount in mounts if "ledgermq" in mount)]


@pytest.mark.parametrize(("drill", "fabric"), DRILLS)
def test_a_drill_keeps_every_promise(drill: str, fabric: str, tmp_path: Path) -> None:
    figures_path = tmp_path / "figures.json"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["drill", drill, "--fabric", fabric, "--rate", "50", "--hold", "1.5", "--json", str(figures_path)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ledgermq_server", *words],
        env=os.environ | {"TMPDIR": str(scratch)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 2 and ("install" in done.stderr or "rights of root" in done.stderr):
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    figures = json.loads(figures_path.read_text())
    assert (figures["verdict"], figures["lost"], figures["troubles"]) == ("pass", 0, [])
    assert figures["faults"][0]["steps"], "the fault has steps, each with its proof"
    assert list(scratch.iterdir()) == []
    assert traces() == []


def test_ctrl_c_in_mid_fault_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["drill", "disk-full", "--fabric", "namespaces", "--rate", "50", "--hold", "300"]
    told = []
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ledgermq_server", *words],
        env=os.environ | {"TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True,
    ) as drill:  # fmt: skip
        assert drill.stderr is not None
        for line in drill.stderr:
            told.append(line)
            if "bytes are free" in line:
                drill.send_signal(signal.SIGINT)
    text = "".join(told)
    if drill.returncode == 2 and ("install" in text or "rights of root" in text):
        pytest.skip(told[-1])
    assert (drill.returncode, "Traceback" in text) == (130, False), text
    assert list(scratch.iterdir()) == []
    assert traces() == []
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if str(scratch).encode() in words_of(one)]


def test_an_isolated_leader_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("toxiproxy")
    done = run("drill", "isolate-leader", "--rate", "200", "--hold", "1", "--report", str(tmp_path / "out.html"))
    if "go install" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no byte passed 8 streams" in done.stderr
    assert "PASS: isolate-leader, mode raft" in (tmp_path / "out.html").read_text()


def test_ctrl_c_in_mid_fault_leaves_no_paused_process_behind() -> None:
    words = [*LEDGERMQ, "drill", "pause-leader", "--hold", "300", "--rate", "50"]
    drill = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert drill.stderr is not None
    paused = 0
    while not paused and (line := drill.stderr.readline()):
        found = re.search(r"pause n\d: pid (\d+) is in state T", line)
        paused = int(found[1]) if found else 0
    assert paused and is_alive(paused)
    drill.send_signal(signal.SIGINT)
    _, rest = drill.communicate(timeout=WAIT_S)
    assert drill.returncode == 130
    assert "Traceback" not in rest
    wait_until(lambda: not is_alive(paused), "the paused node has ended")


def words_of(command_line: Path) -> bytes:
    try:
        return command_line.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
