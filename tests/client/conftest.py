"""A running fake cluster for each test, and a real one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.assembly import Broker
from broker.config import BrokerConfig
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from tests.client.fake import FakeCluster

StartCluster = Callable[..., Awaitable[FakeCluster]]


@pytest.fixture
async def start_cluster() -> AsyncIterator[StartCluster]:
    """Starts clusters of nameservers; arguments as `FakeCluster`."""
    started: list[FakeCluster] = []

    async def start(**options: Any) -> FakeCluster:
        cluster = FakeCluster(**options)
        started.append(cluster)
        for nameserver in cluster.nameservers:
            await nameserver.start()
        return cluster

    yield start
    for cluster in started:
        await cluster.close()


@pytest.fixture
async def cluster(start_cluster: StartCluster) -> FakeCluster:
    """One nameserver that holds questions; no broker yet."""
    return await start_cluster()


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[str]:
    """Address of the nameserver of a real standalone broker, both in this process."""
    nameserver = NameServer(
        NameServerConfig(listen_host="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kvConfig.json")
    )
    await nameserver.start()
    broker = Broker(
        BrokerConfig(
            listen_host="127.0.0.1",
            listen_port=0,
            namesrv_addrs=(nameserver.address,),
            store_dir=tmp_path / "store",
            commit_log_file_size_bytes=16 << 20,
        )
    )
    try:
        await broker.start()
        yield nameserver.address
    finally:
        await broker.close()
        await nameserver.close()
