"""The checker of overlapping sends: silent on a clean run, and each anomaly is flagged by its name and nothing else."""

import contextlib
import dataclasses
from pathlib import Path

import pytest

from chaos.checkers.__main__ import check, made_up, planted
from chaos.checkers.operations import PROMISES, CheckedSend, Delivery, Judge, RunCounts, judge
from cli.main import main
from ledgermq.history import HistoryError, Op, Operation, Outcome, parse_operation

Q = "broker-a/0"
ANOMALIES = (*(name for _, name, _ in PROMISES), "stored_twice", "redelivered")


def acked(number: int, offset: int, begin_s: float, end_s: float, attempts: int = 1) -> CheckedSend:
    return CheckedSend(number, begin_s, end_s, Outcome.OK, Q, offset, attempts)


def delivery(number: int | None, offset: int) -> Delivery:
    return Delivery(number, 9.0, Q, offset)


CLEAN_SENDS = (
    acked(0, 0, 0.0, 1.0),
    acked(1, 2, 0.5, 2.0),
    acked(2, 1, 0.6, 1.9),
    CheckedSend(3, 1.0, 2.0, Outcome.INFO),
)
CLEAN_DELIVERIES = (delivery(0, 0), delivery(2, 1), delivery(1, 2))


def found(findings: RunCounts) -> dict[str, int]:
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
        ((*CLEAN_SENDS[:1], acked(1, 7, 0.5, 2.0)), (delivery(0, 0), delivery(1, 1)), "misplaced"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(3, 1)), "misplaced"),
        ((acked(0, 1, 0.0, 1.0), acked(1, 0, 1.5, 2.0)), (delivery(1, 0), delivery(0, 1)), "reordered"),
        (CLEAN_SENDS, (delivery(0, 0), delivery(1, 2), delivery(2, 1)), "disordered"),
        (CLEAN_SENDS, (*CLEAN_DELIVERIES, delivery(3, 4)), "holes"),
        ((*CLEAN_SENDS[:2], acked(2, 1, 0.6, 1.9, attempts=2)), (*CLEAN_DELIVERIES, delivery(2, 3)), "stored_twice"),
    ],
)
def test_each_anomaly_is_flagged_and_no_other(
    sends: tuple[CheckedSend, ...], deliveries: tuple[Delivery, ...], anomaly: str
) -> None:
    findings = judge(sends, deliveries, frozenset())
    assert found(findings) == {anomaly: 1}
    assert findings.is_sound == (anomaly == "stored_twice")
    assert len(findings.examples[anomaly]) == 1


def test_a_message_that_is_still_in_the_log_is_undelivered_but_not_lost() -> None:
    assert found(judge(CLEAN_SENDS, CLEAN_DELIVERIES[:2], frozenset({1}))) == {"undelivered": 1}


def test_a_delivered_message_that_is_gone_from_the_log_is_lost() -> None:
    assert found(judge(CLEAN_SENDS, CLEAN_DELIVERIES, frozenset(), gone=frozenset({1}))) == {"lost": 1}


def test_sends_that_overlap_may_be_stored_in_any_order() -> None:
    sends = (acked(0, 1, 0.0, 1.0), acked(1, 0, 0.9, 2.0))
    assert found(judge(sends, (delivery(1, 0), delivery(0, 1)), frozenset())) == {}


def judged(*operations: Operation) -> RunCounts:
    with contextlib.closing(Judge()) as judge:
        for operation in operations:
            judge.feed(operation)
        return judge.findings()


def test_a_long_clean_history_has_no_finding_and_a_planted_one_each_kind() -> None:
    assert check(60_000, plant=False).is_sound
    findings = check(60_000, plant=True)
    assert {name for _, name, _ in PROMISES if not getattr(findings, name)} == {"undelivered"}
    assert all(len(examples) <= 5 for examples in findings.examples.values())


@pytest.mark.parametrize(
    ("marks", "anomaly"),
    [
        ((), ""),
        ((Operation(Op.ACK, 3.0, 0),), "repeated"),
        ((Operation(Op.ACK, 3.0, 0), Operation(Op.FAULT, 40.0)), ""),
        ((Operation(Op.ACK, 3.0, 0), Operation(Op.SHARE, 40.0)), ""),
    ],
)
def test_what_was_acknowledged_singly_comes_again_only_with_a_reason(
    marks: tuple[Operation, ...], anomaly: str
) -> None:
    sent = (Operation(Op.RUN, 0.0, name="pop"), Operation(Op.INVOKE, 0.0, 0), Operation(Op.OK, 1.0, 0, Q, 0))
    findings = judged(*sent, Operation(Op.DELIVER, 2.0, 0, Q, 0), *marks, Operation(Op.DELIVER, 70.0, 0, Q, -1))
    assert found(findings) == {name: 1 for name in ("redelivered", anomaly) if name}


@pytest.mark.parametrize(("mode", "at_s", "broken"), [("raft", 5.0, 1), ("sync", 5.0, 0), ("sync", 90.0, 1)])
def test_committed_offsets_go_back_only_after_a_fault_where_they_are_not_replicated(
    mode: str, at_s: float, broken: int
) -> None:
    sent = (
        Operation(Op.RUN, 0.0, name="groups", queue=mode),
        Operation(Op.INVOKE, 0.0, 0),
        Operation(Op.OK, 1.0, 0, Q, 0),
    )
    commits = (Operation(Op.COMMIT, 3.0, queue=Q, offset=1), Operation(Op.COMMIT, at_s, queue=Q, offset=0))
    assert judged(*sent, Operation(Op.DELIVER, 2.0, 0, Q, 0), *commits).commits == broken


def test_a_lost_message_is_said_to_be_before_amid_or_after_what_was_delivered() -> None:
    sends = [acked(number, number, float(number), number + 0.5) for number in range(4)]
    findings = judge(sends, [delivery(1, 1), delivery(3, 3)], frozenset())
    assert [text.split("(")[1].split()[0] for text in findings.examples["lost"]] == ["prefix", "middle"]


@pytest.mark.parametrize(
    "operations",
    [
        [Operation(Op.INVOKE, 0.0, 1)],
        [Operation(Op.OK, 0.0, 0)],
        [Operation(Op.ACK, 0.0, 0)],
        [Operation(Op.INVOKE, 0.0, 0), Operation(Op.DELIVER, 1.0, 0, Q, 1 << 40)],
        [Operation(Op.INVOKE, 0.0, 0), Operation(Op.OK, 1.0, 0, Q, 1 << 40)],
        [Operation(Op.INVOKE, 0.0, 0), Operation(Op.OK, 1.0, 0, Q, 0, tries=-1)],
    ],
)
def test_operations_that_cannot_follow_each_other_are_refused(operations: list[Operation]) -> None:
    with pytest.raises(HistoryError):
        judged(*operations)


def test_a_history_is_read_as_it_was_written_and_judged_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operations = [*made_up(300, seed=2), *planted(300)]
    assert [parse_operation(one.line()) for one in operations] == operations
    assert parse_operation(b'{"producer":"p","outcome":"ok"}') is None
    for text in ("{", "[]", '{"op":"leap"}', '{"op":"ok"}', '{"op":"ok","at_s":1,"offset":"2"}', '{"op":"ok","x":1}'):
        with pytest.raises(HistoryError):
            parse_operation(text.encode())
    clean, broken = tmp_path / "clean", tmp_path / "broken"
    clean.write_bytes(b"".join(one.line() for one in operations[: len(operations) // 2]))
    broken.write_bytes(b"".join(one.line() for one in operations))
    assert main(["chaos", "check", str(broken)]) == 1
    assert "FAIL L16 " in capsys.readouterr().out
    broken.write_bytes(b'{"op":"ack","at_s":1,"number":3}\n')
    assert main(["chaos", "check", str(broken)]) == 2
    assert capsys.readouterr().err == f"error: {broken}: message 3 is acknowledged, and was never sent\n"
