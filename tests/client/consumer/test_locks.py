"""Locks of queues that are handled in order: none is left at a broker by a member that gave its queue up."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledgermq.client import Consumer, Message, MessageQueue
from ledgermq.client.core.session import Session
from ledgermq.client.group import queue_locks
from ledgermq.client.group.queue_locks import QueueLocks
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from tests.client.consumer.test_consumer import fill
from tests.client.fake import FakeBroker, FakeCluster, eventually
from tests.limits import WAIT_S

COMMIT, LOCK, MEMBERS = (
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
)
QUEUE = MessageQueue("T", "b", 0)
PLACE = "T", 0


@pytest.fixture
async def broker(cluster: FakeCluster) -> FakeBroker:
    (broker,) = await cluster.add(topics={"T": 2})
    return broker


@pytest.fixture
async def session(cluster: FakeCluster, broker: FakeBroker) -> AsyncIterator[Session]:
    session = Session(cluster.namesrv)
    await session.open()
    yield session
    await session.close()


async def test_a_lock_granted_to_a_request_that_was_cancelled_is_given_back(
    session: Session, broker: FakeBroker
) -> None:
    def grant_in_silence(broker: FakeBroker, connection: Connection, command: Command) -> None:
        broker.ledger.locks[PLACE] = session.client_id

    broker.plan(LOCK, grant_in_silence)
    locks = QueueLocks(session, "g")
    acquiring = asyncio.ensure_future(locks.acquire(QUEUE))
    await eventually(lambda: PLACE in broker.ledger.locks)
    acquiring.cancel()
    await asyncio.gather(acquiring, return_exceptions=True)
    await locks.release([QUEUE])
    assert not broker.ledger.locks


async def test_a_renewal_that_arrives_after_the_release_leaves_no_lock(session: Session, broker: FakeBroker) -> None:
    held: list[tuple[Connection, Command]] = []
    locks = QueueLocks(session, "g")
    await locks.acquire(QUEUE)
    broker.plan(LOCK, lambda _, connection, command: held.append((connection, command)))
    renewing = asyncio.ensure_future(locks.renew())
    await eventually(lambda: bool(held))
    await locks.release([QUEUE])
    assert not broker.ledger.locks
    broker.lock(*held[0])
    assert broker.ledger.locks == {PLACE: session.client_id}, "the late renewal has locked it again"
    assert await renewing == []
    assert not broker.ledger.locks


async def test_locks_of_a_broker_that_does_not_answer_are_kept(
    session: Session, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = QueueLocks(session, "g")
    await locks.acquire(QUEUE)

    async def silent(*_: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_lock_some", silent)
        assert (await locks.renew(), locks.held) == ([], {QUEUE})
    broker.ledger.locks[PLACE] = "another member"
    assert (await locks.renew(), locks.held) == ([QUEUE], set())


async def test_waiting_for_a_lock_is_logged_and_ends_when_the_lock_is_free(
    session: Session, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_locks, "ASK_AGAIN_S", 0.01)
    broker.ledger.locks[PLACE] = "another member"
    locks = QueueLocks(session, "g")
    acquiring = asyncio.ensure_future(locks.acquire(QUEUE))
    await eventually(lambda: broker.count(LOCK) > 3)
    assert caplog.text.count("T/b/0 has waited for its lock") == 1, "said at once, and not each time"
    del broker.ledger.locks[PLACE]
    async with asyncio.timeout(WAIT_S):
        await acquiring
    assert locks.held == {QUEUE}


async def test_a_share_out_while_queues_are_being_locked_begins_none_of_them_twice(
    cluster: FakeCluster, broker: FakeBroker
) -> None:
    fill(broker, 4)
    held: list[tuple[Connection, Command]] = []
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    def readers() -> list[str]:
        names = [task.get_name() for task in asyncio.all_tasks() if not task.done()]
        return sorted(name for name in names if name.startswith("reader of T/"))

    async with Consumer(cluster.namesrv, "g", "T") as consumer, asyncio.timeout(WAIT_S):
        await eventually(lambda: len(consumer.assignment) == 2)
        await anext(consumer)
        broker.plan(COMMIT, lambda _, connection, command: held.append((connection, command)))
        running = asyncio.ensure_future(consumer.run(handle, order="queue"))
        await eventually(lambda: bool(held), "the queues are given up, to be begun again under their locks")
        assert consumer._parts is not None
        members_asked = broker.count(MEMBERS)
        consumer._parts.membership.rebalance_soon()
        await eventually(lambda: broker.count(MEMBERS) > members_asked)
        await asyncio.sleep(0.05)  # the share-out has its answer
        broker._update_offset(*held[0])
        await eventually(lambda: len(seen) == 3)
        assert readers() == ["reader of T/b/0", "reader of T/b/1"]
        consumer.stop()
        await running
    assert seen == [1, 2, 3]
    assert not broker.ledger.locks
