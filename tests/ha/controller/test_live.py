"""Who counts as alive, and when a successor may be named."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ha.controller.core.live as live
from ha.controller.core.live import LiveBrokers, ReplicaHeartbeat
from ha.controller.core.model import Candidate, Group, RegisteredReplica
from ha.controller.core.outcome import CommandOutcome
from ha.controller.leadership import ControllerLeadership
from ha.controller.quorum.quorum import QuorumStatus
from ledgermq.remoting.refusal import Refusal

BEAT = ReplicaHeartbeat("a", 1, "127.0.0.1:1", silence_ms=1000, epoch=2, end_offset=500, priority=7)
GROUP = Group("c", "a", {number: RegisteredReplica("", "") for number in (1, 2, 3)}, 4, 1, 1, frozenset({1, 2, 3}))
STILL_MS = 200


def test_a_broker_lives_for_the_silence_that_it_named() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 100, object())
    assert table.is_alive("a", 1, 1100)
    assert not table.is_alive("a", 1, 1101)
    assert not table.is_alive("a", 2, 100)
    assert not table.is_alive("a", None, 100)
    assert table.expire(1100) == []
    ((dead, _),) = table.expire(1101)
    assert (dead, len(table)) == (BEAT, 0)


def test_a_broker_is_dead_when_its_connection_closes() -> None:
    table, first, second = LiveBrokers(), object(), object()
    table.hear(BEAT, 0, first)
    table.hear(replace(BEAT, broker_id=2), 0, first)
    table.hear(BEAT, 1, second)
    assert [beat.broker_id for beat in table.closed(first)] == [2]
    assert table.is_alive("a", 1, 1)
    assert table.closed(second) == [BEAT]
    assert table.closed(second) == []


def test_the_newest_heartbeat_counts_even_if_the_log_became_shorter() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 0, object())
    table.hear(replace(BEAT, end_offset=300), 1, object())
    assert table.candidates(GROUP, 1, STILL_MS) == (Candidate(1, 2, 300, 7),)
    assert table.last("a", 1) == replace(BEAT, end_offset=300)
    assert table.last("a", 2) is None


def test_candidates_are_alive() -> None:
    table = LiveBrokers()
    table.hear(BEAT, 0, object())
    table.hear(replace(BEAT, broker_id=2), 900, object())
    assert table.alive("a", [1, 2, 3], 1500) == {2}
    assert candidates(table, 900) == [1, 2]


def candidates(table: LiveBrokers, now_ms: int, group: Group = GROUP) -> list[int]:
    return [one.broker_id for one in table.candidates(group, now_ms, STILL_MS)]


def heard(*times_ms: int, **others: Any) -> LiveBrokers:
    """The table after one heartbeat of each broker, at these times; `others` are fields of the second one's."""
    table = LiveBrokers()
    for number, at_ms in enumerate(times_ms, 1):
        fields = {"holds_lease": True} | (others if number == 2 else {})
        table.hear(replace(BEAT, broker_id=number, **fields), at_ms, object())
    return table


def test_a_master_stands_still_once_it_is_silent_and_a_member_of_the_set_is_not() -> None:
    table = heard(0, 150, 150)
    assert not table.stands_still(GROUP, STILL_MS, STILL_MS)
    assert candidates(table, STILL_MS) == [1, 2, 3]
    assert table.stands_still(GROUP, STILL_MS + 1, STILL_MS)
    assert candidates(table, STILL_MS + 1) == [2, 3]


def test_whoever_stands_still_with_the_master_is_not_elected_in_its_place() -> None:
    assert candidates(heard(0, 0, 150), STILL_MS + 1) == [3]
    assert candidates(heard(150, 0, 150), STILL_MS + 1) == [1, 3]


@pytest.mark.parametrize(("at_ms", "expected"), [(STILL_MS, [1, 2, 3]), (STILL_MS + 1, [2, 3])])
async def test_a_master_is_a_candidate_unless_its_lease_was_waited_for(at_ms: int, expected: list[int]) -> None:
    """It becomes silent after it was asked whether it is: its lease goes on."""
    leadership, submitted = leading(heard(0, 150, 150), iter([0, at_ms, STILL_MS + 1]).__next__)
    await leadership.elect("a", 2, designated=False)
    assert [one.broker_id for one in submitted[0].alive] == expected


