"""POP in a Raft group: what was taken from a leader that dies comes again from the next one, when it is due."""

import asyncio
import time
from collections.abc import Callable

import pytest

from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from node.broker_assembly import Broker
from tests.broker.conftest import eventually, send_fields, topic_fields
from tests.broker.pop.support import handle_fields, handles, pop_fields
from tests.broker.pop.test_pop_assignment import mode_body
from tests.broker.test_broker import ask
from tests.broker.test_raft_brokers import Group, group
from tests.limits import WAIT_S

__all__ = ["group"]

INVISIBLE_MS = 4000


async def pop(group: Group, **changes: object) -> Command:
    return await ask(group.client, group.leader, RequestCode.POP_MESSAGE, pop_fields(**changes))


async def pop_until(group: Group, count: int, **changes: object) -> dict[bytes, int]:
    """Bodies of the next messages, and when each was taken (ms)."""
    taken: dict[bytes, int] = {}
    async with asyncio.timeout(WAIT_S):
        while len(taken) < count:
            answer = await pop(group, pollTime=1000, **changes)
            for record in decode_records(answer.body) if answer.code == 0 else ():
                taken[record.body] = int(answer.ext["popTime"])
    return taken


async def kill_leader(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader goes without handing anything over."""

    async def no_hand_over(_broker: Broker, _parts: object) -> None: ...

    old = group.leader
    monkeypatch.setattr(Broker, "_hand_over", no_hand_over)
    group.brokers.remove(old)
    await old.close()
    monkeypatch.undo()
    await group.led()


async def fill(group: Group, count: int) -> None:
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"))
    await group.ask_leader(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g"}')
    for number in range(count):
        await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"m%d" % number)


def has_open(count: int) -> Callable[[Broker], bool]:
    """Whether a node knows of so many open messages, and that the group has stepped over four."""

    def holds(broker: Broker) -> bool:
        state = broker.parts.context.state
        opened = sum(len(checkpoint.open_offsets) for checkpoint in state.pop.checkpoints.values())
        return opened == count and state.offsets.get("T@g") == {0: 4}

    return holds


async def test_a_new_leader_lets_come_again_what_is_due_and_only_that(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(group, 4)
    taken = await pop(group, invisibleTime=INVISIBLE_MS)
    for index in (0, 2):
        await group.ask_leader(RequestCode.ACK_MESSAGE, handle_fields(handles(taken)[index]))
    changed = handle_fields(handles(taken)[3], invisibleTime=2 * INVISIBLE_MS)
    longer = await group.ask_leader(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, changed)
    await group.ask_leader(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, mode_body())
    await group.everywhere(has_open(2))
    await kill_leader(group, monkeypatch)
    assert group.leader.parts.context.state.pop.modes["T@g"].mode == "POP"
    again = await pop_until(group, 2)
    assert again.keys() == {b"m1", b"m3"}
    assert again[b"m1"] >= int(taken.ext["popTime"]) + INVISIBLE_MS
    assert again[b"m3"] >= int(longer.ext["popTime"]) + 2 * INVISIBLE_MS
    assert (await pop(group)).code == 210


async def test_what_the_log_had_not_heard_of_is_given_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(group, 4)
    first = await pop(group, maxMsgNums=2)
    assert first.code == 0
    await eventually(lambda: group.leader.parts.context.state.offsets.get("T@g") == {0: 2}, "the first two in the log")
    monkeypatch.setattr(group.leader.parts.pop.progress, "send", lambda: None)
    monkeypatch.setattr(group.leader.parts.context.offsets, "send", lambda: None)
    assert (await pop(group)).ext["msgOffsetInfo"] == "0 0 2,3"
    await kill_leader(group, monkeypatch)
    assert (await pop_until(group, 2)).keys() == {b"m2", b"m3"}


async def test_in_order_a_new_leader_goes_on_where_the_group_was(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(group, 4)
    taken = await pop(group, order="true", maxMsgNums=3, invisibleTime=INVISIBLE_MS)
    await group.ask_leader(RequestCode.ACK_MESSAGE, handle_fields(handles(taken)[0]))
    await group.everywhere(
        lambda broker: (
            broker.parts.context.state.offsets.get("T@g") == {0: 1}
            and any(given.acked for given in broker.parts.context.state.pop.orders.values())
        )
    )
    await kill_leader(group, monkeypatch)
    again = await pop_until(group, 3, order="true")
    assert list(again) == [b"m1", b"m2", b"m3"]
    assert min(again.values()) >= int(taken.ext["popTime"]) + INVISIBLE_MS


async def test_messages_are_taken_through_a_follower(group: Group) -> None:
    await fill(group, 1)
    follower = group.followers[0]
    taken = await ask(group.client, follower, RequestCode.POP_MESSAGE, pop_fields())
    assert [record.body for record in decode_records(taken.body)] == [b"m0"]
    connection = await group.client.connection(follower.address)
    answers: list[object] = []
    held = Command(RequestCode.POP_MESSAGE, ext=pop_fields(pollTime=60_000, bornTime=time.time_ns() // 1_000_000))
    connection.call(held, WAIT_S, answers.append)
    await eventually(lambda: len(group.leader.parts.pop.held) == 1, "the leader holds it")
    assert (await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"news")).code == 0
    await eventually(lambda: answers != [])
    assert isinstance(answers[0], Command)
    assert [record.body for record in decode_records(answers[0].body)] == [b"news"]
    client = RemotingClient()
    await client.request(follower.address, Command(RequestCode.POP_MESSAGE, ext=pop_fields()), WAIT_S)
    (await client.connection(follower.address)).call(held, WAIT_S, answers.append)
    await eventually(lambda: len(group.leader.parts.pop.held) == 1)
    await client.close()
    await eventually(lambda: all(pop.connection.is_closed for pop in group.leader.parts.pop.held._all()), "it is told")
    await group.ask_leader(RequestCode.SEND_MESSAGE_V2, send_fields(), b"for another one")
    later = await pop_until(group, 1)
    assert list(later) == [b"for another one"], "nothing is taken for a client that is gone"
