"""Queue locks of orderly consumers."""

import asyncio
from itertools import pairwise

import orjson
import pytest

from broker.groups.clients import HEARTBEAT
from broker.groups.locks import GroupLocks
from broker.groups.shared_locks import LOCKS, SharedLocks
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.refusal import Refusal
from ledgermq.remoting.route import MessageQueue
from tests.broker.conftest import Desk, MemoryClient, eventually, log_state, make_topic, pull_fields

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_queue_is_locked_by_one_client_of_a_group() -> None:
    locks = GroupLocks(lambda: 0.0)
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q1]) == []
    assert locks.lock("g", "a", [Q0]) == [Q0]
    assert locks.lock("h", "b", [Q0]) == [Q0]


def test_only_its_holder_frees_a_queue() -> None:
    locks = GroupLocks(lambda: 0.0)
    locks.lock("g", "a", [Q0])
    locks.unlock("g", "b", [Q0])
    assert locks.lock("g", "b", [Q0]) == []
    locks.unlock("g", "a", [Q0])
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_lock_that_is_not_renewed_runs_out() -> None:
    now = 0.0
    locks = GroupLocks(lambda: now)
    locks.lock("g", "a", [Q0])
    assert locks.is_locked("g")
    now = 60.1
    assert not locks.is_locked("g")
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_client_without_connections_keeps_its_locks_for_the_grace_time() -> None:
    now = 0.0
    locks = GroupLocks(lambda: now, grace_s=3.0)
    locks.lock("g", "a", [Q0])
    locks.lock("g", "b", [Q1])
    assert locks.lost("g", "a") == 3.0
    now = 2.9
    assert locks.lock("g", "b", [Q0]) == []
    now = 3.0
    assert locks.lock("g", "b", [Q0]) == [Q0]
    assert locks.lock("g", "a", [Q0, Q1]) == []


def test_a_client_that_has_died_keeps_its_locks_for_less() -> None:
    now = 0.0
    locks = GroupLocks(lambda: now, grace_s=4.0)
    locks.lock("g", "a", [Q0])
    assert locks.lost("g", "a", has_died=True) == 1.5
    now = 1.4
    assert locks.lock("g", "b", [Q0]) == []
    now = 1.5
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_client_that_comes_back_in_time_keeps_its_locks() -> None:
    now = 0.0
    locks = GroupLocks(lambda: now, grace_s=3.0)
    locks.lock("g", "a", [Q0])
    locks.lost("g", "a")
    now = 2.9
    locks.found("g", "a")
    now = 59.9
    assert locks.lock("g", "b", [Q0]) == []


