"""Three brokers of a group lose power, or are killed, at one moment: whatever their disks kept, nothing is lost.

More seeds, or an image again: `make crash-images`, `python -m chaos.crash --mode raft-group --seed S --image N`.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from chaos.crash.campaign import Effort, Tally
from chaos.crash.group import run_group_seed
from chaos.sim.errors import Violation
from tests.sim import stack_bugs

BUGS = [
    (stack_bugs.flush_is_not_awaited, 1, 1, "R6"),
    (stack_bugs.sync_covers_what_came_while_it_ran, 1, 16, "R6"),
    (stack_bugs.folder_of_term_and_vote_is_not_synced, 0, 16, "R21"),  # entries above the term that is left are damage
    (stack_bugs.undecided_removals_are_no_matter, 16, 5, "R16"),
    (stack_bugs.units_of_removed_topics_stay, 4, 5, "R20"),
]

SEARCHED = 8


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.sim
def test_a_group_starts_from_every_image_of_one_moment_with_all_that_was_acknowledged() -> None:
    tally = Tally()
    run_group_seed(1, Effort(torn_per_moment=1), tally, moments=2)
    assert not tally.verdicts, tally.verdicts[0]
    assert tally.per_chooser == {"killed": 2, "synced": 2, "names": 2, "mixed": 2}


@pytest.mark.sim
@pytest.mark.timeout(900)  # where the named image misses the bug, those of other seeds are tried
@pytest.mark.parametrize(("bug", "seed", "image", "code"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_a_planted_bug_is_found_in_an_image(bug: Callable[[], Any], seed: int, image: int, code: str) -> None:
    """The image named above first, then all of other seeds: a change of the product gives every seed another run."""
    for tried, only in ((seed, image), *((other, None) for other in range(SEARCHED))):
        tally = Tally()
        with bug():
            run_group_seed(tried, Effort(), tally, only, moments=8)
        for verdict in tally.verdicts:
            if verdict.number >= 0 and isinstance(verdict.finding, Violation) and verdict.finding.code == code:
                return
    pytest.fail(f"not found: seed {seed}, image {image}, and all images of seeds 0 to {SEARCHED - 1}")
