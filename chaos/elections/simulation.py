"""Brokers under controllers, on one machine, in simulated time: the cores of `ha`, with a network and clocks that fail.

    client --put--> master --frames--> slaves --reports--> master: confirmed, acknowledged
    brokers --heartbeats, questions, proposals--> the leading controller --agreed--> one state machine
    brokers --registrations--> nameservers --routes--> clients

Real are `Governance`, `Controllers`, `ControllerRequests`, `ControllerLeadership`, `Quorum.submit`,
`ControllerMachine` and its commands, `Lease`, `ReplicaRole`, `ElectedCopies`, the rules of epochs, the nameservers'
route tables, and how clients read a route. An error that is logged fails the run. The controllers agree without files
and votes (`chaos.elections.quorum`); a deposed leader does not know that it is deposed. Some proposed in-sync sets are
decided late, and nobody is told; some depose the controller that takes them. Logs are lists of records, and an offset
is the number of a record.

A seed always gives the same run. Times are seconds.
"""

from functools import partial
from typing import Final

from chaos.elections.broker import SimBroker
from chaos.elections.controllers import CONTROLLERS, LEASE_S, SimControllers
from chaos.elections.nameservers import ElectionNameservers, address_of
from chaos.elections.network import SILENCE_MS, BrokenRules, Network, Seen
from chaos.elections.outsiders import CopiedStore, ElectionAdministrator
from chaos.sim.logged_errors import logged_errors
from chaos.sim.nemesis import Script

BROKERS: Final = (1, 2, 3)
_FAULT_S: Final = (0.05, 0.6)
_QUIET_S: Final = 3.0
_RECOVERY_S: Final = 10.0
_NEW_LEADER_S: Final = 0.7
"""A new leading controller waits so long for the leases of the one before."""
_RESTART_S: Final = (0.02, 0.1)
_UNHEARD_S: Final = (0.2, 0.5)
_DOWN_S: Final = 1.0
_CALM_S: Final = 1.6
"""After so long the last pause has ended, the last killed broker runs, and the last slow message has arrived."""
_COPY_S: Final = 0.3
_IN_FLIGHT_S: Final = 0.1
KINDS: Final = (
    (0.3, "cut"), (0.45, "isolate"), (0.65, "heal"), (0.75, "kill"), (0.8, "power_cut"), (0.9, "pause"),
    (0.94, "hand_over"), (0.97, "change_controller"), (1.0, "unheard"),
)  # fmt: skip
"""The faults, each with the upper bound of its range of draws from [0, 1)."""