def leading(table: LiveBrokers, now_ms: Callable[[], int]) -> tuple[ControllerLeadership, list[Any]]:
    """The leadership of term 1 over these brokers, and what it submits."""
    submitted = list[Any]()

    async def submit(command: Any) -> CommandOutcome:
        submitted.append(command)
        return CommandOutcome()

    quorum: Any = SimpleNamespace(submit=submit, status=QuorumStatus(is_leader=True, term=1))
    machine: Any = SimpleNamespace(groups={"a": GROUP})
    rules: Any = SimpleNamespace(unclean=False, still_ms=STILL_MS)
    leadership = ControllerLeadership(quorum, machine, table, 0.02, now_ms, lambda: rules, lambda _: None)
    leadership._term = 1
    leadership._grants.leads(-1e9)
    return leadership, submitted


async def test_elections_of_a_controller_that_is_deposed_wait_for_no_lease_and_elect_nobody() -> None:
    """Their waits would block those of its next term."""
    leadership, submitted = leading(heard(0, 0, 0), lambda: 0)
    leadership._grants.grant("a", 1, time.monotonic(), math.inf)
    elections = [asyncio.ensure_future(leadership.elect("a", 2, designated=True)) for _ in range(2)]
    await asyncio.sleep(0)
    leadership._quorum.status = QuorumStatus(term=2)
    leadership.changed()
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*elections, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Refusal, Refusal]
    assert not submitted


async def test_what_was_waited_for_in_one_term_does_not_count_in_the_next() -> None:
    """Another controller may have granted a lease between the two."""
    leadership, submitted = leading(heard(0, 0, 0), lambda: 0)
    leadership._grants.grant("a", 1, time.monotonic(), math.inf)
    election = asyncio.ensure_future(leadership.elect("a", 2, designated=True))
    await asyncio.sleep(0)
    leadership._quorum.status, leadership._term = QuorumStatus(is_leader=True, term=3), 3
    with pytest.raises(Refusal):
        await election
    assert not submitted


def test_a_master_stays_while_all_are_silent() -> None:
    table = heard(0, 0, 0)
    assert not table.stands_still(GROUP, STILL_MS + 1, STILL_MS)
    assert candidates(table, STILL_MS + 1) == [1, 2, 3]


def test_a_silent_master_stays_while_nobody_that_is_heard_may_be_elected() -> None:
    alone = replace(GROUP, in_sync=frozenset({1}))
    assert not heard(0, 150, 150).stands_still(alone, STILL_MS + 1, STILL_MS)
    assert candidates(heard(0, 150, 150), STILL_MS + 1, alone) == [1, 2, 3]
    assert not heard(0, 150, doubt_epoch=1).stands_still(GROUP, STILL_MS + 1, STILL_MS)


def test_rocketmqs_master_counts_by_the_silence_that_it_named() -> None:
    table = heard(150, 0, holds_lease=False)
    rocketmqs = replace(GROUP, master_id=2)
    assert not table.stands_still(rocketmqs, STILL_MS + 1, STILL_MS)
    assert candidates(table, STILL_MS + 1, rocketmqs) == [1, 2]


def test_a_dead_master_does_not_stand_still() -> None:
    assert not heard(0, 900).stands_still(GROUP, 1001, STILL_MS)
    assert not heard(0, 900).stands_still(replace(GROUP, master_id=None), 900, STILL_MS)


def test_the_table_has_a_limit() -> None:
    table = LiveBrokers()
    for number in range(live.LIVE_MAX):
        assert table.hear(replace(BEAT, broker_id=number), 0, None)
    assert not table.hear(replace(BEAT, broker_id=live.LIVE_MAX), 0, None)
    assert table.hear(replace(BEAT, broker_id=0), 1, None)
