"""Drills on real processes, with real faults: every promise kept, and nothing left on the machine (`make drills`)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import SLOWNESS

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


def words_of(command_line: Path) -> bytes:
    try:
        return command_line.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
