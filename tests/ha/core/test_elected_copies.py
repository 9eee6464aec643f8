"""The in-sync set of an elected master: who counts, before and after the controllers have agreed."""

from ha.core.copies import Copy, CopyRules
from ha.core.elected_copies import STUCK_LOOKS_MAX, ElectedCopies, Proposal
from ha.core.stream import Report

RULES = CopyRules(catch_up_s=15.0)
OWN = 1


def master(*ids: int, set_epoch: int = 5, start: int = 0) -> ElectedCopies:
    """A new master whose set has these members."""
    copies = ElectedCopies(RULES)
    copies.begin(OWN, frozenset({OWN, *ids}), set_epoch, start)
    return copies


def connect(copies: ElectedCopies, broker_id: int, acked: int, end: int = 100, now_s: float = 0.0) -> Copy:
    copy = Copy(f"b/{broker_id}", f"h:{broker_id}", 0, now_s, window_bytes=1 << 20, batch_bytes=1 << 20)
    copies.join(copy)
    report(copy, acked, end, now_s)
    return copy


def report(copy: Copy, acked: int, end: int = 100, now_s: float = 0.0) -> None:
    copy.sent = max(copy.sent, acked)
    copy.on_report(Report(acked, acked), end, now_s)


def confirmed(copies: ElectedCopies, local: int = 100, before: int = 0) -> int:
    return copies.promise(local, before).confirmed


def judged(copies: ElectedCopies, end: int = 100, confirmed: int = 0, now_s: float = 0.0) -> Proposal | None:
    copies.update_in_sync(end, confirmed, now_s)
    return copies.propose(end, confirmed, now_s)


def test_nothing_is_promised_that_a_member_has_not() -> None:
    copies = master(2, 3)
    second, third = connect(copies, 2, 80), connect(copies, 3, 60)
    connect(copies, 4, 10)
    assert confirmed(copies) == 60, "4 is no member"
    report(third, 90)
    assert confirmed(copies) == 80
    copies.leave(second)
    assert confirmed(copies, before=80) == 80, "a member that is away has nothing new"


def test_a_slave_counts_before_the_controllers_know_and_is_proposed_when_it_has_all_that_is_confirmed() -> None:
    copies = master()
    slave = connect(copies, 2, 40)
    assert confirmed(copies) == 100, "not looked at yet"
    assert judged(copies, confirmed=50) is None
    assert confirmed(copies, before=50) == 40, "it counts: nothing more is confirmed without it"
    report(slave, 50)
    assert judged(copies, confirmed=50) == Proposal(frozenset({1, 2}), 5, renews=False)
    assert copies.in_sync_count == 1
    copies.learn(frozenset({1, 2}), 6)
    copies.update_in_sync(100, 50, 0.0)
    assert copies.in_sync_count == 2 and slave.in_sync


def test_while_a_set_grows_or_shrinks_both_sets_count() -> None:
    copies = master(2)
    connect(copies, 2, 100)
    third = connect(copies, 3, 100)
    growing = judged(copies, confirmed=100)
    assert growing == Proposal(frozenset({1, 2, 3}), 5, renews=False)
    assert copies.counted == {1, 2, 3}
    copies.leave(third)
    copies.update_in_sync(200, 100, 0.0)
    assert copies.counted == {1, 2, 3}, "the controllers may have agreed"
    assert copies.propose(200, 100, 0.0) is None, "one at a time"
    copies.learn(frozenset({1, 2, 3}), 6)
    shrinking = judged(copies, 200, 100)
    assert shrinking == Proposal(frozenset({1, 2}), 6, renews=False)
    assert copies.counted == {1, 2, 3}, "they have not agreed to the smaller set yet"
    copies.learn(frozenset({1, 2}), 7)
    assert copies.counted == {1, 2}


def test_a_set_whose_fate_is_not_known_counts_until_it_cannot_be_decided_any_more() -> None:
    copies = master(2)
    connect(copies, 2, 100)
    third = connect(copies, 3, 100)
    growing = judged(copies, confirmed=100)
    assert growing is not None
    copies.leave(third)
    copies.doubt(growing)
    renewal = judged(copies, confirmed=100)
    assert renewal == Proposal(frozenset({1, 2}), 5, renews=True)
    copies.refused(renewal)
    assert copies.counted == {1, 2, 3}
    copies.learn(frozenset({1, 2}), 6)
    assert copies.counted == {1, 2} and judged(copies, confirmed=100) is None


