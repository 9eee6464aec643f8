"""A group of consumers and ordered producers on a real Raft cluster whose leader is killed and paused under them."""

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ledgermq.client import Admin, Consumer, Message, MessageQueue, Producer, Retry
from tests.cluster.processes import Cluster
from tests.limits import WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
SENDERS = 16
PAUSE_S = 0.02
"""Of each sender after each message: more would only keep the processors from the nodes that start again."""


class Ledger:
    """The messages of a topic that were acknowledged to senders, and those that each member of the group received."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.acked: set[str] = set()
        self.delivered: dict[MessageQueue, list[Message]] = collections.defaultdict(list)

    async def send(self, producer: Producer, key: str) -> None:
        """Numbered messages of one key, without end."""
        number = 0
        while True:
            result = await producer.send(self._topic, f"{key}/{number}".encode(), order_key=key)
            self.acked.add(result.message_id)
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.delivered[message.queue].append(message)

    async def more(self, count: int) -> None:
        """Return when `count` further sends are acknowledged."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(WAIT_S):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)

    @property
    def received(self) -> set[str]:
        return {message.message_id for messages in self.delivered.values() for message in messages}

    def check_order(self) -> None:
        """Each queue without a gap, each key's numbers rising, once copies of retried sends are dropped."""
        for messages in self.delivered.values():
            offsets = [message.queue_offset for message in messages]
            assert offsets == list(range(len(offsets)))
            newest: dict[str, int] = {}
            seen: set[str] = set()
            for message in messages:
                if message.message_id not in seen:
                    seen.add(message.message_id)
                    key, _, number = message.body.decode().partition("/")
                    assert int(number) == newest.get(key, -1) + 1
                    newest[key] = int(number)


@contextlib.asynccontextmanager
async def background(*works: Any) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(("fault", "mend"), [("kill", ("start", "dead")), ("pause", ("resume", "paused"))])
async def test_neither_producers_nor_consumers_notice_a_leader_that_goes(
    raft: Cluster, fault: str, mend: tuple[str, str]
) -> None:
    topic = f"unnoticed-{fault}"
    ledger = Ledger(topic)
    async with Admin(raft.namesrv) as admin:
        await admin.create_topic(topic, queue_count=4)
    async with (
        Producer(raft.namesrv, deadline_s=30) as producer,
        Consumer(raft.namesrv, topic, topic) as consumer,
        background(ledger.receive(consumer)),
    ):
        async with background(*(ledger.send(producer, f"k{n}") for n in range(SENDERS))):
            for _ in range(2):
                await ledger.more(500)
                await raft.fault(fault, "leader")
                await ledger.more(500)
                await raft.fault(*mend)
            await ledger.more(500)
        async with asyncio.timeout(WAIT_S):
            while not ledger.acked <= ledger.received:
                await asyncio.sleep(0.02)
    ledger.check_order()


async def test_a_group_goes_on_at_the_next_leader_from_what_it_has_committed(raft: Cluster) -> None:
    async with Admin(raft.namesrv) as admin, Producer(raft.namesrv, deadline_s=30) as producer:
        await admin.create_topic("committed", queue_count=1)
        await producer.send_batch("committed", [b"%d" % number for number in range(100)])
        async with (
            Consumer(raft.namesrv, "committed", "committed", auto_commit_s=None) as first,
            asyncio.timeout(WAIT_S),
        ):
            for _ in range(60):
                await anext(first)
            await first.commit()
            for _ in range(20):
                await anext(first)  # and never commits them
        await raft.fault("kill", "leader")
        async with Consumer(raft.namesrv, "committed", "committed") as second, asyncio.timeout(WAIT_S):
            assert [(await anext(second)).queue_offset for _ in range(40)] == list(range(60, 100))
        (progress,) = await admin.progress("committed", "committed")
        assert (progress.committed, progress.lag) == (100, 0)


async def test_handlers_go_on_through_the_death_of_a_leader_and_see_nothing_again(raft: Cluster) -> None:
    ledger = Ledger("handled")
    handled: dict[str, collections.Counter[tuple[MessageQueue, int]]] = collections.defaultdict(collections.Counter)
    ids: dict[str, set[str]] = collections.defaultdict(set)
    in_order: dict[MessageQueue, list[int]] = collections.defaultdict(list)
    failed: set[str] = set()

    async def anyhow(message: Message) -> None:
        if message.body.endswith(b"77") and message.message_id not in failed:
            failed.add(message.message_id)
            raise Retry(after_s=1)
        handled["anyhow"][message.queue, message.queue_offset] += 1
        ids["anyhow"].add(message.message_id)

    async def by_queue(message: Message) -> None:
        handled["by queue"][message.queue, message.queue_offset] += 1
        ids["by queue"].add(message.message_id)
        in_order[message.queue].append(message.queue_offset)

    async with Admin(raft.namesrv) as admin:
        await admin.create_topic("handled", queue_count=4)
    async with (
        Producer(raft.namesrv, deadline_s=30) as producer,
        Consumer(raft.namesrv, "anyhow", "handled", auto_commit_s=1.0) as first,
        Consumer(raft.namesrv, "by-queue", "handled", auto_commit_s=1.0) as second,
        background(first.run(anyhow, tries_max=5), second.run(by_queue, order="queue")),
    ):
        async with background(*(ledger.send(producer, f"k{n}") for n in range(SENDERS))):
            await ledger.more(500)
            await raft.fault("kill", "leader")
            await ledger.more(1000)
        async with asyncio.timeout(WAIT_S):
            while not all(ledger.acked <= ids[group] for group in ("anyhow", "by queue")):
                await asyncio.sleep(0.02)
        await asyncio.gather(first.commit(), second.commit())
    assert failed, "some were sent back"
    for group in ("anyhow", "by queue"):
        assert set(handled[group].values()) == {1}, f"{group}: each copy once"
    assert all(offsets == list(range(len(offsets))) for offsets in in_order.values())
