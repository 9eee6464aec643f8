"""A master never acknowledges at a time at which a successor may have been named."""

import random

import pytest

from ha.core.lease import AUTHORITY_S, DRIFT, Grants, Lease, beat_s

LENGTH_S = 1.0


@pytest.fixture
def grants() -> Grants:
    """Of a controller that has led since 0."""
    grants = Grants(LENGTH_S)
    grants.leads(0.0)
    return grants


def test_a_lease_counts_from_before_it_was_asked_for() -> None:
    lease = Lease()
    assert not lease.holds(0.0)
    lease.grant(10.0, LENGTH_S)
    assert lease.holds(10.9)
    assert not lease.holds(11.0)
    lease.grant(9.0, LENGTH_S)  # a late answer to an earlier request takes nothing away
    assert lease.ends_s == 11.0
    lease.give_up()
    assert not lease.holds(10.0)


@pytest.mark.parametrize("length_s", [0.05, 0.15, 0.25, 10.0])
def test_a_lease_is_asked_for_anew_five_times_while_it_lasts(length_s: float) -> None:
    assert 0.0 < 5 * beat_s(length_s) <= length_s
    assert beat_s(length_s) <= beat_s(0.0)  # a controller that grants nothing is not asked more often than the others


def test_a_successor_waits_until_the_lease_is_over_on_a_slow_clock(grants: Grants) -> None:
    assert grants.grant("a", 1, 100.0, 100.0) == LENGTH_S
    assert grants.free_s("a", 1) == pytest.approx(100.0 + LENGTH_S * (1 + DRIFT))
    assert grants.free_s("a", 2) == grants.free_s("b", 1) < 10.0


def test_a_controller_without_a_majority_grants_nothing(grants: Grants) -> None:
    assert grants.grant("a", 1, 100.0, 100.0 - AUTHORITY_S) == 0.0
    assert grants.free_s("a", 1) < 100.0


def test_a_follower_grants_nothing_and_a_new_leader_waits_for_the_leases_of_others(grants: Grants) -> None:
    grants.grant("a", 1, 1.0, 1.0)
    grants.follows()
    assert grants.grant("a", 1, 2.0, 2.0) == 0.0
    assert grants.free_s("a", 1) == float("inf")
    grants.leads(5.0)
    assert grants.free_s("a", 1) == pytest.approx(5.0 + AUTHORITY_S + LENGTH_S * (1 + DRIFT))


def test_a_name_whose_master_is_to_be_replaced_gets_no_lease(grants: Grants) -> None:
    grants.stop("a", 20.0)
    assert grants.grant("a", 1, 10.0, 10.0) == 0.0
    assert grants.grant("b", 1, 10.0, 10.0) == LENGTH_S
    assert grants.grant("a", 1, 20.0, 20.0) == LENGTH_S
    grants.stop("a", 30.0)
    grants.resume("a")
    assert grants.grant("a", 1, 21.0, 21.0) == LENGTH_S


def test_a_successor_gets_no_lease_while_that_of_another_lasts(grants: Grants) -> None:
    assert grants.grant("a", 1, 10.0, 10.0) == LENGTH_S
    assert grants.grant("a", 2, 10.5, 10.5) == 0.0
    assert grants.grant("b", 2, 10.5, 10.5) == LENGTH_S
    assert grants.grant("a", 2, 10.0 + LENGTH_S * (1 + DRIFT), 11.0) == LENGTH_S


def test_leases_that_ended_are_forgotten(grants: Grants) -> None:
    grants.grant("a", 1, 10.0, 10.0)
    grants.stop("b", 10.0)
    grants.forget(10.5)
    assert grants.free_s("a", 1) > 10.0
    grants.forget(12.0)
    assert grants.free_s("a", 1) < 10.0


@pytest.mark.parametrize("seed", range(40))
def test_two_masters_never_hold_a_lease_at_once(seed: int) -> None:
    """Two brokers ask two controllers over a slow network. Leaders change; each names a successor when one is free.

    A leader that was deposed knows neither that nor the new master; what a majority answered it is not renewed.
    """
    chance = random.Random(seed)
    leases, speeds = [Lease(), Lease()], [1.0, chance.uniform(1 / (1 + DRIFT), 1.0)]
    controllers = [Grants(LENGTH_S), Grants(LENGTH_S)]
    answered, believed = [float("-inf")] * 2, [0, 0]
    leader, now, replaced, held = 0, 0.0, 0, 0
    controllers[leader].leads(now)
    asked: list[tuple[float, float, int, int]] = []  # arrives at, asked at by its own clock, broker, controller
    answers: list[tuple[float, float, int, float]] = []  # arrives at, asked at, broker, length
    for _ in range(3000):
        now += 0.01
        answered[leader] = now - chance.uniform(0, 0.1)
        if chance.random() < 0.002:
            leader = 1 - leader
            believed[leader] = believed[1 - leader]
            controllers[leader].leads(now)
        if chance.random() < 0.3:
            broker = chance.randrange(2)
            asked.append((now + chance.uniform(0, 0.3), now * speeds[broker], broker, chance.randrange(2)))
        for request in [one for one in asked if one[0] <= now]:
            asked.remove(request)
            _, asked_s, broker, controller = request
            if broker == believed[controller]:
                length_s = controllers[controller].grant("a", broker, now, answered[controller])
                answers.append((now + chance.uniform(0, 0.3), asked_s, broker, length_s))
        for answer in [one for one in answers if one[0] <= now]:
            answers.remove(answer)
            leases[answer[2]].grant(answer[1], answer[3])
        if chance.random() < 0.01:
            controllers[leader].stop("a", now + 2.0)
        if now >= controllers[leader].free_s("a", believed[leader]):
            believed[leader] = 1 - believed[leader]
            controllers[leader].resume("a")
            replaced += 1
        holders = [lease.holds(now * speed) for lease, speed in zip(leases, speeds, strict=True)]
        assert holders != [True, True]
        held += any(holders)
    assert replaced > 3
    assert held > 1000
