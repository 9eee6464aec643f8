"""Clusters of real processes for tests: started by the command line, as a user would, and always stopped."""

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster import control
from node.errors import CommandError
from tests.folder_scope import shared_in_folder
from tests.limits import WAIT_S

LEDGERMQ = [sys.executable, "-P", "-m", "ledgermq_server"]
SMALL_FILES = ("--conf", "mappedFileSizeCommitLog=16777216")
_GROUP = pytest.StashKey["Cluster"]()


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`ledgermq WORDS` to its end."""
    return subprocess.run([*LEDGERMQ, *words], capture_output=True, text=True, timeout=WAIT_S, **options)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    """Poll until the condition holds; fail the test with `what` otherwise."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)


@dataclasses.dataclass
class Cluster:
    """A running `ledgermq cluster up` and what it printed."""

    up: subprocess.Popen[str]
    directory: Path
    description: dict[str, Any]

    @property
    def namesrv(self) -> str:
        return str(self.description["namesrv"])

    @property
    def pids(self) -> list[int]:
        return [node["pid"] for node in self.description["nodes"]] + [self.description["nameserver"]["pid"]]

    def cluster(self, *words: str) -> dict[str, Any]:
        """`ledgermq cluster WORDS --json` on this cluster; its answer."""
        done = run("cluster", *words, "--dir", str(self.directory), "--json")
        assert done.returncode == 0, f"cluster {' '.join(words)}: {done.stderr}"
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def act(self, verb: str, node: str = "") -> dict[str, Any]:
        """As `cluster`, by the control socket, which costs no process."""
        return control.ask(self.directory, verb, node)

    def nodes(self, role: str) -> list[dict[str, Any]]:
        """The brokers of this role now."""
        return [node for node in self.act("status")["nodes"] if node["role"] == role]

    def has_roles(self, masters: int, slaves: int) -> bool:
        """Return whether the nameserver shows these numbers of each role now."""
        roles = [node["role"] for node in self.act("status")["nodes"]]
        return (roles.count("master"), roles.count("slave")) == (masters, slaves)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.up.terminate()
        return self.up.wait(WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster: `start("--mode", "raft")`; in a folder of the test's own unless a `directory` is given."""
    with clusters(tmp_path) as start_cluster:
        yield start_cluster


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The folder's Raft group, whole: a test may kill and pause its nodes, which are then started and resumed."""

    @contextlib.contextmanager
    def start_group() -> Iterator[Cluster]:
        with clusters(tmp_path_factory.mktemp("shared")) as start_cluster:
            yield start_cluster("--mode", "raft")

    shared = shared_in_folder(request, _GROUP, start_group)
    assert shared.has_roles(masters=1, slaves=2)
    yield shared
    for verb, which in (("resume", "paused"), ("start", "dead")):
        with contextlib.suppress(CommandError):  # none is
            shared.act(verb, which)
    wait_until(lambda: shared.has_roles(masters=1, slaves=2), "the shared group is whole again")


@contextlib.contextmanager
def clusters(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """A function that starts clusters, all stopped at the end."""
    running: list[subprocess.Popen[str]] = []

    def start_cluster(*words: str, directory: Path | None = None) -> Cluster:
        folder = directory or tmp_path / f"cluster-{len(running)}"
        with (tmp_path / "up.log").open("a") as log:
            up = subprocess.Popen(
                [*LEDGERMQ, "cluster", "up", *words, *SMALL_FILES, "--dir", str(folder), "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        running.append(up)
        assert up.stdout is not None
        line = up.stdout.readline()
        up.stdout.close()
        assert line, f"the cluster did not come up: {(tmp_path / 'up.log').read_text()}"
        return Cluster(up, folder, json.loads(line))

    yield start_cluster
    for up in running:
        up.terminate()
        assert up.wait(WAIT_S) in (0, -signal.SIGKILL), f"no stop in order: {(tmp_path / 'up.log').read_text()}"


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
