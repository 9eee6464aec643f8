"""One broker of the simulation: the shipping `Governance`; what `ha.master` and `ha.slave` do, without their I/O."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, cast

from chaos.elections.connections import SimConnections
from chaos.elections.controllers import SimControllers
from chaos.elections.network import SILENCE_MS, BrokenRules, Network
from chaos.elections.quorum import NAME
from chaos.sim.stack.loop import SimLoop
from ha.core.copies import Copy, CopyRules
from ha.core.doubt import Doubt
from ha.core.elected_copies import ElectedCopies, Proposal, id_of
from ha.core.epochs import Epochs, begun, common_end, number_at, up_to
from ha.core.replica_role import GroupDecision
from ha.core.stream import Report
from ha.elected.controllers import Controllers
from ha.elected.governance import Governance, GovernedMember
from ha.errors import HaProtocolError
from ledgermq.remoting.refusal import Refusal

_TICK_S: Final = 0.02
_SILENCE_S: Final = 0.3
_BEAT_S: Final = 0.15
_ASK_S: Final = 0.1
_FRAME_MAX: Final = 20
_DOWN_S: Final = (0.05, 1.0)
_LINKS_MAX: Final = 1_000_000
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


class _AskedControllers(Controllers):
    """Calls `registered` each time the controllers have registered the process."""

    registered: Callable[[], None]

    async def register(self, broker_id: int, address: str) -> None:
        await super().register(broker_id, address)
        self.registered()


@dataclass
class _Link:
    """A slave's connection to its master; `is_welcome` once the master has answered its hello."""

    number: int
    epoch: int
    heard_s: float
    is_welcome: bool = False


