"""What all tests share: no test fails because the machine was slow."""

import gc
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from telemetry.collector import QuietCollector
from tests.limits import IS_WHOLE, SLOWNESS, STRANGER_TEST_S, TEST_S

if importlib.util.find_spec("ledgermq_server") is None:
    pytest.exit("the virtual environment is older than the packages: run `make install`", returncode=4)

ON_ONE_WORKER = ("tests/spark/", "tests/client/", "tests/cluster/", "tests/go/")
"""Folders whose tests with programs of others run in one worker: on one Spark session, on one Java broker; those of the
last two count what clients failed to send, so that only two of these run at a time."""
LAST = ON_ONE_WORKER[2:]
"""When `make strangers` comes to these, CI runs fewer tests beside them."""

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
    if all(item.get_closest_marker("java") or item.get_closest_marker("go") for item in items):
        items.sort(key=turn_of_stranger)
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


def turn_of_stranger(item: pytest.Item) -> int:
    """Return when a test with programs of others is given out: large groups first, those with narrow limits last."""
    return 2 if item.nodeid.startswith(LAST) else 0 if item.nodeid.startswith(ON_ONE_WORKER) else 1


class FolderScheduling(LoadScopeScheduling):
    """Gives out single tests, and the tests of a folder of `ON_ONE_WORKER` together.

    In place of `--dist loadgroup`, whose groups have no effect with pytest 9 and pytest-xdist 3.8.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in ON_ONE_WORKER if nodeid.startswith(folder)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling | None:
    """Under `--dist loadscope`, which `make strangers` sets."""
    return FolderScheduling(config, log) if config.getoption("dist") == "loadscope" else None


def in_lanes(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that half of the workers begin with tests with processes, and none comes last.

    pytest-xdist gives each worker a run of tests, all of about the same length, and takes from its end for workers
    that have done theirs. Tests with processes mostly wait: workers with them leave the processors to the others. Tests
    of one folder stay together, since they share a cluster; those that do come last, so that it does not stand idle
    beside the others.
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
        min(lanes, key=len).extend(sorted(tests, key=uses_shared_cluster))
    ordered: list[pytest.Item] = []
    rest = iter(others)
    for number in range(workers):
        end = len(ordered) + (len(items) - len(ordered)) // (workers - number)
        ordered += lanes[number] if number < len(lanes) else []
        ordered += itertools.islice(rest, max(0, end - len(ordered)))
    return [*ordered, *rest]


def uses_shared_cluster(item: pytest.Item) -> bool:
    """Whether a test with processes is one of those on the cluster of its folder."""
    return not {"group", "raft"}.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session", autouse=True)
def collector_as_it_is() -> Iterator[None]:
    """Keep brokers here from walking all objects of this process at each start; the collector is tested apart."""
    with mock.patch.multiple(QuietCollector, begin=mock.DEFAULT, end=mock.DEFAULT):
        yield


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Spends so many seconds of processor time, by the clock of `TimeSlice`, which otherwise stands still."""
    clock = [0.0]

    def spend(seconds: float) -> None:
        clock[0] += seconds

    frozen = mock.Mock(monotonic=lambda: clock[0], thread_time=lambda: clock[0])
    monkeypatch.setattr("store.time_slice.time", frozen)
    return spend


@pytest.fixture(autouse=True)
def every_disk_has_room() -> None:
    """A disk that an earlier test made full stays noted in the process for some seconds."""
    if (disk := sys.modules.get("store.files.disk")) is not None:
        disk._full.clear()
