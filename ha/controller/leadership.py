"""The work of the leading controller: it replaces lost masters, and grants leases to masters.

    broker dead, or a look at all masters -> stop its leases -> wait until they are over -> Elect -> tell the brokers

A controller leads once a command of its own was applied in its term: its state then contains all earlier decisions. A
broker from which this controller has no heartbeat counts as dead only after the time in which one had to arrive.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from ha.controller.core.commands import BY_CONTROLLER, Clean, Confirm, Elect, StateCommand
from ha.controller.core.live import NEVER_MS, SILENCE_MS, LiveBrokers, ReplicaHeartbeat
from ha.controller.core.machine import ControllerMachine
from ha.controller.core.model import Group
from ha.controller.core.outcome import CommandOutcome
from ha.controller.quorum.quorum import Quorum, not_leading
from ha.core.lease import Grants
from ledgermq.remoting.refusal import Refusal

_STOP_S: Final = 10.0
"""Longest time in s without leases for a broker name while the outcome of an election is not known."""
_HAND_OVER_S: Final = 1.5
_HAND_OVER_LOOK_S: Final = 0.01

_log: Final = logging.getLogger(__name__)


class Rules(Protocol):
    """The settings of elections; they may change at run time."""

    @property
    def unclean(self) -> bool:
        """Whether replicas outside the in-sync set may be elected."""

    @property
    def still_ms(self) -> int:
        """Silence in ms after which a master that uses leases is replaced by a member that is heard."""


class ControllerLeadership:
    """Runs elections and grants leases while this controller leads.

    Args:
        lease_s: length of every lease.
        now_ms: a clock that stands still while this process does not run.
        rules: the present configuration.
        elected: called with each group that has a new master.
        now_s: the monotonic clock of leases.
    """

    def __init__(
        self,
        quorum: Quorum,
        machine: ControllerMachine,
        live: LiveBrokers,
        lease_s: float,
        now_ms: Callable[[], int],
        rules: Callable[[], Rules],
        elected: Callable[[Group], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quorum = quorum
        self._machine = machine
        self._live = live
        self._grants = Grants(lease_s)
        self._now_ms = now_ms
        self._rules = rules
        self._elected = elected
        self._now_s = now_s
        self._started_ms = now_ms()
        self._term: int | None = None
        self._lost: set[tuple[str, int]] = set()
        self._without_lease: set[tuple[str, int]] = set()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._tasks: dict[str | None, asyncio.Task[None]] = {}  # by broker name; None: the confirmation
        self._successors: dict[str, int] = {}
        self.counts = {"elected": 0, "kept": 0, "failed": 0}

    @property
    def leads(self) -> bool:
        """Whether this controller leads and knows all earlier decisions."""
        status = self._quorum.status
        return status.is_leader and status.term == self._term

    def changed(self) -> None:
        """Handle a change of the leading controller or of the term."""
        status = self._quorum.status
        if not status.is_leader:
            self._grants.follows()
        elif status.term != self._term and None not in self._tasks:
            self._spawn(None, self._confirm())

    async def close(self) -> None:
        """End the running tasks."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- brokers

    def heard(self, beat: ReplicaHeartbeat) -> float:
        """Handle a heartbeat; return the granted lease in seconds, 0.0 for none."""
        key = beat.name, beat.broker_id
        self._lost.discard(key)
        group = self._machine.groups.get(beat.name)
        replica = None if group is None else group.replicas.get(beat.broker_id)
        if group is None or replica is None:
            return 0.0
        if not beat.holds_lease:
            self._without_lease.add(key)
            return 0.0
        self._without_lease.discard(key)
        if not self.leads or group.master_id != beat.broker_id or replica.address != beat.address:
            # not the leader, no master, or a second process with the master's id
            return 0.0
        return self._grants.grant(beat.name, beat.broker_id, self._now_s(), self._quorum.status.answered_s)

    def lost(self, beat: ReplicaHeartbeat) -> None:
        """Handle the death of a broker, by its connection or its silence."""
        group = self._machine.groups.get(beat.name)
        if group is not None and beat.broker_id in group.replicas:
            self._lost.add((beat.name, beat.broker_id))
            self._replace_if_lost(group)

    def check_masters(self) -> None:
        """Check all masters, and whether all controllers know newer rules."""
        if self.leads and self._quorum.status.rules > self._machine.rules and None not in self._tasks:
            self._spawn(None, self._raise_rules(self._quorum.status.rules))
        self._grants.forget(self._now_s())
        for group in self._machine.groups.values():
            self._replace_if_lost(group)

    def _replace_if_lost(self, group: Group | None) -> None:
        if group is None or group.master_id is None or not self.leads or group.name in self._tasks:
            return
        now_ms, key = self._now_ms(), (group.name, group.master_id)
        has_waited = now_ms - self._started_ms > SILENCE_MS
        is_lost = not self._live.is_alive(*key, now_ms) and (has_waited or key in self._lost)
        stands_still = self._stands_still(group)
        if stands_still or (is_lost and self._live.alive(group.name, group.replicas, now_ms)):
            trouble = "silent, and its lease is over" if stands_still else "lost"
            _log.warning("master %d of %s is %s", group.master_id, group.name, trouble)
            self._spawn(group.name, self._replace(group))

    def _stands_still(self, group: Group) -> bool:
        """Return whether the master is silent, its lease over, and a member of the in-sync set can take its place."""
        return (
            group.master_id is not None
            and self._live.stands_still(group, self._now_ms(), self._rules().still_ms)
            and self._grants.free_s(group.name, group.master_id) <= self._now_s()
        )

    async def _replace(self, group: Group) -> None:
        await self.elect(group.name, BY_CONTROLLER, designated=False, seen_epoch=group.master_epoch)

    # ---- elections

    def successor(self, name: str, master_id: int) -> int | None:
        """Return the successor to which this broker shall hand over; None if there is none, or it is not the master."""
        group = self._machine.groups.get(name)
        return self._successors.get(name) if group is not None and group.master_id == master_id else None

    async def hand_over(self, name: str, successor: int) -> CommandOutcome | None:
        """Ask the master, in the answer to its next heartbeat, to hand over, so that no send fails.

        Returns:
            As `elect`; None if the master cannot hand over, or has not done so in time, and has to be replaced.
        """
        group, now_ms = self._machine.groups.get(name), self._now_ms()
        if group is None or group.master_id in (None, successor) or successor not in group.in_sync:
            return None
        beat = self._live.last(name, group.master_id)
        if beat is None or not beat.holds_lease or not self._live.is_alive(name, group.master_id, now_ms):
            return None
        epoch, deadline_s = group.master_epoch, self._now_s() + _HAND_OVER_S
        self._successors[name] = successor
        try:
            while group is not None and group.master_epoch == epoch and self._now_s() < deadline_s:
                await asyncio.sleep(_HAND_OVER_LOOK_S)
                group = self._machine.groups.get(name)
        finally:
            self._successors.pop(name, None)
        return CommandOutcome(group=group) if group is not None and group.master_id == successor else None

    async def elect(
        self,
        name: str,
        asker: int,
        *,
        designated: bool,
        seen_epoch: int | None = None,
        new_process: bool = False,
        has_resigned: bool = False,
    ) -> CommandOutcome:
        """Hold an election, see `Elect`; while a master could be deposed, only after its lease is over.

        With `has_resigned` the master of `seen_epoch` asks for a successor, and does not use its lease any more.

        Raises:
            Refusal: as `Quorum.submit`.
        """

        def command(group: Group | None, may_depose: bool) -> StateCommand:
            still_ms = self._rules().still_ms if may_depose else NEVER_MS
            return Elect(
                name=name,
                asker=asker,
                designated=designated,
                alive=() if group is None else self._live.candidates(group, self._now_ms(), still_ms),
                unclean=self._rules().unclean,
                seen_epoch=seen_epoch,
                new_process=new_process,
            )

        def can_depose(group: Group) -> bool:
            is_renewal = new_process and asker == group.master_id
            return is_renewal or self._can_depose(group, asker, designated)

        outcome = await self._decide(name, command, can_depose, seen_epoch if has_resigned else None)
        self._count(name, outcome)
        return outcome

    async def clean(self, name: str, ids: frozenset[int], *, even_living: bool) -> CommandOutcome:
        """Remove replicas, or without ids the whole group; a master only after its lease is over.

        Raises:
            Refusal: as `Quorum.submit`.
        """

        def command(group: Group | None, _: bool) -> StateCommand:
            alive = frozenset[int]() if group is None else self._live.alive(name, group.replicas, self._now_ms())
            return Clean(name=name, ids=ids, even_living=even_living, alive=alive)

        return await self._decide(name, command, lambda group: not ids or group.master_id in ids)

    async def _decide(
        self,
        name: str,
        command: Callable[[Group | None, bool], StateCommand],
        can_depose: Callable[[Group], bool],
        resigned_epoch: int | None = None,
    ) -> CommandOutcome:
        """Wait, then submit a command that is made from the state after the wait; one at a time per broker name.

        The command gets whether it may depose a living master: only if its lease was waited for. A controller that does
        not lead knows no end of a lease, and what one leadership has waited for does not count in the next.
        """
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            term = self._quorum.status.term
            self._check_leads(term)
            group = self._machine.groups.get(name)
            may_depose = False
            if group is not None and group.master_id is not None and can_depose(group):
                may_depose = True
                self._grants.stop(name, self._now_s() + _STOP_S)
                if group.master_epoch == resigned_epoch:
                    self._grants.give_back(name, group.master_id)
                else:
                    await self._wait_for_lease(group.name, group.master_id)
            self._check_leads(term)
            outcome = await self._quorum.submit(command(self._machine.groups.get(name), may_depose))
            self._grants.resume(name)  # not before the outcome of the command is known
        return outcome

    def _check_leads(self, term: int) -> None:
        if not self.leads or self._term != term:
            raise not_leading()

    def _can_depose(self, group: Group, asker: int, designated: bool) -> bool:
        if designated and asker not in (group.master_id, BY_CONTROLLER):
            return True
        now_ms = self._now_ms()
        is_alive = self._live.is_alive(group.name, group.master_id, now_ms)
        return not is_alive or self._live.stands_still(group, now_ms, self._rules().still_ms)

    async def _wait_for_lease(self, name: str, master_id: int) -> None:
        if (name, master_id) not in self._without_lease:
            wait_s = self._grants.free_s(name, master_id) - self._now_s()
            await asyncio.sleep(max(0.0, min(wait_s, _STOP_S)))

    def _count(self, name: str, outcome: CommandOutcome) -> None:
        group = outcome.group
        if outcome.cause is None and group is not None:
            self.counts["elected"] += 1
            _log.info("broker %s of %s is master, epoch %d", group.master_id, name, group.master_epoch)
            self._elected(group)
        elif group is not None and group.master_id is not None:
            self.counts["kept"] += 1
        else:
            self.counts["failed"] += 1
            _log.warning("no master for %s: %s", name, outcome.remark)

    async def _confirm(self) -> None:
        term = self._quorum.status.term
        await self._quorum.submit(Confirm())
        if self._quorum.status.is_leader and self._quorum.status.term == term:
            self._term = term
            self._grants.leads(self._now_s())
            _log.info("this controller leads, term %d", term)

    async def _raise_rules(self, rules: int) -> None:
        await self._quorum.submit(Confirm(rules=rules))
        _log.info("all controllers know the rules of version %d: what is decided from now on is judged by them", rules)

    def _spawn(self, key: str | None, work: Coroutine[None, None, None]) -> None:
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda done: self._done(key, done))

    def _done(self, key: str | None, task: asyncio.Task[None]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Refusal):
            _log.warning("%s: %s", "the confirmation" if key is None else f"election of {key}", error.remark)
        elif error is not None:
            _log.error("%s failed", "the confirmation" if key is None else f"election of {key}", exc_info=error)
        if key is None:
            self.changed()  # the term may have changed
