"""A broker with everything on and a nameserver, as child processes that a test can watch; or a formed Raft group."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.fuzz.cases import kept_bytes
from tests.limits import WAIT_S
from tests.ports import free_ports
from tests.remoting.certificates import make_identity

LIMIT_S: Final = WAIT_S
PEER_SECRET: Final = b"the secret of the groups that are fuzzed"
_COMPLAINT: Final = re.compile(r"Traceback|\bERROR\b|never retrieved|Unclosed|unhandled", re.IGNORECASE)
_ALLOWED: Final = re.compile(r"new connections are not accepted")
_ROOT: Final = Path(__file__).parents[2]
_TICKS: Final = os.sysconf("SC_CLK_TCK")

_BROKER: Final = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "insecureSettings": "true",
    "maxTopics": "400",
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "mappedFileSizeTimerLog": "1048576",
    "fileReservedTime": "1",
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "85",
    "diskSpaceWarningLevelRatio": "90",
}


class Node:
    """One process: its log, its memory, the processor time it has used."""

    def __init__(self, kind: str, folder: Path, argv: Sequence[str]) -> None:
        self.kind = kind
        self.log = folder / f"{kind}.log"
        self._out = self.log.open("wb")
        self.process = subprocess.Popen(
            argv,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )

    def wait_until_up(self) -> None:
        """Until it says so.

        Raises:
            AssertionError: it ended, or said nothing within a minute.
        """
        deadline = time.monotonic() + LIMIT_S
        while b" is up" not in self.log.read_bytes():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.05)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def cpu_s(self) -> float:
        """Processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory_bytes(self) -> int:
        """Memory that is not a file's."""
        return kept_bytes(self.process.pid)

    def complaints(self) -> list[str]:
        """Lines of its log that no input may cause, each with what follows."""
        lines = self.log.read_text(errors="replace").splitlines()
        bad = [i for i, line in enumerate(lines) if _COMPLAINT.search(line) and not _ALLOWED.search(line)]
        return ["\n".join(lines[i : i + 30]) for i in bad[:3]]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._out.close()


class NodePair:
    """Both, from `with` to its end.

    Attributes:
        nodes: the nameserver, then brokers.
        servers: what `port` and `node` know, as often as a case should choose it.

    Args:
        folder: theirs.
        conf: more settings of the broker.
        python: how to start a node, for brokers with planted faults.
        nameserver_conf: more settings of the nameserver.
    """

    servers = "BBBBN"

    def __init__(
        self,
        folder: Path,
        conf: dict[str, str] | None = None,
        python: Sequence[str] = ("-m", "ledgermq_server"),
        nameserver_conf: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._conf = conf or {}
        self._nameserver_conf = nameserver_conf or {}
        self._start = [sys.executable, "-P", *python]
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        self.nameserver_port, self.broker_port = free_ports(2)
        self.health_ports = {"N": self.nameserver_port + 1, "B": self.broker_port + 3}
        names = {
            "listenPort": self.nameserver_port,
            "healthPort": self.health_ports["N"],
            "bindAddress": "127.0.0.1",
            "kvConfigPath": self.folder / "kv.json",
            **self._nameserver_conf,
        }
        try:
            self.nodes.append(self._node("nameserver", names))
            self.nodes[0].wait_until_up()
            self._start_brokers()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start_brokers(self) -> None:
        self.nodes.append(self._broker(self.broker_port, self._conf))
        self.nodes[1].wait_until_up()

    def _broker(self, port: int, conf: Mapping[str, object], name: str = "broker", store: str = "store") -> Node:
        own = {
            "listenPort": port,
            "healthPort": port + 3,
            "namesrvAddr": f"127.0.0.1:{self.nameserver_port}",
            "storePathRootDir": self.folder / store,
        }
        return self._node(name, {**_BROKER, **own, **conf})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in reversed(self.nodes):
            node.end()

    def _node(self, name: str, conf: Mapping[str, object]) -> Node:
        path = self.folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        kind = "nameserver" if name == "nameserver" else "broker"
        return Node(name, self.folder, [*self._start, kind, "-c", str(path)])

    @property
    def nameserver(self) -> Node:
        return self.nodes[0]

    @property
    def broker(self) -> Node:
        return self.nodes[1]

    def port(self, server: str) -> int:
        """Of `B` or `N`."""
        return self.broker_port if server == "B" else self.nameserver_port

    def node(self, server: str) -> Node:
        return self.broker if server == "B" else self.nameserver

    def dial(self, server: str, limit_s: float) -> socket.socket:
        """A connection to what clients connect to."""
        return dial(self.port(server), limit_s)

    def complaints(self) -> list[str]:
        """Of all logs; and that a node has ended."""
        ended = [f"the {node.kind} has ended" for node in self.nodes if not node.is_alive]
        return ended + [line for node in self.nodes for line in node.complaints()]

    def metric(self, server: str, name: str) -> float:
        """A figure of /metrics, summed over its labels; 0 when it is not there."""
        url = f"http://127.0.0.1:{self.health_ports[server]}/metrics"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            text = answer.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))