def test_a_refused_set_counts_no_more() -> None:
    copies = master()
    slave = connect(copies, 2, 100)
    growing = judged(copies, confirmed=100)
    assert growing is not None
    copies.leave(slave)
    copies.update_in_sync(100, 100, 0.0)
    copies.refused(growing)
    assert copies.counted == {1}


def test_two_slaves_that_drop_at_once_leave_in_one_proposal() -> None:
    copies = master(2, 3)
    gone = [connect(copies, 2, 100), connect(copies, 3, 100)]
    for copy in gone:
        copies.leave(copy)
    assert judged(copies) == Proposal(frozenset({1}), 5, renews=False)
    copies.learn(frozenset({1}), 6)
    assert confirmed(copies) == 100


def test_the_set_may_change_while_it_is_looked_at() -> None:
    copies = master(2, 3, 4)
    for broker_id in (2, 3, 4):
        connect(copies, broker_id, 100)
    for copy in copies.update_in_sync(100, 0, 0.0):
        copies.leave(copy)
        copies.learn(copies.agreed - {int(copy.name[-1])}, copies.set_epoch + 1)
    assert copies.agreed == {1} and confirmed(copies) == 100


def test_of_two_sets_with_one_epoch_the_first_counts() -> None:
    copies = master(2, 3)
    copies.learn(frozenset({1}), 5)
    assert copies.agreed == {1, 2, 3}
    copies.learn(frozenset({1, 2}), 6)
    copies.learn(frozenset({1, 3}), 6)
    assert copies.agreed == {1, 2}


def test_a_member_that_hangs_or_falls_far_behind_is_proposed_without() -> None:
    copies = master(2)
    slave = connect(copies, 2, 100, 100)
    assert judged(copies, 200, 100, now_s=14.0) is None
    assert judged(copies, 200, 100, now_s=16.0) == Proposal(frozenset({1}), 5, renews=False)
    copies = master(2)
    slave = connect(copies, 2, 100, 100)
    assert judged(copies, slave.received + RULES.gap_max_bytes + 1, 100) == Proposal(frozenset({1}), 5, renews=False)


def test_a_member_that_is_stuck_leaves_and_joins_again_when_it_goes_on() -> None:
    copies = master(2)
    slave = connect(copies, 2, 100, 200)
    slave.on_sent(100)
    for _ in range(STUCK_LOOKS_MAX - 1):
        slave.look(200, durable=False)
        assert judged(copies, 200, 100) is None
    report(slave, 150, 200)
    slave.look(200, durable=False)
    assert judged(copies, 200, 100) is None, "it goes on"
    for _ in range(STUCK_LOOKS_MAX - 1):
        report(slave, 150, 200)
        slave.look(200, durable=False)
    assert judged(copies, 200, 100) == Proposal(frozenset({1}), 5, renews=False), "it reports, and no progress"
    copies.learn(frozenset({1}), 6)
    copies.update_in_sync(200, 100, 0.0)
    assert copies.counted == {1}
    report(slave, 200, 200)
    assert judged(copies, 200, 200) == Proposal(frozenset({1, 2}), 6, renews=False)


def test_a_member_whose_flush_takes_no_longer_than_the_masters_stays() -> None:
    copies = master(2)
    slave = connect(copies, 2, 100, 200)
    slave.on_sent(100)
    for _ in range(2 * STUCK_LOOKS_MAX):
        slave.look(100, durable=False)
    assert judged(copies, 200, 100) is None
    for _ in range(STUCK_LOOKS_MAX):
        slave.look(101, durable=False)
    assert judged(copies, 200, 100) == Proposal(frozenset({1}), 5, renews=False)


def test_a_slave_that_is_to_join_and_says_nothing_holds_nobody_up() -> None:
    copies = master()
    connect(copies, 2, 40)
    copies.update_in_sync(100, 50, 0.9)
    assert copies.counted == {1, 2}
    copies.update_in_sync(100, 50, 1.1)
    assert copies.counted == {1}


def test_nobody_joins_without_the_log_up_to_the_start_of_the_epoch() -> None:
    copies = master(start=90)
    slave = connect(copies, 2, 80)
    assert judged(copies, confirmed=70) is None
    report(slave, 90)
    assert judged(copies, confirmed=70) is not None


def test_a_new_master_has_no_slaves_and_no_proposals_of_before() -> None:
    copies = master(2)
    connect(copies, 2, 100)
    connect(copies, 3, 100)
    before = judged(copies, confirmed=100)
    assert before is not None
    copies.begin(OWN, frozenset({OWN}), 9, 100)
    copies.doubt(before)
    assert copies.counted == {1} and not copies.slaves
