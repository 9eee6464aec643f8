"""Masters that controllers elect, on real processes: brokers and controllers die and sleep, nothing is lost."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.client import Admin, Producer
from tests.cluster.processes import Cluster
from tests.cluster.test_failover import Load, read_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
Start = Callable[..., Any]


def is_whole(cluster: Cluster) -> bool:
    """Whether there is a master, and all three are in sync."""
    return cluster.has_roles(masters=1, slaves=2) and len(cluster.act("status")["in_sync"] or ()) == 3


async def test_nothing_acknowledged_is_lost_when_masters_and_controllers_fail(
    start: Start, eventually: Callable[..., None]
) -> None:
    cluster = await asyncio.to_thread(start, "--mode", "controller")
    assert [row["name"] for row in cluster.description["controllers"]] == ["c0", "c1", "c2"]
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic("elected", queue_count=4)
        load = Load(producer, "elected")
        sending = asyncio.create_task(load.run())
        await load.more(100)
        for name in ("n1", "n2"):
            await asyncio.to_thread(eventually, lambda: is_whole(cluster), "all are in sync")
            await asyncio.to_thread(cluster.act, "transfer", name)
            await load.more(100)
        await asyncio.to_thread(eventually, lambda: is_whole(cluster), "all are in sync")
        [master] = [row["pid"] for row in cluster.act("status")["nodes"] if row["role"] == "master"]
        os.kill(master, signal.SIGTERM)
        await load.more(100)
        await asyncio.to_thread(
            eventually, lambda: "down" in [row["state"] for row in cluster.act("status")["nodes"]], "it has stopped"
        )
        await asyncio.to_thread(cluster.act, "start", "dead")
        assert load.failed == 0, "a planned switch-over fails no send"
        [leading] = [row["name"] for row in cluster.act("status")["controllers"]
                     if row["role"] == "leader"]  # fmt: skip
        for fault, victim, mend in (
            ("kill", "leader", ("start", "dead")),
            ("kill", leading, ("start", "dead")),
            ("kill", "leader", ("start", "dead")),
            ("pause", "leader", ("resume", "paused")),
        ):
            await asyncio.to_thread(cluster.act, fault, victim)
            await load.more(100)
            await asyncio.to_thread(cluster.act, *mend)
            await asyncio.to_thread(eventually, lambda: is_whole(cluster), "all are in sync again")
            await load.more(100)
        assert cluster.act("status")["epoch"] >= 4
        for node in cluster.act("status")["nodes"]:
            os.kill(node["pid"], signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: cluster.has_roles(0, 0), "all brokers are dead")
        await asyncio.to_thread(cluster.act, "start", "dead")
        await asyncio.to_thread(eventually, lambda: is_whole(cluster), "all are in sync again")
        await load.more(50)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    acked = set(load.acked)
    assert acked - await read_all(cluster.namesrv, "elected", acked) == set()
    digests = await asyncio.to_thread(cluster.cluster, "digest")
    assert len({node["sha256"] for node in digests["nodes"]}) == 1
