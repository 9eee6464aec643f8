"""When flushing or committing is worth the while: pages, full files, and time."""

import pytest

from store.log.thresholds import Threshold

FILE = 1 << 20


@pytest.mark.parametrize(
    ("least_pages", "done", "end", "reached"),
    [
        (4, 0, 4 * 4096 - 1, False),
        (4, 0, 4 * 4096, True),
        (4, 4095, 4 * 4096, True),
        (4, 4096, 4 * 4096, False),
        (4, FILE - 1, FILE, True),
        (1000, FILE - 1, FILE + 5, True),
        (0, 7, 8, True),
        (0, 8, 8, False),
    ],
)
def test_pages_are_counted_where_they_begin_and_a_full_file_is_always_worth_it(
    least_pages: int, done: int, end: int, reached: bool
) -> None:
    assert Threshold(FILE, least_pages, 10.0, now=100.0).is_reached(done, end, 101.0) is reached


def test_any_byte_is_worth_it_once_in_the_thorough_interval() -> None:
    threshold = Threshold(FILE, 4, 10.0, now=100.0)
    assert [threshold.is_reached(0, 1, now) for now in (109.9, 110.0, 110.1, 119.9, 120.0)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert not threshold.is_reached(5, 5, 200.0)
