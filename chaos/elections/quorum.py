"""The agreement of the controllers: `Quorum` as it ships, over journals that are lists.

    Quorum.submit --> journal of the leader --a majority has it--> agreed --> applied by all who know the leader's term

A deposed leader does not know that it is deposed: nothing that it submits is agreed, and it learns of nothing. The next
leader has the beginning of the journal of the one before, and agrees on that before it agrees on anything of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol

from pysyncobj import FAIL_REASON

from chaos.elections.network import SILENCE_MS, Network
from chaos.sim.stack.loop import SimLoop
from ha.controller.core.commands import AlterSet, StateCommand
from ha.controller.core.machine import ControllerMachine, decode_command
from ha.controller.core.model import Group
from ha.controller.core.outcome import CommandOutcome
from ha.controller.quorum.quorum import Quorum, QuorumSettings, QuorumStatus

NAME: Final = "broker"
_ROUND_TRIP_S: Final = (0.001, 0.01)
_SLOW: Final = 0.03
_SLOW_S: Final = (0.1, 1.0)
_NOTICES: Final = 0.05
"""Probability that a deposed leader notices, at each look."""
LOOK_S: Final = 0.05
_FALLBACK_LOOKS: Final = 20
"""Number of looks without a majority after which another leader is elected."""


class BrokerOfControllers(Protocol):
    """What the controllers and their judge see of a broker."""

    def on_notice(self) -> None:
        """Handle a notice that there is another master."""

    def holds_lease(self, epoch: int) -> bool:
        """Return whether it may acknowledge now as the master of this epoch, if it runs."""

    def die(self) -> None:
        """Be killed, and start again after a while."""


class _Entry(NamedTuple):
    data: bytes
    answer: Callable[[CommandOutcome | None, int], None]
    heard: frozenset[int]  # the brokers that the member heard of late


class SimQuorum(Quorum):
    """One member. What its thread would tell to its loop is told by the agreement."""

    def __init__(self, agreement: "Agreement", name: str, loop: SimLoop, changed: Callable[[], None]) -> None:
        self.name = name
        self.machine = ControllerMachine()
        self.unanswered: list[_Entry] = []
        self._applied_count = 0
        settings = QuorumSettings(members={}, self_id=name, bind_host="", folder=Path(), secrets=())
        super().__init__(settings, self.machine, changed)
        self._loop = loop.as_loop
        self._replicated: Any = SimpleNamespace(apply=partial(agreement.append, self))

    def catch_up(self, agreed: list[bytes]) -> CommandOutcome | None:
        """Apply what was agreed meanwhile; return the last outcome."""
        outcome = None
        for data in agreed[self._applied_count :]:
            outcome = self.machine.apply(data)
        self._applied_count = len(agreed)
        return outcome

    def learn(self, status: QuorumStatus) -> None:
        """Take over another leader or term: the leader of the term before gets no answers any more."""
        self.status = status
        unanswered, self.unanswered = self.unanswered, []
        for entry in unanswered:
            entry.answer(None, FAIL_REASON.LEADER_CHANGED)
        self._on_loop(self._changed)


class Agreement:
    """What the members have agreed, and the journal of their leader behind that.

    Attributes:
        leader: the member that a majority has elected last.
        heard_s: by member and broker id, the simulated time in seconds of the newest heartbeat.
    """

    def __init__(self, network: Network, brokers: Mapping[int, BrokerOfControllers]) -> None:
        self._network = network
        self._brokers = brokers
        self.heard_s: dict[tuple[str, int], float] = {}
        self.members: list[SimQuorum] = []
        self.leader: SimQuorum
        self._term = 0
        self._agreed: list[bytes] = []
        self._journal: list[_Entry] = []
        self._silent_looks = 0

    def lead(self, leader: SimQuorum, *, openly: bool = False) -> None:
        """Elect a leader with the votes of all but the leader before, which does not notice.

        If `openly`, the leader before votes, too, and nothing of its journal is lost.
        """
        if not openly:
            del self._journal[self._network.chance("journals").randint(0, len(self._journal)) :]
        voters = [member for member in self.members if openly or not self._term or member is not self.leader]
        self._term, self.leader, self._silent_looks = self._term + 1, leader, 0
        for member in voters:
            self._tell(member)

    def append(self, member: SimQuorum, data: bytes, callback: Callable[[Any, int], None]) -> None:
        """Append a command to the journal of a leader; nobody hears of that of a deposed one."""
        since_s = self._network.now_s - SILENCE_MS / 1000
        of_late = [key for key, at_s in self.heard_s.items() if at_s >= since_s]
        entry = _Entry(data, callback, frozenset(broker_id for name, broker_id in of_late if name == member.name))
        member.unanswered.append(entry)
        if member is self.leader and member.status.term == self._term:
            self._journal.append(entry)
            chance = self._network.chance("agreement")
            is_slow = chance.random() < _SLOW and not self._network.is_calm
            delay_s = chance.uniform(*(_SLOW_S if is_slow else _ROUND_TRIP_S))
            self._network.at(delay_s, partial(self._agree, entry))

    def look(self, now_s: float) -> None:
        """Let a majority answer the leader, or elect another one after a while; let a deposed leader notice.

        Args:
            now_s: by the clock of the leader.
        """
        able = [member for member in self.members if self._has_majority(member)]
        if self.leader in able:
            self._silent_looks = 0
            self.leader.status = replace(self.leader.status, answered_s=now_s)
        else:
            self._silent_looks += 1
        if self._silent_looks >= _FALLBACK_LOOKS and able:
            self.lead(self._network.chance("controllers that lead").choice(able))
        for member in self.members:
            is_deposed = member.status.is_leader and member is not self.leader
            if is_deposed and (self._network.chance("scans").random() < _NOTICES or self._network.is_calm):
                self._tell(member)

    def decide(self, data: bytes, heard: frozenset[int] = frozenset()) -> CommandOutcome | None:
        """Agree on a command, submitted by a member that heard of these brokers; return the outcome at the leader."""
        before = self.leader.machine.groups.get(NAME)
        self._agreed.append(data)
        outcomes = {one: one.catch_up(self._agreed) for one in self.members if one.status.term == self._term}
        _, command = decode_command(data)
        after = self.leader.machine.groups.get(NAME)
        self._network.seen.decided(command, before, after, self._network.now_s)
        if before is not None and after is not None and before != after:
            self._judge(command, before, after, heard)
        return outcomes[self.leader]

    # ---- internals

    def _judge(self, command: StateCommand, before: Group, after: Group, heard: frozenset[int]) -> None:
        """Check that no master is deposed that may yet acknowledge, and that the controllers hear who joins a set."""
        master = None if before.master_id is None else self._brokers[before.master_id]
        if after.master_epoch != before.master_epoch and master and master.holds_lease(before.master_epoch):
            self._network.broken(f"the master of epoch {before.master_epoch} is deposed, and has a lease")
        if isinstance(command, AlterSet) and (silent := after.in_sync - before.in_sync - heard):
            self._network.broken(f"{sorted(silent)} get into the set, and are silent")

    def _agree(self, entry: _Entry) -> None:
        """Agree on an entry and all before it, as soon as the leader that has it reaches another member."""
        if entry not in self._journal:
            return
        if not self._has_majority(self.leader):
            self._network.at(LOOK_S, partial(self._agree, entry))
            return
        count = self._journal.index(entry) + 1
        agreed, self._journal = self._journal[:count], self._journal[count:]
        for one in agreed:
            outcome = self.decide(one.data, one.heard)
            if one in self.leader.unanswered:
                self.leader.unanswered.remove(one)
                one.answer(outcome, FAIL_REASON.SUCCESS)

    def _has_majority(self, member: SimQuorum) -> bool:
        return any(other is not member and self._network.reaches(member.name, other.name) for other in self.members)

    def _tell(self, member: SimQuorum) -> None:
        member.catch_up(self._agreed)
        member.learn(QuorumStatus(member is self.leader, self.leader.name, self._term))
