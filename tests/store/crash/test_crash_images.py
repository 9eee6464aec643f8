"""Whatever a power cut leaves of a workload is recovered: nothing synced is lost, nothing unwritten appears.

More of them, or one again: `make crash-images`, `python -m chaos.crash --mode M --seed S --image N`.
"""

import logging

import pytest

from chaos.crash.campaign import Effort, Tally, run_seeds
from chaos.crash.modes import MODES, SMALL

SEEDS = {
    "classic-sync": 3,
    "classic-async": 2,
    "classic-queue": 1,
    "classic-syncfs": 1,
    "classic-index": 1,
    "classic-pool": 1,
    "raft": 4,
}
SEED_FIRST = 100
FOUND = [
    ("classic-async", 300),  # units behind the flushed offset outlived the records they pointed at
    ("raft", 301),  # a trimmed start
]


def clean(tally: Tally) -> Tally:
    assert not tally.verdicts, "\n".join(map(str, tally.verdicts))
    return tally


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(
    ("mode", "seed"), [(mode, SEED_FIRST + seed) for mode, count in SEEDS.items() for seed in range(count)] + FOUND
)
def test_every_image_of_a_workload_is_recovered(mode: str, seed: int) -> None:
    tally = clean(run_seeds(MODES[mode], range(seed, seed + 1), Effort()))
    assert tally.images > 100
    assert set(tally.per_chooser) == {"killed", "synced", "names", "files", "sectors"}


@pytest.mark.parametrize("mode", sorted(SMALL))
def test_every_subset_of_lost_sectors_of_a_small_workload_is_recovered(mode: str) -> None:
    tally = clean(run_seeds(SMALL[mode], range(SEED_FIRST, SEED_FIRST + 2), Effort(exhaustive_images=256)))
    assert tally.per_chooser["exhaustive"] > 50
