"""Which member of a group a broker suggests to readers, by its role and by what it knows of the others."""

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.config import BrokerConfig
from broker.pull.spread import MOVE_SECONDS, ROUTES_S, ReadSpread
from broker.role import Role
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.refusal import Cause, LeaderHint, Refusal
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import LogRole, LogState, Readiness, Replica
from tests.broker.conftest import Desk, MemoryClient, make_topic, pull_fields
from tests.broker.groups.test_clients import beat

LEADER = LeaderHint("n0", "host:1", "")
LEADING = LogState(LogRole.LEADER, 3, LEADER, None)
FOLLOWING = LogState(LogRole.FOLLOWER, 3, LEADER, Refusal(Cause.NOT_LEADER, "it is n0"))
MASTER = replace(LEADING, role=LogRole.MASTER)
SLAVE = replace(FOLLOWING, role=LogRole.SLAVE)
LEVEL = Replica("n1", 0, 0, True, "", 2, True)


class Log:
    def __init__(self) -> None:
        self.members = [LEVEL, replace_of(LEVEL, broker_id=3)]
        self.ready = Readiness(True, "")

    def replicas(self) -> list[Replica]:
        return self.members

    def readiness(self) -> Readiness:
        return self.ready


def replace_of(replica: Replica, **changes: Any) -> Replica:
    return replica._replace(**changes)


class World:
    """A broker in a group of three."""

    def __init__(self, state: LogState, follower_id: int = 1) -> None:
        self.config = BrokerConfig(broker_name="b", follower_id=follower_id)
        self.role, self.log, self.now_s, self.left = Role(self.config, state), Log(), 0.0, 0
        self.moved = 0
        log = cast(Any, self.log)
        self.spread = ReadSpread(self.config, self.role, log, lambda: self.now_s, self._leave, self._move)
        self.queues = [ConsumeQueue("T", number, f"/T/{number}", 10, cast(Any, set())) for number in range(6)]

    def _leave(self) -> None:
        self.left += 1

    def _move(self) -> None:
        self.moved += 1

    def suggested(self) -> list[str]:
        self.spread.look()
        return [self.spread.suggested(queue) for queue in self.queues]


def test_a_leader_gives_each_queue_a_home_among_its_followers() -> None:
    world = World(LEADING)
    spread = world.suggested()
    assert sorted(spread) == ["2", "2", "2", "3", "3", "3"]
    assert all(world.spread.is_elsewhere(queue) for queue in world.queues)
    assert world.suggested() == spread


def test_three_machines_that_lead_a_group_each_have_a_third_of_a_topics_readers() -> None:
    readers: Counter[str] = Counter()
    for leader in (1, 2, 3):
        world = World(LEADING, leader)
        world.log.members = [replace_of(LEVEL, broker_id=machine) for machine in (1, 2, 3) if machine != leader]
        readers.update(world.suggested()[:3])
    assert readers == {"1": 3, "2": 3, "3": 3}


@pytest.mark.parametrize("change", [{"is_level": False}, {"broker_id": -1}])
def test_a_follower_that_lacks_much_or_is_not_known_is_not_read_from(change: dict[str, Any]) -> None:
    world = World(LEADING)
    world.log.members[0] = replace_of(LEVEL, **change)
    assert set(world.suggested()) == {"3"}


def test_a_leader_without_a_level_follower_keeps_its_readers() -> None:
    world = World(LEADING)
    world.log.members = [replace_of(LEVEL, is_level=False)]
    world.suggested()
    world.now_s = ROUTES_S + 1
    assert set(world.suggested()) == {"0"} and world.moved == 0
    assert not world.spread.is_elsewhere(world.queues[0])
    world.log.members = [LEVEL]
    assert set(world.suggested()) == {"2"} and world.moved == 1, "those that wait are sent away"
    assert set(world.suggested()) == {"2"} and world.moved == 1


def test_a_follower_that_is_elected_sends_its_readers_to_the_others() -> None:
    world = World(FOLLOWING)
    assert set(world.suggested()) == {"1"}
    assert not world.spread.is_elsewhere(world.queues[0])
    world.role.update(LEADING)
    assert set(world.suggested()) == {"2", "3"} and (world.moved, world.left) == (1, 0)


def test_a_new_leader_that_keeps_readers_for_a_moment_does_not_send_them_to_broker_0_which_led_before() -> None:
    world = World(FOLLOWING)
    world.suggested()
    world.role.update(LEADING)
    members, world.log.members = world.log.members, [replace_of(one, is_level=False) for one in world.log.members]
    assert set(world.suggested()) == {"1"} and (world.moved, world.left) == (0, 0)
    assert not world.spread.is_elsewhere(world.queues[0])
    world.log.members = members
    assert set(world.suggested()) == {"2", "3"} and world.moved == 1


def test_a_follower_that_comes_back_is_read_from_when_all_clients_have_it_in_their_routes() -> None:
    world = World(LEADING)
    members, world.log.members = world.log.members, world.log.members[:1]
    assert set(world.suggested()) == {"2"}
    world.log.members, world.now_s = members, 20.0
    assert set(world.suggested()) == {"2"}
    world.now_s += ROUTES_S - 1
    assert set(world.suggested()) == {"2"}
    world.log.members = members[1:]
    assert set(world.suggested()) == {"3"}, "no other one can be read from"
    world.log.members, world.now_s = members, world.now_s + ROUTES_S + 1
    assert set(world.suggested()) == {"3"}, "this one is back since now"
    world.now_s += ROUTES_S + 1
    assert set(world.suggested()) == {"2", "3"}


