"""A campaign with a budget of seconds judges images of the whole run, as many as there is time for."""

import math
from collections.abc import Iterator
from random import Random
from unittest import mock

import pytest

from chaos.crash.pace import Pace

GROUPS = 300
IMAGES = 3
JUDGING_S = 2.0
SKIPPING_S = 0.01


class Clock:
    now_s = 0.0

    def process_time(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with mock.patch("chaos.crash.pace.time", clock):
        yield clock


def judged(clock: Clock, seconds: float) -> list[tuple[int, int]]:
    pace, found = Pace(seconds, GROUPS, Random(1)), []
    for group in range(GROUPS):
        pace.begin_group()
        for image in range(IMAGES):
            clock.now_s += SKIPPING_S
            if pace.takes_next():
                with pace.judging():
                    clock.now_s += JUDGING_S
                found.append((group, image))
    return found


def test_without_a_budget_all_are_judged(clock: Clock) -> None:
    assert len(judged(clock, math.inf)) == GROUPS * IMAGES


def test_a_budget_is_spread_over_the_whole_run_and_all_kinds_of_images(clock: Clock) -> None:
    found = judged(clock, 200.0)
    assert 80 <= len(found) <= 100
    assert {image for _, image in found} == set(range(IMAGES))
    for part in range(3):
        assert len([group for group, _ in found if group * 3 // GROUPS == part]) >= 20


def test_a_budget_that_suffices_leaves_none_out(clock: Clock) -> None:
    assert len(judged(clock, 3 * GROUPS * IMAGES * JUDGING_S)) == GROUPS * IMAGES


def test_one_is_judged_however_little_time_there_is(clock: Clock) -> None:
    assert judged(clock, 0.0) == [(0, 0)]
