"""Whole groups under faults, seed after seed; CI runs more with `make sim`, for minutes. A failure names its seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.sim.__main__ import main
from chaos.sim.corpus import ALONE, corpus_seeds
from chaos.sim.errors import Violation
from chaos.sim.plan import draw_plan
from chaos.sim.run import run_seed
from tests.limits import IS_WHOLE

SEEDS = (*range(80 if IS_WHOLE else 20), 1009)  # the last one shows "log reset by install"
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.sim
def test_no_seed_breaks_safety_or_liveness_and_the_corners_that_faults_aim_at_are_reached() -> None:
    marks: set[str] = set()
    for seed in SEEDS:
        try:
            marks |= run_seed(seed).marks.keys()
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}\n{draw_plan(seed).describe()}\npython -m chaos.sim --seed {seed}")
    wanted = {
        "append rejected",
        "file deleted",
        "follower truncated",
        "leader elected",
        "leader elected by salvage",
        "log reset by install",
        "member brought up to date",
        "member left the group",
        "read served",
        "transfer begun",
        "vote granted",
        "vote has_leader",
        "vote recovering",
        "vote stale_log",
        "vote stale_term",
        "vote voted_other",
    }
    assert not wanted - marks


@pytest.mark.sim
def test_the_seeds_that_once_failed_pass_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = main(["--corpus", "--jobs", "1"]), capsys.readouterr().out
    assert status == 0, printed
    assert f"{len(corpus_seeds(ALONE))} seeds clean" in printed


@pytest.mark.parametrize("line", ["x no number", "7"])
def test_a_line_of_the_corpus_that_is_no_seed_with_a_reason_is_refused(tmp_path: Path, line: str) -> None:
    broken = tmp_path / "corpus.txt"
    broken.write_text(f"# a comment\n{line}\n")
    with pytest.raises(ValueError, match=f"corpus.txt: '{line}' is not SEED REASON"):
        corpus_seeds(broken)


@pytest.mark.sim
def test_a_seed_runs_the_same_in_any_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--trace"]) == 0
    here = capsys.readouterr().out
    assert "trace " in here
    assert _run_apart("7", "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1") == here


def test_different_seeds_are_different_runs() -> None:
    assert run_seed(0).trace_hash != run_seed(1).trace_hash


def _run_apart(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "chaos.sim", "--seed", seed, "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout
