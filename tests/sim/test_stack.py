"""Whole brokers, all that ships, on files whose pages a power cut may lose; `make sim` runs more seeds.

CI runs all from 1 on for a while, among them those that `make test` leaves to it.
"""

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaos.sim.corpus import corpus_seeds
from chaos.sim.errors import Violation
from chaos.sim.run import run_stack_seed
from tests.limits import IS_WHOLE
from tests.sim.stack_bugs import BUGS, StackBug

REPOSITORY = Path(__file__).parents[2]
SEARCHED = 60
SEEDS = (2, 15, 36, 66, *corpus_seeds(is_stack=True), *((0, 1, 20, 25) if IS_WHOLE else ()))


@pytest.mark.sim
def test_no_seed_breaks_safety_or_liveness_and_seeds_do_what_they_are_for() -> None:
    marks: Counter[str] = Counter()
    for seed in SEEDS:
        try:
            marks.update(run_stack_seed(seed).marks)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}\npython -m chaos.sim --stack --seed {seed} --trace")
    wanted = {
        "file deleted",
        "follower truncated",
        "killed in the middle of something",
        "leader elected",
        "log reset by install",
        "passed on twice",
        "read served",
        "send acknowledged from a follower",
        "topic made",
        "topic removed",
    }
    assert not wanted - marks.keys()


@pytest.mark.sim
def test_a_seed_runs_the_same_in_any_process() -> None:
    outputs = {_run_apart("6", hash_seed) for hash_seed in ("1", "2")}
    assert len(outputs) == 1
    assert "trace " in outputs.pop()


@pytest.mark.sim
@pytest.mark.timeout(900)  # where the bug's own seed misses it, others are tried
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.seed is not None], ids=lambda bug: bug.name.replace(" ", "-")
)
def test_a_seeded_bug_is_found_by_a_seed_that_the_product_passes(bug: StackBug) -> None:
    assert bug.seed is not None
    seed = _first_seed_that_finds(bug, [bug.seed, *range(SEARCHED)])
    if seed not in SEEDS:  # which the test above runs without the bug
        _passes(seed)


@functools.cache
def _passes(seed: int) -> None:
    """Several bugs are found by one seed."""
    run_stack_seed(seed)


def _first_seed_that_finds(bug: StackBug, seeds: list[int]) -> int:
    """Try the bug's own seed, then others: a change of the product gives every seed another run."""
    for seed in seeds:
        with bug.plant():
            try:
                run_stack_seed(seed)
            except Violation as violation:
                if violation.code in bug.codes:
                    return seed
    raise AssertionError(f"{bug.name}: not found by the seeds {seeds}")


def _run_apart(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "chaos.sim", "--stack", "--seed", seed, "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout
