"""Clusters of real processes for tests: started by the command line, as a user would, and always stopped."""

import asyncio
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
from ledgermq.testing.cluster import start_cluster, stop_cluster
from node.errors import CommandError
from tests.limits import TEST_S, WAIT_S

LEDGERMQ = [sys.executable, "-P", "-m", "ledgermq_server"]
SMALL_FILES = ("--conf", "mappedFileSizeCommitLog=16777216")


def run(*words: str, limit_s: float = TEST_S, **options: Any) -> subprocess.CompletedProcess[str]:
    """`ledgermq WORDS` to its end: a drill takes half a minute of its own."""
    return subprocess.run([*LEDGERMQ, *words], capture_output=True, text=True, timeout=limit_s, **options)


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

    up: "subprocess.Popen[str]"
    description: dict[str, Any]
    directory: Path

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

    def leader(self) -> str:
        """The node that leads, as the nameserver knows."""
        return str(self.nodes("master")[0]["name"])

    async def fault(self, verb: str, node: str) -> None:
        """As `act`, while the event loop goes on."""
        await asyncio.to_thread(self.act, verb, node)

    def mend(self) -> None:
        """Resume and start what was paused and killed; return when there are a leader and two followers again."""
        for verb, which in (("resume", "paused"), ("start", "dead")):
            with contextlib.suppress(CommandError):  # none is
                self.act(verb, which)
        wait_until(lambda: self.has_roles(masters=1, slaves=2), "the cluster is whole again")

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return stop_cluster(self.up)


@contextlib.contextmanager
def clusters(folder: Path) -> Iterator[Callable[..., Cluster]]:
    """A function that starts clusters below a folder, all stopped at the end."""
    running: list[Cluster] = []

    def start(*words: str, directory: Path | None = None) -> Cluster:
        place = directory or folder / f"cluster-{len(running)}"
        running.append(Cluster(*start_cluster(place, *words, *SMALL_FILES), place))
        return running[-1]

    try:
        yield start
    finally:
        codes = {one.directory: one.stop() for one in running}
    for place, code in codes.items():
        log = place.with_name(f"{place.name}.log")
        assert code in (0, -signal.SIGKILL), f"no stop in order: {log.read_text()}"


@contextlib.contextmanager
def raft_group(folder: Path, *words: str) -> Iterator[Cluster]:
    """A Raft group of three."""
    with clusters(folder) as start:
        yield start("--mode", "raft", *words)
