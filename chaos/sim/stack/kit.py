"""StackKit: groups of whole brokers, for `chaos.sim.cluster`."""

import contextlib
import gc
import logging
import shutil
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from chaos.sim.observer import Accounts
from chaos.sim.pool import new_folder
from chaos.sim.process import ClusterContext
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.administrators import Administrator
from chaos.sim.stack.batches import BatchCaller
from chaos.sim.stack.callers import Caller
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.log import SimTransport, WatchedEvents, WatchedLog, WatchedNode
from chaos.sim.stack.members import Members
from chaos.sim.stack.nameservers import SimNameservers
from chaos.sim.stack.node import StoreProcess
from chaos.sim.stack.programs import Program
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.sockets import Sockets
from chaos.sim.stack.transactors import Transactor, Transactors

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
        self._base = new_folder()
        self._disks: list[StoreDisk] = []
        self._cluster: ClusterContext | None = None
        self._seed = seed
        self._sockets: Sockets | None = None
        self._callers: list[Caller] = []
        self._nameservers: SimNameservers | None = None
        self._programs: list[Program] = []
        self._members: Members | None = None
        self._transactors: Transactors | None = None
        self._disabled = logging.root.manager.disable
        self.replaced = replaced = Replacements(
            Random(f"world {seed}"), self._now, lambda name: self._cluster.wall_ahead_us(name) if self._cluster else 0
        )
        for name, made in _OF_A_RAFT_LOG.items():
            replaced.classes[f"dledger.raft_log.{name}"] = partial(self._make, made)
        replaced.classes["nameserver.server.QuietCollector"] = mock.Mock  # which would tune this process's collector
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
        if plan.callers + plan.administrators + plan.batch_callers + plan.nameservers and self._sockets is None:
            self._begin_callers(cluster)
        return StoreProcess(cluster, self.replaced, self._log, name, number, disk, self._sockets)

    def _begin_callers(self, cluster: ClusterContext) -> None:
        plan, chance = cluster.plan, self._chance
        self._sockets = sockets = Sockets(cluster, chance("sockets"), chance("doubles"))
        kinds = (
            (Caller, "c", plan.callers, chance("asks")),
            (Administrator, "a", plan.administrators, chance("administers")),
            (BatchCaller, "b", plan.batch_callers, chance("sends batches")),
        )
        for kind, letter, count, dice in kinds:
            self._callers += [kind(cluster, self._log, sockets, f"{letter}{one}", dice) for one in range(count)]
        if plan.nameservers:
            self._nameservers = SimNameservers(cluster, sockets, self._seed, plan.nameservers)
            dice = chance("programs send")
            for name in (f"p{one}" for one in range(plan.programs)):
                sockets.unlucky[name] = chance(f"answers to {name}")
                self._programs.append(Program(cluster, self._log, sockets, self._nameservers, name, dice))
            self._callers += self._programs
            if plan.members:
                addresses = self._nameservers.addresses
                self._members = Members(cluster, self._log, sockets, addresses, self._seed, plan.members)
            if plan.transactors:
                self._transactors = Transactors(
                    cluster, self._log, sockets, self._nameservers, self._seed, plan.transactors
                )

    def _chance(self, consumer: str) -> Random:
        return Random(f"{consumer} {self._seed}")

    def ask_any(self, _cluster: ClusterContext) -> None:
        """Let the callers make their next requests."""
        for caller in [*self._callers, *self._transacting()]:
            caller.act()

    def _transacting(self) -> list[Transactor]:
        return [] if self._transactors is None else self._transactors.alive

    def ask_each(self, _cluster: ClusterContext) -> Callable[[], str]:
        """Each caller asks each member."""
        return self._names([caller.ask_each() for caller in [*self._callers, *self._transacting()]])

    def repaired(self, _cluster: ClusterContext) -> None:
        """The nameservers run from now on, too."""
        if self._nameservers is not None:
            self._nameservers.heal()
        for struck in (self._members, self._transactors):
            if struck is not None:
                struck.heal()

    def fail_over(self, _cluster: ClusterContext, leader_dies: Callable[[], None]) -> Callable[[], str]:
        """The leader ends, and perhaps the nameservers before it; each program sends a message."""
        if self._nameservers is not None:
            self._nameservers.kill_some()
            leader_dies()
        return self._names([program.ask_each() for program in [*self._programs, *self._transacting()]])

    def _names(self, open_calls: list[dict[str, None]]) -> Callable[[], str]:
        """Return what names those calls that have no answer yet; then what the group owes that was committed then."""
        owed: list[Callable[[], str]] = []
        accounts = [one.account for one in (self._members, self._transactors) if one is not None]

        def why_not() -> str:
            names = ", ".join(name for calls in open_calls for name in calls)
            if names:
                return names
            if not owed:
                owed.extend(account.owed() for account in accounts)
            return next((name for one in owed if (name := one())), "")

        return why_not

    def close(self) -> None:
        """End the run, and remove what it wrote."""
        with contextlib.suppress(OSError):
            gc.collect()  # what unwinds late must still meet what replaces the system
        for caller in self._callers:
            caller.loop.stop()
        for struck in (self._members, self._transactors):
            if struck is not None:
                struck.end()
        if self._nameservers is not None:
            self._nameservers.end()
        self.replaced.end()
        for disk in self._disks:  # some hundred descriptors; those of mappings are closed with the mappings, not here
            disk.process_died()
        logging.disable(self._disabled)
        shutil.rmtree(self._base, ignore_errors=True)
