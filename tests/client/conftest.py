"""A running fake cluster for each test, and a real one; the real Java broker for those that ask for it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from node.broker_assembly import Broker
from tests.client import java
from tests.client.fake import FakeCluster
from tests.cluster.processes import Cluster, raft_group
from tests.folder_scope import shared_in_folder
from tests.node_config import node_config

pytest.register_assert_rewrite("tests.client.administering", "tests.client.taking")

_JAVA = pytest.StashKey[str]()
_RAFT = pytest.StashKey[Cluster]()
StartCluster = Callable[..., Awaitable[FakeCluster]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for `java_broker` needs Java."""
    no = java.why_not()
    for item in items:
        if "java_broker" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.cluster)
            if no is not None:
                item.add_marker(pytest.mark.skip(reason=no))


@pytest.fixture
def java_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of the nameserver of a real RocketMQ 5.3.3 broker, one for all tests: take topics of your own.

    It does not stand to the end of the run: idle, it takes a twelfth of a processor.
    """
    return shared_in_folder(request, _JAVA, lambda: java.run_java_broker(tmp_path_factory.mktemp("java")))


@pytest.fixture
def raft(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers that replicate by Raft, and a nameserver, each a process: one for all tests, whole for each.

    Take topics and groups of your own.
    """
    words = ("--conf", "transactionCheckInterval=500")
    cluster = shared_in_folder(request, _RAFT, lambda: raft_group(tmp_path_factory.mktemp("raft"), *words))
    yield cluster
    cluster.mend()


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
        NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=tmp_path / "kvConfig.json")
    )
    await nameserver.start()
    broker = Broker(
        node_config(
            bindAddress="127.0.0.1",
            namesrv_addrs=(nameserver.address,),
            storePathRootDir=tmp_path / "store",
            mappedFileSizeCommitLog=16 << 20,
            recall_enable=True,
            timer_precision_ms=100,
            transaction_timeout_ms=500,
            transaction_check_interval_ms=100,
            transaction_check_max=1000,
            insecure_settings=True,
        )
    )
    try:
        await broker.start()
        yield nameserver.address
    finally:
        await broker.close()
        await nameserver.close()
