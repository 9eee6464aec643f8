"""A real Raft cluster, each node a process, for tests that kill its leader."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.limits import WAIT_S

LEDGERMQ = [sys.executable, "-P", "-m", "ledgermq_server"]


class Cluster:
    """Three brokers and a nameserver, each a process."""

    def __init__(self, directory: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self._directory = directory

    async def act(self, *words: str) -> None:
        """`ledgermq cluster WORDS`."""
        command = [*LEDGERMQ, "cluster", *words, "--dir", str(self._directory), "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0, words


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
