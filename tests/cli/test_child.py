"""A child process of the cluster: its end is noticed, its stop is bounded, and it never outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.cluster.child import Child, ChildState, program
from tests.limits import WAIT_S

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def process_state(pid: int) -> str:
    """The state letter of /proc; empty when there is no such process, Z counted as none."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return "" if letter in "ZX" else letter


async def until_it_printed(child: Child) -> None:
    async with asyncio.timeout(WAIT_S):
        while not child.log_path.exists() or "up" not in child.log_path.read_text():
            await asyncio.sleep(0.01)


def make(tmp_path: Path, argv: list[str], ended: list[str]) -> Child:
    return Child("n0", program(argv), tmp_path / "log", lambda child: ended.append(child.name))


async def test_the_end_of_a_child_is_noticed_with_its_exit_code_and_last_line(tmp_path: Path) -> None:
    ended: list[str] = []
    child = make(tmp_path, [sys.executable, "-c", "print('error: port 1\\n'); raise SystemExit(3)"], ended)
    child.start()
    assert await child.ended_within(10)
    assert (child.exit_code, child.state, child.pid, ended) == (3, ChildState.DOWN, None, ["n0"])
    assert child.last_line() == "error: port 1"


async def test_a_child_that_obeys_sigterm_stops_in_order(tmp_path: Path) -> None:
    child = make(tmp_path, SLEEPER, [])
    child.start()
    await until_it_printed(child)
    assert await child.stop(10)
    assert child.exit_code == -signal.SIGTERM


async def test_a_child_that_ignores_sigterm_is_killed_after_the_limit(tmp_path: Path) -> None:
    child = make(tmp_path, STUBBORN, [])
    child.start()
    await until_it_printed(child)
    assert not await child.stop(0.2)
    assert child.exit_code == -signal.SIGKILL


async def test_a_paused_child_sleeps_and_can_still_be_stopped_in_order(tmp_path: Path) -> None:
    child = make(tmp_path, SLEEPER, [])
    child.start()
    await until_it_printed(child)
    child.pause()
    assert child.pid is not None
    async with asyncio.timeout(WAIT_S):
        while process_state(child.pid) != "T":
            await asyncio.sleep(0.01)
    assert child.state is ChildState.PAUSED
    assert await child.stop(10)


async def test_a_child_can_be_started_again_after_its_end(tmp_path: Path) -> None:
    child = make(tmp_path, SLEEPER, [])
    child.start()
    first = child.pid
    child.kill()
    assert await child.ended_within(10)
    child.start()
    assert child.pid not in (None, first)
    await child.stop(10)


def test_a_child_dies_with_its_parent_even_when_the_parent_is_killed(tmp_path: Path) -> None:
    orphan = (
        "import os, subprocess, sys, time\n"
        "words = [sys.executable, '-c', 'import os, sys, time\\n"
        "from cli.lifeline import die_with_parent\\n"
        "die_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(60)', str(os.getpid())]\n"
        "subprocess.Popen(words)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + WAIT_S
    while process_state(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_state(pid) == ""


def test_a_child_whose_parent_is_already_gone_refuses_to_run() -> None:
    words = [sys.executable, "-m", "ledgermq_server", "--die-with-parent", "1", "config", "explain", "listenPort"]
    done = subprocess.run(words, capture_output=True, text=True)
    if os.getpid() == 1 or os.getppid() == 1:
        pytest.skip("the parent really is process 1")
    assert (done.returncode, done.stderr) == (1, "error: process 1, which started this one, has ended\n")
