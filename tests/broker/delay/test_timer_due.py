"""Timers that are due: in the order of their times, each once, and struck out by deletions of their slot."""

from broker.delay.due import LATE, DueTimer, DueTimers
from store.timer.timer_message import TimerMessage

T = 1_000_000_000_000


def timer(number: int, due_ms: int, *, slot_ms: int | None = None, deletes: str = "", magic: int = 1) -> DueTimer:
    slot = (due_ms - 1) // 1000 * 1000 if slot_ms is None else slot_ms
    message = TimerMessage(100 + number, 50, number, T - 5000, slot, due_ms, "T", f"T+k{number}", deletes)
    return DueTimer(message, slot, T - 5000, magic)


def table(*timers: DueTimer) -> DueTimers:
    due = DueTimers(1000)
    due.restart(T)
    for one in timers:
        due.add(one)
    return due


def numbers(taken: list[DueTimer]) -> list[int]:
    return [due.timer.queue_offset for due in taken]


def test_what_is_due_is_taken_earliest_first_and_by_queue_offset_within_a_millisecond() -> None:
    due = table(timer(3, T + 500), timer(1, T + 500), timer(2, T + 100), timer(0, T + 900))
    assert due.next_due_ms() == T + 100
    assert numbers(due.take(T + 500, 10)) == [2, 1, 3]
    assert numbers(due.take(T + 899, 10)) == []
    assert numbers(due.take(T + 900, 10)) == [0]


def test_a_timer_that_is_shown_twice_is_taken_once() -> None:
    due = table(timer(1, T + 500), timer(1, T + 500))
    assert (numbers(due.take(T + 500, 10)), len(due)) == ([1], 1)


def test_a_deletion_strikes_out_timers_of_its_slot_before_and_behind_it() -> None:
    due = table(timer(1, T + 500), timer(2, T + 600, deletes="T+k1"), timer(3, T + 600, deletes="T+k4"))
    due.add(timer(4, T + 700))
    due.add(timer(5, T + 700))
    assert numbers(due.take(T + 999, 10)) == [5]


def test_a_deletion_leaves_other_slots_alone() -> None:
    due = table(timer(1, T + 1500), timer(2, T + 600, deletes="T+k1"))
    assert numbers(due.take(T + 2000, 10)) == [1]


def test_a_deletion_that_is_rolled_on_goes_into_the_topic_again_and_strikes_nothing_out() -> None:
    due = table(timer(1, T + 500), timer(2, T, slot_ms=T, deletes="T+k1", magic=7))
    assert numbers(due.take(T + 500, 10)) == [2, 1]


def test_the_read_time_stays_at_the_first_slot_that_is_not_whole() -> None:
    due = table(timer(1, T + 1500), timer(2, T + 2500))
    due.loaded_ms = T + 10_000
    assert due.read_ms(T + 5999) == T + 1000
    first, second = due.take(T + 5999, 10)
    due.finish(second)
    assert due.read_ms(T + 5999) == T + 1000
    due.finish(first)
    assert due.read_ms(T + 5999) == T + 5000, "slots of the present are never over"
    due.loaded_ms = T + 3000
    assert due.read_ms(T + 5999) == T + 3000, "nor are those that nobody has loaded"


def test_a_timer_that_could_not_be_delivered_comes_again_when_told() -> None:
    due = table(timer(1, T + 500))
    (taken,) = due.take(T + 500, 10)
    due.retry(taken, T + 900)
    assert due.take(T + 899, 10) == []
    assert due.take(T + 900, 10) == [taken]


def test_late_timers_hold_back_the_queue_offset_not_the_read_time() -> None:
    due = table(timer(7, T - 500, slot_ms=LATE), timer(9, T - 300, slot_ms=LATE))
    due.loaded_ms = T + 10_000
    assert (due.read_ms(T + 1000), due.oldest_late()) == (T + 1000, 7)
    for late in due.take(T, 10):
        due.finish(late)
    assert due.oldest_late() is None


def test_slots_that_were_begun_name_what_is_left_of_them() -> None:
    due = table(timer(1, T + 100), timer(2, T + 500), timer(3, T + 1500))
    due.finish(due.take(T + 100, 10)[0])
    assert due.partly_delivered() == {}, "more timers of this slot may not be loaded yet"
    due.loaded_ms = T + 1000
    assert {slot_ms: numbers(left) for slot_ms, left in due.partly_delivered().items()} == {T: [2]}
