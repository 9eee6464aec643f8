"""The attacks, each with what it may cost. `MIB` of memory and seconds of processor time are what a test asserts."""

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dledger.core.messages import InstallRequest
from dledger.peers import wire
from ledgermq.remoting.codec.codes import ResponseCode
from tests.attacks.innocent import TOPIC
from tests.attacks.large_requests import ask_at_once, ask_for_much, flood_offsets, flood_one_way, make_topic
from tests.attacks.scene import Scene, send
from tests.fuzz.cost import REQUEST_CPU_S, limit_cpu_s
from tests.fuzz.frames import by_server
from tests.fuzz.nodes import LIMIT_S

MIB: Final = 1 << 20
_BIG: Final = 4 * MIB - 1000
_UNKNOWN: Final = 9998
_TAGGED_QUEUES: Final = 8
_NUMBERS: Final = ("2147483647", "-2147483648", "9223372036854775807")
_TEXTS: Final = ("||" * 40_000, "a" * 100_000, "{" * 60_000, "( " * 8000, "1 " * 40_000, "%" * 50_000)


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack and its bounds.

    Attributes:
        what: one line, for the table.
        run: does it.
        bound: what limits it, for the table.
        leader_cpu_s, nameserver_cpu_s: most processor time while it runs, the innocent's messages included,
            on the machine of `tests.fuzz.cost`.
        leader_mib, nameserver_mib: most memory at one moment beyond that before.
        descriptors: most of each node; 0: as many as this process may have.
        topics: most of a broker.
    """

    what: str
    run: Callable[[Scene], None]
    bound: str
    leader_cpu_s: float = 5.0
    leader_mib: float = 64
    nameserver_cpu_s: float = 3.0
    nameserver_mib: float = 32
    descriptors: int = 0
    topics: int = 400


def pull(topic: str, offset: int, *, wanted: str = "*") -> dict[str, str]:
    """The fields of a pull that waits for half a minute."""
    return {
        "consumerGroup": "strangers", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "30000", "subscription": wanted,
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip


def _one_big_message(scene: Scene, connections: int, pulls: int, reads: bool) -> None:
    """Held pulls that all find one large message at once; their clients read the answers, or do not."""
    sender = scene.stranger()
    answer = sender.ask(310, send("big"), b"first")
    assert answer.code == 0, answer.remark
    readers = [scene.stranger() for _ in range(connections)]
    for one in readers:
        for _ in range(pulls):
            one.say(11, pull("big", 1))
    deadline = time.monotonic() + LIMIT_S
    while scene.group.metric("B", "ledgermq_long_polls_held") < connections * pulls:
        assert time.monotonic() < deadline, "the pulls are not held"
        time.sleep(0.1)
    assert sender.ask(310, send("big"), bytes(_BIG)).code == 0
    if not reads:
        time.sleep(3.0)
        return
    for one in readers:
        one.socket.settimeout(30)
        for _ in range(pulls):
            assert one.hear().code == 0


def _held_by_one(scene: Scene) -> None:
    _one_big_message(scene, 1, 300, reads=False)


def _held_by_many(scene: Scene) -> None:
    _one_big_message(scene, 100, 3, reads=False)


def _held_and_read(scene: Scene) -> None:
    _one_big_message(scene, 30, 10, reads=True)


def _reads_at_once(scene: Scene) -> None:
    """300 connections ask for large messages that are there: by queue, by position, by key; half of them read."""
    sender = scene.stranger()
    for _ in range(4):
        assert sender.ask(310, send("big") | {"i": "KEYS\x01k\x02"}, bytes(_BIG)).code == 0
    by_key = {"topic": "big", "key": "k", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    while len(found := sender.ask(12, by_key).body) < 3 * _BIG:
        time.sleep(0.1)  # the index is behind
    position = {"topic": "big", "offset": str(int.from_bytes(found[28:36], "big"))}
    requests = [(11, pull("big", 0)), (33, position), (12, by_key)]
    readers = [scene.stranger() for _ in range(300)]
    for number, one in enumerate(readers):
        one.socket.sendall(b"".join(one.frame(*requests[number % 3]) for _ in range(3)))
    for one in readers[::2]:
        one.socket.settimeout(30)
        with contextlib.suppress(ConnectionError):  # closed: all together leave too much unread
            for _ in range(3):
                assert one.hear().code == 0


def _strangers_at_the_raft_port(scene: Scene) -> None:
    """Hellos with a made-up proof and an install of a far term, and connections that say nothing."""
    install = InstallRequest(1 << 40, "n1", 500, 1 << 20, 1 << 40, 1, 0, 0, b"", 0)
    for number in range(300):
        one = scene.stranger_at(scene.group.peers_port(number % 3))
        if number % 2:
            with contextlib.suppress(OSError):
                one.socket.sendall(wire.seal(wire.HELLO, b'{"version": 3}', bytes(32)))
                one.socket.sendall(b"".join(map(bytes, wire.Encoder().encode(install))))


def _strangers_at_the_nameserver(scene: Scene) -> None:
    """Everything that changes routes, a thousand times; the innocent's route stands and his leader stays."""
    leader = {"brokerName": "broker-a", "brokerAddr": f"127.0.0.1:{scene.group.port('B')}", "brokerId": "0",
              "clusterName": "DefaultCluster"}  # fmt: skip
    far = leader | {"brokerAddr": "127.0.0.1:1", "term": str(10**12), "haServerAddr": "x"}
    stranger = scene.stranger("N")
    asked = [
        (103, far, b"{}"), (104, leader, b""), (205, leader, b""), (216, {"topic": TOPIC}, b""), (904, far, b""),
        (100, {"namespace": "n", "key": "k", "value": "v"}, b""), (318, {}, b"scanNotActiveBrokerInterval=1"),
    ]  # fmt: skip
    for _ in range(150):
        for code, ext, body in asked:
            stranger.say(code, ext, body)
        assert {stranger.hear().code for _ in asked} == {16}
    assert stranger.ask(105, {"topic": TOPIC}).code == 0


