"""Level `nodes`: a real broker with everything on, and a real nameserver, over sockets.

A case is one connection: some frames, whole or in pieces, mostly wrong; then a question that every node answers. The
answer must come, or the connection be closed, before the node has spent 0.3 s of processor time on it. Between blocks
of cases a message is sent and pulled, and both logs, listeners and the nodes' memory are looked at.
"""

import contextlib
import http.client
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final

from ledgermq.remoting.codec.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FIELDS_MAX, FrameParser, encode
from ledgermq.remoting.errors import FrameError
from tests.fuzz.cases import Failure
from tests.fuzz.cost import REQUEST_CPU_S, limit_cpu_s
from tests.fuzz.frames import Frames
from tests.fuzz.nodes import NodePair, dial
from tests.fuzz.values import Values
from tests.java_store.wire import Wire
from tests.limits import SLOWNESS

_TRIES: Final = 8
"""A case that takes too long is run again: a node also saves its tables now and then, on nobody's request, and other
programs may have slowed the node down, but not the piece of work by which the limit is set."""

LIMIT_S: Final = 30.0 * SLOWNESS
BLOCK: Final = 50
GROWTH_MAX_BYTES: Final[Mapping[int, int]] = {50: 48 << 20, 500: 96 << 20}
"""How much a node's own memory may grow behind that many cases, up to the next of these; tables of topics, groups and
clients fill up to their limits meanwhile."""

_ANSWERED_LATER: Final = frozenset({11, 37, 105, 221, 222, 223, 307, 309, 324, 325, 361, 200050, 200054})
"""Requests that may be held, or that wait for a client's answer, or (37) that may need none."""

_PROBE: Final = 9998
_PROBE_OPAQUE: Final = 0x7AFE