def test_followers_that_are_level_soon_after_the_election_have_been_there_all_the_time() -> None:
    world = World(LEADING)
    members, world.log.members = world.log.members, world.log.members[:1]
    world.suggested()
    world.log.members, world.now_s = members, 4.9
    assert set(world.suggested()) == {"2", "3"}


def test_a_stopping_leader_answers_who_waits() -> None:
    world = World(LEADING)
    before = world.suggested()
    world.spread.stop()
    assert world.left == 1
    assert world.suggested() == before


def test_a_follower_keeps_its_readers_through_an_election_and_not_for_ever() -> None:
    world = World(FOLLOWING)
    assert set(world.suggested()) == {"1"}
    world.role.update(replace(FOLLOWING, leader=None))
    world.now_s = 4.9
    assert set(world.suggested()) == {"1"}
    world.now_s = 5.1
    assert set(world.suggested()) == {"0"} and world.left == 1
    world.role.update(FOLLOWING)
    assert set(world.suggested()) == {"1"} and world.left == 1


def test_a_follower_that_falls_behind_sends_its_readers_away_once() -> None:
    world = World(FOLLOWING)
    world.suggested()
    world.log.ready = Readiness(True, "", is_level=False)
    assert set(world.suggested()) == {"0"} and world.left == 1
    assert set(world.suggested()) == {"0"} and world.left == 1


@pytest.mark.parametrize("state", [LEADING, FOLLOWING])
def test_without_the_setting_readers_stay_at_the_leader(state: LogState) -> None:
    world = World(state)
    world.config.spread_reads = False
    assert set(world.suggested()) == {"0"}


@pytest.mark.parametrize("role", [LogRole.ALONE, LogRole.MASTER, LogRole.SLAVE])
@pytest.mark.parametrize("slave_read", [False, True])
def test_where_nothing_is_elected_broker_0_is_suggested(role: LogRole, *, slave_read: bool) -> None:
    world = World(LogState(role, 0, None, None))
    world.config.slave_read = slave_read
    assert set(world.suggested()) == {"0"} and world.spread.keeps_readers and not world.spread.is_on


def test_readers_of_an_elected_master_are_spread_if_slaves_shall_be_read() -> None:
    master, slave = World(MASTER), World(SLAVE, 2)
    assert (set(master.suggested()), set(slave.suggested())) == ({"0"}, {"0"})
    assert slave.spread.keeps_readers, "it serves those that come all the same"
    master.config.slave_read = slave.config.slave_read = True
    assert (set(master.suggested()), set(slave.suggested())) == ({"2", "3"}, {"2"})
    slave.log.ready = Readiness(True, "", is_level=False)
    assert set(slave.suggested()) == {"0"} and slave.left == 1
    slave.role.update(MASTER)
    assert set(slave.suggested()) == {"2", "3"}


def test_a_deposed_leader_whose_disk_has_failed_sends_its_readers_away_at_once() -> None:
    world = World(LEADING)
    world.suggested()
    world.role.update(replace(FOLLOWING, leader=None))
    world.log.ready = Readiness(False, "the disk failed", is_level=False)
    assert set(world.suggested()) == {"0"} and world.left == 1
    assert not world.spread.keeps_readers, "a pull that comes later waits no more than those"


def test_a_queue_whose_home_has_fallen_behind_gets_another_one() -> None:
    world = World(LEADING)
    assert set(world.suggested()) == {"2", "3"}
    world.log.members[0] = replace_of(LEVEL, is_level=False)
    assert set(world.suggested()) == {"3"}


@pytest.fixture
async def pushed(desk: Desk, client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The header of a push consumer's pull that may wait a minute, at a node from which all readers are sent away."""
    await make_topic(client)
    await beat(client, "c1", version=5)
    monkeypatch.setattr(desk.parts.pull.spread, "is_elsewhere", lambda _: True)
    return pull_fields(sysFlag=2, subscription=None, subVersion=5, suspendTimeoutMillis=60_000)


async def test_a_pull_that_has_to_move_is_held_for_a_second_only(
    desk: Desk, client: MemoryClient, pushed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, now_s = desk.parts.pull.held, desk.parts.pull.held.now()
    monkeypatch.setattr(held, "_clock", lambda: now_s)
    moving = client.start(RequestCode.PULL_MESSAGE, pushed)
    staying = client.start(RequestCode.PULL_MESSAGE, pushed | {"sysFlag": "6", "subscription": "*"})
    assert len(held) == 2
    now_s += MOVE_SECONDS
    held.sweep()
    assert (await client.answer_to(moving)).code == ResponseCode.PULL_NOT_FOUND
    assert staying not in client.answers and len(held) == 1


async def test_a_pull_that_waits_when_it_has_to_move_is_answered(
    desk: Desk, client: MemoryClient, pushed: dict[str, str]
) -> None:
    moving = client.start(RequestCode.PULL_MESSAGE, pushed)
    staying = client.start(RequestCode.PULL_MESSAGE, pushed | {"sysFlag": "6", "subscription": "*"})
    desk.parts.pull.held.wake_all()
    assert (await client.answer_to(moving)).code == ResponseCode.PULL_NOT_FOUND
    assert staying not in client.answers and len(desk.parts.pull.held) == 1
