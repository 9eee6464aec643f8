"""Queue locks of orderly consumers."""

from broker.locks import QueueLocks
from ledgermq.remoting.java_json import QueueId

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