class Campaign:
    """Cases against one pair of nodes; `limit_s` is how long an answer may take on a busy machine."""

    level = "nodes"
    growth_max_bytes = GROWTH_MAX_BYTES

    def __init__(self, pair: NodePair, seed: int, limit_s: float = LIMIT_S) -> None:
        self._pair = pair
        self._limit_s = limit_s
        self._seed = seed
        self._memory: dict[str, int] = {}
        self._measured_at = 0
        self.answers = 0
        self._number = 0

    def run(self, count: int | None, seconds: float) -> tuple[int, list[Failure]]:
        """Cases until `count` are done or the time is over; returns how many, and what failed."""
        deadline = time.monotonic() + seconds
        number = 0
        while (count is None or number < count) and time.monotonic() < deadline:
            failure = self.run_case(number)
            number += 1
            if failure is None and (number % BLOCK == 0 or number == count):
                failure = self._judged(number - 1)
            if failure is not None:
                return number, [failure]
            if number in self.growth_max_bytes:
                self._measured_at = number
                self._memory = {node.kind: node.memory_bytes for node in self._pair.nodes}
        failure = self._judged(number - 1)
        return number, [failure] if failure else []

    def run_alone(self, number: int) -> list[Failure]:
        """One case, and what the logs say of it."""
        failure = self.run_case(number)
        return [*([failure] if failure else []), *(self._failure(number, what) for what in self._pair.complaints())]

    def run_case(self, number: int) -> Failure | None:
        """One case."""
        least_s = math.inf
        for _ in range(_TRIES):
            failure, spent_s = self._try_case(number)
            least_s = min(least_s, spent_s)
            if failure is not None or least_s <= REQUEST_CPU_S or least_s <= limit_cpu_s():
                return failure
        return self._failure(number, f"the node has spent {least_s:.2f} s on it")

    def _try_case(self, number: int) -> tuple[Failure | None, float]:
        """One case, and the processor time of the node."""
        self._number = number
        values = Values(f"{self.level} {self._seed} {number}")
        server = values.random.choice(self._pair.servers)
        node = self._pair.node(server)
        before = node.cpu_s
        try:
            self._case(values, server)
        except TimeoutError:
            return self._failure(number, f"the {node.kind} neither answers nor closes within {self._limit_s:g} s"), 0.0
        except ConnectionRefusedError:
            return self._failure(number, f"the {node.kind} listens no more: {node.complaints()}"), 0.0
        except OSError:
            pass  # closed by the node, which it may do
        except (FrameError, AssertionError) as error:
            return self._failure(number, f"the {node.kind} answers nonsense: {error}"), 0.0
        return None, node.cpu_s - before

    def _case(self, values: Values, server: str) -> None:
        if values.chance(0.03):
            self._http(values, server)
        else:
            self._talk(values, server)

    def _talk(self, values: Values, server: str) -> None:
        frames = Frames(values, "N" if server == "N" else "B")
        commands = [frames.request(opaque) for opaque in range(1, values.random.choice((2, 2, 3, 6, 20)))]
        is_broken = values.chance(0.4)
        pieces = [frames.bytes_of(command) if is_broken else frames.whole(command) for command in commands]
        if is_broken and values.chance(0.1):
            pieces.insert(values.random.randrange(len(pieces) + 1), frames.greeting())
        is_broken = is_broken or not all(map(_is_within_limits, commands))
        probe = encode(Command(_PROBE, _PROBE_OPAQUE))
        with self._pair.dial(server, self._limit_s) as peer:
            self._write(values, peer, b"".join(pieces))
            if values.chance(0.02):  # and leaves in the middle of a long frame
                peer.sendall(struct.pack(">ii", 12 << 20, 100) + bytes(values.random.choice((1 << 16, 1 << 20))))
                return
            if values.chance(0.1):  # and leaves without a word, or with half a frame
                peer.sendall(probe[: values.random.randrange(len(probe))])
                return
            peer.sendall(probe)
            if is_broken and values.chance(0.5):
                peer.shutdown(socket.SHUT_WR)
            self._read(values, peer, set() if is_broken else {_PROBE_OPAQUE, *owed(commands)}, is_broken)

    def _write(self, values: Values, peer: socket.socket, data: bytes) -> None:
        cuts = sorted(values.random.randrange(len(data) + 1) for _ in range(values.random.choice((0, 0, 0, 1, 4))))
        if cuts:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            peer.sendall(data[start:end])

    def _answer(self, values: Values, peer: socket.socket, asked: Command) -> None:
        """What a client says that is asked by the broker: anything."""
        body = values.json(b'{"messageQueueTable":{"x":1},"consumerTable":{},"offsetTable":{}}')
        code = values.random.choice((0, 0, 0, 1, -1))
        said = Command(code, asked.opaque, RESPONSE_FLAG, {"a": "b"}, body, values.random.choice((None, "why")))
        with contextlib.suppress(OSError):
            peer.sendall(encode(said))

    def _read(self, values: Values, peer: socket.socket, owed: set[int], is_broken: bool) -> None:
        """Until all that is owed is answered; after broken frames until the probe is, or the connection ends.

        Half a frame of ours may have eaten the probe: then we end the connection, and the node has to as well.
        """
        parser, seen = FrameParser(), set[int]()
        peer.settimeout(0.3 if is_broken else self._limit_s)
        deadline = time.monotonic() + self._limit_s
        while time.monotonic() < deadline:
            try:
                data = peer.recv(1 << 16)
            except TimeoutError:
                assert is_broken, f"requests {sorted(owed - seen)} get no answer"
                peer.settimeout(self._limit_s)
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_WR)
                continue
            if not data:
                assert is_broken, f"the connection is closed, requests {sorted(owed - seen)} are unanswered"
                return
            for command in parser.feed(data):
                if not command.is_response:
                    self._answer(values, peer, command)
                else:
                    assert is_broken or command.opaque not in seen, f"request {command.opaque} is answered twice"
                    seen.add(command.opaque)
                    self.answers += 1
            if _PROBE_OPAQUE in seen and owed <= seen:
                return
        raise TimeoutError

    def _http(self, values: Values, server: str) -> None:
        port = self._pair.health_ports[server]
        if values.chance(0.5):
            with dial(port, self._limit_s) as peer:
                lines = [
                    b"GET /" + values.text().encode(errors="replace") + b" HTTP/1.1",
                    b"Host: x",
                    b"a: " + b"b" * 9000,
                ]
                peer.sendall(values.damaged(b"\r\n".join(lines) + b"\r\n\r\n"))
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self._limit_s)
        path = values.random.choice(("/livez", "/readyz", "/metrics", "/", "/..%2f..", "/metrics?" + "x" * 9000))
        method = values.random.choice(("GET", "GET", "POST", "HEAD", "DELETE"))
        with contextlib.suppress(http.client.HTTPException):
            connection.request(method, path, body=b"x" * 5000 if method == "POST" else None)
            connection.getresponse().read()
        connection.close()

    # ---- between the cases

    def _judged(self, number: int) -> Failure | None:
        if complaints := self._pair.complaints():
            return self._failure(number, f"within the {BLOCK} cases up to this: " + "\n".join(complaints))
        for node in self._pair.nodes:
            grown = node.memory_bytes - self._memory.get(node.kind, node.memory_bytes)
            if self._measured_at and grown > self.growth_max_bytes[self._measured_at]:
                since = f"since case {self._measured_at}"
                return self._failure(number, f"the {node.kind} has grown by {grown >> 20} MiB {since}")
        try:
            self._check_service()
        except (OSError, AssertionError) as error:
            return self._failure(number, f"a message is not sent and pulled: {type(error).__name__}: {error}")
        return None

    def _check_service(self) -> None:
        """One message through a topic that no case names, and one look at the nameserver."""
        topic = "FuzzWitness"
        with Wire(self._pair.broker_port, self._limit_s) as broker:
            sent = broker.ask(
                310, {"a": "w", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}, b"here"
            )
            assert sent.code == 0, sent
            fields = {
                "consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": 0,
                "queueOffset": sent.fields["queueOffset"],
                "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
                "subVersion": 0,
            }  # fmt: skip
            pulled = broker.ask(11, fields)
            deadline = time.monotonic() + self._limit_s
            while pulled.code == 19 and time.monotonic() < deadline:
                pulled = broker.ask(11, fields)
            assert pulled.code == 0 and b"here" in pulled.body, pulled
        with Wire(self._pair.nameserver_port, self._limit_s) as nameserver:
            assert nameserver.ask(206).code == 0

    def _failure(self, number: int, what: str) -> Failure:
        return Failure(self.level, self._seed, number, what)


def _is_within_limits(command: Command) -> bool:
    return len(command.ext) <= FIELDS_MAX and len(command.body) < (1 << 20)


def owed(commands: list[Command]) -> set[int]:
    """Opaques of requests that must be answered at once: not one-way, no answers themselves, asking no third party."""
    return {c.opaque for c in commands if not c.flag & (ONEWAY_FLAG | RESPONSE_FLAG) and c.code not in _ANSWERED_LATER}
