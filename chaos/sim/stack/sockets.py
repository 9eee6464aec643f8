"""Sockets: connections between the brokers of a simulation, and from clients to them, in virtual time.

dial --latency--> accept          bytes arrive in order, whole, later; while the network cuts a direction, they wait
a broker writes to a broker       in some conditions the same frames arrive twice: more than TCP would do, on purpose
a process is killed               the other ends learn it          its machine loses power: they learn nothing, and
                                                                   only when it is up again are their bytes refused
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol, cast

from chaos.sim.network import Conditions

_LATENCY_US = 300
_LOOK_US = 20_000
_LATE_US = 2_000_000
FIRST_PORT = 10_911
FIRST_NAMESERVER_PORT = 9_876
_FIRST_OWN_PORT = 40_000
ANSWER_FAULTS = ("answer_lost", "answer_late", "answer_doubled")


class SocketOwner(Protocol):
    """A process that has sockets."""

    name: str

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""

    @property
    def boot_id(self) -> int:
        """Number of the present boot of its machine."""

    def has(self, what: str, event: Callable[[], None]) -> None:
        """Run an event in the process: now, after its pause, or never."""


class Listener(SocketOwner, Protocol):
    """A process to which others connect."""

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol for the server's end of a new connection."""


class End:
    """One end of a connection; the transport of its protocol."""

    other: "End"

    def __init__(self, sockets: "Sockets", owner: SocketOwner, ports: tuple[int, int]) -> None:
        self.owner = owner
        self.protocol: asyncio.Protocol | asyncio.BufferedProtocol | None = None
        self.boot_id = owner.boot_id
        self._sockets = sockets
        self._ports = ports
        self.is_reset = self._is_closing = self._is_reading = False
        self._arrived: deque[bytes | None] = deque()  # None: the other end has closed

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect the protocol."""
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        self.protocol = protocol
        self._is_reading = True
        protocol.connection_made(cast(asyncio.Transport, self))
        self._read()

    def arrives(self, data: bytes | None) -> None:
        """Take bytes that have arrived, or the end of the stream (None)."""
        self._arrived.append(data)
        self._read()

    def arrives_apart(self, data: bytes) -> None:
        """Take whole frames that arrive at another moment than the stream around them."""
        self.owner.has("late bytes", lambda: self.arrives(data))

    def _read(self) -> None:
        while self._arrived and self._is_reading and self.protocol is not None:
            data = self._arrived.popleft()
            if data is None:
                self.lose()
            elif isinstance(self.protocol, asyncio.Protocol):
                self.protocol.data_received(data)
            else:
                self._fill(self.protocol, data)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        """Fill the buffer of a buffered protocol, and keep the rest for later."""
        with memoryview(protocol.get_buffer(len(data))) as room:
            size = min(len(room), len(data))
            room[:size] = data[:size]
        if size < len(data):
            self._arrived.appendleft(data[size:])
        protocol.buffer_updated(size)

    def lose(self) -> None:
        """Tell the protocol that the connection has ended."""
        protocol, self.protocol = self.protocol, None
        self._is_closing = True
        if protocol is not None:
            protocol.connection_lost(None)

    # -- asyncio.Transport

    def write(self, data: bytes | memoryview) -> None:
        if data and not self._is_closing:
            self._sockets.carry(self, bytes(data))

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._sockets.carry(self, None)
            asyncio.get_running_loop().call_soon(self.lose)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._read()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the buffers towards a peer are unbounded."""

    def get_extra_info(self, name: str) -> Any:
        return {"sockname": ("127.0.0.1", self._ports[0]), "peername": ("127.0.0.1", self._ports[1])}.get(name)


