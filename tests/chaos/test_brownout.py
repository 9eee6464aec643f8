"""Brownout: halves of a second in which sends failed or were slow, behind the first fault and compared with before."""

from chaos.drills.brownout import brownout_s
from chaos.drills.catalogue import CATALOGUE
from chaos.drills.record import DrillRecord, Injection
from ledgermq.history import Outcome

Q = "broker-a/0"


def record_of(latency_s: float, *, fails: bool = False) -> DrillRecord:
    """Ten sends a second for 4 s; those of the third second take `latency_s`, or every other one of them fails."""
    record = DrillRecord(0.0)
    for number in range(40):
        at_s = number / 10 + 0.05
        send = record.invoked(at_s)
        is_hit = 2.0 < at_s < 3.0
        if is_hit and fails and number % 2:
            record.failed(send, at_s + 0.01, Outcome.INFO)
        else:
            record.acknowledged(send, at_s + (latency_s if is_hit else 0.01), Q, number, 1)
    record.injections.append(Injection(CATALOGUE["kill-leader"], 1.5, "n0", 2.5, "n1"))
    return record


def test_a_run_as_before_the_fault_has_none() -> None:
    assert brownout_s(record_of(0.01)) == brownout_s(record_of(0.09)) == 0.0


def test_each_half_second_with_slow_or_failed_sends_counts() -> None:
    assert brownout_s(record_of(0.2)) == 1.0
    assert brownout_s(record_of(0.01, fails=True)) == 1.0


def test_without_a_fault_or_without_traffic_before_it_there_is_none() -> None:
    record = record_of(0.2)
    record.injections.clear()
    assert brownout_s(record) == 0.0
    record = record_of(0.2)
    record.injections[0].begin_s = -1.0
    assert brownout_s(record) == 0.0
