"""Whatever a power cut leaves of a workload is recovered: nothing synced is lost, nothing unwritten appears.

`make test` recovers the images of one run of each kind of log, and of a run on what a power cut left where that has
found a bug. `make crash-images` does both for fresh seeds of each mode, CI for images drawn from one. One image again:
`python -m chaos.crash --mode M --seed S --image N`.
"""

import logging

import pytest

from chaos.crash.campaign import Effort, Tally, run_seeds
from chaos.crash.ledger import Appended, Durable, FoundAtStart, Item, Ledger
from chaos.crash.modes import MODES, SMALL
from tests.limits import IS_WHOLE

SEED_FIRST = 100
MODES_RUN = tuple(MODES) if IS_WHOLE else ("classic-sync", "raft")
GENERATIONS = 2 if IS_WHOLE else 1
FOUND = [
    ("classic-async", 300),  # units behind the flushed offset outlived the records they pointed at
    ("raft", 301),  # a trimmed start
]
RUNS = [(mode, SEED_FIRST, GENERATIONS) for mode in MODES_RUN] + [(mode, seed, 2) for mode, seed in FOUND]


def clean(tally: Tally) -> Tally:
    assert not tally.verdicts, "\n".join(map(str, tally.verdicts))
    return tally


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize(("mode", "seed", "generations"), RUNS)
def test_every_image_of_a_workload_is_recovered(mode: str, seed: int, generations: int) -> None:
    tally = clean(
        run_seeds(MODES[mode], range(seed, seed + 1), Effort(torn_per_moment=generations, generations=generations))
    )
    assert tally.images > 100
    assert set(tally.per_chooser) == {"killed", "synced", "names", "files", "sectors"}


@pytest.mark.parametrize("mode", sorted(SMALL))
def test_every_subset_of_lost_sectors_of_a_small_workload_is_recovered(mode: str) -> None:
    tally = clean(run_seeds(SMALL[mode], range(SEED_FIRST, SEED_FIRST + GENERATIONS), Effort(exhaustive_images=256)))
    assert tally.per_chooser["exhaustive"] > 50


def test_only_a_record_that_was_not_durable_may_stay_with_other_bytes() -> None:
    ledger = Ledger()
    for note in (
        Appended((Item(0, b"abc"), Item(3, b"def"))),
        Durable(3),
        FoundAtStart({0: b"a\0c", 3: b"d\0f"}),
        Durable(6),
    ):
        ledger.take(note)
    assert ledger.torn == {3}
