"""How many machine instructions does a message cost the event loop's thread? Steady where clocks are noisy.

    python benchmarks/instructions.py [--work WORK,WORK] [--system NAME=TREE ...]

WORK is one of send, batch, pull; topics-N: single sends to 8 queues of each of N topics, in random order; raft-send,
raft-batch, raft-topics-N: three brokers together; async-send, async-batch: a master and a slave together; sync-...: the
same with answers that wait for the slave. With `-sealed-` (raft-sealed-send) brokers share a secret, so that each frame
between them has a proof. With `-passed-` (raft-passed-send) clients send to the followers, which pass that on.

For each system and workload a process runs whole brokers in one event loop under callgrind (valgrind has to be
installed), sends them requests over sockets of its own, and counts the instructions of that thread while it does.
Other threads (flush, index) are not counted; the work of the kernel neither. The loop's clock is slowed down like the
program, so that what a broker does each second has the share that it has at full speed. One line of JSON for each
system, ratios to the first system in it.

TREE is a checkout with its own `.venv` (`make install`); without systems, this one. A checkout from before `node/`
needs a PYTHONPATH with modules `node.broker_assembly` and `node.config` that import the two names from their places.
`--profile` prints the functions with most time of a run without valgrind instead.
"""

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

SLOWER = 50.0
"""Callgrind makes Python about this many times slower."""

TOPIC = "INSTRUCTIONS"
QUEUES = 8
CONNECTIONS = 4
TURN_SENDS = 64
TURN_BATCHES = 2
BATCH = 32
PULL = 32
BODY = bytes(range(256)) * 4
_SEND_BATCH, _SEND, _PULL, _CREATE_TOPIC = 320, 310, 11, 17
_LENGTHS = struct.Struct(">ii")


class SlowLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be slowed down."""

    def __init__(self) -> None:
        super().__init__()
        self._slower = 1.0
        self._real = self._shown = time.monotonic()

    def slow_down(self, factor: float) -> None:
        """Let the clock go `factor` times slower than the real one from now on."""
        self._shown, self._real, self._slower = self.time(), time.monotonic(), factor

    def time(self) -> float:
        """The clock of timers, seconds."""
        return self._shown + (time.monotonic() - self._real) / self._slower


class Client:
    """A connection to a broker in the same loop."""

    def __init__(self, address: tuple[str, int], loop: SlowLoop) -> None:
        self._socket = socket.create_connection(address)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        self._socket.setblocking(False)
        self._loop = loop
        self._rest = b""
        self._missing = 0
        self._answered = asyncio.Event()
        self.first_answer: dict[str, Any] = {}
        loop.add_reader(self._socket.fileno(), self._read)

    def ask(self, frames: list[bytes]) -> Awaitable[Any]:
        """Send requests; what is returned ends when all are answered."""
        self._missing += len(frames)
        self._answered.clear()
        self._socket.sendall(b"".join(frames))
        return self._answered.wait()

    def _read(self) -> None:
        data, at = self._rest + self._socket.recv(1 << 20), 0
        while len(data) - at >= _LENGTHS.size:
            length, header = _LENGTHS.unpack_from(data, at)
            if len(data) - at < 4 + length:
                break
            if not self.first_answer:
                self.first_answer = json.loads(data[at + 8 : at + 8 + header])
            at += 4 + length
            self._missing -= 1
        self._rest = data[at:]
        if not self._missing:
            self._answered.set()

    def close(self) -> None:
        """End the connection."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


def frame(code: int, opaque: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """One request with a JSON header."""
    command = {"code": code, "flag": 0, "language": "GO", "version": 473, "opaque": opaque, "extFields": fields}
    header = json.dumps(command, separators=(",", ":")).encode()
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def send_frame(opaque: int, queue: int, *, topic: int = 0, batch: bool = False) -> bytes:
    """SEND_MESSAGE_V2 with one message of 1 KiB, or SEND_BATCH_MESSAGE with 32."""
    names = {"a": "PEERS_LOAD_P", "b": topic_name(topic), "c": "TBW102", "d": "4", "e": str(queue), "f": "0"}
    names |= {"g": str(1_795_255_530_785 + opaque), "h": "0", "j": "0", "k": "false", "m": "false", "n": "broker-a"}
    if not batch:
        return frame(_SEND, opaque, names | {"i": properties(opaque)}, BODY)
    body = b"".join(_message(properties(opaque * BATCH + i).encode()) for i in range(BATCH))
    return frame(_SEND_BATCH, opaque, names | {"i": "", "m": "true"}, body)


def properties(number: int) -> str:
    """The properties that a client gives each message."""
    return f"UNIQ_KEY\x01{0x7F000001 << 96 | number:032X}\x02WAIT\x01true\x02"


def _message(encoded: bytes) -> bytes:
    inner = struct.pack(">iiii", 0, 0, 0, len(BODY)) + BODY + struct.pack(">h", len(encoded)) + encoded
    return struct.pack(">i", 4 + len(inner)) + inner


def pull_frame(opaque: int, queue: int, offset: int) -> bytes:
    """PULL_MESSAGE for 32 messages, as a client without tags asks."""
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset)}
    fields |= {"maxMsgNums": str(PULL), "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000"}
    fields |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
    return frame(_PULL, opaque, fields)


