"""Failover on real processes with our client: leaders die and sleep under load, and nothing acknowledged is lost."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.client import Admin, Consumer, LedgerMQError, Producer
from tests.limits import WAIT_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Start = Callable[..., Any]
SENDERS = 16
PAUSE_S = 0.02
"""Of each sender after each message: more would only keep the processors from the nodes that start again."""


class Load:
    """Sends numbered messages without end from several tasks.

    Attributes:
        acked: the numbers that were acknowledged.
        failed: how many sends failed.
    """

    def __init__(self, producer: Producer, topic: str) -> None:
        self.acked: list[int] = []
        self.failed = 0
        self._producer = producer
        self._topic = topic
        self._next = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._send_on())

    async def more(self, count: int) -> None:
        """Return when `count` further messages have been acknowledged."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(WAIT_S):
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)

    async def _send_on(self) -> None:
        while True:
            number, self._next = self._next, self._next + 1
            try:
                await self._producer.send(self._topic, b"%d" % number, properties={"number": str(number)})
                self.acked.append(number)
            except LedgerMQError:  # not acknowledged: nothing was promised
                self.failed += 1
            await asyncio.sleep(PAUSE_S)


async def read_all(namesrv: str, topic: str, wanted: set[int]) -> set[int]:
    """The numbers that a new group reads, until all of `wanted` are among them or none comes any more."""
    seen: set[int] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S), Consumer(namesrv, "readers", topic) as consumer:
            async for message in consumer:
                seen.add(int(message.properties["number"]))
                if wanted <= seen:
                    break
    return seen


@pytest.mark.parametrize(
    ("fault", "mend", "rounds"), [("kill", ("start", "dead"), 3), ("pause", ("resume", "paused"), 2)]
)
async def test_nothing_acknowledged_is_lost_when_leaders_fail_again_and_again(
    group: Any, eventually: Callable[..., None], fault: str, mend: tuple[str, str], rounds: int
) -> None:
    cluster, topic = group, f"failover-{fault}"
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queue_count=4)
    async with Producer(cluster.namesrv) as producer:
        load = Load(producer, topic)
        sending = asyncio.create_task(load.run())
        await load.more(100)
        for _ in range(rounds):
            await asyncio.to_thread(cluster.act, fault, "leader")
            await load.more(100)
            await asyncio.to_thread(cluster.act, *mend)
            whole = "the node is back among three"
            await asyncio.to_thread(eventually, lambda: cluster.has_roles(masters=1, slaves=2), whole)
            await load.more(100)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    acked = set(load.acked)
    assert acked - await read_all(cluster.namesrv, topic, acked) == set()
    digests = await asyncio.to_thread(cluster.cluster, "digest")
    assert len({node["sha256"] for node in digests["nodes"]}) == 1


async def test_five_nodes_go_on_with_two_of_them_gone_at_once(start: Start, eventually: Callable[..., None]) -> None:
    cluster = await asyncio.to_thread(start, "--mode", "raft", "--nodes", "5")
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic("five", queue_count=2)
        load = Load(producer, "five")
        sending = asyncio.create_task(load.run())
        await load.more(50)
        slave = cluster.nodes("slave")[0]["name"]
        await asyncio.gather(
            asyncio.to_thread(cluster.act, "kill", "leader"), asyncio.to_thread(cluster.act, "pause", slave)
        )
        await load.more(50)
        await asyncio.to_thread(cluster.act, "start", "dead")
        await asyncio.to_thread(cluster.act, "resume", "paused")
        await asyncio.to_thread(eventually, lambda: cluster.has_roles(masters=1, slaves=4), "all five are back")
        await load.more(50)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    acked = set(load.acked)
    assert acked - await read_all(cluster.namesrv, "five", acked) == set()
    digests = await asyncio.to_thread(cluster.cluster, "digest")
    assert len({node["sha256"] for node in digests["nodes"]}) == 1


async def test_messages_survive_a_kill_of_every_node_in_one_instant_under_load(
    group: Any, eventually: Callable[..., None]
) -> None:
    cluster = group
    async with Producer(cluster.namesrv) as producer, Admin(cluster.namesrv) as admin:
        await admin.create_topic("all-die", queue_count=2)
        load = Load(producer, "all-die")
        sending = asyncio.create_task(load.run())
        await load.more(200)
        pids = [node["pid"] for role in ("master", "slave") for node in cluster.nodes(role)]
        assert len(pids) == 3
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(
            eventually, lambda: all(row["state"] == "down" for row in cluster.act("status")["nodes"]), "all are dead"
        )
        await asyncio.to_thread(cluster.act, "start", "dead")
        await asyncio.to_thread(eventually, lambda: cluster.has_roles(masters=1, slaves=2), "the three are back")
        await load.more(50)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    acked = set(load.acked)
    assert acked - await read_all(cluster.namesrv, "all-die", acked) == set()


async def test_without_a_majority_nothing_is_acknowledged(group: Any) -> None:
    cluster = group
    async with Producer(cluster.namesrv, deadline_s=3.0) as producer:
        await producer.send("minority", b"three")
        for slave in cluster.nodes("slave"):
            await asyncio.to_thread(cluster.act, "kill", slave["name"])
        with pytest.raises(LedgerMQError):
            await producer.send("minority", b"one")
        await asyncio.to_thread(cluster.act, "start", "dead")
        result = await producer.send("minority", b"three again", deadline_s=WAIT_S)
        assert result.durable_copies is None or result.durable_copies >= 2


async def test_a_standalone_broker_keeps_what_it_acknowledged_when_killed(start: Start) -> None:
    cluster = await asyncio.to_thread(start, "--mode", "standalone", "--conf", "flushDiskType=SYNC_FLUSH")
    async with Producer(cluster.namesrv) as producer:
        numbers = range(100)
        await asyncio.gather(
            *(producer.send("alone", b"%d" % number, properties={"number": str(number)}) for number in numbers)
        )
        await asyncio.to_thread(cluster.act, "kill", "n0")
        await asyncio.to_thread(cluster.act, "start", "n0")
        await producer.send("alone", b"after", properties={"number": "100"}, deadline_s=WAIT_S)
    assert set(range(101)) - await read_all(cluster.namesrv, "alone", set(range(101))) == set()
