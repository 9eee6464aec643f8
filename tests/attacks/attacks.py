"""The attacks, each with what it may cost. `MIB` of memory and seconds of processor time are what a test asserts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.attacks.scene import Scene
from tests.fuzz.nodes import LIMIT_S

MIB: Final = 1 << 20
_BIG: Final = 4 * MIB - 1000


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack and its bounds.

    Attributes:
        what: one line, for the table.
        run: does it.
        bound: what limits it, for the table.
        leader_cpu_s, nameserver_cpu_s: most processor time while it runs, the innocent's messages included.
        leader_mib, nameserver_mib: most memory at one moment beyond that before.
        conf: settings of the brokers.
    """

    what: str
    run: Callable[[Scene], None]
    bound: str
    leader_cpu_s: float = 5.0
    leader_mib: float = 64
    nameserver_cpu_s: float = 3.0
    nameserver_mib: float = 32
    conf: Mapping[str, str] = field(default_factory=dict)


def pull(topic: str, offset: int, *, wanted: str = "*") -> dict[str, str]:
    """The fields of a pull that waits for half a minute."""
    return {
        "consumerGroup": "strangers", "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "30000", "subscription": wanted,
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip


def send(topic: str) -> dict[str, str]:
    return {"a": "strangers", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
            "j": "0", "k": "false", "l": "0", "m": "false"}  # fmt: skip


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


ATTACKS: Final[dict[str, Attack]] = {
    "held-pulls-one": Attack(
        "300 held pulls of one connection find a message of 4 MiB; nothing is read", _held_by_one, "", leader_mib=100
    ),
    "held-pulls-many": Attack(
        "3 held pulls of each of 100 connections find a message of 4 MiB; nothing is read",
        _held_by_many,
        "",
        leader_mib=400,
    ),
    "held-pulls-read": Attack(
        "300 held pulls of 30 connections find a message of 4 MiB, and all is read", _held_and_read, "", leader_mib=400
    ),
}
