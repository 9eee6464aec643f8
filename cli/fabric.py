"""The fabric of processes on this machine: a running `ledgermq cluster up`, broken over its control socket."""

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO

from chaos.fabric.contract import UNDONE_BY, ClusterView, NodeDigest, NodeView, Verb
from chaos.fabric.namespaces import enter_network
from cli.cluster.child import our_argv
from cli.cluster.control import ask
from cli.digest import digest_brokers
from ledgermq.testing.control import Answer
from node.errors import CommandError

_VERB_LIMIT_S = 60.0
_STATUS_LIMIT_S = 10.0  # the supervisor asks each server for 1 s at most
_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 40.0


class LocalFabric:
    """The `Fabric` of a running `cluster up`; make it on the main thread, see `enter`.

    Args:
        directory: its folder.

    Raises:
        CommandError: no cluster runs there.
    """

    def __init__(self, directory: Path) -> None:
        status = enter(ask(directory, "status", limit_s=_STATUS_LIMIT_S))
        self.namesrv, self.mode = str(status["namesrv"]), str(status["mode"])
        self.kind = "namespaces" if status["has_namespaces"] else "processes"
        self.verbs = frozenset(Verb)
        self._directory = directory
        self._left = frozenset(node["name"] for node in _nodes_of(status) if node["state"] != "up")

    async def act(self, verb: Verb, *words: str) -> str:
        """See `Fabric.act`."""
        return str((await self._ask(verb, *words))["proof"])

    async def inspect(self) -> ClusterView:
        """See `Fabric.inspect`."""
        status = await self._ask("status", limit_s=_STATUS_LIMIT_S)
        nodes = tuple(
            NodeView(node["name"], node["address"], node["role"], node["state"], node.get("in_sync"))
            for node in status["nodes"]
        )
        return ClusterView(nodes, status["nameserver"]["name"], status.get("epoch"))

    async def mend(self) -> None:
        """See `Fabric.mend`. Nodes that were down or paused when this fabric was made stay as they are."""
        with contextlib.suppress(CommandError):  # the cluster has no links
            await self._ask(Verb.HEAL)
        with contextlib.suppress(CommandError):  # the cluster has ended
            for node in _nodes_of(await self._ask("status", limit_s=_STATUS_LIMIT_S)):
                if node["state"] in UNDONE_BY and node["name"] not in self._left:
                    await self._ask(UNDONE_BY[node["state"]], node["name"])

    async def digests(self) -> Sequence[NodeDigest]:
        """See `Fabric.digests`."""
        return await asyncio.to_thread(digest_brokers, (await self._ask("status"))["nodes"])

    async def aclose(self) -> None:
        """Do nothing: between two verbs nothing is open."""

    async def _ask(self, verb: str, *words: str, limit_s: float = _VERB_LIMIT_S) -> Answer:
        return await asyncio.to_thread(ask, self._directory, verb, *words, limit_s=limit_s)


def enter(status: Answer) -> Answer:
    """Move this thread, and threads it starts from now on, to the network of the nodes; return the cluster's status.

    Raises:
        CommandError: their network is one of its own, and this process may not enter it.
    """
    if status["has_namespaces"]:
        enter_network(status["pid"])
    return status


def _nodes_of(status: Answer) -> list[Answer]:
    """Return the rows of all processes."""
    return [*status["nameservers"], *status.get("controllers", ()), *status["nodes"]]


def interrupt_on_sigterm() -> None:
    """Let SIGTERM raise KeyboardInterrupt in the running loop, even where SIGINT is ignored."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _interrupt)


def _interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextlib.asynccontextmanager
async def local_cluster(directory: Path, *shape: str) -> AsyncIterator[LocalFabric]:
    """Run `ledgermq cluster up` as a child in `directory`; it is stopped in order at the end of the block.

    `shape` has the options of `cluster up` for mode and nodes. From now on SIGTERM acts as Ctrl-C, so that the caller
    cleans up.

    Raises:
        CommandError: it did not start; the text says why.
    """
    interrupt_on_sigterm()
    words = ["cluster", "up", *shape, "--dir", str(directory), "--json"]
    with tempfile.TemporaryFile() as errors:  # a full pipe would block it
        up = await asyncio.create_subprocess_exec(
            *our_argv(*words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            await _await_description(up, errors)
            yield LocalFabric(directory)
        finally:
            await _stop(up)


async def _await_description(up: asyncio.subprocess.Process, errors: BinaryIO) -> None:
    assert up.stdout is not None, "stdout is a pipe"
    try:
        json.loads(await asyncio.wait_for(up.stdout.readline(), _START_LIMIT_S))
    except (TimeoutError, ValueError):
        with contextlib.suppress(ProcessLookupError):
            up.terminate()
        await up.communicate()
        errors.seek(0)
        why = errors.read().decode(errors="replace").strip().removeprefix("error: ")
        raise CommandError(f"the cluster did not come up: {why}") from None


async def _stop(up: asyncio.subprocess.Process) -> None:
    if up.returncode is not None:
        return
    up.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(up.communicate(), _STOP_LIMIT_S)
    except TimeoutError:
        up.kill()  # its children end with this process
        await up.wait()