class ElectionSimulation:
    """The whole simulation of one seed; `run` runs it.

    Args:
        faults: rules that the run breaks on purpose.
        script: which faults of an earlier run are repeated; None: all that are drawn.
    """

    def __init__(self, seed: int, faults: BrokenRules | None = None, script: Script | None = None) -> None:
        self._script = script or Script()
        self._fault_count = 0
        self._is_over = False
        self._until_s = 0.0
        names = [*(f"b{broker_id}" for broker_id in BROKERS), *CONTROLLERS]
        self._network = network = Network(seed, faults or BrokenRules(), names)
        self._chance = network.chance("faults")
        self._brokers: dict[int, SimBroker] = {}
        self._controllers = SimControllers(network, self._brokers)
        for broker_id in BROKERS:
            self._brokers[broker_id] = SimBroker(network, self._controllers, self._brokers, broker_id)
        self._nameservers = ElectionNameservers(network)

    def run(self, seconds: float) -> Seen:
        """Start everything, inject faults, then stop the faults and let everything recover; return what was observed.

        In the end every broker must be in the in-sync set, a new record must be acknowledged, and the clients of each
        nameserver must find the newest master. The controllers then refuse a copy of a broker's store, a hand-over
        waits for no lease, and a master goes on that loses a slave while the controllers do not hear the other one.
        """
        network = self._network
        self._until_s = seconds
        self._controllers.start()
        for broker in self._brokers.values():
            broker.start()
            self._nameservers.start(broker)
        network.at(1.0, self._fault)
        network.at(1.0, self._break_routes)
        self._put()
        with logged_errors(network.broken):
            try:
                network.run_until(seconds - _QUIET_S)
                network.heal(for_good=True)
                network.run_until(seconds)
                if network.seen.acked and not network.seen.violations and self._recover():
                    self._work_in_calm()
            except Exception as error:  # any exception counts as a failure of this run
                network.broken(f"{type(error).__name__}: {error}")
            finally:
                self._controllers.stop()
                for broker in self._brokers.values():
                    broker.stop()
        return network.seen

    def _recover(self) -> bool:
        """Run on without faults; return whether all has recovered in the end, else note what has not."""
        network, seen = self._network, self._network.seen
        self._is_over, acked = True, len(seen.acked)

        def has_recovered() -> bool:
            is_whole = self._controllers.group.in_sync == set(BROKERS)
            return is_whole and len(seen.acked) > acked and self._are_routes_right()

        is_well = network.run_until(network.now_s + _RECOVERY_S, has_recovered)
        if not is_well:
            text = f"{_RECOVERY_S:g} s after the last fault {len(seen.acked) - acked} records are acknowledged"
            in_sync, routes = sorted(self._controllers.group.in_sync), self._nameservers.leaders()
            network.broken(f"{text}, {in_sync} are in sync, routes: {routes}")
        return not seen.violations

    def _work_in_calm(self) -> None:
        """Use a broker's id twice, and hand over, while nothing is slow."""
        network, controllers = self._network, self._controllers
        network.is_calm = True
        network.run_until(network.now_s + _CALM_S)
        if not self._recover():
            return
        copied = CopiedStore(network, controllers, self._chance.choice(BROKERS))
        network.run_until(network.now_s + _COPY_S)
        copied.stop()
        master_id, epoch = controllers.group.master_id, controllers.group.master_epoch
        if network.seen.violations or master_id is None:
            return
        successor = self._chance.choice([one for one in BROKERS if one != master_id])
        asking = ElectionAdministrator(network, controllers, successor)
        network.run_until(network.now_s + _RECOVERY_S, lambda: controllers.group.master_epoch > epoch)
        took_s = network.now_s - self._brokers[master_id].resigned_s
        if not network.seen.violations and (took_s > LEASE_S / 2 or controllers.group.master_id != successor):
            text = f"{controllers.group.master_id} is elected {took_s:.3f} s after the master of epoch {epoch} resigned"
            network.broken(f"{text}, and {successor} is wished")
        is_well = self._recover()
        asking.stop()
        if is_well:
            self._lose_a_slave_while_the_other_is_silent()

    def _lose_a_slave_while_the_other_is_silent(self) -> None:
        network, acked = self._network, self._network.seen.acked
        slaves = [one for one in self._brokers.values() if one.broker_id != self._controllers.group.master_id]
        silent, lost = self._chance.sample(slaves, 2)
        for name in CONTROLLERS:
            network.cut(silent.name, name, even_if_sound=True)
        network.run_until(network.now_s + 2 * SILENCE_MS / 1000)
        lost.kill()
        network.run_until(network.now_s + _IN_FLIGHT_S)
        count = len(acked)
        if not network.run_until(network.now_s + _RECOVERY_S, lambda: len(acked) > count):
            network.broken(f"{lost.name} is dead and {silent.name} silent: {self._controllers.group.in_sync} wait")
        network.heal()
        lost.start()
        self._recover()

    def _are_routes_right(self) -> bool:
        """Return whether the clients of each nameserver find the newest master."""
        master = self._controllers.group.master_id
        return master is not None and set(self._nameservers.leaders()) == {address_of(master)}

    def _break_routes(self) -> None:
        if not self._is_over and self._network.now_s < self._until_s - _QUIET_S:
            self._nameservers.strike()
            self._network.at(self._network.chance("faults of routes").uniform(*_FAULT_S), self._break_routes)

    def _put(self) -> None:
        """Offer a client's record to every broker; only one that leads takes it."""
        for broker in self._brokers.values():
            broker.put()
        self._network.at(self._network.chance("clients").uniform(0.001, 0.01), self._put)

    def _fault(self) -> None:
        network, number, chance = self._network, self._fault_count, self._chance
        self._fault_count += 1
        if self._is_over or not self._script.reaches(2 * number, chance):
            return
        chosen = chance.random()
        broker = chance.choice(list(self._brokers.values()))
        if self._script.keeps(number):
            kind = next(kind for highest, kind in KINDS if chosen < highest)
            network.seen.struck(number, network.now_s, kind)
            if kind in ("cut", "isolate"):
                network.seen.met["partitions"] += 1
            elif kind in ("kill", "pause") and broker.is_master and broker.runs():
                network.seen.met[f"{kind}s"] += 1
            self._strike(kind, broker)
        if self._script.reaches(2 * number + 1, chance):
            network.at(chance.uniform(*_FAULT_S), self._fault)

    def _strike(self, kind: str, broker: SimBroker) -> None:
        network, chance = self._network, self._chance
        if kind == "cut":
            network.cut(*chance.sample(network.names, 2))
        elif kind == "isolate":
            network.isolate(chance.choice(network.names))
        elif kind == "heal":
            network.heal()
        elif kind == "kill":
            broker.kill()
            network.at(chance.uniform(0.05, 1.0), broker.start)
        elif kind == "power_cut":
            self._cut_power(broker, chance.uniform(0.05, 1.0))
        elif kind == "pause":
            broker.pause(chance.uniform(0.05, 1.5))
        elif kind == "hand_over":
            for one in self._brokers.values():
                one.hand_over()
        elif kind == "change_controller":
            self._controllers.change_leader()
        else:
            self._controllers.change_leader()
            times = chance.uniform(*_RESTART_S), chance.uniform(*_UNHEARD_S)
            network.at(_NEW_LEADER_S, lambda: self._cut_power_unheard(*times))

    def _cut_power(self, broker: SimBroker, down_s: float) -> bool:
        """Cut the power of a slave while another member of the set has everything acknowledged; return whether it was.

        A loss at all members at once would be no fault of the brokers.
        """
        others = self._controllers.group.in_sync - {broker.broker_id}
        if broker.is_master or all(self._brokers[other].doubt.epoch is not None for other in others):
            return False
        broker.cut_power()
        self._network.at(down_s, broker.start)
        return True

    def _cut_power_unheard(self, down_s: float, unheard_s: float) -> None:
        """Let the leading controller elect a broker by its heartbeats from before a power cut.

        The controller does not hear the other slave any more, nor the new process of the one that loses power once this
        is registered, when the master is killed. A deposed controller may tell that process of the old master.
        """
        successor = self._controllers.successor
        if successor is None or not self._cut_power(self._brokers[successor], down_s):
            return
        for one in self._brokers.values():
            if not one.is_master and one.broker_id != successor:
                self._network.cut(one.name, self._controllers.leader)
        self._brokers[successor].on_registered = partial(self._kill_unheard, successor, unheard_s)

    def _kill_unheard(self, successor: int, unheard_s: float) -> None:
        self._network.cut(f"b{successor}", self._controllers.leader)
        for one in self._brokers.values():
            if one.is_master:
                one.kill()
                self._network.at(_DOWN_S, one.start)
        self._network.at(unheard_s, self._network.heal)
