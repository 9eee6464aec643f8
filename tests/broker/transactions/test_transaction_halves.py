"""Open half messages: ended by op records old and new, replaced by their later copies, and where progress stands."""

import dataclasses

import pytest

from broker.transactions.halves import Half, OpenHalves, op_offsets


def half(offset: int, key: str = "", *, times: int = 0, of: int | None = None) -> Half:
    """The record at a queue offset: a message, or a copy of that whose first record is `of`; RocketMQ's names none."""
    return Half(
        queue_offset=offset,
        physical_offset=1000 + offset,
        first=1000 + (offset if of is None else of),
        born_ms=0,
        topic="T",
        group="g",
        unique_key=key or f"k{offset}",
        check_times=times,
        immunity_ms=None,
        is_copy=times > 0,
    )


def filled(*halves: Half) -> OpenHalves:
    table = OpenHalves()
    for one in halves:
        table.add(one)
        table.half_end = one.queue_offset + 1
    return table


def offsets(table: OpenHalves) -> list[int]:
    return [one.queue_offset for one in table.halves()]


@pytest.mark.parametrize(
    ("body", "found"),
    [(b"7", [7]), (b"7,8,", [7, 8]), (b",7,,x,-1, 9,8", [7, 8]), (b"", []), (b"\xff,5,", [5]), (b"9" * 40, [])],
)
def test_an_op_record_names_half_messages_in_the_old_form_and_in_the_new(body: bytes, found: list[int]) -> None:
    assert op_offsets(body) == found


def test_op_records_end_what_they_name() -> None:
    table = filled(half(0), half(1), half(2))
    assert [one.queue_offset for one in table.end_all(0, b"0,2,9,")] == [0, 2]
    assert offsets(table) == [1]
    assert table.end_all(1, b"0,") == []


def test_a_copy_takes_the_place_of_the_one_before() -> None:
    table = filled(half(0, "a"), half(1, "b"), half(2, "a", times=1, of=0))
    assert table.add(half(3, "a", times=2, of=0)) == half(2, "a", times=1, of=0)
    assert offsets(table) == [1, 3]
    assert table.find_copy_of(half(0, "a")) == half(3, "a", times=2, of=0), "a decision about the first means this one"


def test_two_sends_of_one_message_are_two() -> None:
    table = filled(half(0, "a"), half(1, "a"))
    assert table.add(half(2, "a", times=1, of=0)) == half(0, "a")
    assert offsets(table) == [1, 2]
    table.end_all(0, b"2,")
    assert table.find_copy_of(half(0, "a")) is None
    assert table.find_copy_of(half(1, "a")) == half(1, "a")


def test_a_decision_about_a_message_means_the_copy_that_rocketmq_made_of_it() -> None:
    table = filled(half(2, "a", times=1))
    assert table.find_copy_of(half(0, "a")) == half(2, "a", times=1)
    table.add(half(3, "a", times=2, of=2))
    assert table.find_copy_of(half(0, "a")) == half(3, "a", times=2, of=2)
    assert table.find_copy_of(half(1, "b")) is None


def test_a_copy_that_names_none_takes_the_place_of_the_oldest_with_fewer_checks() -> None:
    table = filled(half(0, "a"), half(1, "a"), half(2, "b"))
    for offset, times, replaced in ((3, 1, 0), (4, 1, 1), (5, 2, 3)):
        assert table.add(half(offset, "a", times=times)) == half(replaced, "a", times=int(replaced > 1))
    assert offsets(table) == [2, 4, 5]


def test_an_op_record_about_the_first_record_ends_the_copy_that_rocketmq_made_within_the_immunity() -> None:
    copy = dataclasses.replace(half(7, "a"), original=2, is_copy=True)
    table = filled(copy, dataclasses.replace(half(8, "b"), original=3, is_copy=True))
    again = dataclasses.replace(half(9, "a"), original=2, is_copy=True)
    assert table.add(again) == copy
    assert table.find_copy_of(half(2, "a")) == again
    assert table.end_all(0, b"2,9,4,") == [again]
    assert offsets(table) == [8]
    table.end_all(1, b"3,")
    table.add(half(10, "c"))
    assert table.progress() == (10, 2)


def test_an_op_record_that_ends_a_copy_by_its_original_is_kept_as_long_as_the_copy_may_be_read_again() -> None:
    table = filled(half(5, "b"), dataclasses.replace(half(7, "a"), original=2, is_copy=True))
    table.end_all(0, b"2,")
    assert table.progress() == (5, 0)


def test_what_is_ended_is_not_found_again() -> None:
    table = filled(half(0, "a"))
    table.end(half(0, "a"))
    assert table.find_copy_of(half(0, "a")) is None
    assert len(table) == 0


def test_progress_is_the_first_open_half_and_the_first_op_record_that_still_matters() -> None:
    table = filled(*(half(number) for number in range(5)))
    assert table.progress() == (0, 0)
    table.end_all(0, b"1,")
    table.end_all(1, b"2,4,")
    assert table.progress() == (0, 0)
    table.end_all(2, b"0,")
    assert table.progress() == (3, 1), "record 1 names 4, which lies behind the first open one"
    table.end_all(3, b"3,")
    assert table.progress() == (5, 4)


def test_a_half_without_a_key_is_found_by_its_records_only() -> None:
    nameless, copy, other = (dataclasses.replace(one, unique_key="") for one in (half(3), half(4, times=1), half(2)))
    table = filled(nameless, copy)
    assert table.find_copy_of(nameless) == nameless
    assert table.find_copy_of(other) is None
