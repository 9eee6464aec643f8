"""Two nameservers that share nothing: the shipping route tables, and what clients read of them.

    broker --registration: its id or 0, its epoch--> RouteTable --JSON--> the client's `parse_route` --> leader

A broker registers at each of them, also while it is cut off from the other brokers and the controllers. What arrives
may be late, or come twice. A nameserver may be cut off from a broker, and may start again with empty tables.
"""

from functools import partial
from typing import Final, Protocol

from chaos.elections.network import Network
from ledgermq.remoting.codec.java_json import standard_json
from ledgermq.remoting.route import LEADER_ID, PERM_READ, PERM_WRITE, parse_route
from nameserver.core.election import RegistrationRefusedError
from nameserver.core.model import QueueData, Registration, TopicTable
from nameserver.core.routes import RouteTable

_NAMES: Final = ("s1", "s2")
_BROKER: Final = "broker"
_REGISTER_S: Final = 0.1
_TIMEOUT_MS: Final = 500
_LATE_S: Final = 0.4
_TOPICS: Final = {name: QueueData(_BROKER, 4, 4, PERM_READ | PERM_WRITE) for name in ("T0", "T1")}


class Registrant(Protocol):
    """What nameservers see of a broker."""

    name: str
    broker_id: int

    @property
    def is_master(self) -> bool:
        """Whether it runs and believes that it leads."""

    @property
    def epoch(self) -> int:
        """Epoch of the master that it knows."""

    def runs(self) -> bool:
        """Return whether the process runs and is not paused."""


class ElectionNameservers:
    """Both nameservers. They have a random generator of their own, so that they change nothing else of a seed's run."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._chance = network.chance("nameservers")
        self._tables = {name: RouteTable() for name in _NAMES}
        self._highest = dict.fromkeys(_NAMES, 0)

    def start(self, broker: Registrant) -> None:
        """Let a broker register from now on."""
        self._network.at(_REGISTER_S * self._chance.uniform(0.5, 1.5), lambda: self.start(broker))
        if broker.runs():
            claim = self._claim(broker)
            for name in _NAMES:
                self._network.send(broker.name, name, partial(self._register, name, claim), "registrations")
                if self._chance.random() < 0.05:  # one that was delayed on the way, or comes twice
                    self._network.at(self._chance.uniform(0, _LATE_S), partial(self._register, name, claim))

    def strike(self) -> None:
        """Cut a nameserver off from a broker, or restart a nameserver with empty tables."""
        name = self._chance.choice(_NAMES)
        if self._chance.random() < 0.7:
            self._network.cut(name, f"b{self._chance.choice((1, 2, 3))}")
        else:
            self._tables[name], self._highest[name] = RouteTable(), 0

    def leaders(self) -> list[str | None]:
        """Return for each nameserver the address of the leader that its clients find; None without one."""
        found: list[str | None] = []
        for table in self._tables.values():
            table.expire(self._now_ms)
            route = table.route("T0")
            parsed = None if route is None else parse_route("T0", standard_json(route.to_json()))
            found.append(None if parsed is None else parsed.brokers[_BROKER].leader)
        return found

    @property
    def _now_ms(self) -> int:
        return int(self._network.now_s * 1000)

    def _claim(self, broker: Registrant) -> Registration:
        return Registration(
            cluster="c",
            broker_name=_BROKER,
            broker_id=LEADER_ID if broker.is_master else broker.broker_id,
            address=address_of(broker.broker_id),
            term=broker.epoch,
            heartbeat_timeout_ms=_TIMEOUT_MS,
            table=TopicTable(topics=_TOPICS),
            connection=broker.name,
        )

    def _register(self, name: str, claim: Registration) -> None:
        table = self._tables[name]
        table.expire(self._now_ms)
        group = table.group(_BROKER)
        before = None if group is None or group.leader is None else group.leader.address
        try:
            table.register(claim, self._now_ms)
        except RegistrationRefusedError:
            return
        if claim.broker_id == LEADER_ID:
            if claim.term < self._highest[name] and claim.address != before:  # its own late claim changes no route
                text = f"{name} routes to the master of epoch {claim.term}, and knew epoch {self._highest[name]}"
                self._network.broken(text)
            self._highest[name] = max(self._highest[name], claim.term)


def address_of(broker_id: int) -> str:
    """Return the address at which a broker serves clients."""
    return f"10.0.0.{broker_id}:10911"