def test_the_locks_of_a_client_that_leaves_are_free_at_once() -> None:
    locks = GroupLocks(lambda: 0.0)
    locks.lock("g", "a", [Q0, Q1])
    locks.lock("h", "a", [Q0])
    locks.left("g", "a")
    assert locks.lock("g", "b", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("h", "b", [Q0]) == []


def test_a_client_without_locks_leaves_nothing_behind() -> None:
    now = 0.0
    locks = GroupLocks(lambda: now)
    assert locks.lost("g", "a") is None
    now = 99.0
    assert locks.free_in("g", "a") is None


async def beat(client: MemoryClient, client_id: str) -> None:
    subscription = {"topic": "T", "subString": "*", "expressionType": "TAG", "subVersion": 1}
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    assert (await client.ask(RequestCode.HEART_BEAT, {}, orjson.dumps(body))).code == 0


async def lock_count(client: MemoryClient, client_id: str) -> int:
    body = {"consumerGroup": "g", "clientId": client_id, "mqSet": [Q0.to_json()]}
    answer = await client.ask(RequestCode.LOCK_BATCH_MQ, None, orjson.dumps(body))
    return len(orjson.loads(bytes(answer.body))["lockOKMQSet"])


@pytest.mark.parametrize("desk", [{"lock_grace_ms": 50}], indirect=True)
async def test_the_others_are_told_when_a_dead_consumers_locks_are_free(desk: Desk, client: MemoryClient) -> None:
    dead, again = desk.client(), desk.client()
    await beat(client, "lives")
    await beat(dead, "dies")
    await beat(again, "dies")  # the same client on a second connection
    assert await lock_count(dead, "dies") == 1
    dead.close()
    await asyncio.sleep(0.1)
    assert await lock_count(client, "lives") == 0, "it still has a connection"
    again.close()
    client.take()
    client.requests.clear()

    def told() -> bool:
        client.take()
        notices = [request for request in client.requests if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
        return len(notices) == 2

    await eventually(told, "notices that it is gone, and that its locks are free")
    assert await lock_count(client, "lives") == 1


def test_a_lost_client_that_still_pulls_keeps_its_locks_until_its_next_heartbeat_is_due() -> None:
    now = [0.0]
    locks = GroupLocks(lambda: now[0])
    assert locks.lock("g", "a", [Q0]) == [Q0]
    assert locks.lost("g", "a") == 4
    now[0] = 3.5
    locks.pulled("g", Q0)
    now[0] = 38
    assert locks.lock("g", "b", [Q0]) == []
    assert locks.free_in("g", "a") == 0.5
    now[0] = 38.5
    assert locks.lock("g", "b", [Q0]) == [Q0]


@pytest.mark.parametrize("desk", [{"lock_grace_ms": 50, "broker_name": "b"}], indirect=True)
async def test_a_pull_over_a_new_connection_shows_that_the_holder_lives(desk: Desk, client: MemoryClient) -> None:
    await make_topic(client)
    holder = desk.client()
    await beat(client, "other")
    await beat(holder, "holder")
    assert await lock_count(holder, "holder") == 1
    holder.close()
    await desk.client().ask(RequestCode.PULL_MESSAGE, pull_fields(consumerGroup="g"))
    await asyncio.sleep(0.1)
    assert await lock_count(client, "other") == 0


async def test_a_consumer_that_unregisters_leaves_its_locks_at_once(desk: Desk, client: MemoryClient) -> None:
    leaves = desk.client()
    await beat(leaves, "leaves")
    assert await lock_count(leaves, "leaves") == 1
    await leaves.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "leaves", "consumerGroup": "g"})
    assert await lock_count(client, "stays") == 1


async def test_what_a_client_unregisters_is_kept_with_its_heartbeat_for_a_new_leader(
    desk: Desk, client: MemoryClient
) -> None:
    leaving = {"clientID": "c", "consumerGroup": "g"}
    await client.ask(RequestCode.UNREGISTER_CLIENT, leaving)
    assert HEARTBEAT not in client.connection.attributes
    for count in (1, 30):
        await beat(client, "c")
        for _ in range(count):
            await client.ask(RequestCode.UNREGISTER_CLIENT, leaving)
        codes = [command.code for command in client.connection.attributes[HEARTBEAT]]
        assert codes == [RequestCode.HEART_BEAT] + [RequestCode.UNREGISTER_CLIENT] * min(count, 20)


@pytest.mark.parametrize("desk", [{"lock_grace_ms": 50}], indirect=True)
async def test_locks_of_an_earlier_time_as_leader_are_free_when_their_client_is_not_heard_of(
    desk: Desk, client: MemoryClient
) -> None:
    await beat(client, "b")
    assert (await lock_count(client, "a"), await lock_count(client, "b")) == (1, 0)
    for generation, writable in ((2, False), (3, True)):
        desk.parts.on_role_change(log_state(writable=writable, generation=generation))
    assert await lock_count(client, "b") == 0
    await eventually(lambda: not desk.parts.groups.locks.is_locked("g"))
    assert await lock_count(client, "b") == 1


async def test_nothing_more_is_locked_after_leadership_was_lost_between_two_steps(
    desk: Desk, client: MemoryClient
) -> None:
    body = {
        "consumerGroup": "g",
        "clientId": "a",
        "mqSet": [MessageQueue("T", "b", number).to_json() for number in range(100)],
    }
    command = Command(RequestCode.LOCK_BATCH_MQ, body=orjson.dumps(body))
    steps = desk.parts.groups.requests()[RequestCode.LOCK_BATCH_MQ](client.connection, command)
    assert steps is not None
    locks = desk.parts.groups.locks
    while not locks.is_locked("g"):
        next(steps)
    locked = list(locks.held())
    desk.parts.on_role_change(log_state(writable=False, generation=2))
    with pytest.raises(Refusal):
        next(steps)
    assert list(locks.held()) == locked


