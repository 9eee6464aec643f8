"""Nameservers, brokers and tools, RocketMQ's and ours, side by side on this machine; each is a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.jvm import NO_TLS, QUIET, SMALL_JVM, compiled
from tests.limits import STRANGER_WAIT_S
from tests.mqadmin.driver import Driver
from tests.ports import free_ports

Conf = Mapping[str, object]
NOTHING: Conf = {}
CLUSTER = "DefaultCluster"
_SMALL_FILES = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "mappedFileSizeTimerLog": 1 << 20,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "brokerClusterName": CLUSTER,
    "autoCreateTopicEnable": "true",
    "reviveQueueNum": 1,
    "registerNameServerPeriod": 10_000,
}
"""A slave of RocketMQ's learns of another master's HA address when it registers next: every 10 s is the most often."""
_PATIENT_CONTROLLER: Conf = {"controllerElectionTimeout": 2500, "masterSilence": 120_000}
_PATIENT_CONTROLLED: Conf = {"controllerHeartBeatTimeoutMills": 120_000, "clientCloseSocketIfTimeout": "false"}
"""A busy machine elects nobody: a process that gets no processor for seconds is not dead, and a late answer does not
close the connection, which controllers take for a broker's death. A killed process is found by its connection."""


class Node:
    """One process: started, ended, and started again in its folder."""

    def __init__(self, home: Path, port: int, argv: Sequence[str]) -> None:
        self.name = home.name
        self.home = home
        self.port = port
        self._argv = argv
        self._log = home / "console.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns at once."""
        assert self._process is None
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self._log.parent
            )

    def check(self) -> None:
        """Fails the test when the process has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            pytest.fail(f"{self.name} ended with {code}:\n{self.complaint()}")

    def has_said(self, words: str) -> bool:
        """Whether the process has printed that."""
        return self._log.exists() and words in self._log.read_text(errors="replace")

    def complaint(self) -> str:
        """The end of what the process printed."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait for the end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STRANGER_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STRANGER_WAIT_S)
            pytest.fail(f"{self.name} did not end within {STRANGER_WAIT_S:g} s of {how.name}")

    def kill(self) -> None:
        """SIGKILL."""
        self.stop(signal.SIGKILL)


