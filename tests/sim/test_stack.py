"""Whole brokers, all that ships, on files whose pages a power cut may lose; `make sim` runs more seeds.

CI also runs those that once failed (`make sim-corpus`).
"""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.sim.__main__ import main
from chaos.sim.clock import SimClock
from chaos.sim.corpus import STACK, corpus_seeds
from chaos.sim.errors import Violation
from chaos.sim.run import RunResult, run_stack_seed
from chaos.sim.stack.kit import StackKit
from tests.limits import IS_WHOLE
from tests.sim.ranked_seeds import first_that_finds, lazily
from tests.sim.stack_bugs import BUGS, StackBug

REPOSITORY = Path(__file__).parents[2]
SEARCHED = 100
WHOLE = (0, 1, 2, 15, 20, 25, 36, 44)
FIRST = (4471, 12716, 17203)
"""These together do all that `test_seeds_do_what_they_are_for` wants, as a rule."""
NAMED = {bug.seed for bug in BUGS if bug.seed is not None}
SEEDS = tuple(sorted({*NAMED, *((*corpus_seeds(STACK), *WHOLE) if IS_WHOLE else ())} - {*FIRST}))


@pytest.mark.sim
@pytest.mark.parametrize("seed", SEEDS)
def test_no_seed_breaks_safety_or_liveness(seed: int) -> None:
    _passes(seed)


@pytest.mark.sim
@pytest.mark.timeout(900)  # as many seeds as are needed
def test_seeds_do_what_they_are_for() -> None:
    missing = {
        "damaged entry dropped by install",
        "file deleted",
        "follower truncated",
        "killed in the middle of something",
        "leader elected",
        "log reset by install",
        "passed on twice",
        "plain question answered with a leader",
        "program's send acknowledged after 3 tries",
        "read served",
        "send acknowledged from a follower",
        "topic made",
        "topic removed",
    }
    for seed in FIRST:
        missing -= _passes(seed).marks.keys()
    for seed in WHOLE:
        if missing:
            missing -= _passes(seed).marks.keys()
    assert not missing, "never occurred"


@pytest.mark.sim
@pytest.mark.parametrize("seed", ["6", "1115"])  # the second one has members of a group, whose leader removes topics
def test_a_seed_runs_the_same_in_any_process(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stack", "--seed", seed, "--trace"]) == 0
    here = capsys.readouterr().out
    assert "trace " in here
    assert _run_apart(seed, "3" if os.environ.get("PYTHONHASHSEED") == "1" else "1") == here


@pytest.mark.sim
def test_a_seed_runs_the_same_on_a_disk_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = _passes(8)
    monkeypatch.setattr("chaos.sim.pool.memory_directory", lambda: tmp_path)
    assert run_stack_seed(8) == in_memory


@pytest.mark.sim
@pytest.mark.parametrize("remove", [Path.unlink, Path.rmdir, lambda old: old.with_name("new").replace(old)])
def test_no_other_file_gets_the_inode_of_a_removed_one(
    remove: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.sim.pool.memory_directory", lambda: tmp_path)  # ext4 gives inodes again at once
    cluster: Any = SimpleNamespace(clock=SimClock(Random(1)), rng=Random(1), plan=SimpleNamespace(flush_us=1))
    kit = StackKit(1)
    with contextlib.closing(kit):
        disk, cluster.clock.event_count = kit.disk(cluster, "n0"), 1
        another = kit.disk(cluster, "n0")  # after a wipe
        old, new = disk.root / "old", disk.root / "new"
        with kit.replaced.running(SimpleNamespace(name="n0", files=disk)):
            old.mkdir() if remove is Path.rmdir else old.touch()
            new.touch()
            inode = old.stat().st_ino
            remove(old)
            made = [disk.root / str(number) for number in range(20)]
            for path in made:
                path.touch()
        assert inode not in [path.stat().st_ino for path in disk.root.iterdir()]
        with kit.replaced.running(SimpleNamespace(name="n0", files=another)):
            (another.root / "folder").mkdir()
            (another.root / "folder").rmdir()


@pytest.mark.sim
@pytest.mark.timeout(900)  # where the bug's own seed misses it, others are tried
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.seed is not None], ids=lambda bug: bug.name.replace(" ", "-")
)
def test_a_seeded_bug_is_found_by_a_seed_that_the_product_passes(bug: StackBug) -> None:
    assert bug.seed is not None
    candidates = itertools.chain([bug.seed], lazily(bug.needs))
    seed, _ = first_that_finds(partial(find, bug), candidates, SEARCHED)
    if seed not in (*FIRST, *SEEDS):  # which the product passes above, once for all bugs
        _passes(seed)


def test_other_seeds_are_drawn_only_where_the_named_one_misses() -> None:
    def candidates() -> Iterator[int]:
        yield 1
        pytest.fail("30,000 plans are drawn for the next one")

    assert first_that_finds(lambda _: "R1", candidates(), SEARCHED) == (1, "R1")


def _passes(seed: int) -> RunResult:
    try:
        return run_stack_seed(seed)
    except Violation as violation:
        pytest.fail(f"{violation}\npython -m chaos.sim --stack --seed {seed} --trace")


def find(bug: StackBug, seed: int) -> str:
    """Run a seed with the bug; return the code of the invariant by which it is found, or nothing."""
    with bug.plant():
        try:
            run_stack_seed(seed)
        except Violation as violation:
            return violation.code if violation.code in bug.codes else ""
    return ""


def _run_apart(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "chaos.sim", "--stack", "--seed", seed, "--trace"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout
