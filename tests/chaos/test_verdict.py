"""The verdict of a drill: broken promises fail it, missing proof makes it unknown, and the figures keep their names."""

import dataclasses

from chaos.checkers.operations import Delivery, judge
from chaos.drills.catalogue import CATALOGUE, Step
from chaos.drills.record import Event, Injection, Record
from chaos.drills.verdict import DrillResult, Verdict
from chaos.fabric.contract import NodeDigest, Verb

Q = "broker-a/0"
EQUAL = (NodeDigest("n0", 100, "aa"), NodeDigest("n1", 100, "aa"))


def run_of(*, gap_s: float = 0.5, trouble: str = "", lose: bool = False) -> DrillResult:
    """Ten messages a second for 4 s; at 1 s a node is killed, and nothing is acknowledged for `gap_s`."""
    record = Record(0.0)
    for number in range(40):
        invoked_s = number / 10
        send = record.invoked(invoked_s)
        record.acknowledged(send, invoked_s + (gap_s if 1.0 <= invoked_s < 1.0 + gap_s else 0.01), Q, number, 1)
        if not (lose and number == 7):
            record.delivered(Delivery(number, invoked_s + 0.02, Q, number))
    record.acks.sort(key=lambda send: send.completed_s)
    injection = Injection(CATALOGUE["kill-leader"], 1.0, "n0", 2.0, "n1", trouble=trouble)
    for at_s, verb in ((1.0, Verb.KILL), (2.0, Verb.START)):
        injection.events.append(Event(at_s, at_s, Step(0.0, verb, ("n0",)), "seen"))
    record.injections.append(injection)
    findings = judge(record.sends, record.deliveries, frozenset())
    return DrillResult("kill-leader", "raft", "ledgermq drill kill-leader", record, findings, EQUAL, 5.0)


def test_a_run_that_kept_every_promise_passes_and_says_how_long_nothing_was_acknowledged() -> None:
    result = run_of()
    assert result.verdict is Verdict.PASS
    figures = result.figures()
    assert figures["rto_ms"] == 590.0  # from the acknowledgement at 0.91 s to the one at 1.5 s
    assert (figures["killed"], figures["leader_after"], figures["lost"]) == ("n0", "n1", 0)
    assert "FAIL" not in result.table()


def test_a_lost_message_and_a_log_that_differs_fail_it() -> None:
    assert run_of(lose=True).verdict is Verdict.FAIL
    for digests in ((EQUAL[0], NodeDigest("n1", 100, "bb")), (EQUAL[0], NodeDigest("n1", 90, "aa")), ()):
        result = dataclasses.replace(run_of(), digests=digests)
        assert result.verdict is Verdict.FAIL
        assert result.table().count("FAIL L14") == 1


def test_a_fault_that_was_not_proven_and_a_run_without_traffic_prove_nothing() -> None:
    assert run_of(trouble="kill had no effect").verdict is Verdict.UNKNOWN
    assert "kill had no effect" in run_of(trouble="kill had no effect").table()
    empty = dataclasses.replace(run_of(), record=Record(0.0), findings=judge((), (), frozenset()))
    assert empty.verdict is Verdict.UNKNOWN


def test_the_figures_have_the_names_that_the_json_promised_before() -> None:
    promised = "drill mode passed sent acked consumed lost duplicates stored_twice out_of_order misplaced input_bytes"
    promised += " messages_per_second send_p50_ms send_p99_ms rto_ms logs_identical input_sha256_equal seconds"
    promised += " input_sha256 killed leader_after logs"
    assert set(promised.split()) <= set(run_of().figures())
