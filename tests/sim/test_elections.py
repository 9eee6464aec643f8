"""Elected masters in simulation: good runs keep the rules, and each rule that is broken on purpose is found."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from chaos.elections import __main__ as command
from chaos.elections import simulation
from chaos.elections.__main__ import CAMPAIGN, RUN_S
from chaos.elections.broker import SimBroker
from chaos.elections.network import BrokenRules, Network, Seen
from chaos.elections.simulation import KINDS, ElectionSimulation
from chaos.sim.corpus import corpus_seeds
from chaos.sim.coverage import GAP_EXIT_CODE, JUDGED_SEEDS
from chaos.sim.nemesis import Script
from chaos.sim.seeds import SeedSums, shrink
from ha.controller.core.commands import AlterSet, Elect
from ha.controller.core.live import LiveBrokers, ReplicaHeartbeat
from ha.controller.core.model import Group
from ha.controller.leadership import ControllerLeadership
from ha.controller.requests import ControllerRequests
from ha.core.elected_copies import ElectedCopies, Proposal
from ha.elected.controllers import ControllerAnswer, Controllers, ProposalResult
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.answer import Answer
from nameserver.core import election
from nameserver.core.model import BrokerMember, Registration
from tests.sim.ranked_seeds import first_that_finds

SEEDS = 20
SEEDS_TO_FIND = 300
FOUND_BY = {
    "ignores_lease": 3,
    "grows_early": 15,
    "counts_new_set": 0,
    "elects_anybody": 2,
    "trusts_cut_logs": 6,
    "trusts_any_set": 6,
    "trusts_too_early": 213,
    "trusts_old_beats": 131,
}
"""The seed that finds a broken rule, where those from 0 on would take long."""


def test_nothing_acknowledged_is_lost_and_one_master_acknowledges_at_a_time() -> None:
    acked = epochs = 0
    for seed in range(SEEDS):
        seen = ElectionSimulation(seed).run(RUN_S)
        assert not seen.violations, f"seed {seed}: {seen.violations}"
        acked, epochs = acked + len(seen.acked), epochs + seen.leader_count
    assert acked > 300 * SEEDS, "records flow"
    assert epochs > 2 * SEEDS, "masters change"


def test_a_pause_of_a_master_that_stands_still_already_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "KINDS", ((1.0, "pause"),))
    pause, ends, is_new = SimBroker.pause, dict[str, float](), list[bool]()

    def note(broker: SimBroker, seconds: float) -> None:
        now_s = broker._network.now_s
        if broker.is_master:
            is_new.append(ends.get(broker.name, 0.0) <= now_s)
        ends[broker.name] = max(ends.get(broker.name, 0.0), now_s + seconds)
        pause(broker, seconds)

    monkeypatch.setattr(SimBroker, "pause", note)
    seen = ElectionSimulation(0).run(RUN_S)
    assert seen.met == {"pauses": sum(is_new)}
    assert 0 < sum(is_new) < len(is_new)


def test_a_run_that_acknowledges_nothing_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RUN_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["elections", "--seeds", "1", "--jobs", "1"])
    assert CAMPAIGN.main(None) == 1
    assert "1 of 1 seeds: 0 records acknowledged" in capsys.readouterr().out


def test_what_one_consumer_draws_changes_nothing_of_what_others_draw() -> None:
    one, other = Network(3, BrokenRules(), ("b1",)), Network(3, BrokenRules(), ("b1",))
    one.chance("one that was added later").random()
    one.chance("delays").random()
    other.chance("delays").random()
    assert one.chance("faults").random() == other.chance("faults").random()
    assert one.chance("clients").random() != other.chance("faults").random()


def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = ElectionSimulation(5).run(RUN_S), ElectionSimulation(5).run(RUN_S)
    assert first == second and first.acked


@pytest.mark.parametrize("rule", [field.name for field in fields(BrokenRules)])
@pytest.mark.timeout(900)  # where the rule's own seed misses it, others are tried
def test_a_rule_that_is_broken_is_found(rule: str) -> None:
    first_that_finds(partial(find, rule), [FOUND_BY.get(rule, 0), *range(SEEDS_TO_FIND)], 1 + SEEDS_TO_FIND)


def find(rule: str, seed: int) -> str:
    """Run a seed with the rule broken; return what that breaks first, or nothing."""
    return next(iter(ElectionSimulation(seed, BrokenRules(**{rule: True})).run(RUN_S).violations), "")


def _keep_the_epoch(command: AlterSet, group: Group | None) -> Any:
    after, outcome = _apply(command, group)
    if after is None or group is None or after is group:
        return after, outcome
    after = replace(after, set_epoch=group.set_epoch)
    return after, replace(outcome, group=after)


def _choose_the_best_of_all(command: Elect, group: Group) -> int | None:
    pool = command._trusted(group)
    return min(pool, key=lambda one: one.rank).broker_id if pool else None


def _forget_to_go_on(copies: ElectedCopies, ids: frozenset[int], set_epoch: int) -> None:
    asked = copies._asked
    _learn(copies, ids, set_epoch)
    copies._asked = asked


def _replace_for_any_dead(leadership: ControllerLeadership, group: Group | None) -> None:
    _replace_if_lost(leadership, group)
    if group is None or not leadership.leads or group.name in leadership._tasks:
        return
    if any((group.name, broker_id) in leadership._lost for broker_id in group.replicas):
        leadership._spawn(group.name, leadership._replace(group))


def _compare_no_terms(_claim: Registration, _holder: BrokerMember | None, _highest_term: int) -> None:
    """A deposed leader takes its route back."""


def _replace_any_set(command: AlterSet, group: Group) -> Any:
    """A set is changed by a proposal that was made for an earlier one, and not decided since."""
    return _problem(replace(command, set_epoch=group.set_epoch), group)


def _forget_the_undecided(copies: ElectedCopies, proposal: Proposal) -> None:
    """A master goes on to another set as if the one whose answer was lost could not be decided any more."""
    copies.refused(proposal)


def _leave_out_the_doubt(requests: ControllerRequests, connection: Connection, command: Command) -> Answer:
    """A controller takes a broker that has lost power for a candidate like any other."""
    command.ext.pop("doubtEpoch", None)
    return _heartbeat(requests, connection, command)


def _grant_to_any_member(
    requests: ControllerRequests, beat: ReplicaHeartbeat, granted_s: float
) -> Mapping[str, str] | None:
    """A controller answers with a lease that was not granted, since it does not lead, or its majority is gone."""
    return _heartbeat_fields(requests, beat, granted_s or 0.15)


async def _forget_earlier_attempts(controllers: Controllers, *arguments: Any) -> ControllerAnswer:
    """A broker believes that only the controller that answers can have decided its proposal."""
    return (await _ask(controllers, *arguments))._replace(is_alone=True)


async def _take_for_refused(
    controllers: Controllers, broker_id: int, master_epoch: int, proposal: Proposal
) -> ProposalResult:
    """A broker takes a set for refused to which the controllers may yet agree."""
    return (await _propose(controllers, broker_id, master_epoch, proposal))._replace(is_certain=True)


def _answer_twice_the_lease(
    requests: ControllerRequests, beat: ReplicaHeartbeat, granted_s: float
) -> Mapping[str, str] | None:
    """A controller waits for the end of leases that it has answered twice as long."""
    return _heartbeat_fields(requests, beat, 2 * granted_s)


async def _believe_no_resignation(leadership: ControllerLeadership, name: str, asker: int, **named: Any) -> Any:
    """A successor waits for the lease that its master gave up."""
    return await _elect(leadership, name, asker, **named | {"has_resigned": False})


def _take_all_for_alive(requests: ControllerRequests, name: str) -> frozenset[int]:
    """A silent broker gets into the in-sync set."""
    group = requests._machine.groups.get(name)
    return frozenset() if group is None else frozenset(group.replicas)


def _take_silent_members_for_lost(_requests: ControllerRequests, _name: str, _set_epoch: int) -> frozenset[int]:
    """No set may have a silent broker."""
    return frozenset()


def _believe_any_connection(_live: LiveBrokers, _connection: object, _name: str, _broker_id: int | None) -> bool:
    """Anybody speaks for a broker."""
    return True


def _serve_both(
    _requests: ControllerRequests, _connection: Connection, _name: str, _broker_id: int, _address: str
) -> None:
    """Two processes use one broker id."""


async def _fail_afterwards(leadership: ControllerLeadership, group: Group) -> None:
    """An error that is logged and has no other consequence."""
    await _replace(leadership, group)
    raise ValueError("after an election")


_heartbeat, _heartbeat_fields = ControllerRequests._heartbeat, ControllerRequests._heartbeat_fields
_ask, _propose, _replace = Controllers.ask, Controllers.propose, ControllerLeadership._replace
_elect = ControllerLeadership.elect
_apply, _learn, _problem = AlterSet.apply, ElectedCopies.learn, AlterSet._problem
_replace_if_lost = ControllerLeadership._replace_if_lost
BUGS: dict[str, tuple[int, Sequence[tuple[Any, str, Callable[..., Any]]]]] = {
    "two sets of one epoch": (0, [(AlterSet, "apply", _keep_the_epoch)]),
    "a dead follower triggers an election": (
        0,
        [
            (ControllerLeadership, "_replace_if_lost", _replace_for_any_dead),
            (Elect, "_choose", _choose_the_best_of_all),
        ],
    ),
    "a deposed leader takes its route back": (0, [(election, "_check_term", _compare_no_terms)]),
    "a set changes by a proposal that was made for an earlier one": (9, [(AlterSet, "_problem", _replace_any_set)]),
    "an undecided set is forgotten": (0, [(ElectedCopies, "doubt", _forget_the_undecided)]),
    "no proposal follows one that was open while the set changed": (0, [(ElectedCopies, "learn", _forget_to_go_on)]),
    "a controller leaves out a broker's doubt": (6, [(ControllerRequests, "_heartbeat", _leave_out_the_doubt)]),
    "a lease that was not granted": (3, [(ControllerRequests, "_heartbeat_fields", _grant_to_any_member)]),
    "a proposal without an answer is taken for refused": (0, [(Controllers, "propose", _take_for_refused)]),
    "an earlier attempt is forgotten": (10, [(Controllers, "ask", _forget_earlier_attempts)]),
    "an error that is only logged": (0, [(ControllerLeadership, "_replace", _fail_afterwards)]),
    "a lease is answered twice as long": (4, [(ControllerRequests, "_heartbeat_fields", _answer_twice_the_lease)]),
    "a resignation is not believed": (0, [(ControllerLeadership, "elect", _believe_no_resignation)]),
    "all replicas count as alive": (10, [(ControllerRequests, "_alive", _take_all_for_alive)]),
    "no silent broker may stay in the set": (0, [(ControllerRequests, "_members", _take_silent_members_for_lost)]),
    "any connection speaks for a broker": (0, [(LiveBrokers, "speaks_on", _believe_any_connection)]),
    "a broker id is used twice": (0, [(ControllerRequests, "_check_lives_once", _serve_both)]),
}
"""The seed that finds each, and what is planted in shipping code."""


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.timeout(900)  # where the bug's own seed misses it, others are tried
def test_a_bug_in_shipping_code_is_found(bug: str) -> None:
    first_that_finds(partial(find_bug, bug), [BUGS[bug][0], *range(SEEDS_TO_FIND)], 1 + SEEDS_TO_FIND)


def find_bug(bug: str, seed: int) -> str:
    """Run a seed with the bug; return the first rule that it breaks, or nothing."""
    with ExitStack() as planted:
        for owner, name, wrong in BUGS[bug][1]:
            planted.enter_context(patch.object(owner, name, wrong))
        return next(iter(ElectionSimulation(seed).run(RUN_S).violations), "")


def test_the_seeds_that_once_failed_pass_and_each_planted_bug_is_among_them() -> None:
    seeds = corpus_seeds(CAMPAIGN.corpus)
    assert {*FOUND_BY.values(), *(seed for seed, _ in BUGS.values())} <= set(seeds)
    for seed in seeds:
        assert not ElectionSimulation(seed).run(RUN_S).violations


def test_a_seed_that_fails_is_shrunk_to_faults_that_still_break_it_and_one_that_passes_is_not() -> None:
    def simulate(seed: int, script: Script) -> Seen:
        return ElectionSimulation(seed, BrokenRules(confirms_past_the_set=True), script).run(RUN_S)

    found = shrink(simulate, 0) or shrink(simulate, 1)
    assert found is not None
    first, last = found
    assert last.violations and len(last.strikes) <= len(first.strikes)
    assert {number for number, _, _ in last.strikes} <= {number for number, _, _ in first.strikes}
    assert shrink(CAMPAIGN.simulate, 0) is None


def test_many_seeds_of_which_few_count_or_which_lack_a_fault_are_a_gap(
    capsys: pytest.CaptureFixture[str],
) -> None:
    struck = Counter(kind for _, kind in KINDS)
    part = SeedSums(JUDGED_SEEDS, JUDGED_SEEDS, 1, 1, struck, Counter(kills=3, pauses=2, partitions=1), ())
    assert CAMPAIGN.tell([part], 1) == 0
    assert CAMPAIGN.tell([part._replace(counting=1)], 1) == GAP_EXIT_CODE
    del struck["pause"]
    assert CAMPAIGN.tell([part], 1) == GAP_EXIT_CODE
    assert "never occurred: pause" in capsys.readouterr().out
    assert CAMPAIGN.tell([part._replace(seeds=1)], 1) == 0
    assert CAMPAIGN.tell([part._replace(broken=("seed 1: broken",))], 1) == 1
