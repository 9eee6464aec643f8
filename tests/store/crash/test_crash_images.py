"""Whatever a power cut leaves of a workload is recovered: nothing synced is lost, nothing unwritten appears.

CI runs fresh seeds of each mode for a while. More of them, or one again: `make crash-images`,
`python -m chaos.crash --mode M --seed S --image N`.
"""

import logging

import pytest

from chaos.crash.campaign import Effort, Tally, run_seeds
from chaos.crash.modes import MODES, SMALL

SEED_FIRST = 100
MODES_RUN = ("classic-sync", "classic-queue", "classic-syncfs", "classic-index", "classic-pool", "raft")
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


@pytest.mark.parametrize(("mode", "seed"), [(mode, SEED_FIRST) for mode in MODES_RUN] + FOUND)
def test_every_image_of_a_workload_is_recovered(mode: str, seed: int) -> None:
    tally = clean(run_seeds(MODES[mode], range(seed, seed + 1), Effort()))
    assert tally.images > 100
    assert set(tally.per_chooser) == {"killed", "synced", "names", "files", "sectors"}


@pytest.mark.parametrize("mode", sorted(SMALL))
def test_every_subset_of_lost_sectors_of_a_small_workload_is_recovered(mode: str) -> None:
    tally = clean(run_seeds(SMALL[mode], range(SEED_FIRST, SEED_FIRST + 2), Effort(exhaustive_images=256)))
    assert tally.per_chooser["exhaustive"] > 50