class SimBroker:
    """A process that ends and starts again with its log, a `GovernedBroker`. All its times are by its own clock.

    Attributes:
        log: records; what was acknowledged of them stays, but for a power cut.
        doubt: whether the end of the log may be missing.
        leads_in: epoch in which it is master now; None if it is not.
        resigned_s: when it last became a slave without a master, in simulated seconds.
        on_registered: called once, when the controllers have registered its process.
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
        self._loop: SimLoop
        self._connections: SimConnections
        self._is_up = False
        self.leads_in: int | None = None
        self.doubt = Doubt()
        self.on_registered: Callable[[], None] | None = None
        self.resigned_s = 0.0
        self._pause_count = 0
        self._waiting: list[Callable[[], None]] = []

    # ---- life

    def start(self) -> None:
        """Start the process, if it is down."""
        if not self._is_up:
            self._is_up = True
            self._life += 1
            arrive = partial(self.arrive, self._life)
            self._loop = loop = self._network.loop(self._rate, arrive)
            self._connections = SimConnections(self._network, self._controllers, self.name, loop, arrive)
            client, names = cast(Any, self._connections), self._controllers.names
            asked_in_turn = self._chance("questions").sample(names, len(names))
            controllers = _AskedControllers(asked_in_turn, client, "c", NAME)
            controllers.registered = self._registered
            self._copies = _Copies(self._network.faults)
            self._numbers: dict[int, int] = {}  # of the streams to slaves, by broker id
            self.leads_in, self._confirmed = None, 0
            self._link: _Link | None = None
            member = GovernedMember(self.broker_id, self.name, _ASK_S, _BEAT_S)
            self._governance = Governance(member, self, controllers, self._copies, loop.as_loop, loop.time)
            end = len(self.log)
            self.epochs = up_to(self.epochs, end)
            self._governance.role.log_epoch = self.doubt.epoch or number_at(self.epochs, end)
            self._tick(self._life)
            self._governance.start()

    def _registered(self) -> None:
        registered, self.on_registered = self.on_registered, None
        if registered is not None:
            registered()

    def kill(self) -> None:
        """End the process; the log stays, and the connections are closed."""
        if self._is_up:
            self.stop()
            self._connections.close()
            for other in (one for one in self._brokers.values() if one is not self):
                closed = partial(other.on_closed, self.broker_id, self._life)
                self._network.send(self.name, other.name, partial(other.arrive, other._life, closed))

    def die(self) -> None:
        """Kill the process, and start it again after a while."""
        self.kill()
        self._network.at(self._chance("deaths").uniform(*_DOWN_S), self.start)

    def stop(self) -> None:
        """End the process and all that it has under way; its connections stay open."""
        self._is_up = False
        self._loop.stop()

    def cut_power(self) -> None:
        """End the process and lose the end of its log; the epochs and a doubt are durable."""
        self.stop()
        if self.epochs and self.doubt.epoch is None:
            self.doubt = Doubt(self.epochs[-1].number)
        del self.log[self._chance("power cuts").randint(0, len(self.log)) :]

    @property
    def is_master(self) -> bool:
        """Whether it runs and believes that it leads."""
        return self._is_up and self.leads_in is not None

    def holds_lease(self, epoch: int) -> bool:
        """Return whether it may acknowledge now as the master of this epoch, if it runs."""
        return self._is_up and self.leads_in == epoch and self._governance.holds_lease

    @property
    def epoch(self) -> int:
        """Epoch of the master that it knows."""
        return self._epoch

    def runs(self) -> bool:
        """Return whether the process runs and is not paused."""
        return self._is_up and not self._pause_count

    def pause(self, seconds: float) -> None:
        """Pause the process for `seconds`; messages that arrive meanwhile wait."""
        self._pause_count += 1
        self._network.at(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause_count -= 1
        if not self._pause_count:
            waiting, self._waiting = self._waiting, []
            for arrive in waiting:
                arrive()

    def arrive(self, life: int, action: Callable[[], object]) -> None:
        """Run `action` in the process of this life; while it is paused, the action waits."""
        if self._pause_count:
            self._waiting.append(partial(self.arrive, life, action))
        elif self._is_up and life == self._life:
            self._loop.run_event(action)

    def put(self) -> None:
        """Append a client's record, if this broker leads."""
        if self.runs() and self._governance.is_open:
            self.log.append(f"{self._epoch}/{self._chance('records').getrandbits(40)}")

    def hand_over(self) -> None:
        """Begin a hand-over for an administrator, if this broker leads and has a slave in sync."""
        if self.runs():
            with contextlib.suppress(Refusal):
                self._governance.hand_over(None)

    def _chance(self, consumer: str) -> Random:
        return self._network.chance(f"{consumer} of {self.name}")

    @property
    def _now_s(self) -> float:
        return self._network.now_s * self._rate

    @property
    def _epoch(self) -> int:
        return self._governance.role.known.master_epoch

    def _tick(self, life: int) -> None:
        def tick() -> None:
            if self.leads_in is not None:
                self._serve_slaves()
            else:
                self._keep_link()
            self._network.at(_TICK_S, lambda: self._tick(life))

        self.arrive(life, tick)

    # ---- the controllers

    def on_notice(self) -> None:
        """Handle a notice that there is another master: ask soon."""
        self.arrive(self._life, self._governance.ask_soon)

    @property
    def has_failed(self) -> bool:
        """Return False: disks do not fail here."""
        return False

    @property
    def lacks_master(self) -> bool:
        """Return False: each broker knows the addresses of the others."""
        return False

    @property
    def is_in_doubt(self) -> bool:
        """See `GovernedBroker`."""
        return self.doubt.epoch is not None and not self._network.faults.trusts_old_beats

    @property
    def is_confirmed(self) -> bool:
        """See `GovernedBroker`."""
        return self._confirmed == len(self.log)

    def heartbeat(self) -> Mapping[str, object]:
        """See `GovernedBroker`."""
        end, doubt_epoch = len(self.log), self.doubt.epoch
        if self._network.faults.trusts_cut_logs:
            doubt_epoch = None
        elif doubt_epoch is not None and self._network.faults.trusts_any_set:
            doubt_epoch = _NEWER_THAN_ALL
        fields = {
            "brokerId": self.broker_id,
            "brokerAddr": self.name,
            "epoch": number_at(self.epochs, end),
            "maxOffset": end,
            "confirmOffset": self._confirmed,
            "heartbeatTimeoutMills": SILENCE_MS,
            "electionPriority": 5,
            "holdsLease": "true",
        }
        return fields | ({} if doubt_epoch is None else {"doubtEpoch": doubt_epoch})

    def note_leases(self, *, are_granted: bool) -> None:
        """Do nothing: these controllers grant leases."""

    def tell_role(self) -> None:
        """Do nothing: clients offer their records to every broker."""

    def become_master(self, known: GroupDecision) -> None:
        """See `GovernedBroker`."""
        end = len(self.log)
        self.epochs = begun(up_to(self.epochs, end), known.master_epoch, end)
        self.doubt.leads()
        self._governance.begins(known, end)
        self.leads_in, self._link, self._numbers = known.master_epoch, None, {}
        self._network.seen.leads(known.master_epoch, self.log, self._network.now_s)

    def become_slave(self, known: GroupDecision, *, is_new: bool) -> None:
        """See `GovernedBroker`."""
        if is_new:
            self.stop_leading()
            self._link = None

    def stop_leading(self) -> None:
        """See `GovernedBroker`."""
        self._governance.ends()
        self.leads_in, self.resigned_s = None, self._network.now_s

    def confirm_more(self) -> None:
        """See `GovernedBroker`: acknowledge what all that count have, while there is a lease."""
        epoch, is_entitled = self.leads_in, self._network.faults.ignores_lease or self._governance.holds_lease
        if not self._is_up or epoch is None or not is_entitled:
            return
        confirmed = self._copies.promise_of(len(self.log), self._confirmed)
        if confirmed > self._confirmed:
            records = self.log[self._confirmed : confirmed]
            self._check_counted(epoch)
            self._network.seen.acknowledged(epoch, self._confirmed, records, self._network.now_s)
            self._confirmed = confirmed
        if self.is_confirmed and self._governance.successor is None:
            self._governance.is_open = True

    # ---- as master

    def _serve_slaves(self) -> None:
        now_s = self._now_s
        for copy in list(self._copies.slaves.values()):
            if now_s - copy.reported_s > _SILENCE_S:
                self._copies.leave(copy)
        for copy in self._copies.slaves.values():
            self._send_frame(copy)
        self._copies.update_in_sync(len(self.log), self._confirmed, now_s)
        self._governance.propose_if_needed(len(self.log), self._confirmed)
        self.confirm_more()

    def _send_frame(self, copy: Copy) -> None:
        slave, start = self._brokers[id_of(copy)], copy.sent
        records = self.log[start : start + _FRAME_MAX]
        copy.on_sent(len(records))
        number, confirmed, life = self._numbers[slave.broker_id], self._confirmed, slave._life
        action = partial(slave.on_frame, self, number, start, records, confirmed)
        self._network.send(self.name, slave.name, partial(slave.arrive, life, action))

    def on_hello(self, slave: "SimBroker", number: int, epoch: int, epochs: Epochs, end: int) -> None:
        """Handle the hello of a slave whose log ends at `end`; answer it, and let it join if the logs agree."""
        if epoch != self.leads_in:
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
        if self.leads_in is None or copy is None or self._numbers[broker_id] != number:
            return
        try:
            copy.on_report(Report(end, end), len(self.log), self._now_s)
        except HaProtocolError:
            self._copies.leave(copy)
        self._copies.update_in_sync(len(self.log), self._confirmed, self._now_s)
        self._governance.propose_if_needed(len(self.log), self._confirmed)
        self.confirm_more()

    def on_closed(self, broker_id: int, life: int) -> None:
        """Handle the end of the connections to another broker's process."""
        copy = self._copies.slaves.get(f"b/{broker_id}")
        if copy is not None and self._numbers[broker_id] // _LINKS_MAX == life:
            self._copies.leave(copy)
        if self._link is not None and self._governance.role.known.master_id == broker_id:
            self._link = None

    def _check_counted(self, epoch: int) -> None:
        """Check that every member of the controllers' in-sync set counts, even if the master does not know that set."""
        group, counted = self._controllers.group, self._copies.counted
        if group.master_epoch == epoch and not group.in_sync <= counted:
            text = f"epoch {epoch} acknowledges by {sorted(counted)} while {sorted(group.in_sync)} are in sync"
            self._network.broken(text)

    # ---- as slave

    def _keep_link(self) -> None:
        known, now_s, link = self._governance.role.known, self._now_s, self._link
        if link is not None and now_s - link.heard_s > _SILENCE_S:
            self._link = link = None
        if link is None and known.master_id not in (None, self.broker_id):
            assert known.master_id is not None
            self._links += 1
            number = self._life * _LINKS_MAX + self._links
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