def test_locks_are_bounded_and_freed_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.groups.locks.LOCKS_MAX", 3)
    now = [0.0]
    locks = GroupLocks(lambda: now[0])
    queues = [MessageQueue("T", "b", number) for number in range(4)]
    assert locks.lock("g", "a", queues[:2]) == queues[:2]
    assert locks.lock("h", "b", queues) == queues[:1]
    assert locks.lock("g", "a", queues) == queues[:2]  # those that it has are renewed
    locks.unlock("g", "a", queues[:1])
    assert locks.lock("h", "b", queues[2:]) == queues[2:3]
    locks.left("h", "b")
    now[0] = 61
    assert len(list(locks.expire())) > 0
    assert locks.lock("g", "c", queues) == queues[:3]


def test_locks_expire_a_few_a_step_and_those_renewed_since_stay() -> None:
    now = [0.0]
    locks = GroupLocks(lambda: now[0])
    queues = [MessageQueue("T", "b", number) for number in range(1000)]
    locks.lock("g", "c", queues)
    now[0] = 30
    locks.lock("g", "c", queues[:100])
    now[0] = 61
    counts = [sum(len(held) for _, _, held in locks.held()) for _ in locks.expire()]
    assert [had - left for had, left in pairwise([1000, *counts])] == [128] * 7 + [4, 0]
    assert list(locks.held()) == [("g", "c", queues[:100])]


class CountedId(str):
    """A client id that counts how often ids are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return str.__eq__(self, other)


def test_clients_that_are_gone_cost_no_look_at_the_locks_of_all_others() -> None:
    """A new leader waits for all whose connections ended with the one before, in one step of its loop."""
    locks = GroupLocks(lambda: 0.0)
    clients = [CountedId(f"client-{number}") for number in range(300)]
    for number, client_id in enumerate(clients):
        locks.lock("g", client_id, [MessageQueue("T", "b", number)])
    before = CountedId.compared
    assert [locks.lost("g", client_id) for client_id in clients] == [4.0] * len(clients)
    for client_id in reversed(clients):
        locks.left("g", client_id)
    assert CountedId.compared - before < 10 * len(clients)
    assert not list(locks.held()) and not locks.any_lost


def test_a_queue_that_changes_hands_is_its_new_holders_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.groups.locks.LOCKS_MAX", 2)
    now = 0.0
    locks = GroupLocks(lambda: now)
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    locks.learn("g", "b", [Q0])
    assert sorted(locks.held()) == [("g", "a", [Q1]), ("g", "b", [Q0])]
    now = 61.0
    assert locks.lock("g", "c", [Q0]) == [Q0]
    assert len(list(locks.expire())) > 0
    assert list(locks.held()) == [("g", "c", [Q0])]
    locks.left("g", "a")
    assert locks.lock("g", "d", [Q0, Q1]) == [Q1]


async def test_what_members_are_told_of_locks_fits_into_a_frame_however_long_the_names_are(
    desk: Desk, client: MemoryClient
) -> None:
    role, locks = desk.parts.context.role, GroupLocks(lambda: 0.0)
    role.update(log_state(writable=True, generation=1))
    shared = SharedLocks(locks, role)
    long = [
        [MessageQueue("T" * (1 << 20), "b", number) for number in range(first, first + 5)] for first in range(0, 20, 5)
    ]
    for number, queues in enumerate(long):
        assert locks.lock("g", f"long {number}", queues) == queues
    assert locks.lock("g", "short", [Q0]) == [Q0]
    asked = Command(LOCKS, 1)
    shared.answer(client.connection, asked)
    twenty = [MessageQueue("T" * (1 << 20), "b", number) for number in range(20, 40)]
    assert locks.lock("g", "longer", twenty) == twenty
    assert locks.lock("g", "later", [Q1]) == [Q1]
    await asyncio.sleep(0)
    client.take()  # raises if a frame is too long
    told = orjson.loads(bytes(client.answers[1].body)) + orjson.loads(bytes(client.requests[0].body))
    assert [change["client"] for change in told] == ["long 0", "short", "later"]
