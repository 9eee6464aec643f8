"""A running fake cluster for each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

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
