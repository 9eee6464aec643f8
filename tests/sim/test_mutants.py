"""The simulation must be able to fail: each seeded bug is found, and the healthy core passes the very same seeds.

Those that are among `SEEDS` it passes in `test_seeds.py`, once for all bugs.
"""

import itertools
from functools import partial

import pytest

from chaos.sim.errors import Violation
from chaos.sim.run import run_seed
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.ranked_seeds import first_that_finds
from tests.sim.test_seeds import SEEDS

SEED_LIMIT = 80


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_simulation_finds_a_seeded_bug_that_the_healthy_core_does_not_have(mutant: Mutant) -> None:
    seed, code = first_that_finds(partial(find, mutant), itertools.count(mutant.first_seed), SEED_LIMIT)
    assert code in mutant.codes, f"seed {seed}: {code}"
    if seed not in SEEDS:
        assert run_seed(seed).event_count > 0


def find(mutant: Mutant, seed: int) -> str:
    """Run a seed with the bug; return the code of the invariant that it breaks, or nothing."""
    with mutant.planted():
        try:
            run_seed(seed)
        except Violation as violation:
            return violation.code
    return ""
