"""Readers at the slaves of an elected master: what holds at followers of a Raft group holds here, by the same tests."""

import pytest

from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from tests.broker.conftest import eventually, pull_fields, send_fields, topic_fields
from tests.broker.groups.test_offsets import key
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import (
    Group,
    test_a_member_that_stops_sends_its_readers_away,
    test_a_pull_held_by_a_follower_is_woken_by_the_commit,
    test_each_queue_is_read_from_one_follower_that_keeps_its_readers,
)
from tests.ha.test_elected_brokers import group
from tests.limits import WAIT_S

__all__ = [
    "group",
    "test_a_member_that_stops_sends_its_readers_away",
    "test_a_pull_held_by_a_follower_is_woken_by_the_commit",
    "test_each_queue_is_read_from_one_follower_that_keeps_its_readers",
]


@pytest.fixture(autouse=True)
def slaves_are_read(group: Group) -> None:
    """`slaveReadEnable=true`, which takes effect at once."""
    for broker in group.brokers:
        broker.parts.context.config.slave_read = True


async def make_read_topic(group: Group) -> None:
    """A topic from which all slaves have readers."""
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.everywhere(lambda broker: "T" in broker.parts.context.state.topics)
    await eventually(lambda: all(one.parts.pull.spread.keeps_readers for one in group.followers), "all may be read")


async def test_the_end_of_a_master_touches_no_reader(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in ("ha.slave._ALONE_S", "broker.pull.spread._LEADERLESS_MAX_S"):  # which a busy machine may need
        monkeypatch.setattr(seconds, WAIT_S)
    await make_read_topic(group)
    held = Command(RequestCode.PULL_MESSAGE, ext=pull_fields(sysFlag=6, suspendTimeoutMillis=int(WAIT_S * 1000)))
    answers: list[object] = []
    for slave in group.followers:
        (await group.client.connection(slave.address)).call(held, WAIT_S, answers.append)
    await eventually(lambda: [len(one.parts.pull.held) for one in group.followers] == [1, 1])
    group.brokers.remove(old := group.leader)
    await old.close()
    await group.led()
    assert not answers
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"news")
    await eventually(lambda: len(answers) == 2)
    assert all(isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS for answer in answers)


async def test_progress_that_a_pull_brings_to_a_slave_reaches_the_master(group: Group) -> None:
    await make_read_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    for number in range(3):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"m%d" % number)
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 3)
    fields = pull_fields(offset=3, sysFlag=5, commitOffset=3)
    for slave in group.followers:
        assert (await ask(group.client, slave, RequestCode.PULL_MESSAGE, fields)).code == ResponseCode.PULL_NOT_FOUND
    await group.everywhere(lambda broker: broker.parts.context.state.offsets.get("T@g") == {0: 3})


async def test_a_reset_sends_the_readers_of_slaves_to_the_master(group: Group) -> None:
    await make_read_topic(group)
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"hello")
    await group.ask_leader(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="1"))
    reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "offset": "0", "queueId": "0"}
    await group.ask_leader(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    await group.everywhere(lambda broker: bool(broker.parts.context.state.resets))
    for slave in group.followers:
        answer = await ask(group.client, slave, RequestCode.PULL_MESSAGE, pull_fields(offset=1))
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
    answer = await ask(group.client, group.leader, RequestCode.PULL_MESSAGE, pull_fields(offset=1))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_without_slave_read_enable_a_master_keeps_its_readers_and_its_slaves_serve_those_that_come(
    group: Group,
) -> None:
    for broker in group.brokers:
        broker.parts.context.config.slave_read = False
    await make_read_topic(group)
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"hello")
    await group.everywhere(lambda broker: broker.parts.context.store.queues.get("T", 0).max_offset == 1)
    for broker in group.brokers:
        broker.parts.pull.spread.look()
        answer = await ask(group.client, broker, RequestCode.PULL_MESSAGE, pull_fields())
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (ResponseCode.SUCCESS, "0")
