"""The fabric of processes on this machine: what `ledgermq cluster up` runs, broken over its control socket."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from chaos.fabric.contract import ClusterView, NodeDigest, NodeView, Verb
from cli.cluster.control import ask
from cli.demo.cluster import RunningCluster
from ledgermq.testing.control import Answer
from node.errors import CommandError

_VERB_LIMIT_S = 60.0
_STATUS_LIMIT_S = 10.0  # the supervisor asks each server for 1 s at most


class LocalFabric:
    """`chaos.fabric.contract.Fabric` over a cluster of processes.

    Args:
        cluster: the running cluster.
        directory: its folder.
    """

    def __init__(self, cluster: RunningCluster, directory: Path) -> None:
        self.namesrv = cluster.namesrv
        self.verbs = frozenset(Verb)
        self._cluster = cluster
        self._directory = directory

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
        return ClusterView(status["mode"], nodes, status["nameserver"]["name"], status.get("epoch"))

    async def mend(self) -> None:
        """See `Fabric.mend`."""
        for verb, *which in ((Verb.HEAL,), (Verb.RESUME, "paused"), (Verb.START, "dead")):
            with contextlib.suppress(CommandError):  # there is none, or the cluster has no links
                await self._ask(verb, *which)

    async def digests(self) -> Sequence[NodeDigest]:
        """See `Fabric.digests`."""
        return await self._cluster.digests()

    async def _ask(self, verb: str, *words: str, limit_s: float = _VERB_LIMIT_S) -> Answer:
        return await asyncio.to_thread(ask, self._directory, verb, *words, limit_s=limit_s)
