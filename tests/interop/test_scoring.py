"""What is owed: a case of ours is judged by what the real broker makes of the same case."""

import json
from pathlib import Path

import pytest

from tests.interop.scoring.outcomes import Outcome, Result, Results, read_results
from tests.interop.scoring.reference import Reference
from tests.interop.scoring.runs import COUNTERPARTS, ORDINARY, recorded, selects, usual, whole
from tests.interop.scoring.suite import is_late
from tests.interop.scoring.table import again, owed, side_by_side, summary, with_missing


@pytest.mark.parametrize("real", [Outcome.OK, Outcome.KNOWN])
@pytest.mark.parametrize("ours", [Outcome.FAIL, Outcome.SKIP])
def test_what_the_real_broker_passes_or_is_known_to_fail_is_owed_when_failed_or_skipped(
    real: Outcome, ours: Outcome
) -> None:
    assert owed({"send/sync": Result(ours)}, {"send/sync": real}).keys() == {"send/sync"}


def test_what_passes_is_never_owed() -> None:
    assert owed({"send/sync": Result(Outcome.OK)}, {}) == {}


@pytest.mark.parametrize("real", [{}, {"a/b": Outcome.SKIP}])
def test_a_failure_of_a_case_that_the_real_broker_was_not_asked_is_owed_a_skip_is_not(
    real: dict[str, Outcome],
) -> None:
    assert owed({"a/b": Result(Outcome.FAIL)}, real).keys() == {"a/b"}
    assert owed({"a/b": Result(Outcome.SKIP)}, real) == {}


def test_a_failure_that_the_real_broker_shares_is_not_owed() -> None:
    assert owed({"a/b": Result(Outcome.FAIL)}, {"a/b": Outcome.FAIL}) == {}


def test_of_several_rounds_the_worst_counts(tmp_path: Path) -> None:
    rounds = [{"id": "a/b", "outcome": outcome, "text": outcome} for outcome in ("ok", "FAIL", "skip")]
    (tmp_path / "results.json").write_text(json.dumps({"cases": rounds}))
    assert read_results(tmp_path / "results.json") == {"a/b": Result(Outcome.FAIL, "FAIL")}


def test_the_table_names_what_is_owed_with_its_reason() -> None:
    ours: Results = {"send/sync": Result(Outcome.OK), "send/async": Result(Outcome.FAIL, "expected 1, got 2")}
    lines = side_by_side("a run", ours, {"send/sync": Outcome.OK, "send/async": Outcome.OK})
    assert lines[2].split() == ["send", "2", "1", "1", "0", "2", "0", "0", "0"]
    assert lines[-1].split(maxsplit=5)[:3] == ["OWED", "FAIL", "send/async"]
    assert lines[-1].endswith("expected 1, got 2")
    assert summary([("a run", ours, {}, 1.0)])[1].split()[2:5] == ["1/1/0", "0/0/0", "1"]


def test_what_passed_only_when_run_again_is_not_owed_and_is_named_with_the_first_reason() -> None:
    ours: Results = {"a/b": Result(Outcome.OK, first="too late"), "a/c": Result(Outcome.FAIL, "no", first="too late")}
    assert owed(ours, {"a/b": Outcome.OK, "a/c": Outcome.OK}).keys() == {"a/c"}
    assert again([("a run", ours, {}, 1.0)]) == ["passed when run again: a run: a/b, first: too late"]


def test_the_reference_file_is_read_as_written(tmp_path: Path) -> None:
    reference = Reference({})
    reference.put("single/5.3.3", {"timer/recall": Result(Outcome.OK), "send/sync": Result(Outcome.KNOWN)})
    reference.put("single/4.9.8", {"send/sync": Result(Outcome.OK)})
    reference.save(tmp_path / "real.tsv")
    assert Reference.load(tmp_path / "real.tsv").columns == reference.columns


def test_every_run_has_a_counterpart_that_was_recorded() -> None:
    columns = Reference.load().columns
    assert {run.column for run in recorded()} <= columns.keys()
    assert {run.column for run in usual()} <= columns.keys()
    assert {run.cluster for run in whole()} == COUNTERPARTS.keys()


def test_a_case_that_was_asked_for_and_did_not_run_is_owed() -> None:
    real = {"send/sync": Outcome.OK, "send/async": Outcome.OK, "acl/login": Outcome.OK}
    ours = with_missing({"send/sync": Result(Outcome.OK)}, real, ORDINARY)
    assert owed(ours, real).keys() == {"send/async"}


def test_patterns_select_as_the_suite_does() -> None:
    assert selects("send,pull/one", "send/sync") and selects("send,pull/one", "pull/one")
    assert not selects("send,pull/one", "pull/two")
    assert selects("-acl,-tls", "send/sync") and not selects("-acl,-tls", "acl/login")
    assert selects("send/batch*", "send/batch-large") and not selects("send/batch*", "send/sync")


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("expected 10 messages within 10.0 s, got 9", True),
        ("RemotingTimeoutException: wait response on the channel timeout 3000(ms)", True),
        ("setup: createTopic failed: RemotingSendRequestException: send request to </127.0.0.1:1> failed", True),
        ("body: expected 10 bytes, got 9 bytes or other content", False),
        ("expected 0 lost, got 1", False),
        ("milliseconds until delivery: expected 900 to 8000, got 8120", True),
        ("slow sends of 40: expected 0 to 5, got 7", True),
        ("milliseconds until delivery: expected 900 to 8000, got 450", False),
        ("numbers in putTps: expected 1 to 3, got 4", False),
    ],
)
def test_only_what_was_late_is_tried_again(text: str, again: bool) -> None:
    assert is_late(text) == again
