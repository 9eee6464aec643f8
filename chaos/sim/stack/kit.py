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
from chaos.sim.stack.callers import BatchCaller, Caller, MortalCallers
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.log import SimTransport, WatchedEvents, WatchedLog, WatchedNode
from chaos.sim.stack.members import SimMembers
from chaos.sim.stack.nameservers import SimNameservers
from chaos.sim.stack.node import StoreProcess
from chaos.sim.stack.poppers import OrderedPopAccount, PopAccount, Popper
from chaos.sim.stack.programs import Program
from chaos.sim.stack.replacements import Replacements
from chaos.sim.stack.sockets import Sockets
from chaos.sim.stack.transactors import TransactionBook, Transactor

_OF_A_RAFT_LOG = {
    "EntryLog": WatchedLog,
    "RaftNode": WatchedNode,
    "LogEvents": WatchedEvents,
    "TcpTransport": SimTransport,
}


class StackKit:
    """Makes groups of whole brokers. While it is open, this Python process simulates and does nothing else.

    Args:
        seed: of the random streams within the processes.
        log: the committed log of an earlier run.
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
        self._mortals: list[MortalCallers] = []
        self._struck: list[SimMembers | MortalCallers] = []
        self._owed: list[Callable[[], Callable[[], str]]] = []
        self._disabled = logging.root.manager.disable
        self.replaced = replaced = Replacements(
            Random(f"world {seed}"), self._now, lambda name: self._cluster.wall_ahead_us(name) if self._cluster else 0
        )
        for name, made in _OF_A_RAFT_LOG.items():
            replaced.classes[f"dledger.raft_log.{name}"] = partial(self._make, made)
        replaced.classes["nameserver.server.QuietCollector"] = mock.Mock  # it would tune this process's collector
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
        """Make a new, empty disk."""
        self._cluster = cluster
        disk = StoreDisk(name, self._base, cluster.clock, cluster.rng, cluster.plan.flush_us, self._before_change)
        self._disks.append(disk)
        return disk

    def process(self, cluster: ClusterContext, name: str, number: int, disk: StoreDisk) -> StoreProcess:
        """Start a broker's process on a disk; raises as `chaos.sim.cluster.Kit`."""
        plan = cluster.plan
        has_clients = plan.callers + plan.administrators + plan.batch_callers + plan.nameservers + plan.poppers
        if has_clients and self._sockets is None:
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
                self._callers.append(Program(cluster, self._log, sockets, self._nameservers, name, dice))
            if plan.members:
                addresses = self._nameservers.addresses
                members = SimMembers(cluster, self._log, sockets, addresses, self._seed, plan.members)
                self._struck.append(members)
                self._owed.append(members.account.owed)
            if plan.transactors:
                self._begin_transactors(cluster, sockets, self._nameservers)
        if plan.poppers:
            self._begin_poppers(cluster, sockets)
        self._struck += self._mortals

    def _begin_transactors(self, cluster: ClusterContext, sockets: Sockets, nameservers: SimNameservers) -> None:
        book = TransactionBook(self._log)

        def make(name: str, dice: Random) -> Transactor:
            return Transactor(cluster, self._log, sockets, nameservers, name, dice, book)

        chance = self._chance("transactors")
        self._mortals.append(MortalCallers(cluster, sockets, chance, "transactor", make, cluster.plan.transactors))
        self._owed.append(book.owed)

    def _begin_poppers(self, cluster: ClusterContext, sockets: Sockets) -> None:
        plan = cluster.plan
        account = (OrderedPopAccount if plan.pops_in_order else PopAccount)(cluster, self._log)

        def make(name: str, dice: Random) -> Popper:
            return Popper(cluster, self._log, sockets, name, dice, account)

        chance = self._chance("poppers")
        self._mortals.append(MortalCallers(cluster, sockets, chance, "popper", make, plan.poppers))
        self._owed.append(account.owed)

    def _chance(self, consumer: str) -> Random:
        return Random(f"{consumer} {self._seed}")

    def ask_any(self, _cluster: ClusterContext) -> None:
        """Let the callers send their next requests."""
        for caller in [*self._callers, *self._alive()]:
            caller.act()

    def _alive(self) -> list[Caller]:
        return [caller for mortal in self._mortals for caller in mortal.alive]

    def ask_each(self, _cluster: ClusterContext) -> Callable[[], str]:
        """Let each caller ask each member; return a function that names those without an answer."""
        return self._names([caller.ask_each() for caller in [*self._callers, *self._alive()]])

    def repaired(self, _cluster: ClusterContext) -> None:
        """Start all nameservers, and end the faults of programs."""
        if self._nameservers is not None:
            self._nameservers.heal()
        for struck in self._struck:
            struck.heal()

    def fail_over(self, _cluster: ClusterContext, leader_dies: Callable[[], None]) -> Callable[[], str]:
        """Kill the leader, perhaps the nameservers before it; return a function that names programs without success."""
        if self._nameservers is not None:
            self._nameservers.kill_some()
        if self._nameservers is not None or self._mortals:
            leader_dies()
        programs = [caller for caller in [*self._callers, *self._alive()] if isinstance(caller, Program)]
        return self._names([program.ask_each() for program in programs])

    def _names(self, open_calls: list[dict[str, None]]) -> Callable[[], str]:
        """Return a function that names open calls; once there are none, what is owed of what is committed by then."""
        owed: list[Callable[[], str]] = []

        def why_not() -> str:
            names = ", ".join(name for calls in open_calls for name in calls)
            if names:
                return names
            if not owed:
                owed.extend(begin() for begin in self._owed)
            return next((name for one in owed if (name := one())), "")

        return why_not

    def close(self) -> None:
        """End the run, and remove what it wrote."""
        with contextlib.suppress(OSError):
            gc.collect()  # coroutines that end late must still find the replacements
        for caller in self._callers:
            caller.loop.stop()
        for struck in self._struck:
            struck.end()
        if self._nameservers is not None:
            self._nameservers.end()
        self.replaced.end()
        for disk in self._disks:  # closes some hundred descriptors; those of mappings are closed with the mappings
            disk.process_died()
        logging.disable(self._disabled)
        shutil.rmtree(self._base, ignore_errors=True)
