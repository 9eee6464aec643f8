"""What makes a seed count, and when many seeds have a gap."""

import pytest

from chaos.sim.coverage import JUDGED_SEEDS, Coverage
from chaos.sim.run import RunResult


def result(committed: int = 1, **marks: int) -> RunResult:
    return RunResult(0, 1, committed, 1, 2, 0, {name.replace("_", " ", 1): count for name, count in marks.items()})


GOOD = {"fault_kill": 1, "leader_elected": 2}


@pytest.mark.parametrize(
    ("seed", "counting"),
    [
        (result(**GOOD), 1),
        (result(0, **GOOD), 0),
        (result(leader_elected=2), 0),
        (result(fault_kill=1, leader_elected=1), 0),
    ],
    ids=["all three", "nothing committed", "no fault", "one leader"],
)
def test_a_seed_counts_that_commits_meets_a_fault_and_changes_the_leader(seed: RunResult, counting: int) -> None:
    coverage = Coverage(is_stack=False)
    coverage.add(seed)
    assert coverage.counting == counting


def test_many_seeds_must_meet_every_kind_and_most_must_count() -> None:
    full = dict.fromkeys(Coverage(is_stack=True).missing(), 1) | {"leader elected": 2}
    good, idle = RunResult(0, 1, 1, 1, 2, 0, full), result(leader_elected=1)
    coverage = Coverage(is_stack=True)
    for _ in range(JUDGED_SEEDS):
        coverage.add(good)
    assert not coverage.has_gap() and not coverage.missing()
    for _ in range(3 * JUDGED_SEEDS + 1):
        coverage.add(idle)
    assert coverage.has_gap(), "less than a quarter count"


@pytest.mark.parametrize("kind", ["fault lost_vote", "message InstallRequest"])
def test_a_kind_that_never_occurs_is_a_gap_of_many_seeds(kind: str) -> None:
    coverage = Coverage(is_stack=False)
    marks = {name: 1 for name in coverage.missing() if name != kind} | {"leader elected": 2}
    for number in range(1, JUDGED_SEEDS + 1):
        coverage.add(RunResult(0, 1, 1, 1, 2, 0, marks))
        assert coverage.has_gap() == (number == JUDGED_SEEDS)
    assert coverage.missing() == [kind]