def _idle_connections(scene: Scene) -> None:
    """More connections than a member may have descriptors; then a file is needed: the first message of a topic."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            scene.stranger()
    time.sleep(1.0)
    scene.leave()
    answer = scene.stranger().ask(310, send("after"), b"x")
    assert answer.code == 0, answer.remark


def _flood_above_quotas(scene: Scene) -> None:
    """Ten connections of another address send one-way messages for five seconds, as fast as they are read."""
    answer = scene.stranger().ask(25, {}, b"addressRequestsPerSecond=1000\naddressBytesPerSecond=4194304\n")
    assert answer.code == 0, answer.remark
    assert scene.stranger().ask(310, send("flood"), b"first").code == 0
    port = scene.group.port("B")
    flooders = [scene.stranger_at(port, "127.0.0.2") for _ in range(10)]
    messages = memoryview(flooders[0].frame(310, send("flood"), bytes(1024), oneway=True) * 100)
    left = dict.fromkeys(flooders, messages)
    ends = time.monotonic() + 5.0
    while time.monotonic() < ends:
        for one in flooders:
            one.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                left[one] = left[one][one.socket.send(left[one]) :] or messages
    served = int(scene.stranger().ask(30, {"topic": "flood", "queueId": "0"}).ext["offset"])
    assert served < 20_000, f"{served} messages were taken"
    assert scene.group.metric("B", "ledgermq_throttled_seconds_total") > 0


def _floods_at_once(scene: Scene) -> None:
    """200 connections send 250 KB of the smallest requests at the same time."""
    floods = [scene.stranger() for _ in range(200)]
    data = floods[0].frame(_UNKNOWN, oneway=True) * 2000
    for one in floods:
        one.socket.setblocking(False)
    left = dict.fromkeys(floods, data)
    deadline = time.monotonic() + LIMIT_S
    while left and time.monotonic() < deadline:
        for one in list(left):
            with contextlib.suppress(BlockingIOError):
                left[one] = left[one][one.socket.send(left[one]) :]
            if not left[one]:
                del left[one]
        time.sleep(0.01)
    assert not left
    deadline += LIMIT_S
    assert scene.stranger().ask(_UNKNOWN).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    while scene.group.metric("B", "ledgermq_unserved_bytes"):
        assert time.monotonic() < deadline, "they are not served"
        time.sleep(0.1)


def _foreign_tags(scene: Scene) -> None:
    """60,000 held pulls whose tag never comes, at eight queues with 5 messages a second."""
    sender = scene.stranger()
    make_topic(sender, "tags", _TAGGED_QUEUES)
    for number in range(60):
        one = scene.stranger()
        fields = pull("tags", 0, wanted="never") | {"queueId": str(number % _TAGGED_QUEUES)}
        one.socket.sendall(b"".join(one.frame(11, fields) for _ in range(1000)))
        one.ask(_UNKNOWN)  # all before was read
    assert scene.group.metric("B", "ledgermq_long_polls_held") == 60_000
    for number in range(20):
        assert sender.ask(310, send("tags") | {"e": str(number % _TAGGED_QUEUES)}, b"x").code == 0
        time.sleep(0.2)


def _every_field(scene: Scene) -> None:
    """Each request with each of its fields at an extreme, one after the other; none may cost more than 0.3 s."""
    leader = scene.group.broker
    for request in by_server("B"):
        for field in request.fields:
            for extreme in _NUMBERS if field.type in "il" else _TEXTS:
                ext = request.good | {field.name: extreme}
                ext |= {name: "0" for name in ("suspendTimeoutMillis", "pollTime") if name in ext}
                before, one = leader.cpu_s, scene.stranger()
                with contextlib.suppress(OSError):  # closed instead, which is an answer too
                    one.say(request.code, ext, request.body)
                    one.say(_UNKNOWN)
                    while one.hear().code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        pass
                spent = leader.cpu_s - before
                is_cheap = spent <= REQUEST_CPU_S or spent <= limit_cpu_s()
                assert is_cheap, f"{request.code}, {field.name} {extreme[:9]!r}: {spent:.2f} s"
                scene.leave()


ATTACKS: Final[dict[str, Attack]] = {
    "held-pulls-one": Attack(
        "300 held pulls of one connection find a message of 4 MiB; nothing is read",
        _held_by_one,
        "1 MiB unread: the rest waits",
        leader_mib=100,
    ),
    "held-pulls-many": Attack(
        "3 held pulls of each of 100 connections find a message of 4 MiB; nothing is read",
        _held_by_many,
        "256 MiB unread by all: the rest waits",
        leader_mib=400,
    ),
    "held-pulls-read": Attack(
        "300 held pulls of 30 connections find a message of 4 MiB, and all is read",
        _held_and_read,
        "8 MiB a turn",
        leader_mib=400,
    ),
    "reads-at-once": Attack(
        "3 pulls, look-ups or searches by key of each of 300 connections find up to 12 MiB; half of them read",
        _reads_at_once,
        "8 MiB a turn; 512 MiB unread by all, then those with most are closed",
        leader_cpu_s=15,
        leader_mib=900,
    ),
    "raft-port": Attack(
        "300 strangers at the Raft ports: an install of term 2^40, silence",
        _strangers_at_the_raft_port,
        "proof, 64 strangers, 3 s",
    ),
    "nameserver": Attack(
        "1,050 requests of a stranger that change routes, one of term 10^12",
        _strangers_at_the_nameserver,
        "a signature, code 16",
    ),
    "idle-connections": Attack(
        "600 idle connections at a member with 400 descriptors",
        _idle_connections,
        "72 connections a port, the rest refused",
        descriptors=400,
    ),
    "foreign-tags": Attack(
        "60,000 held pulls whose tag never comes, at eight queues with 5 messages a second",
        _foreign_tags,
        "4 ms a turn; 1000 of a connection for a queue, 10,000 of a queue",
        leader_cpu_s=12,
        leader_mib=200,
    ),
    "large-requests": Attack(
        "19 large requests one after the other: heartbeats, batches, locks, lists, moves of offsets",
        ask_for_much,
        "2 ms a turn; 10,000 entries of a list, 16,384 messages of a batch, 1000 groups made by a heartbeat, 16 MiB",
        leader_cpu_s=20,
        leader_mib=300,
        topics=30_000,
    ),
    "every-field": Attack(
        "each request of a broker with each field at extremes: numbers of 32 and 64 bits, texts of 30 to 100 KB",
        _every_field,
        "0.3 s of the leader a request",
        leader_cpu_s=30,
        leader_mib=100,
    ),
    "at-once": Attack(
        "20 requests 202 for 65,536 queues at once",
        ask_at_once,
        "2 ms a turn",
        leader_cpu_s=15,
        leader_mib=300,
    ),
    "one-way": Attack(
        "20,000 messages of 4 KiB to the leader, one-way",
        flood_one_way,
        "64 requests or 4 ms in a row, 10 ms a turn; 1 MiB that are not in the log",
        leader_cpu_s=30,
        leader_mib=200,
    ),
    "floods-at-once": Attack(
        "2,000 requests of 125 bytes on each of 200 connections at once",
        _floods_at_once,
        "1024 requests begun in a turn, the rest not parsed; 256 MiB that are not served",
        leader_cpu_s=60,
        leader_mib=200,
    ),
    "one-way-follower": Attack(
        "the same to a follower",
        functools.partial(flood_one_way, server="F"),
        "as before, at the follower",
        leader_cpu_s=30,
        leader_mib=200,
    ),
    "one-way-offsets": Attack(
        "400,000 offsets of queues that are not there, one-way",
        flood_offsets,
        "64 requests or 4 ms in a row, 10 ms a turn; 65,536 queues of a topic and group",
        leader_cpu_s=30,
        leader_mib=200,
    ),
    "above-quotas": Attack(
        "one-way messages of 1 KiB on 10 connections of one address for 5 s, as fast as they are read",
        _flood_above_quotas,
        "quotas: 1,000 requests and 4 MiB a second of an address",
    ),
}
