"""The catalogue: every drill breaks something, repairs all of it, and touches nodes and links that are there."""

from itertools import islice

import pytest

from chaos.drills.catalogue import CATALOGUE, Drill, Step
from chaos.drills.schedule import draw
from chaos.fabric.contract import ClusterView, NodeView, Verb

ROLES = {3: ("slave", "master", "slave"), 5: ("slave", "slave", "master", "slave", "slave")}
UNDONE_BY = {
    Verb.KILL: Verb.START,
    Verb.STOP: Verb.START,
    Verb.PAUSE: Verb.RESUME,
    Verb.CUT: Verb.HEAL,
    Verb.DELAY: Verb.HEAL,
    Verb.SLOW: Verb.HEAL,
    Verb.CLOCK: Verb.HEAL,
    Verb.FILL: Verb.HEAL,
    Verb.FAIL_DISK: Verb.REPLACE_DISK,
    Verb.CUT_POWER: Verb.START,
}
NUMBER_FIRST = {Verb.DELAY, Verb.SLOW, Verb.CLOCK}


def view(count: int) -> ClusterView:
    nodes = tuple(NodeView(f"n{i}", f"h:{i}", role, "up") for i, role in enumerate(ROLES[count]))
    return ClusterView(nodes, "namesrv")


def steps_of(name: str, count: int = 3) -> list[Step]:
    drill = CATALOGUE[name]
    return list(drill.plan(view(count), drill.hold_s))


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("drill", CATALOGUE.values(), ids=lambda drill: drill.name)
def test_every_fault_is_repaired_by_a_later_step(drill: Drill, count: int) -> None:
    open_faults: set[tuple[Verb, tuple[str, ...]]] = set()
    broken = False
    for step in drill.plan(view(count), drill.hold_s):
        target = step.words[1:] if step.verb in NUMBER_FIRST else step.words
        several = [(word,) for word in target] if step.verb is Verb.CUT_POWER else [target]
        if step.verb in UNDONE_BY:
            open_faults.update((UNDONE_BY[step.verb], one) for one in several)
        open_faults.discard((step.verb, target))
        broken |= step.is_fault
        assert {name for word in target for name in word.split(">")} <= {"n0", "n1", "n2", "n3", "n4", "namesrv"}
    assert broken and not open_faults


def test_the_leader_is_the_target_where_the_name_says_so() -> None:
    assert [(step.verb, step.words) for step in steps_of("kill-leader")] == [
        (Verb.KILL, ("n1",)), (Verb.START, ("n1",)),
    ]  # fmt: skip
    assert steps_of("pause-leader")[0].words == ("n1",)
    assert set(steps_of("isolate-leader")[0].words) == {"n1>n0", "n0>n1", "n1>n2", "n2>n1"}
    assert set(steps_of("one-way")[0].words) == {"n1>n0", "n1>n2"}


@pytest.mark.parametrize("count", [3, 5])
def test_a_minority_leaves_a_majority_and_a_lost_majority_does_not(count: int) -> None:
    assert sum(step.is_fault for step in steps_of("minority", count)) < count / 2
    assert sum(step.is_fault for step in steps_of("majority-lost", count)) > count / 2


@pytest.mark.parametrize("count", [3, 5])
def test_a_bridge_leaves_one_node_that_sees_all_and_halves_that_see_only_it(count: int) -> None:
    cut = {frozenset(link.split(">")) for link in steps_of("bridge", count)[0].words}
    names = {f"n{i}" for i in range(count)}
    bridges = [name for name in names if not any(name in pair for pair in cut)]
    assert len(bridges) == 1
    reachable = {name: {other for other in names if frozenset((name, other)) not in cut} for name in names}
    assert all(len(reachable[name]) == (count + 1) // 2 for name in names - set(bridges))


def test_a_drill_that_a_mode_cannot_do_is_not_in_its_list() -> None:
    assert "controller" not in CATALOGUE["isolate-leader"].modes
    assert "controller" in CATALOGUE["isolate-leader"].modes_on("namespaces")
    assert {name for name, drill in CATALOGUE.items() if "raft" in drill.modes_on("compose")} == {
        "kill-leader", "pause-leader", "stalls", "isolate-leader", "unplug-leader", "minority", "majority-lost",
        "one-way", "bridge", "flapping", "slow-link", "rolling-restart", "nameserver-down", "transfer", "wiped-node",
    }  # fmt: skip
    assert {name for name, drill in CATALOGUE.items() if "sync" in drill.modes_on("compose")} == {
        "kill-leader", "pause-leader", "stalls", "unplug-leader", "minority", "rolling-restart", "nameserver-down",
        "wiped-node",
    }  # fmt: skip
    assert not CATALOGUE["unplug-leader"].modes_on("processes") | CATALOGUE["unplug-leader"].modes_on("namespaces")
    assert CATALOGUE["transfer"].modes == {"raft", "controller"}
    assert "standalone" in CATALOGUE["kill-leader"].modes


def test_a_campaign_is_the_same_for_a_seed_and_has_every_drill_of_the_mode_before_one_comes_again() -> None:
    among = [drill for drill in CATALOGUE.values() if "sync" in drill.modes]
    allowed = {drill.name for drill in among}
    drawn = list(islice(draw(7, among), 2 * len(allowed)))
    assert drawn == list(islice(draw(7, among), 2 * len(allowed)))
    assert drawn != list(islice(draw(8, among), 2 * len(allowed)))
    names = [one.drill.name for one in drawn]
    assert set(names[: len(allowed)]) == set(names[len(allowed) :]) == allowed
    assert all(0.5 * one.drill.hold_s <= one.hold_s <= 1.5 * one.drill.hold_s for one in drawn)
