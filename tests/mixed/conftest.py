"""RocketMQ's jars by Maven, and a street of nodes that are always ended."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.jvm import NEWEST, maven_jars, rocketmq_jars
from tests.limits import STRANGER_WAIT_S
from tests.mixed.nodes import Street
from tests.mqadmin.driver import Driver

OLD, GRPC_CLIENT = "4.9.7", "5.0.7"
"""4.9.7 is the newest 4.9 whose broker Maven's central repository has."""

ASKED_FOR = os.environ.get("MIXED")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            if ASKED_FOR is None or (item.get_closest_marker("long") and ASKED_FOR != "all"):
                item.add_marker(pytest.mark.skip(reason="make mixed runs these; MIXED=one the short ones"))
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def jars() -> Path:
    return rocketmq_jars()


@pytest.fixture(scope="session")
def old_jars() -> Path:
    return maven_jars(OLD, "broker")


@pytest.fixture(scope="session")
def proxy_jars() -> Path:
    return maven_jars(NEWEST, "proxy")


@pytest.fixture(scope="session")
def grpc_client_jars() -> Path:
    return maven_jars(GRPC_CLIENT, "client-java")


@pytest.fixture(scope="session")
def mqadmin(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """RocketMQ's mqadmin, one JVM for all tests."""
    with contextlib.closing(Driver(f"{jars}/*", "none", tmp_path_factory.mktemp("mqadmin"))) as driver:
        yield driver


@pytest.fixture
def street(tmp_path: Path, jars: Path, mqadmin: Driver) -> Iterator[Street]:
    with contextlib.closing(Street(tmp_path, jars, mqadmin)) as nodes:
        yield nodes


Condition = Callable[[], Awaitable[bool]]


@pytest.fixture
def eventually(street: Street) -> Callable[[Condition, str], Awaitable[None]]:
    """`eventually(condition, what)`: returns when it holds; fails with `what` when it does not, or when a node ends."""

    async def wait(condition: Condition, what: str) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(STRANGER_WAIT_S):
                while not await condition():
                    street.check()
                    await asyncio.sleep(0.1)
            print(f"{time.monotonic() - began:.1f} s until {what}")
        except TimeoutError:
            pytest.fail(f"not within {STRANGER_WAIT_S:g} s: {what}")

    return wait
