"""Three controllers: one agreed state, one leader, and perhaps a deposed one that still believes it leads."""

from collections.abc import Callable
from functools import partial
from typing import Final

from chaos.elections.network import Network
from ha.controller.core.commands import BY_CONTROLLER, AlterSet, Elect, GrantId, StateCommand
from ha.controller.core.live import NEVER_MS, LiveBrokers, ReplicaHeartbeat
from ha.controller.core.machine import ControllerMachine, encode_command
from ha.controller.core.model import Candidate, Group
from ha.controller.core.outcome import CommandOutcome
from ha.core.lease import Grants
from ha.core.replica_role import GroupDecision

NAME: Final = "broker"
CONTROLLERS: Final = ("c1", "c2", "c3")
LEASE_S: Final = 0.15  # the default of `masterLease`
_SILENCE_MS: Final = 600
_STILL_MS: Final = (100, 200, 600)
"""Silence in ms after which a master is replaced: shorter or longer than its lease and its heartbeat interval."""
_LOOK_S: Final = 0.05
_UNDECIDED: Final = 0.1
"""Probability that a proposal is decided late, by the leader of that time, and that nobody is told."""
_UNDECIDED_S: Final = (0.1, 1.5)
_CUT_OFF: Final = 0.1
"""Probability that a master is cut off from all others at the moment when its in-sync set is decided."""

Answered = Callable[[CommandOutcome], None]


