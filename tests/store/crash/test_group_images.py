"""Three brokers of a group lose power, or are killed, at one moment: whatever their disks kept, nothing is lost.

More seeds, or an image again: `make crash-images`, `python -m chaos.crash --mode raft-group --seed S --image N`.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from chaos.crash.campaign import NO_IMAGE, Effort, Tally
from chaos.crash.group import run_group_seed
from chaos.sim.errors import Violation
from tests.sim import stack_bugs
from tests.sim.ranked_seeds import first_that_finds, lazily

BUGS = [
    (stack_bugs.flush_is_not_awaited, 12775, 1, "R6"),
    (stack_bugs.sync_covers_what_came_while_it_ran, 2503, 11, "R6"),
    (stack_bugs.folder_of_term_and_vote_is_not_synced, 5770, 6, "R3"),
    (stack_bugs.undecided_removals_are_no_matter, 44, 0, "R16"),
    (stack_bugs.units_of_removed_topics_stay, 548, 5, "R20"),
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
def test_administrators_of_a_group_that_goes_on_from_an_image_make_groups_of_their_own() -> None:
    """Another group of a name that the run before had used was taken for the one that it had moved."""
    tally = Tally()
    run_group_seed(6299623, Effort(), tally, 9)
    assert not tally.verdicts, tally.verdicts[0]
    assert tally.images == 1


@pytest.mark.sim
def test_a_leader_that_finds_no_copy_of_a_damaged_entry_hands_over_before_it_has_committed_anything() -> None:
    """Of the others, one had deleted the entry and one had not got it: the group was without a leader for ever."""
    tally = Tally()
    run_group_seed(12035257, Effort(), tally, NO_IMAGE)
    assert not tally.verdicts, tally.verdicts[0]
    assert tally.moments, "the run was not recorded"


@pytest.mark.sim
@pytest.mark.timeout(900)  # where the named image misses the bug, those of other seeds are tried
@pytest.mark.parametrize(("bug", "seed", "image", "code"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_a_planted_bug_is_found_in_an_image(bug: Callable[[], Any], seed: int, image: int, code: str) -> None:
    first_that_finds(partial(find, bug, code), itertools.chain([(seed, image)], candidates()), 1 + SEARCHED)


def candidates() -> Iterator[tuple[int, None]]:
    """Where the named image misses the bug: all images of the most promising seeds."""
    return ((seed, None) for seed in lazily())


def find(bug: Callable[[], Any], code: str, where: tuple[int, int | None]) -> str:
    """Run a seed with the bug and judge the image, or all; return the number of that which shows it, or nothing."""
    seed, image = where
    tally = Tally()
    with bug():
        run_group_seed(seed, Effort(), tally, image, moments=8)
    for verdict in tally.verdicts:
        if verdict.number >= 0 and isinstance(verdict.finding, Violation) and verdict.finding.code == code:
            return f"image {verdict.number}"
    return ""
