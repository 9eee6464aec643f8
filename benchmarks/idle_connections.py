"""What do 10,000 idle clients cost a broker? Each connects, and beats its heart as RocketMQ's clients do.

    python -m benchmarks.idle_connections [--connections N] [--rounds N]

One line of JSON: the broker's memory before and after, in all and per connection; its processor time for a round of
heartbeats (clients send one every 30 s); and how long a client that asks for something meanwhile waits at most.
Buffers of the kernel are not in it.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence

import orjson

from benchmarks.node_process import Pair, allow_open_files, connect, pair
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import RESPONSE_FLAG, Command
from ledgermq.remoting.codec.frame import FrameParser, encode

SPARE_FILES = 500
CLIENTS_PER_GROUP = 20
TOPIC = "Idle"
BOUND_MB = 300


class Client:
    """One connection, idle but for its heartbeats."""

    def __init__(self, address: str, number: int) -> None:
        self._socket = connect(address, number)
        self._parser = FrameParser()
        self._opaque = 0
        self._beat = orjson.dumps(heartbeat(number))

    def beat(self) -> None:
        """Send a heartbeat, without waiting for the answer."""
        self.send(Command(RequestCode.HEART_BEAT, body=self._beat))

    def send(self, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        self._socket.sendall(encode(command))

    def answer(self) -> Command:
        """Return the next answer; requests of the broker are ignored."""
        while True:
            data = self._socket.recv(1 << 16)
            if not data:
                raise SystemExit("idle_connections: the broker closed a connection")
            for command in self._parser.feed(data):
                if command.flag & RESPONSE_FLAG:
                    return command

    def close(self) -> None:
        self._socket.close()


def heartbeat(number: int) -> dict[str, object]:
    """Return the heartbeat of a push consumer, as JSON with RocketMQ's names."""
    group = f"idle-{number // CLIENTS_PER_GROUP}"
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": 1,
        "tagsSet": [],
        "topic": TOPIC,
    }
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    producer = {"groupName": "CLIENT_INNER_PRODUCER"}
    return {"clientID": f"10.0.0.1@{number}", "consumerDataSet": [consumer], "producerDataSet": [producer]}


def beat_all(clients: Sequence[Client], probe: Client) -> float:
    """Send a heartbeat from each client, in hundreds; return the longest wait (s) of the probe between them."""
    longest = 0.0
    for some in parts(clients, 100):
        for client in some:
            client.beat()
        began = time.perf_counter()
        probe.send(Command(RequestCode.GET_MAX_OFFSET, ext={"topic": "TBW102", "queueId": "0"}))
        probe.answer()
        longest = max(longest, time.perf_counter() - began)
        for client in some:
            client.answer()
    return longest


def parts(clients: Sequence[Client], size: int) -> Iterator[Sequence[Client]]:
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def measure(broker: Pair, count: int, rounds: int) -> dict[str, object]:
    """The figures."""
    process = broker.broker_process
    warm = [*opened(broker.broker, 0, min(200, count))]  # the first clients also make what all share
    before = {what: process.memory_kb(what) for what in ("VmRSS", "RssAnon")}
    clients = [*warm, *opened(broker.broker, len(warm), count)]
    probe = Client(broker.broker, count)
    cpu, waits = process.cpu_s(), [beat_all(clients, probe) for _ in range(rounds)]
    cpu = process.cpu_s() - cpu
    after = {what: process.memory_kb(what) for what in before}
    grown = {what: after[what] - before[what] for what in before}
    for client in [*clients, probe]:
        client.close()
    return {
        "connections": count,
        "rss_before_mb": round(before["VmRSS"] / 1024, 1),
        "rss_after_mb": round(after["VmRSS"] / 1024, 1),
        "rss_growth_mb": round(grown["VmRSS"] / 1024, 1),
        "anonymous_growth_mb": round(grown["RssAnon"] / 1024, 1),
        "kb_per_connection": round(grown["VmRSS"] / max(1, count - len(warm)), 2),
        "cpu_s_per_round_of_heartbeats": round(cpu / rounds, 3),
        "longest_wait_beside_ms": round(max(waits) * 1000, 1),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load_average": os.getloadavg()},
    }


def opened(address: str, start: int, count: int) -> Iterator[Client]:
    """Yield clients, each after the answer to its first heartbeat."""
    for number in range(start, count):
        client = Client(address, number)
        client.beat()
        client.answer()
        yield client


def main() -> int:
    """Measure; 1 when the memory is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000, metavar="N", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of heartbeats (%(default)s)")
    arguments = parser.parse_args()
    allow_open_files(arguments.connections + SPARE_FILES)
    with pair(f"maxConnections={arguments.connections + SPARE_FILES}") as started:
        found = measure(started, arguments.connections, arguments.rounds)
    print(json.dumps(found))
    growth = found["rss_growth_mb"]
    assert isinstance(growth, float)
    return 0 if growth < BOUND_MB else 1


if __name__ == "__main__":
    sys.exit(main())
