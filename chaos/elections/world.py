"""Brokers under controllers, on one machine, in simulated time: the cores of `ha`, with a network and clocks that fail.

    client --put--> master --frames--> slaves --reports--> master: confirmed, acknowledged
    brokers --heartbeats, questions, proposals--> the leading controller --agreed--> one state machine

Real are `Machine` and its commands, `Grants`, `Lease`, `Standing`, `ElectedCopies` and the rules of epochs. The
agreement of the controllers is one machine that only the leading controller of the moment can reach; one that was
deposed does not know it. Logs are lists of records, and an offset is the number of a record.

A seed gives the same run each time. Times are seconds.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from chaos.elections.broker import SimBroker
from chaos.elections.controllers import SimControllers
from ha.core.lease import DRIFT

BROKERS: Final = (1, 2, 3)
_DELAY_S: Final = (0.0005, 0.02)
_FAULT_S: Final = (0.05, 0.6)
_QUIET_S: Final = 3.0


@dataclass(frozen=True)
class Faults:
    """Rules that a test breaks on purpose; each must be found.

    Attributes:
        ignores_lease: masters acknowledge without a lease.
        grows_early: a slave is proposed that has not got all that is confirmed.
        confirms_past_the_set: a master confirms what it has itself.
        counts_old_set: while a set grows, only the set that was agreed on counts.
        counts_new_set: while a set shrinks, only the set that was asked for counts.
        elects_anybody: a master may come from outside the in-sync set.
    """

    ignores_lease: bool = False
    grows_early: bool = False
    confirms_past_the_set: bool = False
    counts_old_set: bool = False
    counts_new_set: bool = False
    elects_anybody: bool = False


@dataclass
class Seen:
    """What the run has shown so far.

    Attributes:
        acked: by offset, the record that a client was told is stored.
        last_ack: by epoch of the master, the real time of its last acknowledgement.
        violations: rules that were broken; empty in a good run.
        epochs: in which a broker began as master.
    """

    acked: dict[int, str] = field(default_factory=dict)
    last_ack: dict[int, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    def acknowledged(self, epoch: int, first: int, records: list[str], now_s: float) -> None:
        """A master of `epoch` tells clients that these records, from offset `first` on, are stored."""
        if any(other > epoch for other in self.last_ack):
            newer = max(self.last_ack)
            self.violations.append(f"{now_s:.3f}: epoch {epoch} acknowledges, and epoch {newer} did before")
        self.last_ack[epoch] = now_s
        for offset, record in enumerate(records, first):
            if self.acked.setdefault(offset, record) != record:
                self.violations.append(f"{now_s:.3f}: offset {offset} is acknowledged twice, with two records")

    def leads(self, epoch: int, log: list[str], now_s: float) -> None:
        """A master of `epoch` begins with this log."""
        self.epochs.append(epoch)
        lost = [offset for offset, record in self.acked.items() if log[offset : offset + 1] != [record]]
        if lost:
            self.violations.append(f"{now_s:.3f}: the master of epoch {epoch} lacks {len(lost)} acknowledged records")


class World:
    """Everything, and the time. `run` it."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.seen = Seen()
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._cut: set[frozenset[str]] = set()
        self._last_s: dict[tuple[str, str], float] = {}
        self.controllers = SimControllers(self)
        self.brokers = {broker_id: SimBroker(self, broker_id) for broker_id in BROKERS}

    # ---- time and network

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run it after so many seconds."""
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, action))

    def send(self, sender: str, receiver: str, action: Callable[[], None]) -> None:
        """A message: it arrives later, behind those sent before, if the two reach each other then and now."""
        pair = frozenset((sender, receiver))
        if pair not in self._cut:
            delay_s = self.random.uniform(*_DELAY_S) * (20 if self.random.random() < 0.01 else 1)
            arrives_s = max(self.now_s + delay_s, self._last_s.get((sender, receiver), 0.0))
            self._last_s[sender, receiver] = arrives_s
            self.at(arrives_s - self.now_s, lambda: None if pair in self._cut else action())

    def isolate(self, name: str) -> None:
        """Cut one off from all others."""
        self._cut |= {frozenset((name, other)) for other in self._names if other != name}

    @property
    def _names(self) -> list[str]:
        return [f"b{broker_id}" for broker_id in BROKERS] + self.controllers.names

    def rate(self) -> float:
        """How fast a clock runs: no two differ by more than leases allow for."""
        return 1 + self.random.uniform(0, DRIFT * 0.99)

    # ---- the run

    def run(self, seconds: float) -> Seen:
        """Start everything, let faults happen, end with a quiet time in which all may recover."""
        self.controllers.start()
        for broker in self.brokers.values():
            broker.start()
        self.at(1.0, self._fault)
        self._put()
        while self._events and not self.seen.violations:
            self.now_s, _, action = heapq.heappop(self._events)
            if self.now_s > seconds:
                break
            if self.now_s > seconds - _QUIET_S:
                self._cut.clear()
            action()
        return self.seen

    def _put(self) -> None:
        """A client: sends to whoever takes it."""
        for broker in self.brokers.values():
            broker.put()
        self.at(self.random.uniform(0.001, 0.01), self._put)

    def _fault(self) -> None:
        chosen = self.random.random()
        names = self._names
        broker = self.random.choice(list(self.brokers.values()))
        if chosen < 0.3:
            one, other = self.random.sample(names, 2)
            self._cut.add(frozenset((one, other)))
        elif chosen < 0.45:
            self.isolate(self.random.choice(names))
        elif chosen < 0.65:
            self._cut.clear()
        elif chosen < 0.8:
            broker.kill()
            self.at(self.random.uniform(0.05, 1.0), broker.start)
        elif chosen < 0.9:
            broker.pause(self.random.uniform(0.05, 1.5))
        else:
            self.controllers.change_leader()
        self.at(self.random.uniform(*_FAULT_S), self._fault)
