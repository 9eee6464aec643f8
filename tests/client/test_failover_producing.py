"""Transactions, requests and sends on a real Raft cluster whose leader is killed, or its nameserver and it."""

import asyncio
import contextlib

import pytest

from ledgermq.client import Admin, Consumer, Decision, LedgerMQError, Message, Producer
from tests.cluster.processes import Cluster
from tests.limits import WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


async def test_transactions_and_requests_outlive_their_leader(raft: Cluster) -> None:
    async with Admin(raft.namesrv) as admin:
        await admin.create_topic("decided", queue_count=1)
        await admin.create_topic("asked", queue_count=2)
    await end_transactions(raft)
    await raft.fault("start", "dead")
    await ask_and_reply(raft)


async def end_transactions(raft: Cluster) -> None:
    """By their blocks, which end after the leader; by the checker of another producer, asked by the next leader."""
    asked: list[Message] = []

    def check(message: Message) -> Decision:
        asked.append(message)
        return Decision.COMMIT if message.body == b"checked" else Decision.ROLLBACK

    async with Producer(raft.namesrv, "shop", deadline_s=30) as first:
        for body in (b"checked", b"checked and rolled back"):
            async with first.transaction("decided", body, check_after_s=1) as tx:
                tx.defer()
        with contextlib.suppress(ZeroDivisionError):
            async with first.transaction("decided", b"rolled back"):
                async with first.transaction("decided", b"committed"):
                    await raft.fault("kill", "leader")
                raise ZeroDivisionError
    async with (
        Producer(raft.namesrv, "shop", checker=check, deadline_s=30) as second,
        Consumer(raft.namesrv, "decided", "decided") as consumer,
        asyncio.timeout(WAIT_S),
    ):
        await second.queues("decided")
        came = [await anext(consumer) for _ in range(2)]
        while b"checked and rolled back" not in {message.body for message in asked}:
            await asyncio.sleep(0.05)
        assert await consumer.get_many(1, wait_s=0.5) == []
    assert {message.body for message in came} == {b"committed", b"checked"}
    assert b"rolled back" not in {message.body for message in asked}


async def ask_and_reply(raft: Cluster) -> None:
    """The leader dies when it has taken requests, and no reply has been sent."""

    async def respond(consumer: Consumer, producer: Producer) -> None:
        is_first = True
        async for message in consumer:
            if is_first:
                is_first = False
                await raft.fault("kill", "leader")
            with contextlib.suppress(LedgerMQError):  # a copy of a request that was answered already
                await producer.reply(message, b"re: " + message.body)

    async with (
        Producer(raft.namesrv, deadline_s=30) as asking,
        Producer(raft.namesrv, "responders", deadline_s=30) as replying,
        Consumer(raft.namesrv, "asked", "asked") as consumer,
    ):
        task = asyncio.ensure_future(respond(consumer, replying))
        try:
            asked = [asking.request("asked", b"%d" % n, timeout_s=WAIT_S) for n in range(20)]
            assert [reply.body for reply in await asyncio.gather(*asked)] == [b"re: %d" % n for n in range(20)]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_without_a_nameserver_the_members_of_the_last_route_lead_on(raft: Cluster) -> None:
    """And when nameservers are back, a route is followed again: it names the member that was dead meanwhile."""
    raft.mend()
    async with Admin(raft.namesrv) as admin:
        await admin.create_topic("unnamed", queue_count=1)
    async with Producer(raft.namesrv, deadline_s=WAIT_S) as producer:
        offsets = [(await producer.send("unnamed", b"before")).queue_offset]
        leader = raft.leader()  # asks the nameserver
        await raft.fault("kill", "namesrv")
        await raft.fault("kill", leader)
        offsets.append((await producer.send("unnamed", b"without nameserver and leader")).queue_offset)
        await raft.fault("start", "namesrv")
        raft.mend()
        await raft.fault("kill", "leader")
        offsets.append((await producer.send("unnamed", b"after")).queue_offset)
    assert offsets == [0, 1, 2]
