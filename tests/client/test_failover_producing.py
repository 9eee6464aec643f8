"""Transactions and requests on a real Raft cluster whose leader is killed in between."""

import asyncio
import contextlib

import pytest

from ledgermq.client import Admin, Consumer, Decision, Message, Producer
from tests.client.raft import LIMIT_S, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


async def take(consumer: Consumer, bodies: set[bytes]) -> list[Message]:
    """Messages until all of these have come."""
    came: list[Message] = []
    while not bodies <= {message.body for message in came}:
        came.append(await anext(consumer))
    return came


async def test_a_transaction_ends_at_the_next_leader_by_its_block_or_by_its_checker(raft: Cluster) -> None:
    asked: list[Message] = []

    def check(message: Message) -> Decision:
        asked.append(message)
        return Decision.COMMIT if message.body == b"checked" else Decision.ROLLBACK

    async with Admin(raft.namesrv) as admin:
        await admin.create_topic("T", queue_count=1)
    async with Producer(raft.namesrv, "shop", deadline_s=30) as first:
        for body in (b"checked", b"checked and rolled back"):
            async with first.transaction("T", body, check_after_s=1) as tx:
                tx.defer()
        with contextlib.suppress(ZeroDivisionError):
            async with first.transaction("T", b"rolled back"):
                async with first.transaction("T", b"committed"):
                    await raft.act("kill", "leader")
                raise ZeroDivisionError
    async with (
        Producer(raft.namesrv, "shop", checker=check, deadline_s=30) as second,
        Consumer(raft.namesrv, "g", "T") as consumer,
        asyncio.timeout(LIMIT_S),
    ):
        await second.queues("T")
        came = await take(consumer, {b"committed", b"checked"})
        while b"checked and rolled back" not in {message.body for message in asked}:
            await asyncio.sleep(0.05)
        assert await consumer.get_many(1, wait_s=0.5) == []
    assert {message.body for message in came} == {b"committed", b"checked"}
    assert len({message.message_id for message in came}) == 2
    assert b"rolled back" not in {message.body for message in asked}


async def test_requests_are_answered_though_the_leader_dies_in_between(raft: Cluster) -> None:
    async with Admin(raft.namesrv) as admin:
        await admin.create_topic("T", queue_count=2)

    async def respond(consumer: Consumer, producer: Producer) -> None:
        killed = False
        async for message in consumer:
            if not killed:
                killed = True
                await raft.act("kill", "leader")  # with requests taken, and no reply sent
            with contextlib.suppress(Exception):  # a copy of a request that was answered already
                await producer.reply(message, b"re: " + message.body)

    async with (
        Producer(raft.namesrv, deadline_s=30) as asking,
        Producer(raft.namesrv, "responders", deadline_s=30) as replying,
        Consumer(raft.namesrv, "g", "T") as consumer,
    ):
        task = asyncio.ensure_future(respond(consumer, replying))
        try:
            asked = [asking.request("T", b"%d" % n, timeout_s=LIMIT_S) for n in range(20)]
            assert [reply.body for reply in await asyncio.gather(*asked)] == [b"re: %d" % n for n in range(20)]
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
