"""The simulation must be able to fail: each seeded bug is found, and the healthy core passes the very same seeds.

Those that are among `SEEDS` it passes in `test_seeds.py`, once for all bugs.
"""

import pytest

from chaos.sim.errors import Violation
from chaos.sim.run import run_seed
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.test_seeds import SEEDS

SEED_LIMIT = 80


def first_violation(mutant: Mutant) -> tuple[int, Violation]:
    for seed in range(mutant.first_seed, mutant.first_seed + SEED_LIMIT):
        with mutant.planted():
            try:
                run_seed(seed)
            except Violation as violation:
                return seed, violation
    raise AssertionError(f"{mutant.name}: not found within {SEED_LIMIT} seeds from {mutant.first_seed} on")


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulation_finds_a_seeded_bug_that_the_healthy_core_does_not_have(mutant: Mutant) -> None:
    seed, violation = first_violation(mutant)
    assert violation.code in mutant.codes, f"seed {seed}: {violation}"
    if seed not in SEEDS:
        assert run_seed(seed).event_count > 0
