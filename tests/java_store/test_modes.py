"""Directories of every mode of the Java broker: master and slave, asynchronous, synchronous and auto-switch.

Each broker's directory, slaves' too, goes on as a broker of ours that stands alone, and then as a Java one again.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.java_store.conftest import IS_LONG
from tests.java_store.nodes import SMALL, Seat, wait_until
from tests.java_store.relay import Relay
from tests.java_store.wire import Wire
from tests.jvm import PEERS
from tests.ports import free_ports

pytestmark = pytest.mark.skipif(not IS_LONG, reason="make java-store runs these")


class Peers:
    """A Java cluster that `benchmarks/peers/rocketmq` keeps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_up = False

    def up(self, mode: str) -> list[dict[str, str]]:
        """Start it; the brokers' names, addresses and roles."""
        sizes = [word for key, value in SMALL.items() for word in ("--conf", f"{key}={value}")]
        ports = free_ports(20)
        base = next(port for port in ports if all(port + 10 * number in ports for number in range(7)))
        self._is_up = True
        said = self._run("up", mode, "--base-port", str(base), "--heap", "256m", *sizes)
        return [node for node in json.loads(said)["nodes"] if node["kind"] == "broker"]

    def down(self) -> None:
        """Stop everything, and keep the directories."""
        if self._is_up:
            self._is_up = False
            self._run("down", "--keep")

    def _run(self, *words: str) -> str:
        argv = [sys.executable, str(PEERS / "rocketmq"), *words, "--dir", str(self._folder)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def peers(tmp_path: Path, jars: Path) -> Iterator[Peers]:
    cluster = Peers(tmp_path / "peers")
    yield cluster
    cluster.down()


def max_offset(port: int) -> int:
    """End of a broker's log."""
    with Wire(port) as wire:
        table: dict[str, str] = wire.must(28).json()["table"]
    return int(table["commitLogMaxOffset"])


def await_log(seat: Seat, master: Seat) -> None:
    """Return when a slave has all of its master's log."""
    wait_until(lambda: max_offset(seat.port) >= max_offset(master.port), f"{seat.home.name} has the whole log")


@pytest.mark.parametrize("mode", ["single-sync-flush", "async", "sync", "controller"])
def test_every_directory_of_a_java_cluster_goes_on_as_ours_and_back(
    peers: Peers, tmp_path: Path, jars: Path, mode: str
) -> None:
    nodes = peers.up(mode)
    ports = {node["name"]: int(node["address"].rpartition(":")[2]) for node in nodes}
    master = next(node["name"] for node in nodes if node["role"] == "master")
    relay = Relay()
    seats = [Seat(tmp_path / "peers" / name, port, jars, {}) for name, port in ports.items()]
    leading = next(seat for seat in seats if seat.home.name == master)
    relay.turn("java", leading)
    for seat in seats:
        await_log(seat, leading)
        relay.await_copy(seat)
    peers.down()
    for seat in seats:
        for who in ("ours", "java"):
            seat.start(who)
            seat.await_writable()
            relay.check(who, seat)
            seat.stop()
