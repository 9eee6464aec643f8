"""StackKit: groups of whole brokers, for `chaos.sim.cluster`."""

import asyncio
import contextlib
import gc
import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from chaos.sim.errors import SafetyViolation
from chaos.sim.logged_errors import logged_errors
from chaos.sim.observer import Accounts
from chaos.sim.pool import new_folder
from chaos.sim.process import ClusterContext
from chaos.sim.stack.accounts import CommittedLog
from chaos.sim.stack.administrators import Administrator
from chaos.sim.stack.callers import BatchCaller, Caller, MortalCallers
from chaos.sim.stack.disk import StoreDisk
from chaos.sim.stack.log import SimTransport, WatchedEvents, WatchedLog, WatchedNode
from chaos.sim.stack.loop import SimLoop
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


Excuse = Callable[[StoreDisk, Any], bool]
"""Whether a fault excuses an error: of the disk of the process that logs it, or of the cluster."""


def _after(*faults: str, or_while: Callable[[StoreDisk], object]) -> Excuse:
    """Excuse an error once one of these faults occurred, since what it began may be noticed behind its end."""
    return lambda disk, cluster: bool(or_while(disk)) or any(f"fault {fault}" in cluster.marks for fault in faults)


_FULL = _after("full_disk", or_while=lambda disk: disk.is_full)
_FAILED = _after("failed_disk", "failed_sync", or_while=lambda disk: disk.has_failed)
_ROTTEN = _after("rotten_entry", "rotten_tail", "rotten_and_left_behind", or_while=lambda disk: disk.rotten)
_SLOW = _after(  # a sync may wait for the disk, or for the process itself
    "slow_disk", "stalled_disk", "pause", "stall", "busy_leader",
    or_while=lambda disk: disk.is_stalled or disk.slow_factor > 1,
)  # fmt: skip
_FORGETTING = _after("other_peers", or_while=lambda disk: disk.amnesiac)


def _may_have_forgotten(disk: StoreDisk, cluster: Any) -> bool:
    names_others = cluster.peers_of[disk.name] != cluster.plan.names
    return names_others or any(excuses(disk, cluster) for excuses in (_FORGETTING, _FAILED, _ROTTEN))


def _has_no_sound_majority(_: StoreDisk, cluster: Any) -> bool:
    sound = sum(disk.is_sound for disk in cluster.disks.values())
    return bool(sound <= len(cluster.disks) // 2)


EXPECTED_ERRORS: Mapping[str, Excuse] = {
    "the disk is full: %s": _FULL,
    "term %d cannot be saved; this node does not vote until the disk has room: %s": _FULL,
    "dispatch stopped at %d and is tried again each second: %s": _FULL,
    "topics, groups and offsets cannot be saved to %s, but are in the log: %s": lambda disk, cluster: (
        _FULL(disk, cluster) or _FAILED(disk, cluster)
    ),
    "this node has left the work of its Raft group: %s": _FAILED,
    "no checkpoint is written any more, and no file of the log is deleted: %s": _FAILED,
    "old files of %s, from %s on, cannot all be deleted: %s": _FAILED,
    "the disk is stalled: a sync takes more than %d ms": _SLOW,
    "a damaged entry waits for a copy from a peer: %s": _ROTTEN,
    "the log cannot be read: %s; its queues are recovered from %d to %d": _ROTTEN,
    "this node neither votes nor counts towards a majority until a leader has brought it up to date: %s": (
        _may_have_forgotten
    ),
    "salvaged in term %d: acknowledged entries after %d may be missing": _has_no_sound_majority,
}
"""Errors that are logged by right, by their text before its arguments are put in, and what excuses each."""


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
        self._errors = contextlib.ExitStack()
        self.replaced = replaced = Replacements(
            Random(f"world {seed}"), self._now, lambda name: self._cluster.wall_ahead_us(name) if self._cluster else 0
        )
        for name, made in _OF_A_RAFT_LOG.items():
            replaced.classes[f"dledger.raft_log.{name}"] = partial(self._make, made)
        replaced.classes["nameserver.server.QuietCollector"] = mock.Mock  # it would tune this process's collector
        replaced.classes["store.directory.boot._BOOT_ID"] = SimpleNamespace(read_text=lambda _: self._boot())
        replaced.begin()
        self._errors.enter_context(logged_errors(self._logged, self._is_expected))

    def _now(self) -> int:
        return 0 if self._cluster is None else self._cluster.clock.now_us

    def _logged(self, text: str) -> None:
        """Let the process that logged an error fail the run at the end of its event."""
        loop: object = asyncio._get_running_loop()
        if isinstance(loop, SimLoop) and not loop.is_stopped:
            loop.errors.append(SafetyViolation("R37", text))

    def _is_expected(self, record: logging.LogRecord) -> bool:
        is_excused, process = EXPECTED_ERRORS.get(record.msg), self.replaced.current
        return is_excused is not None and process is not None and is_excused(process.files, self._cluster)

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
        self._errors.close()
        shutil.rmtree(self._base, ignore_errors=True)
