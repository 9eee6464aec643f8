"""Brokers for tests, the Java one and ours, on a store directory that they take turns with.

Both read the same properties file: the same directory, ports, file sizes. Neither needs a nameserver here.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.java_store.wire import Wire
from tests.jvm import NO_TLS, QUIET, SMALL_JVM
from tests.limits import STRANGER_WAIT_S
from tests.ports import free_ports

# Small files, so that a few hundred messages fill several of each kind.
SMALL = {
    "mappedFileSizeCommitLog": 131072,
    "mappedFileSizeConsumeQueue": 1200,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
    "mappedFileSizeTimerLog": 1048576,
    "maxMessageSize": 40000,
    "flushConsumerOffsetInterval": 500,
    "transactionCheckInterval": 600000,
    "reviveQueueNum": 1,
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "brokerClusterName": "DefaultCluster",
    "autoCreateTopicEnable": "false",
    "transactionMetricFlushInterval": QUIET["transactionMetricFlushInterval"],
}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until it holds; fails the test with `what` otherwise."""
    deadline = time.monotonic() + STRANGER_WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {STRANGER_WAIT_S:g} s: {what}")
        time.sleep(0.1)


class Seat:
    """One broker's place: a home, a store directory, a port, its settings; now and then a process sits there."""

    def __init__(self, home: Path, port: int, jars: Path | None, conf: Mapping[str, object]) -> None:
        self.home = home
        self.port = port
        self.store = home / "store"
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self.who = "nobody"
        home.mkdir(parents=True, exist_ok=True)
        own = {"listenPort": port, "haListenPort": port + 1, "storePathRootDir": self.store, "brokerName": "broker-a"}
        lines = [f"{key}={value}" for key, value in {**SMALL, **own, **conf}.items()]
        self.conf = home / "broker.conf"
        self.conf.write_text("\n".join(lines) + "\n")

    def start(self, who: str) -> None:
        """Start `java` or `ours`; returns at once."""
        assert self._process is None
        self.who = who
        argv = (
            self._java()
            if who == "java"
            else [sys.executable, "-P", "-m", "ledgermq_server", "broker", "-c", str(self.conf)]
        )
        with (self.home / f"console-{who}.log").open("ab") as out:
            self._process = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def is_writable(self) -> bool:
        """Whether it stores messages itself, as a master or as the leader; a follower of ours passes them on."""
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(
                f"the {self.who} broker ended with {self._process.returncode} during start:\n{self.complaint()}"
            )
        try:
            with Wire(self.port, 5) as wire:
                answer = wire.ask(17, READY_TOPIC)
                sent = wire.ask(310, READY_SEND, b"ready") if answer.code == 0 else answer
                # a message's id begins with the address of who stored it: four bytes, and four of its port
                return sent.code == 0 and int(sent.fields["msgId"][8:16], 16) == self.port
        except OSError:
            return False

    def await_writable(self) -> None:
        """Return when it takes messages."""
        wait_until(self.is_writable, f"the {self.who} broker takes messages\n{self.complaint()}")

    def send(self, how: signal.Signals) -> None:
        """Send a signal, without waiting."""
        if self._process is not None:
            self._process.send_signal(how)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL)

    def complaint(self) -> str:
        """The end of what the process printed."""
        log = self.home / f"console-{self.who}.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STRANGER_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STRANGER_WAIT_S)
            pytest.fail(f"the {self.who} broker did not end within {STRANGER_WAIT_S:g} s of {how.name}")
        finally:
            self._process = None

    def _java(self) -> list[str]:
        assert self._jars is not None
        home = self.home / "java"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        places = [f"-Drocketmq.home.dir={home}", f"-Duser.home={home}", "-cp", f"{self._jars}/*"]
        return ["java", *SMALL_JVM, NO_TLS, *places, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.conf)]


class Group:
    """Three seats of one Raft group, whichever kind of broker sits there."""

    def __init__(self, home: Path, jars: Path | None) -> None:
        *ports, namesrv = free_ports(4)
        self._namesrv = namesrv
        self._home = home
        self._nameserver: subprocess.Popen[bytes] | None = None
        peers = ";".join(f"n{number}-127.0.0.1:{port + 2}" for number, port in enumerate(ports))
        raft = {"enableDLegerCommitLog": "true", "dLegerGroup": "broker-a", "dLegerPeers": peers}
        raft |= {"namesrvAddr": f"127.0.0.1:{namesrv}", "registerNameServerPeriod": "10000"}
        self.seats = [
            Seat(home / f"n{number}", port, jars, {**raft, "dLegerSelfId": f"n{number}"})
            for number, port in enumerate(ports)
        ]

    def start(self, who: str) -> None:
        """Start three of a kind; returns at once. Java's followers learn from a nameserver whose tables to copy."""
        if self._nameserver is None:
            argv = [sys.executable, "-P", "-m", "ledgermq_server", "nameserver", "--set", f"listenPort={self._namesrv}"]
            with (self._home / "nameserver.log").open("wb") as out:
                self._nameserver = subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        for seat in self.seats:
            seat.start(who)

    def await_leader(self) -> Seat:
        """The seat that takes messages, as soon as there is one."""
        found: list[Seat] = []

        def has_leader() -> bool:
            found.extend(seat for seat in self.seats if seat.is_writable())
            return bool(found)

        wait_until(has_leader, "one of three brokers takes messages")
        return found[-1]

    def stop(self) -> None:
        """SIGTERM to all at once, and wait for the ends."""
        for seat in self.seats:
            seat.send(signal.SIGTERM)
        for seat in self.seats:
            seat.stop()

    def kill(self) -> None:
        """SIGKILL to all."""
        for seat in self.seats:
            seat.kill()

    def close(self) -> None:
        """End whatever still runs."""
        self.kill()
        if self._nameserver is not None:
            self._nameserver.kill()
            self._nameserver.wait(STRANGER_WAIT_S)


READY = "JavaStoreReady"
READY_TOPIC = {
    "topic": READY,
    "defaultTopic": "TBW102",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
READY_SEND = {
    "a": "JavaStoreProducer",
    "b": READY,
    "c": "TBW102",
    "d": 4,
    "e": 0,
    "f": 0,
    "g": 1,
    "h": 0,
    "i": "WAIT\x01true\x02",
    "j": 0,
    "k": "false",
    "m": "false",
    "n": "broker-a",
}
