"""What all tests share: no test fails because the machine was slow."""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

from telemetry.collector import QuietCollector
from tests.limits import IS_WHOLE, SLOWNESS, STRANGER_TEST_S, TEST_S

if importlib.util.find_spec("ledgermq_server") is None:
    pytest.exit("the virtual environment is older than the packages: run `make install`", returncode=4)

settings.register_profile("ledgermq", deadline=None, max_examples=100 if IS_WHOLE else 50)
settings.load_profile("ledgermq")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what transcripts print back to their files")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect some 6,400 tests without garbage collection, and keep them and all modules out of later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests with processes first, and give each test its limit, longer on a slow machine.

    It is `STRANGER_TEST_S` with programs of others, else the test's own or `TEST_S`.

    pytest-xdist gives each worker a run of tests, and takes from its end for workers that have done theirs. So tests
    with processes, which wait a lot, stay together in one worker, where they share clusters, and none comes last.
    """
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)
    for item in items:
        own = item.get_closest_marker("timeout")
        if item.get_closest_marker("java") or item.get_closest_marker("go"):
            item.add_marker(pytest.mark.timeout(STRANGER_TEST_S), append=False)
        elif own is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
        elif SLOWNESS > 1:
            item.add_marker(pytest.mark.timeout(own.args[0] * SLOWNESS), append=False)


@pytest.fixture(scope="session", autouse=True)
def collector_as_it_is() -> Iterator[None]:
    """Keep brokers here from walking all objects of this process at each start; the collector is tested apart."""
    with mock.patch.multiple(QuietCollector, begin=mock.DEFAULT, end=mock.DEFAULT):
        yield


@pytest.fixture(autouse=True)
def every_disk_has_room() -> None:
    """A disk that an earlier test made full stays noted in the process for some seconds."""
    if (disk := sys.modules.get("store.files.disk")) is not None:
        disk._full.clear()
