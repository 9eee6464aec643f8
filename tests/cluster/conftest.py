"""Clusters of real processes for the tests of this folder."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Cluster, clusters, is_alive, raft_group, run, wait_until
from tests.folder_scope import shared_in_folder

_GROUP = pytest.StashKey[Cluster]()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster: `start("--mode", "raft")`; in a folder of the test's own unless a `directory` is given."""
    with clusters(tmp_path) as start:
        yield start


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The folder's Raft group, whole: a test may kill and pause its nodes, which are then started and resumed."""
    shared = shared_in_folder(request, _GROUP, lambda: raft_group(tmp_path_factory.mktemp("shared")))
    assert shared.has_roles(masters=1, slaves=2)
    yield shared
    shared.mend()


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`ledgermq WORDS` to its end."""
    return run


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs."""
    return is_alive


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Poll a condition: `eventually(condition, what)`."""
    return wait_until