class _One:
    """The state of one controller that is not replicated."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.grants = Grants(LEASE_S)
        self.leads = False  # a deposed controller still believes so
        self.term = 0
        self.answered_s = float("-inf")
        self.live = LiveBrokers()
        self.is_deciding = False
        self.last_view: Group | None = None  # the state that a deposed controller still knows


class SimControllers:
    """The controllers of the simulation. Brokers call `decided` and `beat` when a message to one of `names` arrives."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.names = CONTROLLERS
        self._all = {name: _One(network.rate()) for name in self.names}
        self._machine = ControllerMachine()
        self._leader = "c1"
        self._term = 0
        self._number = 0
        self._still_ms = network.chance("still masters").choice(_STILL_MS)

    def start(self) -> None:
        """Assign the ids of the brokers, and let one controller lead."""
        for broker_id in (1, 2, 3):
            self._apply(GrantId(name=NAME, cluster="c", broker_id=broker_id, check_code=f"b{broker_id};0"))
        self._lead("c1")
        self._look()

    def change_leader(self) -> None:
        """Elect another controller; the deposed one does not notice."""
        others = [name for name in self.names if name != self._leader]
        self._lead(self._network.chance("controllers that lead").choice(others))

    @property
    def group(self) -> Group:
        """Return the state of the group on which the controllers agree."""
        return self._machine.groups[NAME]

    def _view(self, one: _One) -> Group:
        """Return the group as one controller knows it: a deposed controller does not learn what was decided since."""
        return one.last_view or self.group

    # ---- what brokers ask

    def beat(self, name: str, candidate: Candidate) -> tuple[int, int, float]:
        """Handle a heartbeat at one controller; return the master's epoch, the set's epoch, and the lease in s."""
        one = self._all[name]
        group = self._view(one)
        beat = ReplicaHeartbeat(
            NAME,
            candidate.broker_id,
            f"b{candidate.broker_id}",
            silence_ms=_SILENCE_MS,
            epoch=candidate.epoch,
            end_offset=candidate.end_offset,
            priority=candidate.priority,
            holds_lease=True,
            doubt_epoch=candidate.doubt_epoch,
        )
        one.live.hear(beat, self._now_ms(one), None)
        lease_s = 0.0
        if one.leads and group.master_id == candidate.broker_id:
            lease_s = one.grants.grant(NAME, candidate.broker_id, self._now_s(one), one.answered_s)
        return group.master_epoch, group.set_epoch, lease_s

    def decided(self, name: str) -> GroupDecision | None:
        """Return the decision that this controller knows; None if it does not lead."""
        if not self._all[name].leads:
            return None
        group = self._view(self._all[name])
        address = "" if group.master_id is None else f"b{group.master_id}"
        return GroupDecision(group.master_id, address, address, group.master_epoch, group.in_sync, group.set_epoch)

    def elect(self, name: str, asker: int, elected: Callable[[int], None], *, new_process: bool) -> None:
        """Hold an election for the broker `asker`; `elected` is called with the epoch, or never."""
        group = self._view(self._all[name])
        can_depose = new_process and asker == group.master_id
        can_depose = can_depose or self._is_lost(self._all[name], group, waits=True)
        self._elect(name, asker, can_depose, new_process, None, elected)

    def hand_over(self, name: str, successor: int, epoch: int) -> None:
        """Elect the successor that the resigned master of `epoch` names."""
        one = self._all[name]
        group = self._view(one)
        if one.leads and not one.is_deciding and group.master_epoch == epoch and group.master_id is not None:
            one.grants.stop(NAME, self._now_s(one) + 10)
            one.grants.give_back(NAME, group.master_id)
            alive = one.live.candidates(group, self._now_ms(one), self._still_ms)
            command = Elect(name=NAME, asker=successor, designated=True, alive=alive, unclean=False, seen_epoch=epoch)
            self._submit(name, command, lambda _: one.grants.resume(NAME))

    def alter(
        self,
        name: str,
        master_id: int,
        epoch: int,
        wanted: frozenset[int],
        set_epoch: int,
        renew: bool,
        answered: Answered,
    ) -> None:
        """Propose an in-sync set for a master; `answered` is called with the outcome, or never."""
        one = self._all[name]
        alive = one.live.alive(NAME, (1, 2, 3), self._now_ms(one))
        command = AlterSet(name=NAME, master_id=master_id, master_epoch=epoch, set_epoch=set_epoch, wanted=wanted,
                           alive=alive, renew=renew)  # fmt: skip

        def decided(outcome: CommandOutcome) -> None:
            if outcome.cause is None and self._network.chance("answers lost").random() < _CUT_OFF:
                self._network.isolate(f"b{master_id}")  # the answer, and the frames behind it, do not arrive
            answered(outcome)

        self._submit(name, command, decided)

    # ---- internals

    def _now_s(self, one: _One) -> float:
        return self._network.now_s * one.rate

    def _now_ms(self, one: _One) -> int:
        return int(self._now_s(one) * 1000)

    def _lead(self, name: str) -> None:
        self._all[self._leader].last_view = self._machine.groups.get(NAME)
        self._term += 1
        self._leader = name
        one = self._all[name]
        one.leads, one.term, one.last_view = True, self._term, None
        one.grants.leads(self._now_s(one))

    def _look(self) -> None:
        """Let a majority answer the leader, and let deposed controllers notice after a while that they do not lead."""
        for name, one in self._all.items():
            if name == self._leader:
                one.answered_s = self._now_s(one)
            elif one.leads and self._network.chance("scans").random() < 0.05:
                one.leads, one.last_view = False, None
                one.grants.follows()
            if one.leads:
                self._replace_if_lost(name, one)
        self._network.at(_LOOK_S, self._look)

    def _is_lost(self, one: _One, group: Group, *, waits: bool = False) -> bool:
        """Return whether the master is dead, or stands still and its lease is over; `waits`: whatever its lease."""
        now_ms = self._now_ms(one)
        if group.master_id is None or not one.live.is_alive(NAME, group.master_id, now_ms):
            return True
        is_over = waits or one.grants.free_s(NAME, group.master_id) <= self._now_s(one)
        return is_over and one.live.stands_still(group, now_ms, self._still_ms)

    def _replace_if_lost(self, name: str, one: _One) -> None:
        group = self._view(one)
        if group.master_id is not None and self._is_lost(one, group) and len(one.live):
            self._elect(name, BY_CONTROLLER, True, False, group.master_epoch)

    def _elect(
        self,
        name: str,
        asker: int,
        can_depose: bool,
        new_process: bool,
        seen_epoch: int | None,
        elected: Callable[[int], None] = lambda _: None,
    ) -> None:
        one = self._all[name]
        group = self._view(one)
        if not one.leads or one.is_deciding:
            return
        one.is_deciding = True
        wait_s = 0.0
        if group.master_id is not None and can_depose:
            one.grants.stop(NAME, self._now_s(one) + 10)
            wait_s = max(0.0, one.grants.free_s(NAME, group.master_id) - self._now_s(one)) / one.rate

        def decide() -> None:
            one.is_deciding = False
            still_ms = self._still_ms if can_depose else NEVER_MS
            alive = one.live.candidates(self._view(one), self._now_ms(one), still_ms)
            command = Elect(name=NAME, asker=asker, designated=False, alive=alive,
                            unclean=self._network.faults.elects_anybody, seen_epoch=seen_epoch,
                            new_process=new_process)  # fmt: skip
            self._submit(name, command, decided)

        def decided(outcome: CommandOutcome) -> None:
            one.grants.resume(NAME)
            if outcome.cause is None and outcome.group is not None:
                elected(outcome.group.master_epoch)

        self._network.at(wait_s + 0.001, decide)

    def _submit(self, name: str, command: StateCommand, answered: Answered) -> None:
        """Apply a command if the controller leads now and still leads, in the same term, after the round trip."""
        term = self._all[name].term

        def commit() -> None:
            if name == self._leader and term == self._term:
                answered(self._apply(command))

        if not self._all[name].leads:
            return
        undecided = self._network.chance("undecided")
        if isinstance(command, AlterSet) and undecided.random() < _UNDECIDED:
            self._network.at(undecided.uniform(*_UNDECIDED_S), partial(self._apply, command))
        else:
            self._network.at(self._network.chance("agreement").uniform(0.001, 0.01), commit)

    def _apply(self, command: StateCommand) -> CommandOutcome:
        self._number += 1
        before = self._machine.groups.get(NAME)
        outcome = self._machine.apply(encode_command(("sim", self._number), command))
        self._network.seen.decided(command, before, self._machine.groups.get(NAME), self._network.now_s)
        return outcome
