"""The scene of attacks: a nameserver and a Raft group of three brokers, as processes, and a well-behaved producer."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode
from tests.attacks.innocent import Seen, innocent
from tests.fuzz.nodes import LIMIT_S, Group, Node, write_peer_secret

RATE: Final = 500.0
_SAMPLE_S: Final = 0.01
_START_WITH: Final = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}));"
    " runpy.run_module('ledgermq_server', run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Toll:
    """The cost of an attack. Memory is the highest use of the leader, or the nameserver, less the use before."""

    seen: Seen
    elections: int
    leader_cpu_s: float
    leader_grew_bytes: int
    nameserver_cpu_s: float
    nameserver_grew_bytes: int
    complaints: list[str]


class Scene:
    """The group, and connections of strangers to it."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._strangers: list[Stranger] = []

    def stranger(self, server: str = "B") -> "Stranger":
        """A connection to the leader (`B`), a follower (`F`) or the nameserver (`N`)."""
        return self.stranger_at(self.group.port(server))

    def stranger_at(self, port: int, source: str = "127.0.0.1") -> "Stranger":
        """A connection from an address of this machine."""
        self._strangers.append(Stranger(socket.create_connection(("127.0.0.1", port), LIMIT_S, (source, 0))))
        return self._strangers[-1]

    def term(self) -> float:
        """Of the group's leader."""
        self.group.find_leader(LIMIT_S)
        return self.group.metric("B", "ledgermq_term")

    def suffer(self, attack: Callable[["Scene"], None], *, rest_s: float = 1.0) -> Toll:
        """Run an attack and a well-behaved producer at the same time."""
        term = self.term()
        leader, nameserver = self.group.broker, self.group.nameserver
        with innocent(self.group.ports, RATE) as seen:
            cpu, its_cpu = leader.cpu_s, nameserver.cpu_s
            with _most_memory(leader) as grew, _most_memory(nameserver) as it_grew:
                attack(self)
                time.sleep(rest_s)
            cpu, its_cpu = leader.cpu_s - cpu, nameserver.cpu_s - its_cpu
        elections = int(self.term() - term)
        self.leave()
        return Toll(seen[0], elections, cpu, grew[0], its_cpu, it_grew[0], self.group.complaints())

    def leave(self) -> None:
        """Close all connections of strangers."""
        for one in self._strangers:
            one.close()
        self._strangers.clear()


class Stranger:
    """One plain connection; it sends and receives bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._parser = FrameParser(1 << 30, 1 << 24, 1 << 20)
        self._answers: list[Command] = []
        self._opaque = 0

    def say(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False) -> None:
        """Send a request without waiting for its answer."""
        self.socket.sendall(self.frame(code, ext, body, oneway=oneway))

    def frame(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False) -> bytes:
        self._opaque += 1
        return encode(Command(code, ext=ext or {}, body=body, opaque=self._opaque, flag=2 if oneway else 0))

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return the next answer.

        Raises:
            ConnectionError: the server closed the connection instead.
        """
        self.say(code, ext, body)
        return self.hear()

    def hear(self) -> Command:
        while not self._answers:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("closed by the server")
            self._answers += [found for found in self._parser.feed(data) if found.is_response]
        return self._answers.pop(0)

    def close(self) -> None:
        self.socket.close()


def send(topic: str) -> dict[str, str]:
    """The fields of a send."""
    return {"a": "strangers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
            "j": "0", "k": "false", "l": "0", "m": "false"}  # fmt: skip


@contextlib.contextmanager
def scene(folder: Path, descriptors: int = 0, topics: int = 400) -> Iterator[Scene]:
    """Start a group whose nameserver requires signed registrations.

    Args:
        folder: theirs.
        descriptors: most of each node; 0: as many as this process may have.
        topics: most of a broker.
    """
    given = {"namesrvSecretFile": str(write_peer_secret(folder))}
    start = ("-m", "ledgermq_server") if not descriptors else ("-c", _START_WITH.format(descriptors))
    with Group(folder, given | {"maxTopics": str(topics)}, start, nameserver_conf=given) as group:
        made = Scene(group)
        try:
            yield made
        finally:
            made.leave()


@contextlib.contextmanager
def _most_memory(node: Node) -> Iterator[list[int]]:
    """Return the largest growth of a process's memory in bytes, without pages of files, since the beginning."""
    before, grew, is_over = node.memory_bytes, [0], threading.Event()

    def look() -> None:
        while not is_over.wait(_SAMPLE_S):
            grew[0] = max(grew[0], node.memory_bytes - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield grew
    finally:
        is_over.set()
        thread.join()