class Sockets:
    """All connections of one run.

    Args:
        cluster: the group; node `n0` listens at port 10911, `n1` at the next one.
        rng: draws latencies.
        doubles: draws what arrives twice.

    Attributes:
        nameservers: those that run, by name; `s0` listens at port 9876, `s1` at the next one.
        unlucky: random streams by name of the processes that may get answers late, twice or never, at the rates of the
            network's conditions.
    """

    def __init__(self, cluster: Any, rng: Random, doubles: Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._doubles = doubles
        self._ends: dict[SocketOwner, list[End]] = {}
        self._ways: dict[End, deque[tuple[int, bytes | None]]] = {}
        self._port = _FIRST_OWN_PORT
        self.nameservers: dict[str, Listener] = {}
        self.unlucky: dict[str, Random] = {}

    async def dial(
        self, owner: SocketOwner, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> tuple[Any, asyncio.BaseProtocol]:
        """Connect `owner` to the process that listens at `port`.

        Raises:
            ConnectionRefusedError: no process does.
        """
        waiting: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        is_brokers = port >= FIRST_PORT
        name = f"n{port - FIRST_PORT}" if is_brokers else f"s{port - FIRST_NAMESERVER_PORT}"
        self._later(lambda: self._reach(owner, name, port, waiting))
        end = await waiting
        protocol = factory()
        end.begin(protocol)
        return end, protocol

    def _later(self, event: Callable[[], None]) -> None:
        self._cluster.clock.call_in(self._latency_us(), event)

    def _latency_us(self) -> int:
        return int(_LATENCY_US * (0.5 + 2.5 * self._rng.random()))

    def _is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self._cluster.network.cut

    def _reach(self, owner: SocketOwner, name: str, port: int, waiting: "asyncio.Future[End]") -> None:
        if owner.is_gone or self._is_cut(owner.name, name) or self._is_cut(name, owner.name):
            return  # no answer: the caller times out
        target: Listener | None = self._cluster.processes.get(name) or self.nameservers.get(name)
        if target is None:
            self._later(lambda: owner.has("refused", lambda: _refused(waiting)))
            return
        self._port += 1
        here, there = End(self, owner, (self._port, port)), End(self, target, (port, self._port))
        here.other, there.other = there, here
        for end in (here, there):
            self._ends.setdefault(end.owner, []).append(end)
            self._ways[end] = deque()
        target.has("accepts", lambda: there.begin(target.accept()))
        self._later(lambda: owner.has("connected", lambda: _connected(here, waiting)))

    def carry(self, end: End, data: bytes | None) -> None:
        """Carry bytes, or the end of the stream (None), from one end to the other."""
        if end.is_reset or (data is not None and self._goes_astray(end, data)):
            return
        way, is_first = self._ways[end], not self._ways[end]
        latency_us = self._latency_us() + self._cluster.network.slow_us.get((end.owner.name, end.other.owner.name), 0)
        due_us = max(self._cluster.clock.now_us + latency_us, 0 if is_first else way[-1][0] + 1)
        way.append((due_us, data))
        if data is not None and self._is_doubled(end):
            self._cluster.mark("passed on twice")
            way.append((due_us + 1, data))
        if is_first:
            self._cluster.clock.call_at(due_us, lambda: self._arrive(end))

    def _goes_astray(self, end: End, data: bytes) -> bool:
        """Return whether this answer is lost or comes later by itself; it may also come once more."""
        name, conditions = end.other.owner.name, self._cluster.network.conditions
        chance = self.unlucky.get(name)
        if chance is None:
            return False
        lost, late, doubled = (chance.random() < rate for rate in _rates(conditions))
        if late or doubled:
            arrives_us = int(_LATE_US * chance.random())
            self._cluster.clock.call_in(arrives_us, lambda: None if end.is_reset else end.other.arrives_apart(data))
        for kind, is_so in zip(ANSWER_FAULTS, (lost, late, doubled), strict=True):
            if is_so:
                self._cluster.mark(f"fault {kind}")
        return lost or late

    def _is_doubled(self, end: End) -> bool:
        rate, names = self._cluster.network.conditions.double_rate, self._cluster.plan.names
        is_between_brokers = end.owner.name in names and end.other.owner.name in names
        return bool(rate) and is_between_brokers and self._doubles.random() < rate

    def _arrive(self, end: End) -> None:
        way, clock = self._ways[end], self._cluster.clock
        if not way:
            return  # reset meanwhile
        if self._is_cut(end.owner.name, end.other.owner.name):
            clock.call_in(_LOOK_US, lambda: self._arrive(end))
            return
        _, data = way.popleft()
        if way:
            clock.call_at(max(way[0][0], clock.now_us + 1), lambda: self._arrive(end))
        if end.owner.is_gone and end.owner.boot_id != end.boot_id:
            return  # what the machine had not sent is lost with its power
        other = end.other
        if not other.owner.is_gone:
            other.owner.has("bytes", lambda: other.arrives(data))
        elif other.owner.boot_id == other.boot_id or other.owner.name in self._cluster.processes:
            self._reset(end)

    def _reset(self, end: End) -> None:
        end.is_reset = True
        self._later(lambda: end.owner.has("reset", end.lose))

    def ended(self, owner: SocketOwner) -> None:
        """Close the connections of a process that has ended, as the system does."""
        for end in self._ends.pop(owner, ()):
            end.protocol = None
            if not end.is_closing():
                self.carry(end, None)

    def break_one(self) -> None:
        """Reset one connection; what was on the way is lost."""
        standing = [end for ends in self._ends.values() for end in ends if end.protocol is not None]
        if standing:
            end = standing[int(self._rng.random() * len(standing))]
            for one in (end, end.other):
                self._ways[one].clear()
                self._reset(one)


def _rates(conditions: Conditions) -> tuple[float, float, float]:
    """Return the rates of `ANSWER_FAULTS`."""
    return conditions.drop_rate, conditions.reorder_rate, conditions.double_rate


def _refused(waiting: "asyncio.Future[End]") -> None:
    if not waiting.done():
        waiting.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens"))


def _connected(end: End, waiting: "asyncio.Future[End]") -> None:
    if waiting.done():
        end.close()
    else:
        waiting.set_result(end)
