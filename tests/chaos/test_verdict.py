"""The verdict of a drill: broken promises fail it, missing proof makes it unknown, and the figures keep their names."""

import dataclasses

from chaos.checkers.operations import judge
from chaos.drills.catalogue import CATALOGUE, Step
from chaos.drills.record import DrillRecord, Event, Injection, Sample
from chaos.drills.verdict import DrillVerdict
from chaos.fabric.contract import NodeDigest, Verb
from ledgermq.history import Outcome
from tests.chaos.example_run import EQUAL, run_of


def test_a_run_that_kept_every_promise_passes_and_says_how_long_nothing_was_acknowledged() -> None:
    result = run_of()
    assert result.verdict is DrillVerdict.PASS
    figures = result.figures()
    assert figures["rto_ms"] == 590.0  # from the acknowledgement at 0.91 s to the one at 1.5 s
    assert (figures["killed"], figures["leader_after"], figures["lost"]) == ("n0", "n1", 0)
    assert (figures["delivery_ms"], figures["elections"]) == (10.0, 1)
    assert "FAIL" not in result.table()


def test_the_gap_in_which_the_next_fault_begins_is_no_cost_of_the_one_before() -> None:
    result = run_of(gap_s=0.8)
    begun = Injection(CATALOGUE["kill-leader"], 0.2, "n1", 0.4, "n0")
    result.record.injections.insert(0, begun)
    first, second = result.outages()
    assert (round(first.rto_ms), round(first.consumer_rto_ms)) == (100, 100)
    assert round(second.rto_ms) == 890
    begun.begin_s, result.record.injections[1].begin_s = 0.95, 1.4  # nothing was acknowledged in between
    assert [round(one.rto_ms) for one in result.outages()] == [890, 890]


def test_an_election_fails_a_drill_that_gives_no_reason_for_one() -> None:
    result = run_of()
    assert all(check.code != "E1" for check in result.checks())
    result.record.injections[0].drill = CATALOGUE["stalls"]
    assert result.verdict is DrillVerdict.FAIL
    assert "FAIL E1" in result.table()


def test_an_election_after_a_stall_that_the_machine_made_longer_does_not_count() -> None:
    for seconds, sampled_s, verdict in (
        (1.05, 2.5, DrillVerdict.FAIL),
        (1.9, 3.5, DrillVerdict.PASS),
        (1.9, 4.5, DrillVerdict.FAIL),
    ):
        result = run_of()
        stall = result.record.injections[0]
        stall.drill, stall.hold_s, stall.begin_s = CATALOGUE["stall-each"], 1.0, 1.0
        stall.events = [
            Event(at_s, at_s, Step(0.0, verb, ("n0",)), "")
            for verb, at_s in ((Verb.PAUSE, 1.1), (Verb.RESUME, 1.1 + seconds))
        ]
        result.record.samples = [Sample(-1.0, None, 3), Sample(0.05, None, 3), Sample(sampled_s, None, 4)]
        assert result.verdict is verdict, f"{seconds} s: {result.table()}"
        assert f"the longest of {seconds:.2f} s" in result.table()


def test_a_lost_message_and_a_log_that_differs_fail_it() -> None:
    assert run_of(lose=True).verdict is DrillVerdict.FAIL
    for digests in ((EQUAL[0], NodeDigest("n1", 100, "bb")), (EQUAL[0], NodeDigest("n1", 90, "aa")), ()):
        result = dataclasses.replace(run_of(), digests=digests)
        assert result.verdict is DrillVerdict.FAIL
        assert result.table().count("FAIL L14") == 1
    differs = NodeDigest("n1", 100, "bb", differs_at=4096)
    assert "n1 100 B bb, differs at 4,096" in dataclasses.replace(run_of(), digests=(EQUAL[0], differs)).table()


def test_a_fault_that_was_not_proven_and_a_run_without_traffic_prove_nothing() -> None:
    assert run_of(trouble="kill had no effect").verdict is DrillVerdict.UNKNOWN
    assert "kill had no effect" in run_of(trouble="kill had no effect").table()
    unread = run_of()
    unread.record.troubles.append("the log could not be read")
    assert unread.verdict is DrillVerdict.UNKNOWN and "ok   L1 " in unread.table()
    unread.record.unread_count = 1
    assert "?    L1 " in unread.table()
    empty = dataclasses.replace(run_of(), record=DrillRecord(0.0), findings=judge((), (), frozenset()))
    assert empty.verdict is DrillVerdict.UNKNOWN
    assert "no fault was injected" in empty.troubles()


def test_the_figures_have_the_names_that_the_json_promised_before() -> None:
    promised = "drill mode passed sent acked consumed lost duplicates stored_twice out_of_order misplaced input_bytes"
    promised += " messages_per_second send_p50_ms send_p99_ms rto_ms logs_identical input_sha256_equal seconds"
    promised += " input_sha256 killed leader_after logs"
    assert set(promised.split()) <= set(run_of().figures())


def test_a_send_that_fails_during_a_planned_change_fails_the_drill_and_no_other() -> None:
    for drill, mode, verdict in (
        ("transfer", "raft", DrillVerdict.FAIL),
        ("rolling-restart", "raft", DrillVerdict.FAIL),
        ("rolling-restart", "sync", DrillVerdict.PASS),
        ("kill-leader", "raft", DrillVerdict.PASS),
    ):
        result = run_of()
        result.record.injections[0].drill = CATALOGUE[drill]
        assert dataclasses.replace(result, mode=mode).verdict is DrillVerdict.PASS
        result.record.failed(result.record.invoked(0.9), 1.6, Outcome.FAIL)
        assert dataclasses.replace(result, mode=mode).verdict is verdict


def test_where_sends_fail_before_a_planned_change_nobody_knows_what_it_costs() -> None:
    result = run_of()
    result.record.injections[0].drill = CATALOGUE["transfer"]
    result.record.failed(result.record.invoked(0.2), 0.7, Outcome.INFO)
    verdicts = [result.verdict]
    result.record.failed(result.record.invoked(0.9), 1.6, Outcome.FAIL)
    assert [*verdicts, result.verdict] == [DrillVerdict.PASS, DrillVerdict.UNKNOWN]
    assert "?    S1 " in result.table() and "1 sends had failed before the planned change" in result.table()
