"""The checker of overlapping sends: silent on a clean run, and each anomaly is flagged by its name and nothing else."""

import dataclasses

import pytest

from chaos.checkers.operations import Delivery, Findings, Send, judge
from ledgermq.history import Outcome

Q = "broker-a/0"
ANOMALIES = ("lost", "undelivered", "phantom", "aborted", "misplaced", "reordered", "stored_twice", "redelivered")


def acked(number: int, offset: int, begin_s: float, end_s: float, attempts: int = 1) -> Send:
    return Send(number, begin_s, end_s, Outcome.OK, Q, offset, attempts)


def delivery(number: int | None, offset: int) -> Delivery:
    return Delivery(number, 9.0, Q, offset)


CLEAN_SENDS = (acked(0, 0, 0.0, 1.0), acked(1, 2, 0.5, 2.0), acked(2, 1, 0.6, 1.9), Send(3, 1.0, 2.0, Outcome.INFO))
CLEAN_DELIVERIES = (delivery(0, 0), delivery(2, 1), delivery(1, 2))


def found(findings: Findings) -> dict[str, int]:
    return {name: getattr(findings, name) for name in ANOMALIES if getattr(findings, name)}


def test_a_clean_run_has_no_anomaly_and_an_unknown_send_may_be_absent_or_there() -> None:
    findings = judge(CLEAN_SENDS, CLEAN_DELIVERIES, frozenset())
    assert findings.is_sound and found(findings) == {}
    assert (findings.sent, findings.acked, findings.unknown, findings.delivered) == (4, 3, 1, 3)
    assert found(judge(CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(3, 3)), frozenset())) == {}


@pytest.mark.parametrize(
    ("sends", "deliveries", "anomaly"),
    [
        (CLEAN_SENDS, CLEAN_DELIVERIES[:2], "lost"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(4, 3)), "phantom"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(None, 3)), "phantom"),
        (
            (*CLEAN_SENDS[:3], dataclasses.replace(CLEAN_SENDS[3], outcome=Outcome.FAIL)),
            (*CLEAN_DELIVERIES, delivery(3, 3)),
            "aborted",
        ),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES[:2], delivery(1, 7)), "misplaced"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(3, 1)), "misplaced"),
        ((acked(0, 0, 0.0, 1.0), acked(1, 0, 0.0, 1.0)), (delivery(0, 0), delivery(1, 0)), "misplaced"),
        ((acked(0, 5, 0.0, 1.0), acked(1, 4, 1.5, 2.0)), (delivery(1, 4), delivery(0, 5)), "reordered"),
        (CLEAN_SENDS, (delivery(0, 0), delivery(1, 2), delivery(2, 1)), "reordered"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(2, 8)), "stored_twice"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(2, 1)), "redelivered"),
    ],
)
def test_each_anomaly_is_flagged_and_no_other(
    sends: tuple[Send, ...], deliveries: tuple[Delivery, ...], anomaly: str
) -> None:
    findings = judge(sends, deliveries, frozenset())
    assert found(findings) == {anomaly: 1}
    assert findings.is_sound == (anomaly in ("stored_twice", "redelivered"))
    assert len(findings.examples[anomaly]) == 1


def test_a_message_that_is_still_in_the_log_is_undelivered_but_not_lost() -> None:
    assert found(judge(CLEAN_SENDS, CLEAN_DELIVERIES[:2], frozenset({1}))) == {"undelivered": 1}


def test_a_delivered_message_that_is_gone_from_the_log_is_lost() -> None:
    assert found(judge(CLEAN_SENDS, CLEAN_DELIVERIES, frozenset(), gone=frozenset({1}))) == {"lost": 1}


def test_sends_that_overlap_may_be_stored_in_any_order() -> None:
    sends = (acked(0, 5, 0.0, 1.0), acked(1, 4, 0.9, 2.0))
    assert found(judge(sends, (delivery(1, 4), delivery(0, 5)), frozenset())) == {}
