"""Whole brokers whose master is appointed by a controller: sends to slaves whose answers were lost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.passing import lost_sends
from ha.controller.server import Controller
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from node.broker_assembly import Broker
from tests.broker.conftest import eventually
from tests.broker.passing.test_lost_sends import kill_links, places_named, sent_through
from tests.broker.passing.test_through_any_member import hand_over_somewhere, make_topic
from tests.broker.test_broker import broker_config
from tests.broker.test_raft_brokers import Group
from tests.ha.controller.test_server import configs
from tests.limits import WAIT_S
from tests.ports import free_ports

_COUNT = 15
"""Sends to each slave; one pull returns all."""


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """A master and two slaves, which are in sync."""
    [settings] = configs(tmp_path, 1, lease_ms=2000)
    controller = Controller(settings)
    await controller.start()
    brokers = [
        Broker(
            broker_config(
                tmp_path / f"b{number}",
                broker_id=number,
                enableControllerMode=True,
                controllerAddr=(settings.address,),
                haListenPort=port,
                slaveTimeout=int(WAIT_S * 1000),  # a successor waits for the end of the master's lease
            )
        )
        for number, port in enumerate(free_ports(3), start=1)
    ]
    client = RemotingClient()
    group = Group(brokers, client)
    for broker in brokers:
        await broker.start()
    await group.led()
    log = group.leader.parts.context.store.log
    await eventually(lambda: [one.in_sync for one in log.replicas()] == [True, True], "all are in sync")
    yield group
    await client.close()
    for broker in group.brokers:
        await broker.close()
    await controller.close()


@pytest.mark.parametrize("is_placed", [True, False])
async def test_a_send_without_an_answer_is_stored_once_and_answered_behind_the_next_election(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_placed: bool
) -> None:
    """Nobody else sends, and the next master writes no entry of its own."""
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    await make_topic(group)
    old, followers = group.leader, group.followers
    answers: dict[int, Command] = {}
    with monkeypatch.context() as patches:
        kill_links(patches, is_placed=is_placed)
        several = [
            await sent_through(group.client, one, *range(at * _COUNT, (at + 1) * _COUNT))
            for at, one in enumerate(followers)
        ]
        await eventually(lambda: all(one.parts.passing.pass_on.lost for one in followers), "answers are lost")
    await hand_over_somewhere(group.client, old)
    await eventually(lambda: sum(map(len, several)) == len(followers) * _COUNT, "all are answered")
    for some in several:
        answers |= some
    assert {answer.code for answer in answers.values()} == {0}
    await group.led()
    places = await places_named(group, answers)
    assert sorted(places) == sorted(answers)
    assert group.leader.parts.context.store.queues.get("T", 0).max_offset == len(answers), "each is stored once"


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_deposed_master_looks_for_the_sends_of_its_own_clients(
    group: Group, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """It confirms nothing of what the slaves have, or they get nothing, so that it cuts its log."""
    monkeypatch.setattr(lost_sends, "WAIT_S", WAIT_S)
    monkeypatch.setattr("broker.passing.pass_on.AGE_MAX_S", WAIT_S)
    await make_topic(group)
    old, successor = group.leader, group.followers[0]
    log, epoch = old.parts.context.store.log, old.parts.context.role.generation
    controller = old._node.elected.controllers[0]
    with monkeypatch.context() as patches:
        if is_kept:
            patches.setattr(log, "settle", lambda: None)
        else:
            for one in group.followers:
                one.parts.context.store.log._part.slave.receiver.address = ""  # type: ignore[attr-defined]
        answers = await sent_through(group.client, old, *range(_COUNT))
        await eventually(lambda: log.max_offset > log.confirm_offset, "they are placed")
        end = log.max_offset
        if is_kept:
            await eventually(
                lambda: {one.parts.context.store.log.max_offset for one in group.followers} == {end}, "slaves have them"
            )
        fields = {
            "brokerName": successor.parts.context.identity.name,
            "clusterName": successor.parts.context.identity.cluster,
            "brokerId": str(successor.parts.context.role.broker_id),
            "designateElect": "true",
        }
        command = Command(RequestCode.CONTROLLER_ELECT_MASTER, ext=fields)
        elected = await group.client.request(controller, command, WAIT_S)
        assert elected.code == 0, elected
        await eventually(lambda: not old.parts.context.role.writable, "it leads no more")
    await eventually(lambda: len(answers) == _COUNT, "all are answered")
    assert {answer.code for answer in answers.values()} == {0}
    assert not old.parts.context.answers.refusals
    await group.led()
    assert group.leader is successor
    places = await places_named(group, answers)
    assert sorted(places) == sorted(answers)
    assert successor.parts.context.store.queues.get("T", 0).max_offset == _COUNT, "each is stored once"
    assert {int(answer.ext["term"]) == epoch for answer in answers.values()} == {is_kept}
