"""StackKit: groups of whole brokers, for `chaos.sim.cluster`."""

import contextlib
import gc
import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from chaos.crash.campaign import memory_directory
from chaos.sim.observer import Accounts
from chaos.sim.process import ClusterContext
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.administrators import Administrator
from chaos.sim.stack.batches import BatchCaller
from chaos.sim.stack.callers import Caller
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.log import SimTransport, WatchedEvents, WatchedLog, WatchedNode
from chaos.sim.stack.node import StoreProcess
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.sockets import Sockets

_OF_A_RAFT_LOG = {
    "EntryLog": WatchedLog,
    "RaftNode": WatchedNode,
    "LogEvents": WatchedEvents,
    "Transport": SimTransport,
}


class StackKit:
    """Groups of all that ships. While one is open, this Python process simulates and does nothing else.

    Args:
        seed: of chance within the processes.
        log: what is committed already.
        before_change: called before each change of a file of any node.
    """

    def __init__(
        self, seed: int, log: CommittedLog | None = None, before_change: Callable[[], None] = lambda: None
    ) -> None:
        self._log = log or CommittedLog()
        self._before_change = before_change
        self.accounts: Accounts[bytes] = self._log
        self._base = Path(tempfile.mkdtemp(prefix="ledgermq-sim-", dir=memory_directory()))
        self._disks: list[StoreDisk] = []
        self._cluster: ClusterContext | None = None
        self._seed = seed
        self._sockets: Sockets | None = None
        self._callers: list[Caller] = []
        self._disabled = logging.root.manager.disable
        self.replaced = replaced = Replacements(
            Random(f"world {seed}"), self._now, lambda name: self._cluster.wall_ahead_us(name) if self._cluster else 0
        )
        for name, made in _OF_A_RAFT_LOG.items():
            replaced.classes[f"dledger.raft_log.{name}"] = partial(self._make, made)
        replaced.classes["store.directory.boot._BOOT_ID"] = SimpleNamespace(read_text=lambda _: self._boot())
        replaced.begin()
        logging.disable(logging.CRITICAL)

    def _now(self) -> int:
        return 0 if self._cluster is None else self._cluster.clock.now_us

    def _make(self, made: Any, *arguments: Any, **named: Any) -> Any:
        return made(self.replaced.current, *arguments, **named)

    def _boot(self) -> str:
        assert self.replaced.current is not None
        return f"boot {self.replaced.current.files.boot}"

    def disk(self, cluster: ClusterContext, name: str) -> StoreDisk:
        """A new, empty disk."""
        self._cluster = cluster
        disk = StoreDisk(name, self._base, cluster.clock, cluster.rng, cluster.plan.flush_us, self._before_change)
        self._disks.append(disk)
        return disk

    def process(self, cluster: ClusterContext, name: str, number: int, disk: StoreDisk) -> StoreProcess:
        """A start on a disk; raises as `chaos.sim.cluster.Kit`."""
        plan = cluster.plan
        if plan.callers + plan.administrators + plan.batch_callers and self._sockets is None:
            rng, doubles = Random(f"sockets {self._seed}"), Random(f"doubles {self._seed}")
            self._sockets = sockets = Sockets(cluster, rng, doubles)
            dice = Random(f"asks {self._seed}")
            self._callers = [Caller(cluster, self._log, sockets, f"c{one}", dice) for one in range(plan.callers)]
            dice = Random(f"administers {self._seed}")
            self._callers += [
                Administrator(cluster, self._log, sockets, f"a{one}", dice) for one in range(plan.administrators)
            ]
            dice = Random(f"sends batches {self._seed}")
            self._callers += [
                BatchCaller(cluster, self._log, sockets, f"b{one}", dice) for one in range(plan.batch_callers)
            ]
        return StoreProcess(cluster, self.replaced, self._log, name, number, disk, self._sockets)

    def ask_any(self, _cluster: ClusterContext) -> None:
        """Let the callers make their next requests."""
        for caller in self._callers:
            caller.act()

    def ask_each(self, _cluster: ClusterContext) -> Callable[[], str]:
        """Each caller asks each member."""
        open_calls = [caller.ask_each() for caller in self._callers]
        return lambda: ", ".join(name for calls in open_calls for name in calls)

    def close(self) -> None:
        """End the run, and remove what it wrote."""
        with contextlib.suppress(OSError):
            gc.collect()  # what unwinds late must still meet what replaces the system
        for caller in self._callers:
            caller.loop.stop()
        self.replaced.end()
        for disk in self._disks:  # some hundred descriptors; those of mappings are closed with the mappings, not here
            disk.process_died()
        logging.disable(self._disabled)
        shutil.rmtree(self._base, ignore_errors=True)
