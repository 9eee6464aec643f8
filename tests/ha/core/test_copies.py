"""Which slaves count, what may be sent to them, and how far a master's promise holds."""

import pytest

from ha.core.copies import Copies, Copy, CopyRules, Promise
from ha.core.stream import Report
from ha.errors import HaProtocolError

FILE_SIZE = 1000


def copy(name: str = "s1", start: int = 0, *, now_s: float = 0.0, window: int = 400, batch: int = 300) -> Copy:
    return Copy(name, f"{name}:1", start, now_s, window_bytes=window, batch_bytes=batch)


def copies(rules: CopyRules, *slaves: Copy) -> Copies:
    made = Copies(rules)
    for slave in slaves:
        made.join(slave)
    return made


def acked(slave: Copy, offset: int, end: int, *, durable: int | None = None, now_s: float = 0.0) -> None:
    slave.sent = max(slave.sent, offset)
    slave.on_report(Report(offset, offset if durable is None else durable), end, now_s)


def test_a_frame_ends_at_the_batch_the_file_the_log_and_the_window() -> None:
    slave = copy()
    assert slave.next_size(5000, FILE_SIZE) == 300
    slave.on_sent(300)
    assert slave.next_size(5000, FILE_SIZE) == 100, "the window is 400"
    slave.on_sent(100)
    assert slave.next_size(5000, FILE_SIZE) == 0, "nothing was reported"
    slave.on_report(Report(400, 0), 5000, 0.0)
    assert slave.next_size(450, FILE_SIZE) == 50, "the log ends"
    late = copy(start=900)
    assert late.next_size(5000, FILE_SIZE) == 100, "the file ends"
    assert late.next_size(800, FILE_SIZE) == 0, "the log ends before what was sent"
    late.on_sent(100)
    assert [late.next_size(5000, FILE_SIZE), late.received] == [300, 900]
    late.on_sent(300)
    assert late.next_size(5000, FILE_SIZE) == 100, "the window begins again at the file, whose first record may be long"
    late.on_sent(100)
    assert late.next_size(5000, FILE_SIZE) == 0


@pytest.mark.parametrize(
    "report", [Report(301, 0), Report(99, 99), Report(200, 99)], ids=["more than sent", "less", "less durable"]
)
def test_a_report_that_cannot_be_is_refused_and_changes_nothing(report: Report) -> None:
    slave = copy()
    slave.on_sent(300)
    slave.on_report(Report(100, 100), 1000, 0.0)
    with pytest.raises(HaProtocolError):
        slave.on_report(report, 1000, 1.0)
    assert (slave.received, slave.durable, slave.reported_s) == (100, 100, 0.0)


def test_a_master_that_waits_for_nobody_promises_what_it_has() -> None:
    group = copies(CopyRules(), copy())
    assert group.promise(70, 0) == Promise(70, 70, False)
    assert group.takes_records


def test_a_promise_holds_when_as_many_copies_as_wanted_have_it() -> None:
    fast, slow = copy("fast"), copy("slow")
    group = copies(CopyRules(wanted=2), fast, slow)
    acked(fast, 80, 80)
    acked(slow, 30, 30)
    group.update_in_sync(80, 0, 0.0)
    assert group.promise(100, 0) == Promise(80, 80, False)
    assert group.promise(60, 0) == Promise(60, 60, False), "the own disk is behind"
    group.rules = CopyRules(wanted=3)
    assert group.promise(100, 0) == Promise(30, 30, False)


def test_only_what_is_durable_counts_where_the_disk_is_waited_for() -> None:
    slave = copy()
    group = copies(CopyRules(wanted=2, counts_durable=True), slave)
    acked(slave, 80, 80, durable=50)
    group.update_in_sync(80, 40, 0.0)
    assert group.promise(100, 0) == Promise(50, 50, False)
    assert group.copies_of(60) == (1, 0)


def test_without_a_slave_in_sync_records_are_confirmed_and_senders_told() -> None:
    group = copies(CopyRules(wanted=2))
    assert group.promise(70, 20) == Promise(70, 70, True)


def test_with_too_few_in_sync_senders_wait_and_readers_do_not() -> None:
    slave = copy()
    group = copies(CopyRules(wanted=3), slave)
    acked(slave, 50, 50)
    group.update_in_sync(50, 0, 0.0)
    assert group.promise(70, 20) == Promise(50, 20, False)


