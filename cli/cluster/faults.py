"""The faults that `cluster up` makes beside signals: cut links, full or dead disks, wrong clocks; and their repair.

--links   Toxiproxy between brokers          cut, delay
--fabric namespaces, by iptables             cut
--disks   a small file system for each       fill, fail-disk, replace-disk, cut-power
--shim    a library between node and libc    slow, clock
always                                       corrupt
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from chaos.fabric.damage import flip_bytes
from chaos.fabric.disk import Disk
from chaos.fabric.namespaces import Namespaces
from chaos.fabric.shim import Shim, build_shim
from cli.cluster.child import Child, ChildState, Launch, Process, our_argv, program
from cli.cluster.linking import Linking
from cli.cluster.plan import ClusterPlan, NodePlan
from node.errors import CommandError

VERBS: Final = frozenset(
    {"cut", "delay", "heal", "fill", "fail-disk", "replace-disk", "cut-power", "slow", "clock", "corrupt"}
)
_DISK_BYTES = 1 << 30  # sparse: takes only the written space
_SLOW_MAX_MS = 60_000
_CLOCK_MAX_S = 366 * 86_400

End = Callable[[str], Awaitable[object]]
"""Kills a running node, by its name."""


class Faults:
    """Makes and undoes the faults of one cluster.

    Args:
        plan: of the cluster.
        children: by name.
        linking: Toxiproxy; None: the cluster has no links.
        kill: kills a running node.
        has_shim: whether nodes start with the library.
    """

    def __init__(
        self, plan: ClusterPlan, children: Mapping[str, Child], linking: Linking | None, kill: End, *, has_shim: bool
    ) -> None:
        self._brokers = {broker.name: broker for broker in plan.brokers}
        self._directory = plan.directory
        self._children = children
        self._linking = linking
        self._kill = kill
        self._disks: dict[str, Disk] = {}
        self._shims: dict[str, Shim] = {}
        self._namespaces = Namespaces({node.name: node.address for node in plan.nodes}) if plan.has_namespaces else None
        self._library: Path | None = None
        if plan.has_disks:
            self._disks = {
                name: Disk(broker.directory / "disk.ext4", broker.disk, _DISK_BYTES)
                for name, broker in self._brokers.items()
            }
        if has_shim:
            self._shims = {name: Shim(broker.directory / "shim") for name, broker in self._brokers.items()}

    async def start(self) -> None:
        """Start what the faults need; call it before the brokers start.

        Raises:
            CommandError: something is missing or fails.
        """
        if self._linking is not None:
            await self._linking.start()
        if self._namespaces is not None:
            await asyncio.to_thread(self._namespaces.create)
        for disk in self._disks.values():
            await asyncio.to_thread(disk.attach)
        if self._shims:
            self._library = await asyncio.to_thread(build_shim, self._directory)

    async def stop(self) -> None:
        """Stop what `start` started. A mount that is still in use ends with this process."""
        if self._linking is not None:
            await self._linking.stop()
        for disk in self._disks.values():
            await asyncio.to_thread(disk.close)

    def launch(self, node: NodePlan, usual: Launch) -> Launch:
        """Return what starts a node: in its namespace and with the library, if configured, else by `usual`."""
        shim, namespaces = self._shims.get(node.name), self._namespaces
        if shim is None and namespaces is None:
            return usual

        def launch(log_path: Path) -> Process:
            argv = our_argv(*node.arguments)
            argv = argv if namespaces is None else namespaces.argv(node.name, argv)
            preloaded = None if shim is None or self._library is None else shim.environment(self._library)
            return program(argv, preloaded)(log_path)

        return launch

    async def change(self, verb: str, words: Sequence[str]) -> str:
        """Carry out one of `VERBS`; return the proof.

        Raises:
            CommandError: the cluster lacks the option for it, a word is wrong, or it had no effect.
        """
        if verb == "cut" and self._namespaces is not None:
            return await asyncio.to_thread(self._namespaces.cut, words)
        if verb in ("cut", "delay"):
            if self._linking is None:
                raise CommandError(f"{verb} needs a cluster that was started with --links")
            return await self._linking.change(verb, words)
        if verb == "heal":
            return await self._heal(words)
        if verb == "cut-power":
            return await self._cut_power(words)
        if verb in ("slow", "clock"):
            return await self._mislead(verb, words)
        name = _only(verb, words)
        if verb == "corrupt":
            return await self._corrupt(name)
        disk = self._disk(name)
        if verb == "fill":
            return await asyncio.to_thread(disk.fill)
        if verb == "fail-disk":
            return await asyncio.to_thread(disk.fail)
        await self._end(name)
        return await asyncio.to_thread(disk.replace)

    async def _heal(self, words: Sequence[str]) -> str:
        """Undo what was done to these links and nodes; without words, everything."""
        links = [word for word in words if ">" in word]
        names = [word for word in words if ">" not in word] if words else list(self._disks.keys() | self._shims.keys())
        if not (self._linking or self._namespaces or self._disks or self._shims):
            raise CommandError("heal needs a cluster that was started with --links, --disks, --shim or in namespaces")
        proofs = []
        if self._namespaces is not None and (links or not words):
            proofs.append(await asyncio.to_thread(self._namespaces.heal, links))
        if self._linking is not None and (links or not words):
            proofs.append(await self._linking.change("heal", links))
        for name in names:
            if name not in self._brokers:
                raise CommandError(f"{name!r} is neither a link nor a broker of this cluster")
            proofs.append(await self._heal_node(name))
        return ", ".join(proofs)

    async def _heal_node(self, name: str) -> str:
        if name in self._shims:
            self._shims[name].heal()
        disk = self._disks.get(name)
        if disk is None:
            return f"{name} has its own clock and syncs"
        await asyncio.to_thread(disk.heal)
        if not disk.has_power:
            await self._end(name)
            await asyncio.to_thread(disk.restart)
        return f"{name} has {disk.free_bytes():,} bytes free"

    async def _cut_power(self, names: Sequence[str]) -> str:
        """Cut the power of all nodes at one moment: pause the processes, stop the disks, kill, and mount again."""
        disks = [self._disk(name) for name in names]
        if not disks:
            raise CommandError("cut-power takes nodes")
        running = [child for name in names if (child := self._children[name]).state is not ChildState.DOWN]
        for child in running:
            child.pause()
        for disk in disks:
            disk.stop()
        for child in running:
            await self._kill(child.name)
        proofs = [await asyncio.to_thread(disk.restart) for disk in disks]
        return f"{', '.join(names)} ended at one moment: {proofs[0]}"

    async def _mislead(self, verb: str, words: Sequence[str]) -> str:
        if len(words) != 2:
            raise CommandError(f"{verb} takes a number and a node")
        number, name = words
        if name not in self._shims:
            raise CommandError(f"{verb} needs a cluster that was started with --shim, and one of its brokers")
        if self._children[name].state is not ChildState.UP:
            raise CommandError(f"{name} does not run")
        most = _SLOW_MAX_MS if verb == "slow" else _CLOCK_MAX_S
        value = int(number) if number.removeprefix("-").isdecimal() else 0
        if not (0 < value <= most or (verb == "clock" and 0 < -value <= most)):
            raise CommandError(f"{verb} takes 1 to {most} {'ms' if verb == 'slow' else 's, or -1 to ' + str(-most)}")
        shim = self._shims[name]
        return await asyncio.to_thread(shim.slow_syncs if verb == "slow" else shim.set_clock, value)

    async def _corrupt(self, name: str) -> str:
        if name not in self._brokers:
            raise CommandError(f"{name!r} is not a broker of this cluster")
        return await asyncio.to_thread(flip_bytes, self._brokers[name].log_directory)

    async def _end(self, name: str) -> None:
        if self._children[name].state is not ChildState.DOWN:
            await self._kill(name)

    def _disk(self, name: str) -> Disk:
        if name not in self._disks:
            raise CommandError(f"{name} has no disk of its own: start the cluster with --disks, and name a broker")
        return self._disks[name]


def _only(verb: str, words: Sequence[str]) -> str:
    if len(words) != 1:
        raise CommandError(f"{verb} takes one node, not {len(words)}")
    return words[0]
