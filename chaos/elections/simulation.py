"""Brokers under controllers, on one machine, in simulated time: the cores of `ha`, with a network and clocks that fail.

    client --put--> master --frames--> slaves --reports--> master: confirmed, acknowledged
    brokers --heartbeats, questions, proposals--> the leading controller --agreed--> one state machine
    brokers --registrations--> nameservers --routes--> clients

Real are `ControllerMachine` and its commands, `Grants`, `Lease`, `ReplicaRole`, `ElectedCopies`, the rules of epochs,
the nameservers' route tables, and how clients read a route. The agreement of the controllers is one machine that only
the present leader can reach; a deposed leader does not know that it is deposed. Some proposed in-sync sets are decided
late, and nobody is told. Logs are lists of records, and an offset is the number of a record.

A seed always gives the same run. Times are seconds.
"""

from collections.abc import Callable
from typing import Final

from chaos.elections.broker import SimBroker
from chaos.elections.controllers import CONTROLLERS, SimControllers
from chaos.elections.nameservers import ElectionNameservers, address_of
from chaos.elections.network import BrokenRules, Network, Seen
from chaos.sim.nemesis import Script

BROKERS: Final = (1, 2, 3)
_FAULT_S: Final = (0.05, 0.6)
_QUIET_S: Final = 3.0
_RECOVERY_S: Final = 40.0
"""Proposals go to one of three controllers, of which one leads, each 0.5 s: more than 10 s pass in seed 855."""
KINDS: Final = (
    (0.3, "cut"), (0.45, "isolate"), (0.65, "heal"), (0.75, "kill"), (0.8, "power_cut"), (0.9, "pause"),
    (0.95, "hand_over"), (1.0, "change_controller"),
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
        self._controllers = SimControllers(network)
        self._brokers: dict[int, SimBroker] = {}
        for broker_id in BROKERS:
            self._brokers[broker_id] = SimBroker(network, self._controllers, self._brokers, broker_id)
        self._nameservers = ElectionNameservers(network)

    def run(self, seconds: float) -> Seen:
        """Start everything, inject faults, then stop the faults and let everything recover; return what was observed.

        In the end every broker must be in the in-sync set, a new record must be acknowledged, and the clients of each
        nameserver must find the newest master.
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
        while not network.seen.violations and (action := network.next_event()) is not None:
            if network.now_s > seconds:
                if network.seen.acked:
                    self._recover(action)
                break
            if network.now_s > seconds - _QUIET_S:
                network.heal()
            action()
        return network.seen

    def _recover(self, action: Callable[[], object] | None) -> None:
        """Run on without faults, from this event on; note what has not recovered in the end."""
        network, seen = self._network, self._network.seen
        self._is_over, acked, until_s = True, len(seen.acked), network.now_s + _RECOVERY_S
        while not seen.violations and action is not None:
            network.heal()
            action()
            action = network.next_event()
            in_sync = self._controllers.group.in_sync
            if in_sync == set(BROKERS) and len(seen.acked) > acked and self._are_routes_right():
                return
            if network.now_s > until_s:
                text = f"{_RECOVERY_S:g} s after the last fault {len(seen.acked) - acked} records are acknowledged"
                routes = self._nameservers.leaders()
                seen.violations.append(f"{network.now_s:.3f}: {text}, {sorted(in_sync)} are in sync, routes: {routes}")

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
            self._cut_power(broker)
        elif kind == "pause":
            broker.pause(chance.uniform(0.05, 1.5))
        elif kind == "hand_over":
            for one in self._brokers.values():
                one.hand_over()
        else:
            self._controllers.change_leader()

    def _cut_power(self, broker: SimBroker) -> None:
        """Cut the power of a slave while another member of the set has everything acknowledged.

        A loss at all members at once would be no fault of the brokers.
        """
        others = self._controllers.group.in_sync - {broker.broker_id}
        if not broker.is_master and any(self._brokers[other].doubt.epoch is None for other in others):
            broker.cut_power()
            self._network.at(self._chance.uniform(0.05, 1.0), broker.start)
