"""Masters and slaves that the configuration appoints, on real processes: a slave dies and comes back."""

import asyncio
from collections.abc import Callable

import pytest

from cli.cluster import control
from ledgermq.client import Admin, Producer, SendStatus
from tests.cluster.processes import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def slave_is_whole(cluster: Cluster) -> bool:
    """Whether the slave is in sync, and has everything."""
    return [(row["in_sync"], row["lag_bytes"]) for row in cluster.nodes("slave")] == [(True, 0)]


@pytest.mark.parametrize(("mode", "alone"), [("sync", SendStatus.SLAVE_NOT_AVAILABLE), ("async", SendStatus.OK)])
async def test_a_slave_dies_and_comes_back(
    start: Callable[..., Cluster], eventually: Callable[..., None], mode: str, alone: SendStatus
) -> None:
    cluster = await asyncio.to_thread(start, "--mode", mode)
    assert [row["role"] for row in control.ask(cluster.directory, "status")["nodes"]] == ["master", "slave"]
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic("appointed", queue_count=1)
        await asyncio.to_thread(eventually, lambda: slave_is_whole(cluster), "the slave is in sync")
        assert (await producer.send("appointed", b"with a slave")).status is SendStatus.OK
        await asyncio.to_thread(cluster.cluster, "kill", "n1")
        assert (await producer.send("appointed", b"without one")).status is alone
        await asyncio.to_thread(cluster.cluster, "start", "dead")
        await asyncio.to_thread(eventually, lambda: slave_is_whole(cluster), "the slave is in sync again")
        assert (await producer.send("appointed", b"with it again")).status is SendStatus.OK
        refused = await asyncio.to_thread(control.ask, cluster.directory, "status")
        assert "epoch" not in refused, "nobody is elected"
    await asyncio.to_thread(eventually, lambda: slave_is_whole(cluster), "the slave has everything")
    digests = (await asyncio.to_thread(cluster.cluster, "digest"))["nodes"]
    assert len({(one["end"], one["sha256"]) for one in digests}) == 1
