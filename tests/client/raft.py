"""A real Raft cluster, each node a process, for tests that kill its leader."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cli.cluster import control
from node.errors import CommandError
from tests.limits import WAIT_S

LEDGERMQ = [sys.executable, "-P", "-m", "ledgermq_server"]


class Cluster:
    """Three brokers and a nameserver, each a process."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._directory = directory

    async def act(self, verb: str, node: str) -> None:
        """As `ledgermq cluster VERB NODE`, by the control socket."""
        await asyncio.to_thread(control.ask, self._directory, verb, node)

    def mend(self) -> None:
        """Resume and start what tests paused and killed; return when there are a leader and two followers again."""
        for verb, which in (("resume", "paused"), ("start", "dead")):
            with contextlib.suppress(CommandError):  # none is
                control.ask(self._directory, verb, which)
        deadline = time.monotonic() + WAIT_S
        while (roles := self._roles()) != ["master", "slave", "slave"]:
            assert time.monotonic() < deadline, f"the cluster is not whole again: {roles}"
            time.sleep(0.05)

    def leader(self) -> str:
        """The node that leads, as the nameserver knows."""
        nodes = control.ask(self._directory, "status")["nodes"]
        return next(str(node["name"]) for node in nodes if node["role"] == "master")

    def _roles(self) -> list[str]:
        return sorted(node["role"] for node in control.ask(self._directory, "status")["nodes"])


@contextlib.contextmanager
def run_raft(tmp_path: Path) -> Iterator[Cluster]:
    """Started, and ended at the end."""
    directory = tmp_path / "cluster"
    words = ["cluster", "up", "--mode", "raft", "--nodes", "3", "--dir", str(directory), "--json"]
    small = ["--conf", "mappedFileSizeCommitLog=16777216", "--conf", "transactionCheckInterval=500"]
    with (tmp_path / "up.log").open("w") as log:
        up = subprocess.Popen([*LEDGERMQ, *words, *small], stdout=subprocess.PIPE, stderr=log, text=True)
        with up:
            assert up.stdout is not None
            line = up.stdout.readline()
            assert line, (tmp_path / "up.log").read_text()
            try:
                yield Cluster(directory, json.loads(line)["namesrv"])
            finally:
                up.terminate()
