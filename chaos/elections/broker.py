"""One broker of the simulation: what `ha.elected.member`, `ha.master` and `ha.slave` do, without their I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from chaos.elections.controllers import LEASE_S, SimControllers
from chaos.elections.network import BrokenRules, Network
from ha.controller.core.model import Candidate
from ha.controller.core.outcome import CommandOutcome
from ha.core.copies import Copy, CopyRules
from ha.core.doubt import Doubt
from ha.core.elected_copies import ElectedCopies, Proposal, id_of
from ha.core.epochs import Epochs, begun, common_end, number_at, up_to
from ha.core.lease import Lease, beat_s
from ha.core.replica_role import Election, GroupDecision, ReplicaRole, ReplicationPart
from ha.core.stream import Report
from ha.errors import HaProtocolError

_TICK_S: Final = 0.02
_SILENCE_S: Final = 0.3
_ANSWER_S: Final = 0.5
_ASK_S: Final = 0.1
_FRAME_MAX: Final = 20
_NEWER_THAN_ALL: Final = 1 << 30
_RULES: Final = CopyRules(catch_up_s=0.5, gap_max_bytes=1000)


class _Copies(ElectedCopies):
    """The copies of a master's log, with the rules of `BrokenRules` that a test has switched off."""

    def __init__(self, faults: BrokenRules) -> None:
        super().__init__(_RULES)
        self._faults = faults

    @property
    def counted(self) -> frozenset[int]:
        if self._faults.counts_old_set:
            return self.agreed
        if self._faults.counts_new_set and self._asked is not None:
            return self._asked.ids
        return super().counted

    def propose(self, end: int, confirmed: int, now_s: float) -> Proposal | None:
        return super().propose(end, -1 if self._faults.grows_early else confirmed, now_s)

    def promise_of(self, end: int, confirmed: int) -> int:
        """Return the offset up to which a log that ends at `end` is confirmed."""
        return end if self._faults.confirms_past_the_set else self.promise(end, confirmed).confirmed


@dataclass
class _Link:
    """A slave's connection to its master; `is_welcome` once the master has answered its hello."""

    number: int
    epoch: int
    heard_s: float
    is_welcome: bool = False


