"""Store times: steady over small steps of the clock, and not held up by a clock that jumped ahead."""

import logging

import pytest

from dledger.log.store_clock import HOLD_MS, StoreClock
from tests.dledger.conftest import LogOpener, make_draft


class Hands:
    """A clock that the test sets."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def test_a_small_step_back_is_waited_out() -> None:
    hands = Hands(100_000)
    clock = StoreClock(hands)
    given = [clock.now_ms()]
    for hands.now_ms in (99_999, 100_000 - HOLD_MS, 99_000, 100_001):
        given.append(clock.now_ms())
    assert given == [100_000, 100_000, 100_000, 100_000, 100_001]


def test_after_a_jump_ahead_times_go_on_with_the_clock(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hands = Hands(100_000 + 3_600_000)
    clock = StoreClock(hands)
    clock.now_ms()
    given = []
    for hands.now_ms in (100_000, 100_500, 101_000):
        given.append(clock.now_ms())
    assert given == [100_000, 100_500, 101_000], "an hour of one and the same time would follow"
    assert len(caplog.records) == 1 and "go back by 3600000 ms" in caplog.text


@pytest.mark.parametrize(("ahead_ms", "first_ms"), [(HOLD_MS, 100_000 + HOLD_MS), (HOLD_MS + 1, 100_000)])
def test_a_new_leader_goes_on_from_its_predecessors_time_unless_that_was_far_ahead(
    entry_log: LogOpener, ahead_ms: int, first_ms: int
) -> None:
    log, hands = entry_log(), Hands(100_000)
    log.append_drafts([make_draft(b"of the leader before")], 1, 100_000 + ahead_ms)
    clock = StoreClock(hands)
    clock.go_past(log)
    assert clock.now_ms() == first_ms


def test_an_older_last_record_does_not_take_times_back(entry_log: LogOpener) -> None:
    log, hands = entry_log(), Hands(100_000)
    log.append_drafts([make_draft(b"of a leader whose clock is slow")], 1, 99_000)
    clock = StoreClock(hands)
    clock.now_ms()
    clock.go_past(log)
    hands.now_ms = 99_500
    assert clock.now_ms() == 100_000


def test_a_time_given_by_a_clock_that_had_jumped_ahead_does_not_hide_the_last_record(entry_log: LogOpener) -> None:
    log, hands = entry_log(), Hands(100_000 + 2 * HOLD_MS)
    clock = StoreClock(hands)
    clock.now_ms()  # of an entry that was cut again
    hands.now_ms = 100_000
    log.append_drafts([make_draft(b"of a leader whose clock is fast")], 1, 102_000)
    clock.go_past(log)
    assert clock.now_ms() == 102_000
