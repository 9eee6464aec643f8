"""A leader whose loop stands still, on simulated groups with the shipping rule: it is waited for, but not for long."""

import pytest

from chaos.sim.cluster import SimCluster
from chaos.sim.plan import GroupPlan
from chaos.sim.process import CoreKit
from dledger.core.busy import patience_ms

_MAX_MS = 1000


def _group(seed: int) -> SimCluster:
    plan = GroupPlan(
        names=("n0", "n1", "n2"),
        durable_quorum=True,
        recoverable=True,
        heartbeat_ms=100,
        election_min_ms=600,
        election_max_ms=_MAX_MS,
        tick_ms=20,
        flush_us=1000,
        span_limit_bytes=64,
        window_bytes=512,
        priorities={},
    )
    cluster = SimCluster(plan, seed, CoreKit())
    for name in plan.names:
        cluster.boot(name)
    assert cluster.clock.run_until(10_000_000, lambda: cluster.leader() is not None)
    cluster.clock.run_until(cluster.clock.now_us + 2_000_000)
    return cluster


def _leader_after(cluster: SimCluster, run_ms: int) -> tuple[str, int]:
    cluster.clock.run_until(cluster.clock.now_us + run_ms * 1000)
    leader = cluster.leader()
    assert leader is not None
    return leader.name, leader.raft.state.term


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_is_busy_for_a_while_stays(seed: int) -> None:
    cluster = _group(seed)
    before = _leader_after(cluster, 0)
    cluster.stall(before[0], int(2.5 * _MAX_MS) * 1000)
    assert _leader_after(cluster, 5 * _MAX_MS) == before
    assert cluster.marks["busy notices sent"] > 10


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_stands_still_for_good_is_replaced(seed: int) -> None:
    cluster = _group(seed)
    name, term = _leader_after(cluster, 0)
    settings = cluster.processes[name].raft.settings
    cluster.stall(name, 60 * _MAX_MS * 1000)
    later, new_term = _leader_after(cluster, patience_ms(settings) + 2 * _MAX_MS)
    assert later != name
    assert new_term > term


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_leaders_thread_says_it_is_not_waited_for_longer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.sim.cluster.is_due", lambda _settings, _quiet_ms: True)
    test_a_leader_that_stands_still_for_good_is_replaced(seed)


@pytest.mark.sim
def test_a_stopped_process_is_replaced_as_fast_as_ever() -> None:
    cluster = _group(1)
    name, _ = _leader_after(cluster, 0)
    cluster.pause(name, 60 * _MAX_MS * 1000)
    assert _leader_after(cluster, 2 * _MAX_MS)[0] != name
    assert "busy notices sent" not in cluster.marks
