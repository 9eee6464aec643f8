"""What all tests share: no test fails because the machine was slow."""

import gc
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

from telemetry.collector import QuietCollector
from tests.limits import IS_WHOLE, SLOWNESS, STRANGER_TEST_S, TEST_S

if importlib.util.find_spec("ledgermq_server") is None:
    pytest.exit("the virtual environment is older than the packages: run `make install`", returncode=4)

HAVE_NARROW_LIMITS = ("tests/cluster/", "tests/go/")
"""These tests count what clients of others failed to send: they come last, when CI runs fewer tests beside them."""

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


@pytest.hookimpl(trylast=True)  # behind the selection by markers, which folders add, too
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its limit, longer on a slow machine, and put the tests with processes first.

    The limit is `STRANGER_TEST_S` with programs of others, else the test's own or `TEST_S`.
    """
    if config.getoption("loadgroup", default=False):  # tests are given out one by one, or in groups
        items.sort(key=lambda item: item.nodeid.startswith(HAVE_NARROW_LIMITS))
    else:
        items[:] = in_lanes(items, getattr(config, "workerinput", {}).get("workercount", 1))
    for item in items:
        own = item.get_closest_marker("timeout")
        if item.get_closest_marker("java") or item.get_closest_marker("go"):
            item.add_marker(pytest.mark.timeout(STRANGER_TEST_S), append=False)
        elif own is None:
            item.add_marker(pytest.mark.timeout(TEST_S))
        elif SLOWNESS > 1:
            item.add_marker(pytest.mark.timeout(own.args[0] * SLOWNESS), append=False)


def in_lanes(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that half of the workers begin with tests with processes, and none comes last.

    pytest-xdist gives each worker a run of tests, all of about the same length, and takes from its end for workers
    that have done theirs. Tests with processes mostly wait: workers with them leave the processors to the others. Tests
    of one folder stay together, since they share clusters.
    """
    folders: dict[str, list[pytest.Item]] = {}
    others = []
    for item in items:
        if item.get_closest_marker("cluster") is None:
            others.append(item)
        else:
            folders.setdefault(item.nodeid.split("/")[1], []).append(item)
    lanes: list[list[pytest.Item]] = [[] for _ in range(max(1, workers // 2))]
    for tests in sorted(folders.values(), key=len, reverse=True):
        min(lanes, key=len).extend(tests)
    ordered: list[pytest.Item] = []
    rest = iter(others)
    for number in range(workers):
        end = len(ordered) + (len(items) - len(ordered)) // (workers - number)
        ordered += lanes[number] if number < len(lanes) else []
        ordered += itertools.islice(rest, max(0, end - len(ordered)))
    return [*ordered, *rest]


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