class _HalfClosing(ssl.SSLSocket):
    """Says that nothing more comes and reads on: Python's own would read what is behind TLS, as bytes of no record."""

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)


class TlsPair(NodePair):
    """A broker whose port takes TLS, and a nameserver; each connection to the broker begins with a handshake."""

    def __enter__(self) -> Self:
        made = make_identity(self.folder, "fuzz")
        self._conf |= {
            "tls.server.mode": "permissive",
            "tls.server.certPath": str(made.certificate),
            "tls.server.keyPath": str(made.key),
        }
        self._context = ssl.create_default_context(cafile=str(made.certificate))
        self._context.sslsocket_class = _HalfClosing
        super().__enter__()
        return self

    def dial(self, server: str, limit_s: float) -> socket.socket:
        plain = super().dial(server, limit_s)
        return self.client(plain) if server == "B" else plain

    def client(self, plain: socket.socket) -> ssl.SSLSocket:
        """The connection behind its handshake; closed when that fails."""
        try:
            return self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    def client_half(self) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """A client that talks to buffers: what it hears, and what it says."""
        heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
        return self._context.wrap_bio(heard, said, server_hostname="127.0.0.1"), heard, said


class Group(NodePair):
    """A nameserver and three brokers in Raft mode that have a leader; B is the one that leads, F one that follows."""

    servers = "BBBBBFN"

    def __init__(
        self,
        folder: Path,
        conf: dict[str, str] | None = None,
        python: Sequence[str] = ("-m", "ledgermq_server"),
        nameserver_conf: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, conf, python, nameserver_conf)
        self.ports: list[int] = []
        self._leader = 0

    def _start_brokers(self) -> None:
        self.ports = free_ports(3)
        peers = ";".join(f"n{number}-127.0.0.1:{self.peers_port(number)}" for number in range(3))
        group = {"enableDLegerCommitLog": "true", "dLegerGroup": "g", "dLegerPeers": peers}
        group["dLegerPeerSecretFile"] = str(write_peer_secret(self.folder))
        for number, port in enumerate(self.ports):
            conf = {**group, "dLegerSelfId": f"n{number}", **self._conf}
            self.nodes.append(self._broker(port, conf, f"broker-{number}", f"store-{number}"))
        for node in self.nodes[1:]:
            node.wait_until_up()
        self.find_leader(LIMIT_S)

    def peers_port(self, number: int) -> int:
        """Where a broker hears the others."""
        return self.ports[number] + 2

    def find_leader(self, limit_s: float) -> None:
        """Look which broker takes messages now; `B` is this one from now on.

        Raises:
            AssertionError: none does within the limit.
        """
        deadline = time.monotonic() + limit_s
        while True:
            for number, port in enumerate(self.ports):
                self.health_ports |= {"B": port + 3, "F": self.ports[number - 1] + 3}
                if self.metric("B", "ledgermq_writable") == 1:
                    self._leader, self.broker_port = number, port
                    return
            assert time.monotonic() < deadline, f"no broker leads within {limit_s:g} s: {self.complaints()}"
            time.sleep(0.05)

    @property
    def broker(self) -> Node:
        return self.nodes[1 + self._leader]

    def port(self, server: str) -> int:
        return self.ports[self._leader - 1] if server == "F" else super().port(server)

    def node(self, server: str) -> Node:
        return self.nodes[1 + (self._leader - 1) % 3] if server == "F" else super().node(server)


def write_peer_secret(folder: Path) -> Path:
    """A file with `PEER_SECRET`, for `dLegerPeerSecretFile`."""
    path = folder / "peer-secret"
    path.write_bytes(PEER_SECRET)
    path.chmod(0o600)
    return path


def dial(port: int, limit_s: float) -> socket.socket:
    """A connection to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port), limit_s)
