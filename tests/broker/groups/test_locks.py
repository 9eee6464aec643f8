"""Queue locks of orderly consumers."""

import orjson

from broker.groups.locks import QueueLocks
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.java_json import QueueId
from tests.broker.conftest import Desk, MemoryClient, log_state

Q0, Q1 = QueueId("T", "b", 0), QueueId("T", "b", 1)


def test_a_queue_is_locked_by_one_client_of_a_group() -> None:
    locks = QueueLocks(lambda: 0.0)
    assert locks.lock("g", "a", [Q0, Q1]) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0, Q1]) == []
    assert locks.lock("g", "a", [Q0]) == [Q0]
    assert locks.lock("h", "b", [Q0]) == [Q0]


def test_only_its_holder_frees_a_queue() -> None:
    locks = QueueLocks(lambda: 0.0)
    locks.lock("g", "a", [Q0])
    locks.unlock("g", "b", [Q0])
    assert locks.lock("g", "b", [Q0]) == []
    locks.unlock("g", "a", [Q0])
    assert locks.lock("g", "b", [Q0]) == [Q0]


def test_a_lock_that_is_not_renewed_runs_out() -> None:
    now = 0.0
    locks = QueueLocks(lambda: now)
    locks.lock("g", "a", [Q0])
    assert locks.is_locked("g")
    now = 60.1
    assert not locks.is_locked("g")
    assert locks.lock("g", "b", [Q0]) == [Q0]


async def test_locks_of_an_earlier_time_as_leader_keep_nobody_out(desk: Desk, client: MemoryClient) -> None:
    async def lock(client_id: str) -> int:
        body = {"consumerGroup": "g", "clientId": client_id, "mqSet": [Q0.to_json()]}
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, None, orjson.dumps(body))
        return len(orjson.loads(bytes(answer.body))["lockOKMQSet"])

    assert (await lock("a"), await lock("b")) == (1, 0)
    for generation, writable in ((2, False), (3, True)):
        desk.parts.on_role_change(log_state(writable=writable, generation=generation))
    assert await lock("b") == 1
