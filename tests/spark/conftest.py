"""One Spark session for all tests that need one, since it takes some seconds to start; and one broker."""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from ledgermq.client import Admin, Outgoing, Producer, SendResult
from ledgermq.remoting.serving.listener import ListenerKeys
from ledgermq.spark.errors import MissingToolError
from ledgermq.spark.session import check_tools, make_session
from nameserver.config import NameServerConfig
from nameserver.server import NameServer
from node.broker_assembly import Broker
from tests.jvm import SHORT_LIFE
from tests.node_config import node_config
from tests.store.support import eventually

T = TypeVar("T")

JVM_OPTIONS = " ".join(SHORT_LIFE)
SETTINGS = {
    "spark.master": "local[2,4]",  # a task may fail by a test, and by a Python worker for which Spark waits 10 s only
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.shuffle.compress": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a session needs Java."""
    for item in items:
        if not {"spark", "own_session"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        check_tools()
    except MissingToolError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = make_session("tests", SETTINGS | warehouse)
    yield session
    session.stop()


@pytest.fixture
def own_session(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that makes a session of its own: what it does not set is as in `spark`."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in SETTINGS.items())
    )
    return os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
        "SPARK_ENV_LOADED": "1",  # so `make_session` sets neither master nor partitions
    }


class RunningBroker:
    """A nameserver and a broker that stands alone, in a thread with an event loop of its own.

    Attributes:
        namesrv: address of the nameserver.
        root: the broker's store directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.namesrv = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._parts: tuple[NameServer, Broker] | None = None
        self.run(self._start(root))

    async def _start(self, root: Path) -> None:
        nameserver = NameServer(
            NameServerConfig(listener=ListenerKeys(host="127.0.0.1"), kv_config_path=root / "kvConfig.json")
        )
        await nameserver.start()
        self.namesrv = nameserver.address
        self._parts = nameserver, await self._broker("b", self.root)

    async def _broker(self, name: str, root: Path) -> Broker:
        broker = Broker(
            node_config(
                bindAddress="127.0.0.1",
                namesrv_addrs=(self.namesrv,),
                brokerName=name,
                storePathRootDir=root,
                mappedFileSizeCommitLog=1 << 20,
                maxMessageSize=400_000,
            )
        )
        await broker.start()
        return broker

    @contextmanager
    def joined_by(self, name: str) -> Iterator[None]:
        """Another broker beside, which keeps its store under its name; the nameserver knows it."""
        assert self._parts is not None
        table = self._parts[0].table
        other = self.run(self._broker(name, self.root.parent / name))
        try:
            self.run(eventually(lambda: table.group(name) is not None))
            yield
        finally:
            self.run(other.close())

    @property
    def pulls_found(self) -> int:
        """Pulls so far whose answer had messages."""
        assert self._parts is not None
        return self._parts[1].parts.pull.processor.found

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def create(self, topic: str, queue_count: int) -> None:
        async def work() -> None:
            async with Admin(self.namesrv) as admin:
                await admin.create_topic(topic, queue_count)

        self.run(work())

    def delete(self, topic: str) -> None:
        async def work() -> None:
            async with Admin(self.namesrv) as admin:
                await admin.delete_topic(topic)

        self.run(work())

    def send(self, topic: str, messages: Sequence[Outgoing], queue: int = 0) -> list[SendResult]:
        async def work() -> list[SendResult]:
            async with Producer(self.namesrv) as producer:
                return await producer.send_many(topic, messages, queue=queue)

        return self.run(work())

    def clean(self) -> None:
        """Delete every file of the log that is written no more."""

        async def work() -> None:
            assert self._parts is not None
            opened = self._parts[1]._open
            assert opened is not None
            log, cleaner = opened.store.log, opened.cleaner
            await eventually(lambda: bool(log.sealed_files()))
            end = log.sealed_files()[-1][1]
            assert log.trim(end) == end
            await cleaner.clean_queues()

        self.run(work())

    def close(self) -> None:
        async def work() -> None:
            assert self._parts is not None
            await self._parts[1].close()
            await self._parts[0].close()

        self.run(work())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for the whole run: take topics of your own."""
    running = RunningBroker(tmp_path_factory.mktemp("broker"))
    yield running
    running.close()
