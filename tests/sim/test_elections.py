"""Elected masters in simulation: good runs keep the rules, and each rule that is broken on purpose is found."""

import sys
from collections import Counter
from dataclasses import fields

import pytest

from chaos.elections import __main__ as command
from chaos.elections.__main__ import RUN_S, _Part, corpus_seeds, shrink
from chaos.elections.network import Faults, Network
from chaos.elections.simulation import KINDS, ElectionSimulation
from chaos.sim.coverage import JUDGED_SEEDS

SEEDS = 20
SEEDS_TO_FIND = 100
FOUND_BY = {
    "ignores_lease": 12,
    "grows_early": 21,
    "counts_new_set": 35,
    "elects_anybody": 2,
    "trusts_cut_logs": 6,
    "trusts_any_set": 6,
    "trusts_too_early": 763,
    "trusts_old_beats": 2128,
}
"""The seed that finds a broken rule, where those from 0 on would take long."""


def test_nothing_acknowledged_is_lost_and_one_master_acknowledges_at_a_time() -> None:
    acked = epochs = 0
    for seed in range(SEEDS):
        seen = ElectionSimulation(seed).run(RUN_S)
        assert not seen.violations, f"seed {seed}: {seen.violations}"
        acked, epochs = acked + len(seen.acked), epochs + len(seen.epochs)
    assert acked > 300 * SEEDS, "records flow"
    assert epochs > 2 * SEEDS, "masters change"


def test_a_run_that_acknowledges_nothing_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RUN_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["elections", "--seeds", "1", "--jobs", "1"])
    assert command.main() == 1
    assert "1 of 1 seeds: 0 records acknowledged" in capsys.readouterr().out


def test_what_one_consumer_draws_changes_nothing_of_what_others_draw() -> None:
    one, other = Network(3, Faults(), ("b1",)), Network(3, Faults(), ("b1",))
    one.chance("one that was added later").random()
    one.chance("delays").random()
    other.chance("delays").random()
    assert one.chance("faults").random() == other.chance("faults").random()
    assert one.chance("clients").random() != other.chance("faults").random()


def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = ElectionSimulation(5).run(RUN_S), ElectionSimulation(5).run(RUN_S)
    assert first == second and first.acked


@pytest.mark.parametrize("rule", [field.name for field in fields(Faults)])
def test_a_rule_that_is_broken_is_found(rule: str) -> None:
    for seed in (FOUND_BY.get(rule, 0), *range(SEEDS_TO_FIND)):
        if ElectionSimulation(seed, Faults(**{rule: True})).run(RUN_S).violations:
            return
    pytest.fail(f"{rule} was not found in {SEEDS_TO_FIND} seeds")


def test_the_seeds_that_once_failed_pass_and_each_planted_rule_is_among_them() -> None:
    assert set(FOUND_BY.values()) <= set(corpus_seeds())
    for seed in corpus_seeds():
        assert not ElectionSimulation(seed).run(RUN_S).violations


def test_a_seed_that_fails_is_shrunk_to_faults_that_still_break_it_and_one_that_passes_is_not() -> None:
    found = shrink(0, Faults(confirms_past_the_set=True)) or shrink(1, Faults(confirms_past_the_set=True))
    assert found is not None
    first, last = found
    assert last.violations and len(last.strikes) <= len(first.strikes)
    assert {number for number, _, _ in last.strikes} <= {number for number, _, _ in first.strikes}
    assert shrink(0) is None


def test_many_seeds_of_which_few_count_or_which_lack_a_fault_are_a_gap(
    capsys: pytest.CaptureFixture[str],
) -> None:
    struck = Counter(kind for _, kind in KINDS)
    part = _Part(JUDGED_SEEDS, JUDGED_SEEDS, 1, 1, struck, ())
    assert command._tell([part], 1) == 0
    assert command._tell([part._replace(counting=1)], 1) == command.GAP_EXIT_CODE
    del struck["pause"]
    assert command._tell([part], 1) == command.GAP_EXIT_CODE
    assert "never occurred: pause" in capsys.readouterr().out
    assert command._tell([part._replace(seeds=1)], 1) == 0
    assert command._tell([part._replace(broken=("seed 1: broken",))], 1) == 1
