"""Shrinking a seed that fails: the faults that remain do fail, none can be spared, and chance stays what it was."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest

from chaos.sim.nemesis import Script
from chaos.sim.plan import draw_plan
from chaos.sim.process import CoreKit
from chaos.sim.run import SeedRun, run_seed
from chaos.sim.shrink import Failure, Shrinker, fewest
from cli.main import main as ledgermq
from tests.sim.mutants import MUTANTS

SEED = 20
"""It finds the bug planted here after several faults, of which one is to blame."""


def planted() -> AbstractContextManager[None]:
    return next(mutant for mutant in MUTANTS if mutant.name == "wrong previous-term check").planted()


def repeat(script: Script, numbers: Sequence[int]) -> SeedRun:
    return SeedRun(draw_plan(SEED), CoreKit(), script=Script(script, frozenset(numbers)))


@pytest.mark.parametrize("culprits", [(), (0,), (11,), (3, 4), (0, 5, 11), tuple(range(12))])
def test_what_remains_is_what_is_to_blame(culprits: tuple[int, ...]) -> None:
    def failing(numbers: Sequence[int]) -> Sequence[int] | None:
        return numbers if set(culprits) <= set(numbers) else None

    assert tuple(fewest(range(12), failing)) == culprits


@pytest.mark.sim
def test_a_repetition_with_all_faults_is_the_same_run() -> None:
    script = Script()
    run = SeedRun(draw_plan(SEED), CoreKit(), script=script)
    first = run.execute()
    assert first == run_seed(SEED), "recording changes nothing"
    assert len(run.strikes) > 5
    again = repeat(script, range(len(run.strikes)))
    assert again.execute() == first and again.strikes == run.strikes


@pytest.mark.sim
def test_a_fault_strikes_when_it_did_whatever_is_left_out() -> None:
    script = Script()
    run = SeedRun(draw_plan(SEED), CoreKit(), script=script)
    run.execute()
    odd = repeat(script, range(1, len(run.strikes), 2))
    odd.execute()
    assert [(one.at_us, one.kind) for one in odd.strikes] == [(one.at_us, one.kind) for one in run.strikes[1::2]]


@pytest.mark.sim
def test_a_planted_bug_is_shown_by_few_faults_none_of_which_can_be_spared() -> None:
    with planted():
        shrinker = Shrinker(draw_plan(SEED), is_stack=False)
        found = shrinker.shrink()
        assert found is not None
        first, last = found
        assert last.is_like(first) and 0 < len(last.strikes) < len(first.strikes)
        for spared in last.numbers:
            rest = SeedRun(last.plan, CoreKit(), script=Script(shrinker.script, frozenset(last.numbers) - {spared}))
            assert not _fails_like(rest, last)
        lines: list[str] = []
        shrinker.trace(last, lines.append)
    assert last.strikes[0].kind in last.plan.faults and len(lines) > 100


def _fails_like(run: SeedRun, failure: Failure) -> bool:
    try:
        run.execute()
    except Exception as error:
        return Failure(run.plan, tuple(run.strikes), error).is_like(failure)
    return False


@pytest.mark.sim
def test_the_command_prints_the_faults_and_the_violation(capsys: pytest.CaptureFixture[str]) -> None:
    with planted():
        assert ledgermq(["chaos", "simulate", "--shrink", str(SEED)]) == 1
    printed = capsys.readouterr().out
    assert f"seed {SEED} fails with 1 of the " in printed and "R5: " in printed and " ms  " in printed


@pytest.mark.sim
def test_a_seed_that_passes_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert ledgermq(["chaos", "simulate", "--shrink", "3"]) == 0
    assert "seed 3: clean" in capsys.readouterr().out