def topic_name(number: int) -> str:
    """The name of one of many topics."""
    return TOPIC if number == 0 else f"{TOPIC}-{number}"


def topic_frame(number: int) -> bytes:
    """UPDATE_AND_CREATE_TOPIC."""
    fields = {"topic": topic_name(number), "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "topicSysFlag": "0", "order": "false"}
    return frame(_CREATE_TOPIC, number, fields)


Turn = Callable[[int], Awaitable[int]]
"""Do the work of one turn of that number; returns how many messages it was."""


def _sends(clients: list[Client], *, batch: bool) -> Turn:
    count = TURN_BATCHES if batch else TURN_SENDS
    frames = [send_frame(i, i % QUEUES, batch=batch) for i in range(CONNECTIONS * count)]
    blobs = [frames[n * count : (n + 1) * count] for n in range(CONNECTIONS)]

    async def turn(_: int) -> int:
        for answered in [client.ask(frames) for client, frames in zip(clients, blobs, strict=True)]:
            await answered
        return CONNECTIONS * count * (BATCH if batch else 1)

    return turn


async def _many_topics(clients: list[Client], count: int) -> Turn:
    """Make the topics and all their queues; then send to queues in random order."""
    for first in range(1, count, TURN_SENDS):
        await clients[0].ask([topic_frame(number) for number in range(first, min(first + TURN_SENDS, count))])
    frames = [send_frame(1000 + queue, queue, topic=topic) for topic in range(count) for queue in range(QUEUES)]
    choose = random.Random(count).choice

    async def turn(number: int) -> int:
        waits = []
        for n, client in enumerate(clients):
            first = (number * CONNECTIONS + n) * TURN_SENDS
            chosen = frames[first : first + TURN_SENDS]  # each queue once
            waits.append(client.ask(chosen + [choose(frames) for _ in range(TURN_SENDS - len(chosen))]))
        for answered in waits:
            await answered
        return CONNECTIONS * TURN_SENDS

    return turn


def _pulls(clients: list[Client]) -> Turn:
    async def turn(number: int) -> int:
        waits = []
        for n, client in enumerate(clients):
            queues = range(n, QUEUES, CONNECTIONS)
            waits.append(client.ask([pull_frame(queue, queue, number * PULL) for queue in queues]))
        for answered in waits:
            await answered
        return QUEUES * PULL

    return turn


# ---- the process that is measured


async def _measured(work: str, turns: int, directory: str, measuring: Callable[[], Any]) -> int:
    """Start brokers, do the work; return the number of messages in the measured part."""
    from node.broker_assembly import Broker
    from node.config import load_broker_config

    every = _settings(directory, work.partition("-")[0], is_sealed="-sealed-" in work)
    nodes = [Broker(load_broker_config(None, settings)) for settings in every]
    for node in nodes:
        await node.start()
    address = await _writable(nodes)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SlowLoop), "made by this program"
    addresses = [address]
    if "-passed-" in work:
        addresses = [other for node in nodes if (other := _parted(node.address)) != address]
    clients = [Client(addresses[n % len(addresses)], loop) for n in range(CONNECTIONS)]
    turn, warm_up = _sends(clients, batch=work.endswith("batch")), 1 + turns // 4
    if work == "pull":
        fill, turn = _sends(clients, batch=True), _pulls(clients)
        for number in range((warm_up + turns) * QUEUES * PULL // (CONNECTIONS * TURN_BATCHES * BATCH)):
            await fill(number)
    elif "topics-" in work:
        count = int(work.rpartition("-")[2])
        turn = await _many_topics(clients, count)
        warm_up += -(-count * QUEUES // (CONNECTIONS * TURN_SENDS))
    for number in range(warm_up):
        await turn(number)
    for client in clients:
        if client.first_answer["code"] != 0:
            sys.exit(f"refused: {client.first_answer}")
    with measuring():
        return sum([await turn(warm_up + number) for number in range(turns)])


def _settings(directory: str, mode: str, *, is_sealed: bool) -> list[list[str]]:
    from tests.ports import free_ports

    count = {"raft": 3, "sync": 2, "async": 2}.get(mode, 1)
    ports = free_ports(2 * count)
    own = ["bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", "brokerIP2=127.0.0.1", "namesrvAddr=127.0.0.1:9"]
    own += ["flushDiskType=ASYNC_FLUSH", "mappedFileSizeCommitLog=1073741824", "brokerName=broker-a"]
    every = [
        [*own, f"listenPort={ports[i]}", f"storePathRootDir={directory}/{i}", "diskMaxUsedSpaceRatio=100"]
        for i in range(count)
    ]
    if mode == "raft":
        peers = ";".join(f"n{i}-127.0.0.1:{ports[count + i]}" for i in range(count))
        for i, settings in enumerate(every):
            settings += ["enableDLegerCommitLog=true", "dLegerGroup=broker-a", f"dLegerPeers={peers}"]
            settings.append(f"dLegerSelfId=n{i}")
    elif count > 1:
        every[0] += [f"brokerRole={mode.upper()}_MASTER", f"haListenPort={ports[2]}"]
        every[1] += ["brokerRole=SLAVE", "brokerId=1", f"haMasterAddress=127.0.0.1:{ports[2]}"]
    if is_sealed:
        secret = Path(directory, "secret")
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        for settings in every:
            settings.append(f"{'dLegerPeerSecretFile' if mode == 'raft' else 'haPeerSecretFile'}={secret}")
    return every


async def _writable(nodes: list[Any]) -> tuple[str, int]:
    """Make the topic at the node that takes writes, and return where that is; followers would pass the request on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SlowLoop), "made by this program"
    while not (writable := [node for node in nodes if node.parts.context.role.writable]):
        await asyncio.sleep(0.1)
    address = _parted(writable[0].address)
    client = Client(address, loop)
    await client.ask([topic_frame(0)])
    client.close()
    return address


def _parted(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def _counted(loop: SlowLoop) -> Iterator[None]:
    """Count instructions inside the block, with the loop's clock slowed down."""
    _callgrind("on")
    loop.slow_down(SLOWER)
    yield
    _callgrind("off")


def _callgrind(switch: str) -> None:
    control = subprocess.Popen(["callgrind_control", "-i", switch, str(os.getpid())], stdout=subprocess.DEVNULL)
    while control.poll() is None:  # valgrind looks for commands while the program runs
        time.sleep(0.001)


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    profile = cProfile.Profile()
    with profile:
        yield
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)


def _inside(work: str, turns: int, *, profile: bool) -> None:
    loop = SlowLoop()
    with tempfile.TemporaryDirectory(prefix="instructions-") as directory:
        measuring = _profiled if profile else lambda: _counted(loop)
        count = loop.run_until_complete(_measured(work, turns, directory, measuring))
    print(count, flush=True)
    os._exit(0)  # the brokers are not closed


# ---- the program


def _instructions(tree: str, work: str, turns: int) -> float:
    """Instructions of the loop's thread a message."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (tree, os.environ.get("PYTHONPATH")))))
    with tempfile.TemporaryDirectory(prefix="instructions-") as directory:
        out = f"{directory}/out"
        tool = ["valgrind", "--tool=callgrind", "-q", "--instr-atstart=no", "--separate-threads=yes"]
        inside = [f"{tree}/.venv/bin/python", __file__, "--inside", work, "--turns", str(turns)]
        words = [*tool, f"--callgrind-out-file={out}", *inside]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        totals = [line for line in Path(f"{out}-01").read_text().splitlines() if line.startswith("totals:")]
        return sum(int(line.split()[1]) for line in totals) / int(done.stdout.split()[-1])


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="instructions per message")
    parser.add_argument("--work", default="send,batch,pull,raft-send,raft-batch")
    parser.add_argument("--system", action="append", metavar="NAME=TREE")
    parser.add_argument("--turns", type=int, default=40, help="measured turns; a turn is 256 messages")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside or options.profile:
        _inside(options.inside or options.work, options.turns, profile=options.profile)
    base: dict[str, float] = {}
    for system in options.system or [f"this={Path(__file__).parent.parent}"]:
        name, _, tree = system.partition("=")
        figures: dict[str, Any] = {"system": name}
        for work in options.work.split(","):
            figures[work] = per_message = round(_instructions(tree, work, options.turns))
            figures[f"{work}_ratio"] = round(per_message / base.setdefault(work, per_message), 3)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