class Street:
    """Where the nodes of one test live, all in one folder.

    Args:
        jars: RocketMQ's, of the newest version.
        mqadmin: runs commands.
    """

    def __init__(self, folder: Path, jars: Path, mqadmin: Driver) -> None:
        self._folder = folder
        self._jars = jars
        self._mqadmin = mqadmin
        self._nodes: list[Node] = []

    def our_nameserver(self, conf: Conf = NOTHING) -> Node:
        """A started nameserver of ours."""
        port = free_ports(1)[0]
        home = self._home(f"our-nameserver-{port}")
        own = {"listenPort": port, "bindAddress": "127.0.0.1", "healthPort": "off", "kvConfigPath": home / "kv.json"}
        return self._started(home, port, _ours("nameserver", home, {**own, **conf}))

    def java_nameserver(self, conf: Conf = NOTHING) -> Node:
        """A started nameserver of RocketMQ's."""
        port = free_ports(1)[0]
        home = self._home(f"java-nameserver-{port}")
        own = {"listenPort": port, "kvConfigPath": home / "kv.json", "configStorePath": home / "store.properties"}
        argv = _java(self._jars, home, "namesrv.NamesrvStartup", {**own, **conf})
        return self._started(home, port, argv)

    def our_broker(self, name: str, namesrv: Node, conf: Conf = NOTHING) -> Node:
        """A started broker of ours."""
        port = int(str(conf.get("listenPort", 0))) or free_ports(1)[0]
        home = self._home(f"our-{name}-{port}")
        return self._started(home, port, _ours("broker", home, _broker(name, port, home, namesrv, conf)))

    def our_raft_group(self, name: str, namesrv: Node, conf: Conf = NOTHING) -> list[Node]:
        """Three started brokers of ours that replicate."""
        return [self.our_broker(name, namesrv, {**conf, **member}) for member in _members(name)]

    def java_broker(self, name: str, namesrv: Node, conf: Conf = NOTHING, jars: Path | None = None) -> Node:
        """A started broker of RocketMQ's."""
        port = int(str(conf.get("listenPort", 0))) or free_ports(1)[0]
        home = self._home(f"java-{name}-{port}")
        conf = _broker(name, port, home, namesrv, {**QUIET, **conf})
        argv = _java(jars or self._jars, home, "broker.BrokerStartup", conf)
        return self._started(home, port, argv)

    def java_raft_group(self, name: str, namesrv: Node) -> list[Node]:
        """Three started brokers of RocketMQ's with DLedger."""
        return [self.java_broker(name, namesrv, member) for member in _members(name)]

    def our_controllers(self) -> list[Node]:
        """Three started controllers of ours."""
        ports = free_ports(3)
        members = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        secret = self._home("controllers") / "secret"
        secret.touch(0o600)
        secret.write_text("c" * 64)
        conf = {"controllerDLegerPeers": members, "controllerSecretFile": secret, "healthPort": "off"}
        conf |= {"controllerStorePath": secret.parent, "controllerQuorumPortOffset": 1, **_PATIENT_CONTROLLER}
        return [
            self._started(home, port, _ours("controller", home, {**conf, "controllerDLegerSelfId": f"n{number}"}))
            for number, port in enumerate(ports)
            if (home := self._home(f"controller-n{number}"))
        ]

    def java_controller(self) -> Node:
        """A started controller of RocketMQ's, alone."""
        port = free_ports(1)[0]
        home = self._home(f"java-controller-{port}")
        conf: dict[str, object] = {"controllerDLegerGroup": "controllers", "controllerDLegerSelfId": "n0"}
        conf |= {"controllerDLegerPeers": f"n0-127.0.0.1:{port}", "controllerStorePath": home / "store"}
        return self._started(home, port, _java(self._jars, home, "controller.ControllerStartup", conf))

    def our_controlled_broker(self, name: str, namesrv: Node, controllers: Sequence[Node]) -> Node:
        """A started broker of ours, whose master is appointed by controllers, and which may be RocketMQ's."""
        conf = {"enableControllerMode": "true", "controllerAddr": ";".join(node.address for node in controllers)}
        conf |= {"haPlainSlaves": "127.0.0.1", "haMasterProtocol": "rocketmq", "slaveReadEnable": "true"}
        return self.our_broker(name, namesrv, {**conf, "controllerHeartBeatTimeoutMills": 120_000})

    def java_controlled_group(
        self, name: str, namesrv: Node, controllers: Sequence[Node], count: int = 3
    ) -> list[Node]:
        """Started brokers of RocketMQ's, whose master is appointed by controllers."""
        conf = {"brokerId": -1, "brokerRole": "SLAVE", "enableControllerMode": "true", "allAckInSyncStateSet": "true"}
        conf |= {"controllerAddr": ";".join(node.address for node in controllers), **_PATIENT_CONTROLLED}
        return [self.java_broker(name, namesrv, conf) for _ in range(count)]

    def proxy(self, namesrv: Node, jars: Path) -> Node:
        """A started 5.x proxy of RocketMQ's in cluster mode; `port` takes gRPC, the next one remoting."""
        port = free_ports(1)[0]
        home = self._home(f"proxy-{port}")
        own: dict[str, object] = {
            "proxyMode": "CLUSTER",
            "rocketMQClusterName": CLUSTER,
            "namesrvAddr": namesrv.address,
        }
        own |= {"grpcServerPort": port, "remotingListenPort": port + 1, "rocketmqMQClientNum": 1}
        (home / "rmq-proxy.json").write_text(json.dumps(own))
        java = _java_command(f"{jars}/*", home)
        argv = [*java, "org.apache.rocketmq.proxy.ProxyStartup", "-pc", f"{home}/rmq-proxy.json"]
        return self._started(home, port, argv)

    def grpc_client(self, proxy: Node, jars: Path, *cases: str) -> str:
        """What `ProxyClient.java` prints of these cases."""
        class_path, main = compiled(Path(__file__).with_name("ProxyClient.java"), f"{jars}/*")
        argv = [*_java_command(class_path, self._home("client")), main, proxy.address, *cases]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=STRANGER_WAIT_S)
        return done.stdout + done.stderr

    def mqadmin(self, namesrv: Node, *words: str) -> str:
        """What RocketMQ's mqadmin prints."""
        return self._mqadmin.ask_until_answered(*words, "-n", namesrv.address)

    def check(self) -> None:
        """Fails the test when a node has ended by itself."""
        for node in self._nodes:
            node.check()

    def close(self) -> None:
        """End everything."""
        for node in reversed(self._nodes):
            node.kill()

    def _home(self, name: str) -> Path:
        home = self._folder / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _started(self, home: Path, port: int, argv: Sequence[str]) -> Node:
        node = Node(home, port, argv)
        self._nodes.append(node)
        node.start()
        return node


def changed(node: Node, conf: Mapping[str, object]) -> None:
    """Change its configuration for its next start."""
    path = node.home / "node.conf"
    kept = [line for line in path.read_text().splitlines() if line.partition("=")[0] not in conf]
    path.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in conf.items())]) + "\n")


def _members(name: str) -> list[dict[str, object]]:
    """What each of three members of a Raft group is told."""
    ports = free_ports(3)
    peers = ";".join(f"n{number}-127.0.0.1:{port + 2}" for number, port in enumerate(ports))
    raft = {"enableDLegerCommitLog": "true", "dLegerGroup": name, "dLegerPeers": peers}
    return [{**raft, "dLegerSelfId": f"n{number}", "listenPort": port} for number, port in enumerate(ports)]


def _broker(name: str, port: int, home: Path, namesrv: Node, conf: Conf) -> dict[str, object]:
    own = {"brokerName": name, "listenPort": port, "haListenPort": port + 1, "storePathRootDir": home / "store"}
    return {**_SMALL_FILES, **own, "namesrvAddr": namesrv.address, **conf}


def _ours(role: str, home: Path, conf: Conf) -> list[str]:
    return [sys.executable, "-P", "-m", "ledgermq_server", role, "-c", str(_written(home, conf))]


def _java(jars: Path, home: Path, main: str, conf: Conf) -> list[str]:
    return [*_java_command(f"{jars}/*", home), NO_TLS, f"org.apache.rocketmq.{main}", "-c", str(_written(home, conf))]


def _java_command(class_path: str, home: Path) -> list[str]:
    (home / "conf").mkdir(exist_ok=True)
    for name in ("rmq.logback.xml", "rmq.proxy.logback.xml", "logback_broker.xml"):  # the second by the name of 4.9
        (home / "conf" / name).write_text('<configuration><root level="OFF"/></configuration>\n')
    places = (f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", f"{home / 'conf'}:{class_path}")
    return ["java", *SMALL_JVM, *places]


def _written(home: Path, conf: Conf) -> Path:
    path = home / "node.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
    return path
