"""How much processor time does a follower need to pass a send on, and its answer back?

    python -m benchmarks.client_failover.pass_on [--rounds 5] [--profile]
    python -m benchmarks.client_failover.pass_on --round-trips

The follower's own code with everything but sockets: frames of 64 sends at a time come from a client, the link's frames
are answered, the answers go back to the client. Each round is 40,000 sends of 1 KiB; the median is printed.

With `--round-trips`: how much longer does a send through a follower take than one to the leader, on a cluster of three
processes? They are sent one at a time and in turns, with a request of 1 KiB that a broker answers at once, whose time
is one round trip. Medians are printed of 1,000 of each without a pause, where the nodes still work on the request
before, and of 300 of each at 100 requests a second, 33 of each kind, where each request finds the nodes at rest. Then
64 at a time are sent to the leader and through the follower in turns: the processor time of a send at the follower, and
at all three, and how much more it is through the follower.
"""

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.passing.claims import Claims
from broker.passing.leader_link import LeaderLink
from broker.passing.pass_on import PassOn
from broker.passing.runs import SENDS
from cli.cluster import control
from ledgermq.client import Admin
from ledgermq.remoting.client import NoRequests, RemotingClient
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.frame import FrameParser, encode, encode_response_head
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.limits import Limits
from ledgermq.remoting.proof import make_nonce
from ledgermq.testing.cluster import start_cluster, stop_cluster

TURN = 64
TURNS = 625
CPU_ROUNDS, CPU_TURNS = 7, 300
SEND = {
    "a": "producers",
    "b": "ORDERS",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "0",
    "g": "1764000000000",
    "h": "0",
    "i": f"UNIQ_KEY\x01{'7F' * 16}\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "l": "0",
    "m": "false",
}
ANSWER = {
    "msgId": "7F00000100002A9F0000000000000000",
    "queueId": "3",
    "queueOffset": "1234567",
    "transactionId": "A" * 32,
}


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.9", 4000), "sockname": ("10.0.0.1", 10911)})
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Follower(NoRequests):
    pass_on: PassOn

    def on_request(self, connection: Connection, command: Command) -> None:
        self.pass_on.take(connection, command)


def connected(handler: NoRequests) -> tuple[Connection, Transport]:
    connection, transport = (
        Connection(handler, Limits(), lambda _: None, lambda _connection, _reason: None),
        Transport(),
    )
    connection.connection_made(transport)
    return connection, transport


@contextlib.contextmanager
def measured(spent: list[float], profile: cProfile.Profile | None) -> Iterator[None]:
    """Add the processor time of the block to `spent`, in seconds."""
    if profile:
        profile.enable()
    began = time.process_time()
    yield
    spent.append(time.process_time() - began)
    if profile:
        profile.disable()


def answer_to(passed: Command) -> bytes:
    """The leader's answer to a send, or to a run of sends."""
    body = b""
    if passed.code == SENDS:
        sends = FrameParser().feed(bytes(passed.body))
        body = b"".join(encode_response_head(send.opaque, 0, ANSWER, None, 0) for send in sends)
    return encode_response_head(passed.opaque, 0, None if body else ANSWER, None, len(body)) + body


