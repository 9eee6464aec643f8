"""Nameservers: the shipping server on simulated sockets. They share nothing, and keep nothing when they are killed.

    broker's NameserverLinks --103, 322--> NameServer: RouteTable, RouteWaiters --105--> routes of programs, held or not

A nameserver may be killed or paused; at the end of a run it works.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.sim.errors import SafetyViolation
from chaos.sim.stack.diskless import Diskless
from chaos.sim.stack.sockets import FIRST_NAMESERVER_PORT, Sockets
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.serving.listener import ListenerKeys
from nameserver.config import NameServerConfig
from nameserver.server import NameServer

GROUP_NAME: Final = "sim"
FAULTS: Final = ("nameserver_down", "nameserver_pause")
_NOWHERE: Final = Path("/nowhere/kvConfig.json")


class SimNameserver(Diskless):
    """One process of a nameserver.

    No held question may have an answer that has changed, and no deposed leader may get its route back (R27).
    """

    def __init__(self, cluster: Any, sockets: Sockets, number: int) -> None:
        super().__init__(cluster, sockets, f"s{number}")
        self._leader: tuple[int, str] = (0, "")
        config = NameServerConfig(
            listener=ListenerKeys(port=FIRST_NAMESERVER_PORT + number),
            kv_config_path=_NOWHERE,
            insecure_registration=True,
        )
        with self.loop.running():
            self._server = NameServer(config)
        self.loop.run_now(self._server.start())

    def accept(self) -> Connection:
        """Return the protocol for the server's end of a connection."""
        assert self.loop.accept is not None, "it listens since its start"
        connection = self.loop.accept()
        assert isinstance(connection, Connection)
        return connection

    def has(self, what: str, event: Callable[[], None]) -> None:
        super().has(what, event)
        if self.is_gone:
            return
        table, waiters = self._server.table, self._server._waiters
        group = table.group(GROUP_NAME)
        if group is not None and group.leader is not None:
            found = group.leader.registration.term, group.leader.address
            if found[0] < self._leader[0] and found[1] != self._leader[1]:
                raise SafetyViolation("R27", f"{self.name} gave the route from {self._leader} back to {found}")
            self._leader = max(found, self._leader)
        for held in waiters._held.values():
            is_led, version = self._server._is_led(held.topic), table.version(held.topic)
            if is_led if held.known_version is None else held.known_version != version:
                raise SafetyViolation("R27", f"{self.name} holds a question for {held.topic} whose answer has changed")


def nameserver_addresses(count: int) -> tuple[str, ...]:
    """Return `host:port` of each nameserver."""
    return tuple(f"127.0.0.1:{FIRST_NAMESERVER_PORT + number}" for number in range(count))


class SimNameservers:
    """The nameservers of a run and their faults, with a random stream of their own."""

    def __init__(self, cluster: Any, sockets: Sockets, seed: int, count: int) -> None:
        self._cluster = cluster
        self._sockets = sockets
        self._chance = Random(f"nameservers {seed}")
        self._is_over = False
        self.addresses = nameserver_addresses(count)
        for number in range(count):
            self._start(number)
        self._strike_later()

    def __getitem__(self, number: int) -> SimNameserver | None:
        """Return the running nameserver of this number; None if it is down."""
        found = self._sockets.nameservers.get(f"s{number}")
        assert found is None or isinstance(found, SimNameserver)
        return found

    def _start(self, number: int) -> None:
        if self[number] is None:
            self._sockets.nameservers[f"s{number}"] = SimNameserver(self._cluster, self._sockets, number)

    def kill(self, number: int) -> None:
        """Kill a nameserver."""
        server = self[number]
        if server is not None:
            del self._sockets.nameservers[server.name]
            server.kill()

    def kill_some(self) -> None:
        """Kill each nameserver with a probability of one half."""
        for number in range(len(self.addresses)):
            if self._chance.random() < 0.5:
                self._cluster.mark("nameserver away in the end")
                self.kill(number)

    def heal(self) -> None:
        """Start and resume all nameservers, and inject no more faults."""
        self._is_over = True
        for number in range(len(self.addresses)):
            server = self[number]
            if server is None:
                self._start(number)
            else:
                server.resume()

    def end(self) -> None:
        """End all nameservers."""
        for number in range(len(self.addresses)):
            self.kill(number)

    def _strike_later(self) -> None:
        self._cluster.clock.call_in(int(1e6 * self._chance.uniform(0.1, 1.5)), self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        kind, number = self._chance.choice(FAULTS), self._chance.randrange(len(self.addresses))
        back_us = int(1e6 * self._chance.uniform(0.02, 2.0))
        server = self[number]
        if server is not None:
            self._cluster.mark(f"fault {kind}")
            if kind == FAULTS[0]:
                self.kill(number)
                self._cluster.clock.call_in(back_us, lambda: self._start(number))
            else:
                server.pause()
                self._cluster.clock.call_in(back_us, server.resume)
        self._strike_later()