class SimBroker:
    """A process that ends and starts again with its log. All its times are by its own clock.

    Attributes:
        log: records; what was acknowledged of them stays, but for a power cut.
        doubt: whether the end of the log may be missing.
    """

    def __init__(
        self, network: Network, controllers: SimControllers, brokers: Mapping[int, "SimBroker"], broker_id: int
    ) -> None:
        self._network = network
        self._controllers = controllers
        self._brokers = brokers
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.log: list[str] = []
        self.epochs: Epochs = ()
        self._rate = network.rate()
        self._life = self._links = 0
        self._is_up = False
        self.doubt = Doubt()
        self._paused_until_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._replica_role = ReplicaRole(self.broker_id)
        self._lease = Lease()
        self._copies = _Copies(self._network.faults)
        self._numbers: dict[int, int] = {}  # of the streams to slaves, by broker id
        self._is_master = self._is_open = False
        self._successor: int | None = None
        self._confirmed = 0
        self._link: _Link | None = None
        self._asked: tuple[Proposal, float] | None = None
        self._asks_at_s = self._beats_at_s = 0.0

    # ---- life

    def start(self) -> None:
        """Start the process, if it is down."""
        if not self._is_up:
            self._is_up = True
            self._life += 1
            self._forget()
            end = len(self.log)
            self.epochs = up_to(self.epochs, end)
            self._replica_role.log_epoch = self.doubt.epoch or number_at(self.epochs, end)
            self._tick(self._life)

    def kill(self) -> None:
        """End the process; the log stays."""
        self._is_up = False

    def cut_power(self) -> None:
        """End the process and lose the end of its log; the epochs and a doubt are durable."""
        self.kill()
        if self.epochs and self.doubt.epoch is None:
            self.doubt = Doubt(self.epochs[-1].number)
        del self.log[self._chance("power cuts").randint(0, len(self.log)) :]

    @property
    def is_master(self) -> bool:
        """Whether it runs and believes that it leads."""
        return self._is_up and self._is_master

    @property
    def epoch(self) -> int:
        """Epoch of the master that it knows."""
        return self._epoch

    def runs(self) -> bool:
        """Return whether the process runs and is not paused."""
        return self._is_up and self._paused_until_s <= self._network.now_s

    def pause(self, seconds: float) -> None:
        """Pause the process for `seconds`; messages that arrive meanwhile wait."""
        self._paused_until_s = max(self._paused_until_s, self._network.now_s + seconds)

    def arrive(self, life: int, action: Callable[[], None]) -> None:
        """Run `action` in the process of this life; while it is paused, the action waits."""
        wait_s = self._paused_until_s - self._network.now_s
        if wait_s > 0:
            self._network.at(wait_s, lambda: self.arrive(life, action))
        elif self._is_up and life == self._life:
            action()

    def put(self) -> None:
        """Append a client's record, if this broker leads."""
        if self._is_up and self._is_open and self._paused_until_s <= self._network.now_s:
            self.log.append(f"{self._epoch}/{self._chance('records').getrandbits(40)}")

    def hand_over(self) -> None:
        """Begin a hand-over for an administrator; do nothing unless this broker leads and has a slave in sync."""
        able = [id_of(copy) for copy in self._copies.slaves.values() if id_of(copy) in self._copies.agreed]
        if self._is_up and self._is_open and able and self._paused_until_s <= self._network.now_s:
            self._successor, self._is_open = self._chance("hand-overs").choice(able), False
            self._settle()

    def _chance(self, consumer: str) -> Random:
        return self._network.chance(f"{consumer} of {self.name}")

    @property
    def _now_s(self) -> float:
        return self._network.now_s * self._rate

    @property
    def _epoch(self) -> int:
        return self._replica_role.known.master_epoch

    def _tick(self, life: int) -> None:
        def tick() -> None:
            self._talk_to_controllers()
            if self._is_master:
                self._serve_slaves()
            else:
                self._keep_link()
            self._network.at(_TICK_S, lambda: self._tick(life))

        self.arrive(life, tick)

    # ---- the controllers

    def _talk_to_controllers(self) -> None:
        now_s = self._now_s
        if now_s >= self._beats_at_s:
            self._beats_at_s = now_s + (beat_s(LEASE_S) if self._is_master else 0.15)
            for name in self._controllers.names:
                self._beat(name, now_s)
        if now_s >= self._asks_at_s:
            self._asks_at_s = now_s + _ASK_S
            self._ask(self._chance("questions").choice(self._controllers.names))

    def _call(self, name: str, question: Callable[[], Callable[[], None] | None]) -> None:
        """Run `question` at a controller; what it returns is run here when the answer arrives."""
        life = self._life

        def asked() -> None:
            answer = question()
            if answer is not None:
                self._answered(name, life, answer)

        self._network.send(self.name, name, asked)

    def _answered(self, name: str, life: int, action: Callable[[], None]) -> None:
        """Send an answer of a controller to this broker; the process of `life` then runs `action`."""
        self._network.send(name, self.name, partial(self.arrive, life, action))

    def _beat(self, name: str, asked_s: float) -> None:
        end, doubt_epoch = len(self.log), self.doubt.epoch
        if self._network.faults.trusts_cut_logs:
            doubt_epoch = None
        elif doubt_epoch is not None and self._network.faults.trusts_any_set:
            doubt_epoch = _NEWER_THAN_ALL
        candidate = Candidate(self.broker_id, number_at(self.epochs, end), end, 5, doubt_epoch)

        def question() -> Callable[[], None]:
            epoch, set_epoch, lease_s = self._controllers.beat(name, candidate)
            return lambda: self._beaten(asked_s, epoch, set_epoch, lease_s)

        self._call(name, question)

    def _beaten(self, asked_s: float, epoch: int, set_epoch: int, lease_s: float) -> None:
        known = self._replica_role.known
        if (epoch, set_epoch) > (known.master_epoch, known.set_epoch):
            self._asks_at_s = 0.0
        if lease_s and self._is_master and epoch == self._epoch:
            self._lease.grant(asked_s, lease_s)
            self._settle()

    def _ask(self, name: str) -> None:
        def question() -> Callable[[], None] | None:
            decision = self._controllers.decided(name)
            return None if decision is None else lambda: self._take_decision(name, decision)

        self._call(name, question)

    def _take_decision(self, name: str, decision: GroupDecision) -> None:
        is_in_doubt = self.doubt.epoch is not None and not self._network.faults.trusts_old_beats
        change = self._replica_role.take(decision, is_in_doubt=is_in_doubt)
        known = self._replica_role.known
        if change is not None and change.play is ReplicationPart.MASTER:
            self._lead(known)
        elif change is not None:
            self._is_master = self._is_open = False
            self._lease.give_up()
            self._link = None
        elif self._is_master:
            self._copies.learn(known.ids, known.set_epoch)
        election = self._replica_role.election()
        if election is not None:
            is_new = election is Election.NEW_PROCESS
            self._beat(name, self._now_s)
            life = self._life

            def elected(epoch: int) -> None:
                if is_new:
                    self._answered(name, life, partial(self._replica_role.elected, epoch))

            self._call(name, lambda: self._controllers.elect(name, self.broker_id, elected, new_process=is_new))

    def _lead(self, known: GroupDecision) -> None:
        end = len(self.log)
        self.epochs = begun(up_to(self.epochs, end), known.master_epoch, end)
        self.doubt.leads()
        self._lease.give_up()
        self._is_master, self._is_open, self._link, self._asked = True, False, None, None
        self._successor = None
        self._copies.begin(self.broker_id, known.ids, known.set_epoch, end)
        self._numbers = {}
        self._network.seen.leads(known.master_epoch, self.log, self._network.now_s)
        self._beats_at_s = 0.0

    # ---- as master

    def _serve_slaves(self) -> None:
        now_s = self._now_s
        for copy in list(self._copies.slaves.values()):
            if now_s - copy.reported_s > _SILENCE_S:
                self._copies.leave(copy)
        for copy in self._copies.slaves.values():
            self._send_frame(copy)
        self._copies.update_in_sync(len(self.log), self._confirmed, now_s)
        self._propose(now_s)
        self._settle()

    def _send_frame(self, copy: Copy) -> None:
        slave, start = self._brokers[id_of(copy)], copy.sent
        records = self.log[start : start + _FRAME_MAX]
        copy.on_sent(len(records))
        number, confirmed, life = self._numbers[slave.broker_id], self._confirmed, slave._life
        action = partial(slave.on_frame, self, number, start, records, confirmed)
        self._network.send(self.name, slave.name, partial(slave.arrive, life, action))

    def on_hello(self, slave: "SimBroker", number: int, epoch: int, epochs: Epochs, end: int) -> None:
        """Handle the hello of a slave whose log ends at `end`; answer it, and let it join if the logs agree."""
        if not self._is_master or epoch != self._epoch:
            return
        start = (common_end(epochs, end, self.epochs, len(self.log)) or 0) if end else 0
        if start == end:
            copy = Copy(f"b/{slave.broker_id}", "", start, self._now_s, window_bytes=1 << 20, batch_bytes=1 << 20)
            self._copies.join(copy)
            self._numbers[slave.broker_id] = number
        life, ours = slave._life, self.epochs
        self._network.send(
            self.name, slave.name, lambda: slave.arrive(life, lambda: slave.on_welcome(number, start, ours))
        )

    def on_report(self, broker_id: int, number: int, end: int) -> None:
        """Handle a slave's report: its log ends at `end`."""
        copy = self._copies.slaves.get(f"b/{broker_id}")
        if not self._is_master or copy is None or self._numbers[broker_id] != number:
            return
        try:
            copy.on_report(Report(end, end), len(self.log), self._now_s)
        except HaProtocolError:
            self._copies.leave(copy)
        self._copies.update_in_sync(len(self.log), self._confirmed, self._now_s)
        self._propose(self._now_s)
        self._settle()

    def _propose(self, now_s: float) -> None:
        if self._asked is not None:
            if now_s - self._asked[1] > _ANSWER_S:
                self._copies.doubt(self._asked[0])
                self._asked = None
            return
        proposal = self._copies.propose(len(self.log), self._confirmed, now_s)
        if proposal is None:
            return
        self._asked = proposal, now_s
        epoch, life = self._epoch, self._life
        name = self._chance("proposals").choice(self._controllers.names)

        def asked() -> None:
            self._controllers.alter(
                name, self.broker_id, epoch, proposal.ids, proposal.set_epoch, proposal.renews, answered
            )

        def answered(outcome: CommandOutcome) -> None:
            self._answered(name, life, partial(self._decided, proposal, epoch, outcome))

        self._network.send(self.name, name, asked)

    def _decided(self, proposal: Proposal, epoch: int, outcome: CommandOutcome) -> None:
        if not self._is_master or epoch != self._epoch or self._asked is None or self._asked[0] != proposal:
            return
        self._asked = None
        if outcome.cause is None and outcome.group is not None:
            self._copies.learn(outcome.group.in_sync, outcome.group.set_epoch)
        else:
            self._copies.refused(proposal)

    def _settle(self) -> None:
        if not self._is_master or not (self._network.faults.ignores_lease or self._lease.holds(self._now_s)):
            return
        confirmed = self._copies.promise_of(len(self.log), self._confirmed)
        if confirmed > self._confirmed:
            records = self.log[self._confirmed : confirmed]
            self._check_counted()
            self._network.seen.acknowledged(self._epoch, self._confirmed, records, self._network.now_s)
            self._confirmed = confirmed
        if self._confirmed == len(self.log):
            self._is_open = self._successor is None
            if self._successor is not None:
                self._resign(self._successor)

    def _check_counted(self) -> None:
        """Check that every member of the controllers' in-sync set counts, even if the master does not know that set."""
        group, counted = self._controllers.group, self._copies.counted
        if group.master_epoch == self._epoch and not group.in_sync <= counted:
            text = f"epoch {self._epoch} acknowledges by {sorted(counted)} while {sorted(group.in_sync)} are in sync"
            self._network.seen.violations.append(f"{self._network.now_s:.3f}: {text}")

    def _resign(self, successor: int) -> None:
        epoch, name = self._epoch, self._chance("hand-overs").choice(self._controllers.names)
        self._replica_role.resign()
        self._is_master, self._successor = False, None
        self._lease.give_up()
        self._call(name, lambda: self._controllers.hand_over(name, successor, epoch))

    # ---- as slave

    def _keep_link(self) -> None:
        known, now_s, link = self._replica_role.known, self._now_s, self._link
        if link is not None and now_s - link.heard_s > _SILENCE_S:
            self._link = link = None
        if link is None and known.master_id not in (None, self.broker_id):
            assert known.master_id is not None
            self._links += 1
            number = self._life * 1_000_000 + self._links
            self._link = _Link(number, known.master_epoch, now_s)
            master, epochs, end = self._brokers[known.master_id], self.epochs, len(self.log)
            life, epoch = master._life, known.master_epoch
            hello = partial(master.on_hello, self, number, epoch, epochs, end)
            self._network.send(self.name, master.name, partial(master.arrive, life, hello))

    def on_welcome(self, number: int, start: int, epochs: Epochs) -> None:
        """Handle the master's welcome: cut the log at `start`, from which on it differs, or begin to copy."""
        link = self._link
        if link is None or link.number != number or link.epoch != self._epoch:
            return
        if start < len(self.log):
            self._network.seen.cut(start, self.log, self._network.now_s)
            del self.log[start:]
            self._confirmed = min(self._confirmed, start)
            self._link = None
            return
        self.epochs = epochs
        link.is_welcome, link.heard_s = True, self._now_s

    def on_frame(self, master: "SimBroker", number: int, start: int, records: list[str], confirmed: int) -> None:
        """Append the master's records, if any, and report."""
        link = self._link
        if link is None or link.number != number or not link.is_welcome:
            return
        if start != len(self.log):
            self._link = None
            return
        link.heard_s = self._now_s
        self.log += records
        self._confirmed = max(self._confirmed, min(confirmed, len(self.log)))
        wanted = max(confirmed, self.epochs[-1].start)
        self.doubt.heard(link.epoch, 0 if self._network.faults.trusts_too_early else wanted, len(self.log))
        end, life = len(self.log), master._life
        report = partial(master.on_report, self.broker_id, number, end)
        self._network.send(self.name, master.name, partial(master.arrive, life, report))