async def passed_on(profile: cProfile.Profile | None) -> float:
    """Microseconds of processor time for each send."""
    follower = Follower()
    client, to_client = connected(follower)
    link, to_leader = connected(NoRequests())
    loop, unused, store = asyncio.get_running_loop(), cast(Any, None), cast(Any, SimpleNamespace(dispatched_offset=0))
    follower.pass_on = PassOn(
        unused, unused, unused, unused, unused, loop, store, cast(Any, SimpleNamespace(answer_stored=None))
    )
    secret = (b"s" * 32,)
    claims = Claims(secret, make_nonce(), make_nonce())
    follower.pass_on._link = LeaderLink(
        "10.0.0.2:10911", link, claims, Limits(), generation=1, is_bound=True, takes_runs=True
    )
    frames = [
        encode(Command(RequestCode.SEND_MESSAGE_V2, 1000 + number, 0, dict(SEND), b"x" * 1024))
        for number in range(TURN)
    ]
    received = b"".join(frames)
    spent: list[float] = []
    for _ in range(TURNS):
        with measured(spent, profile):
            client.data_received(received)
            await asyncio.sleep(0)
        passed = FrameParser().feed(b"".join(to_leader.written))
        to_leader.written.clear()
        answers = b"".join(map(answer_to, passed))
        with measured(spent, profile):
            link.data_received(answers)
            await asyncio.sleep(0)
        to_client.written.clear()
    return 1e6 * sum(spent) / (TURN * TURNS)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def print_processor_time(client: RemotingClient, leader: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    follower = next(node for node in nodes if node["role"] == "slave")
    spent: dict[str, list[tuple[float, float]]] = {leader["address"]: [], follower["address"]: []}
    for _ in range(CPU_ROUNDS):
        for address, times in spent.items():
            before = [cpu_seconds(node["pid"]) for node in (follower, *nodes)]
            for _ in range(CPU_TURNS):
                await asyncio.gather(*(client.request(address, a_send()) for _ in range(TURN)))
            own, *all_nodes = (
                cpu_seconds(node["pid"]) - was for node, was in zip((follower, *nodes), before, strict=True)
            )
            times.append((own, sum(all_nodes)))
    sends = TURN * CPU_TURNS
    direct, passed = (
        [1e6 * statistics.median(seconds) / sends for seconds in zip(*times, strict=True)] for times in spent.values()
    )
    for who, to_leader, through in zip(("the follower", "three nodes"), direct, passed, strict=True):
        print(
            f"{who}: {to_leader:.1f} µs for a send to the leader, {through:.1f} through the follower, "
            f"{through - to_leader:.1f} more ({through / to_leader:.2f} times)"
        )


def a_send() -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, ext=dict(SEND), body=b"x" * 1024)


async def latencies(
    client: RemotingClient, asked: dict[str, tuple[str, Command]], rounds: int, pause_s: float
) -> dict[str, float]:
    """Median time of each kind of request in ms; `pause_s` seconds before each one."""
    took: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds):
        for name, (address, command) in asked.items():
            if pause_s:
                await asyncio.sleep(pause_s)
            began = time.perf_counter()
            answer = await client.request(address, command)
            took[name].append(time.perf_counter() - began)
            if answer.code:
                raise SystemExit(f"{name}: {answer.code} {answer.remark}")
    return {name: 1000 * statistics.median(times) for name, times in took.items()}


async def print_round_trips(namesrv: str, nodes: list[dict[str, Any]]) -> None:
    leader = next(node for node in nodes if node["role"] == "master")
    follower = next(node for node in nodes if node["role"] == "slave")
    async with Admin(namesrv) as admin:
        await admin.create_topic("ORDERS", queue_count=4)
    client = RemotingClient()
    place = {"topic": "ORDERS", "queueId": "3"}
    asked: dict[str, tuple[str, Command]] = {
        "to the leader": (leader["address"], a_send()),
        "through a follower": (follower["address"], a_send()),
        "one round trip": (leader["address"], Command(RequestCode.GET_MAX_OFFSET, ext=place, body=b"x" * 1024)),
    }
    for what, rounds, pause_s in ("without a pause", 1000, 0.0), ("100 a second", 300, 0.01):
        took = await latencies(client, asked, rounds, pause_s)
        longer = (took["through a follower"] - took["to the leader"]) / took["one round trip"]
        times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in took.items())
        print(f"{what}: {times}: {longer:.2f} round trips longer")
    await print_processor_time(client, leader, nodes)
    await client.close()


def round_trips() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        up, description = start_cluster(Path(scratch) / "c", "--mode", "raft")
        try:
            nodes = control.ask(Path(scratch) / "c", "status")["nodes"]
            asyncio.run(print_round_trips(description["namesrv"], nodes))
        finally:
            stop_cluster(up)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--round-trips", action="store_true")
    arguments = parser.parse_args()
    if arguments.round_trips:
        round_trips()
        return
    if arguments.profile:
        profile = cProfile.Profile()
        asyncio.run(passed_on(profile))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    found = [asyncio.run(passed_on(None)) for _ in range(arguments.rounds)]
    print(f"{statistics.median(found):.1f} µs a send ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
