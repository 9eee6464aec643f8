"""`Cluster`: the nodes of `ledgermq cluster up` as an object of the test."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from ledgermq.testing.control import Answer, ClusterError, ask

_START_LIMIT_S: Final = 90.0
_STOP_LIMIT_S: Final = 40.0
_WHOLE_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.05
_FILE_SIZE: Final = "mappedFileSizeCommitLog=16777216"

ClusterMode = Literal["raft", "sync", "async", "controller", "standalone"]


@dataclass(frozen=True, slots=True)
class Node:
    """One broker.

    Attributes:
        role: `master`, `slave`, `down` or `unknown`, by the nameserver's routes.
        state: of its process: `up`, `paused` or `down`.
    """

    name: str
    address: str
    role: str
    state: str


def start_cluster(directory: Path, *words: str) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    """Run `ledgermq cluster up WORDS`; return its process, and what it printed once the cluster could be written to.

    The cluster ends with the thread that calls this.

    Args:
        directory: the cluster's folder. Errors are appended to the file DIRECTORY.log beside it.
        words: further arguments of the command.

    Raises:
        ClusterError: it did not start; the text says why.
    """
    me = [sys.executable, "-P", "-m", "ledgermq_server", "--die-with-parent", str(os.getpid())]
    log = directory.with_name(f"{directory.name}.log")
    with log.open("a") as errors:  # a full pipe would block it
        process = subprocess.Popen(
            [*me, "cluster", "up", *words, "--dir", str(directory), "--json", "--wait", str(_START_LIMIT_S)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None, "stdout is a pipe"
    with process.stdout as output:
        line = output.readline()
    if not line:
        process.wait()
        raise ClusterError(f"the cluster did not start: {log.read_text(errors='replace').strip()}")
    return process, json.loads(line)


def stop_cluster(process: "subprocess.Popen[str]") -> int:
    """End the process of `start_cluster` by SIGTERM, or by SIGKILL after 40 s; return its exit code."""
    process.terminate()
    try:
        return process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # the nodes end with this process
        return process.wait()


class Cluster:
    """A nameserver and brokers as processes on this machine; used as a context manager.

    Nodes are named `n0`, `n1`, ..., `namesrv`; `leader`, `dead` and `paused` stand for those that are so now. All
    methods block, and may be called from asynchronous tests, too. Start it in the main thread: the
    processes end with that.

    Args:
        mode: how the brokers replicate.
        nodes: number of brokers; None: three, or one in mode standalone.
        settings: properties of every broker, for example `{"flushDiskType": "ASYNC_FLUSH"}`.

    Attributes:
        namesrv: `host:port` of the nameserver, for clients.
        directory: the nodes' folder, with their logs; removed at the end.
    """

    def __init__(
        self, mode: ClusterMode = "raft", nodes: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        count = (1 if mode == "standalone" else 3) if nodes is None else nodes
        shape = ["--nodes", str(count)] if mode in ("raft", "standalone") else ["--slaves", str(count - 1)]
        self._words = ["--mode", mode, *shape, "--conf", _FILE_SIZE]
        for key, value in (settings or {}).items():
            self._words += ["--conf", f"{key}={value}"]
        self._folder = tempfile.TemporaryDirectory(prefix="ledgermq-testing-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[str] | None = None
        self.directory = Path(self._folder.name) / "cluster"
        self.namesrv = ""

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:  # also Ctrl-C: `__exit__` is not called
            self.stop_all()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop_all()

    def start_all(self) -> None:
        """Start every node; return when the cluster can be written to.

        Raises:
            ClusterError: it did not start; the text says why.
        """
        self._process, description = start_cluster(self.directory, *self._words, "--links", "auto")
        self.namesrv = str(description["namesrv"])

    def stop_all(self) -> None:
        """Stop every node, and remove the folder. Stopping twice is no error."""
        process, self._process = self._process, None
        if process is not None:
            stop_cluster(process)
        self._folder.cleanup()

    # -- state

    @property
    def nodes(self) -> list[Node]:
        """The brokers as they are now."""
        return [Node(row["name"], row["address"], row["role"], row["state"]) for row in self._status()["nodes"]]

    @property
    def leader(self) -> str | None:
        """Name of the first master that the routes show; None: there is none now."""
        return next((node.name for node in self.nodes if node.role == "master"), None)

    def topic(self, *, queue_count: int = 4) -> str:
        """Create a topic with a new name; return the name."""
        name = f"test-{secrets.token_hex(6)}"
        with ThreadPoolExecutor(1) as thread:  # a thread, since the test's own event loop may be running
            thread.submit(asyncio.run, _create_topic(self.namesrv, name, queue_count)).result()
        return name

    # -- actions; each returns when it has taken effect

    def kill(self, node: str = "leader") -> str:
        """Kill a node by SIGKILL; return its name."""
        return self._act("kill", node)

    def stop(self, node: str = "leader") -> str:
        """Stop a node by SIGTERM, and wait for its end; return its name."""
        return self._act("stop", node)

    def start(self, node: str = "dead") -> str:
        """Start a node that is down; return its name."""
        return self._act("start", node)

    def pause(self, node: str = "leader") -> str:
        """Pause a node by SIGSTOP; return its name."""
        return self._act("pause", node)

    def resume(self, node: str = "paused") -> str:
        """Resume a node by SIGCONT; return its name."""
        return self._act("resume", node)

    def transfer(self, node: str) -> str:
        """Hand leadership to a node; return its name."""
        return self._act("transfer", node)

    def partition(self, node: str = "leader") -> str:
        """Cut a broker from all other brokers, both ways; clients still reach it. Return its name.

        Raises:
            ClusterError: the mode has no connections that can be cut, or Toxiproxy is not installed.
        """
        nodes = self.nodes
        name = next((one.name for one in nodes if node in (one.name, one.address)), node)
        if node in ("leader", "master"):
            name = next((one.name for one in nodes if one.role == "master"), node)
        others = [one.name for one in nodes if one.name != name]
        self._ask("cut", *(link for other in others for link in (f"{name}>{other}", f"{other}>{name}")))
        return name

    def heal(self) -> None:
        """Undo `partition`."""
        self._ask("heal")

    def mend(self) -> None:
        """Undo everything: heal, resume and start all, and wait until every broker is back.

        Raises:
            ClusterError: they are not within a minute.
        """
        for verb, *words in (("heal",), ("resume", "paused"), ("start", "dead")):
            try:
                self._ask(verb, *words)
            except ClusterError:  # nothing of that kind to undo
                continue
        deadline = time.monotonic() + _WHOLE_LIMIT_S
        while not self._is_whole():
            if time.monotonic() > deadline:
                raise ClusterError(f"not whole within {_WHOLE_LIMIT_S:g} s: {self.nodes}")
            time.sleep(_POLL_S)

    def _is_whole(self) -> bool:
        rows = self._status()["nodes"]
        roles = {row["role"] for row in rows}
        return "master" in roles and roles <= {"master", "slave"} and all(row.get("in_sync", True) for row in rows)

    def _act(self, verb: str, node: str) -> str:
        return str(self._ask(verb, node)["nodes"][0]["name"])

    def _status(self) -> Answer:
        return self._ask("status")

    def _ask(self, verb: str, *words: str) -> Answer:
        return ask(self.directory, verb, *words)


async def _create_topic(namesrv: str, name: str, queue_count: int) -> None:
    from ledgermq.client import Admin

    async with Admin(namesrv) as admin:
        await admin.create_topic(name, queue_count=queue_count)