def test_an_adaptive_master_waits_for_those_that_are_there() -> None:
    slave = copy()
    group = copies(CopyRules(wanted=3, least=2, is_adaptive=True), slave)
    assert [group.takes_records] == [False]
    acked(slave, 50, 50)
    group.update_in_sync(50, 0, 0.0)
    assert group.takes_records
    assert group.promise(70, 20) == Promise(50, 50, False)


def test_a_slave_counts_from_when_it_has_what_is_confirmed_until_it_falls_behind() -> None:
    slave = copy(window=10_000, batch=10_000)
    group = copies(CopyRules(wanted=2, gap_max_bytes=500, catch_up_s=10), slave)
    acked(slave, 300, 600)
    assert group.update_in_sync(600, 400, 1.0) == [], "it has not what is confirmed"
    acked(slave, 400, 600)
    assert group.update_in_sync(600, 400, 1.0) == [slave]
    assert group.in_sync_count == 2
    assert group.update_in_sync(901, 400, 1.0) == [slave], "501 bytes behind"
    assert group.in_sync_count == 1


def test_a_slave_that_does_not_catch_up_in_time_does_not_count() -> None:
    slave = copy(window=10_000, batch=10_000)
    group = copies(CopyRules(wanted=2, catch_up_s=10), slave)
    acked(slave, 100, 100, now_s=1.0)
    group.update_in_sync(100, 100, 1.0)
    assert slave.in_sync
    assert group.update_in_sync(200, 100, 11.0) == []
    assert group.update_in_sync(200, 100, 11.1) == [slave]
    assert group.update_in_sync(100, 100, 99.0) == [slave], "it has everything, however long ago it reported"


def test_a_slave_that_follows_a_moving_end_at_a_distance_is_caught_up() -> None:
    """It never reaches the end of the moment, but each time that of the report before."""
    slave = copy(window=10_000, batch=10_000)
    group = copies(CopyRules(wanted=2, catch_up_s=1.0), slave)
    acked(slave, 100, 100)
    group.update_in_sync(100, 100, 0.0)
    for second in range(1, 30):
        acked(slave, 100 * second, 100 * second + 100, now_s=float(second) / 2)
        group.update_in_sync(100 * second + 100, 100 * second, float(second) / 2)
        assert slave.in_sync, second


def test_a_slave_whose_disk_hangs_does_not_count_where_the_disk_is_waited_for() -> None:
    slave = copy(window=10_000, batch=10_000)
    group = copies(CopyRules(wanted=2, catch_up_s=1.0, counts_durable=True), slave)
    slave.sent = 100
    slave.on_report(Report(100, 100), 100, 0.0, durable=True)
    group.update_in_sync(100, 0, 0.0)
    assert group.in_sync_count == 2
    for second in range(1, 4):
        slave.sent = 100 + 100 * second
        slave.on_report(Report(slave.sent, 100), slave.sent, float(second), durable=True)
        group.update_in_sync(slave.sent, 100, float(second))
    assert group.in_sync_count == 1
    assert slave.moved_s == 0.0


def test_a_slave_is_caught_up_though_reports_come_faster_than_its_disk_flushes() -> None:
    slave = copy(window=100_000, batch=10_000)
    group = copies(CopyRules(wanted=2, catch_up_s=1.0, counts_durable=True), slave)
    for number in range(100):  # a report each 0.1 s, and the disk is 0.5 s behind
        end = 100 * number + 100
        slave.sent = end
        slave.on_report(Report(end, max(end - 500, 0)), end, number / 10, durable=True)
        group.update_in_sync(end, max(end - 500, 0), number / 10)
        assert slave.in_sync, number


def test_a_slave_has_one_vote_however_often_it_connects() -> None:
    old, new = copy(), copy()
    group = copies(CopyRules(wanted=3), old, new)
    assert list(group.slaves.values()) == [new]
    group.leave(old)
    assert list(group.slaves.values()) == [new], "the older connection closes later"
    group.leave(new)
    assert not group.slaves and group.needed_offset() is None


def test_the_log_is_needed_from_the_slowest_slave_on() -> None:
    assert copies(CopyRules(), copy("a", 500), copy("b", 300)).needed_offset() == 300
