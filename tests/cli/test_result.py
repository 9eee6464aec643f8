"""The demo's verdict: each promise that is broken fails it, and the figures carry the issue's names."""

import dataclasses

import pytest

from chaos.checkers.operations import RunCounts
from chaos.checkers.timing import longest_gap_ms, percentile
from chaos.fabric.contract import NodeDigest
from cli.demo.result import DemoResult, Timing

SOUND = RunCounts(sent=4, acked=4, delivered=4, stored_twice=1)
RESULT = DemoResult(
    lines=4,
    findings=SOUND,
    timing=Timing(sending_s=2.0, latencies_ms=[1.0, 2.0, 3.0, 10.0], rto_ms=150.0),
    digests=[NodeDigest("n0", 100, "aa"), NodeDigest("n1", 100, "aa")],
    input_sha256="ff",
    output_sha256="ff",
    input_bytes=1000,
    seconds=5.0,
    killed="n0",
    leader_after="n1",
)


def test_a_run_that_kept_every_promise_passes_duplicates_included() -> None:
    assert RESULT.passed
    assert "FAIL" not in RESULT.table()


@pytest.mark.parametrize(
    "broken",
    [
        {"findings": dataclasses.replace(SOUND, acked=3)},
        {"findings": dataclasses.replace(SOUND, lost=1)},
        {"findings": dataclasses.replace(SOUND, disordered=1)},
        {"findings": dataclasses.replace(SOUND, late_in_key=1)},
        {"findings": dataclasses.replace(SOUND, reordered=1)},
        {"findings": dataclasses.replace(SOUND, misplaced=1)},
        {"findings": dataclasses.replace(SOUND, overstored=1)},
        {"findings": dataclasses.replace(SOUND, phantom=1)},
        {"output_sha256": "00"},
        {"digests": [NodeDigest("n0", 100, "aa"), NodeDigest("n1", 100, "bb")]},
        {"digests": [NodeDigest("n0", 100, "aa"), NodeDigest("n1", 90, "aa")]},
        {"digests": []},
    ],
)
def test_any_broken_promise_fails_the_run_and_shows_in_the_table(broken: dict[str, object]) -> None:
    result = dataclasses.replace(RESULT, **broken)  # type: ignore[arg-type]  # the names are fields
    assert not result.passed
    assert result.table().count("FAIL") == 1


def test_the_figures_have_the_names_that_the_json_promises() -> None:
    figures = RESULT.figures()
    promised = "sent acked lost duplicates out_of_order messages_per_second send_p50_ms send_p99_ms rto_ms"
    promised += " logs_identical input_sha256_equal seconds"
    assert set(promised.split()) <= set(figures)
    assert figures["messages_per_second"] == 2.0
    assert (figures["send_p50_ms"], figures["send_p99_ms"]) == (2.0, 10.0)


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([], 50) == 0.0
    assert percentile([5.0], 99) == 5.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0


def test_the_longest_gap_is_looked_for_around_the_kill_only() -> None:
    acks = [0.0, 5.0, 5.1, 6.0, 6.1, 20.0]
    assert longest_gap_ms(acks, 5.2, 7.0) == pytest.approx(13900.0)
    assert longest_gap_ms(acks, 5.2, 5.5) == pytest.approx(900.0)
    assert longest_gap_ms([], 0.0, 1.0) == 0.0
