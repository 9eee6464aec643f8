"""`ledgermq chaos suite`: which drills it runs, its table, and a drill that fails or hangs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.catalogue import CATALOGUE
from cli import suite
from cli.main import main
from node.errors import UsageError
from tests.chaos.example_run import run_of
from tests.cluster.processes import wait_until
from tests.limits import WAIT_S

_MAIN = """
import signal, sys
from cli.main import main
sys.executable = sys.argv[1]
signal.signal(signal.SIGINT, {sigint})
sys.exit(main(sys.argv[2:]))
"""


def test_the_table_sums_rounds_and_shows_median_and_longest_times() -> None:
    rounds = [run_of(gap_s=gap_s, lose=gap_s > 0.6).figures() for gap_s in (0.3, 0.5, 0.7)]
    head, _, row, empty = suite.table({("kill-leader", "raft"): rounds, ("transfer", "raft"): [None]}).splitlines()
    assert head.count("|") == row.count("|") == empty.count("|")
    assert row.startswith("| kill-leader | raft | 3 | 2 | 1 | 120 | 1 | 0 | 590, at most 790 |")
    assert empty.startswith("| transfer | raft | 1 | 0 | 0 | 0 |")


def test_each_drill_runs_in_each_mode_that_allows_it() -> None:
    pairs = suite.pairs_of(list(CATALOGUE), ["raft", "standalone"])
    assert ("majority-lost", "raft") in pairs and ("majority-lost", "standalone") not in pairs
    with pytest.raises(UsageError, match="no drill 'kill-leder'"):
        suite.pairs_of(["kill-leder"], ["raft"])
    with pytest.raises(UsageError, match="none of the modes standalone allows transfer"):
        suite.pairs_of(["transfer"], ["standalone"])
    with pytest.raises(UsageError, match="none of the modes controller allows one-way"):
        suite.pairs_of(["one-way"], ["controller"])
    assert suite.pairs_of(["slow-link", "bridge"], ["raft"], "namespaces") == [("bridge", "raft")]
    assert suite.pairs_of(["one-way"], ["controller"], "namespaces") == [("one-way", "controller")]


def test_a_drill_that_fails_or_hangs_is_told_and_the_exit_code_is_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(suite, "_ROUND_LIMIT_S", 0.5)
    words = ["chaos", "suite", "--drills", "kill-leader", "--modes", "sync", "--out", str(tmp_path / "out")]
    words += ["--fabric", "namespaces"]
    figures = {"verdict": "pass", "acked": 5, "lost": 0, "stored_twice": 0, "rto_ms": 1.0, "consumer_rto_ms": 1.0}
    for script, code, told in (
        ('echo "no cluster for $5"; exit 4', 2, "ended with 4 and gave no figures\nno cluster for kill-leader"),
        ('echo "waits in $TMPDIR"; exec sleep 10', 2, "not ended within 0.5 s\nwaits in /"),
        ('echo "on ${9}"; exit 4', 2, "gave no figures\non namespaces"),
        (_writes(figures), 0, "| kill-leader | sync | 1 | 1 | 0 | 5 |"),
        (_writes(figures | {"verdict": "fail"}), 1, "| kill-leader | sync | 1 | 0 | 1 | 5 |"),
    ):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert main(words) == code
        assert told in capsys.readouterr().out


def _suite_of(tmp_path: Path, script: str, sigint: str = "signal.default_int_handler") -> "subprocess.Popen[str]":
    """Start a suite of four drills, two side by side, which run a script in a folder of its own."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    program.chmod(0o755)
    words = ("chaos", "suite", "--drills", "kill-leader,pause-leader", "--modes", "sync,async", "--jobs", "2")
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN.format(sigint=sigint), str(program), *words, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_so_many_drills_run_side_by_side_and_not_more(tmp_path: Path) -> None:
    figures = {"verdict": "pass", "acked": 5, "lost": 0, "stored_twice": 0, "rto_ms": 1.0, "consumer_rto_ms": 1.0}
    # each drill waits until two have begun, and tells how many run
    script = (
        "mkdir run-$$; until [ -e both ]; do [ $(ls -d run-* | wc -l) -lt 2 ] || touch both; done;"
        f" ls -d run-* | wc -l >>counts; rmdir run-$$; {_writes(figures)}"
    )
    with _suite_of(tmp_path, script) as run:
        told, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, told
    assert "  4 of 4  " in told and "mode async: pass" in told
    assert told.count("| 1 | 1 | 0 | 5 |") == 4
    assert set((tmp_path / "counts").read_text().split()) <= {"1", "2"}


@pytest.mark.parametrize(
    ("number", "sigint"),
    [
        (signal.SIGINT, "signal.default_int_handler"),
        (signal.SIGTERM, "signal.default_int_handler"),
        (signal.SIGTERM, "signal.SIG_IGN"),
    ],
)
def test_ctrl_c_ends_the_drills_that_run_in_order_and_begins_no_other(tmp_path: Path, number: int, sigint: str) -> None:
    script = "trap 'sleep 0.3; echo undone >>ends; exit 130' TERM; echo begun >>begun; while :; do sleep 0.05; done"
    with _suite_of(tmp_path, script, sigint) as run:
        wait_until(lambda: len(_lines(tmp_path / "begun")) == 2, "two drills have begun")
        os.killpg(run.pid, number)
        told, _ = run.communicate(timeout=WAIT_S)
    assert (run.returncode, "Traceback" in told) == (130, False), told
    assert (_lines(tmp_path / "ends"), len(_lines(tmp_path / "begun"))) == (["undone"] * 2, 2)


async def test_a_drill_that_is_ended_in_the_moment_of_its_start_is_ended_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, has_begun = asyncio.create_subprocess_exec, asyncio.Event()

    async def create_slowly(*words: str, **options: Any) -> asyncio.subprocess.Process:
        drill = await create(*words, **options)
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        has_begun.set()
        await asyncio.sleep(0.1)
        return drill

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_slowly)
    script = f"cd {tmp_path}; trap 'echo undone >>ends; exit 130' TERM; echo >begun; while :; do sleep 0.05; done"
    with tempfile.TemporaryFile() as output:
        ended = asyncio.ensure_future(suite._ended(["/bin/sh", "-c", script], output, os.environ))
        await has_begun.wait()
        ended.cancel()
        await asyncio.wait([ended])
    assert ended.cancelled() and _lines(tmp_path / "ends") == ["undone"]


def test_containers_are_not_started_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "suite", "--fabric", "compose", "--jobs", "2"]) == 2
    assert "--jobs is not for --fabric compose" in capsys.readouterr().err


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _writes(figures: dict[str, object]) -> str:
    return f'while [ "$1" != --json ]; do shift; done; echo \'{json.dumps(figures)}\' >"$2"'
