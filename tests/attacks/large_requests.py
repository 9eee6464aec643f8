"""Single requests that are large, or ask for much: those that Java's broker takes, and the longest taken here."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from tests.attacks.scene import Scene, Stranger, send

Request = tuple[int, dict[str, str], bytes]
_QUEUES: Final = 65_536
_UNKNOWN: Final = 9998
_WIDE: Final = "wide"
_ANSWER_LIMIT_S: Final = 120.0


def make_topic(stranger: Stranger, name: str, queues: int) -> None:
    """A topic, which anybody may create."""
    answer = stranger.ask(
        17,
        {"topic": name, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
         "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
    )  # fmt: skip
    assert answer.code == 0, answer.remark


def heartbeat(producers: int, consumers: int) -> Request:
    """34 of one client in many groups."""
    body = {
        "clientID": "stranger",
        "producerDataSet": [{"groupName": f"p{number}"} for number in range(producers)],
        "consumerDataSet": [
            {"groupName": f"c{number}", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
            for number in range(consumers)
        ],
    }
    return 34, {}, _json(body)


def groups(count: int) -> Request:
    """225: create groups."""
    return 225, {}, _json({"groupConfigList": [{"groupName": f"g{number}"} for number in range(count)]})


def topics(count: int) -> Request:
    """18: create topics."""
    entries = [
        {"topicName": f"t{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for number in range(count)
    ]
    return 18, {}, _json({"topicConfigList": entries})


def locks(count: int) -> Request:
    """41: lock queues."""
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": number} for number in range(count)]
    return 41, {}, _json({"consumerGroup": "g", "clientId": "stranger", "mqSet": queues})


def batch(count: int, topic: str) -> Request:
    """320: messages of one byte."""
    one = b"".join(value.to_bytes(4, "big") for value in (23, 0, 0, 0, 1)) + b"x" + bytes(2)
    return 320, send(topic) | {"m": "true"}, one * count


def reset(timestamp: int) -> Request:
    """222: set a group's offsets in the wide topic."""
    return 222, {"topic": _WIDE, "group": "g0", "timestamp": str(timestamp), "isForce": "true"}, b""


def requests() -> Iterator[tuple[str, Request]]:
    """Yield each request with its name; later ones ask for what earlier ones made."""
    yield "317 of few groups", (317, {"isOrder": "false"}, b"")
    yield "320 of 182,351 messages", batch(182_351, "batch")
    yield "320 of 16,384 messages", batch(16_384, "batch")
    yield "41 of 200,000 queues", locks(200_000)
    yield "41 of 65,536 queues", locks(65_536)
    yield "34 of 300,000 producer groups", heartbeat(300_000, 0)
    yield "34 of 10,000 producer groups", heartbeat(10_000, 0)
    yield "34 of 5,000 consumer groups", heartbeat(0, 5_000)
    yield "34 of 1,000 consumer groups", heartbeat(0, 1_000)
    yield "202 of 65,536 queues", (202, {"topic": _WIDE}, b"")
    yield "225 of 4,000 groups", groups(4_000)
    yield "222 of 65,536 queues", reset(-1)
    yield "303 of 65,536 queues", (303, {"topic": _WIDE, "group": "g0"}, b"")
    yield "314 of 65,536 queues", (314, {"srcGroup": "g0", "destGroup": "g1", "topic": _WIDE, "offline": "true"}, b"")
    yield "317 of 4,000 groups", (317, {"isOrder": "false"}, b"")
    yield "225 of 100,000 groups", groups(100_000)
    yield "225 of 10,000 groups", groups(10_000)
    yield "18 of 20,000 topics", topics(20_000)
    yield "18 of 10,000 topics", topics(10_000)


def ask_for_much(scene: Scene) -> None:
    """Each of the requests, one after the other, from a connection of its own."""
    make_topic(scene.stranger(), _WIDE, _QUEUES)
    for name, (code, ext, body) in requests():
        one = scene.stranger()
        one.socket.settimeout(_ANSWER_LIMIT_S)
        print(name, one.ask(code, ext, body).code, file=sys.stderr)


def ask_at_once(scene: Scene) -> None:
    """Twenty requests 202 for a wide topic on one connection, before any is answered."""
    make_topic(one := scene.stranger(), _WIDE, _QUEUES)
    one.socket.settimeout(_ANSWER_LIMIT_S)
    for _ in range(20):
        one.say(202, {"topic": _WIDE})
    for _ in range(20):
        assert one.hear().code == 0


def flood_one_way(scene: Scene, server: str = "B") -> None:
    """20,000 messages of 4 KiB to the leader or a follower; nobody waits for an answer."""
    assert scene.stranger().ask(310, send("flood"), b"first").code == 0
    one = scene.stranger(server)
    one.socket.settimeout(_ANSWER_LIMIT_S)
    message = one.frame(310, send("flood"), bytes(4096), oneway=True)
    for _ in range(200):
        one.socket.sendall(message * 100)
    one.ask(_UNKNOWN)  # all before was read


def flood_offsets(scene: Scene) -> None:
    """400,000 offsets of queues that are not there, one-way."""
    assert scene.stranger().ask(310, send("flood"), b"first").code == 0
    one = scene.stranger()
    one.socket.settimeout(_ANSWER_LIMIT_S)
    assert one.ask(225, {}, _json({"groupConfigList": [{"groupName": "g"}]})).code == 0
    offsets = {"consumerGroup": "g", "topic": "flood", "commitOffset": "1"}
    for start in range(0, 400_000, 1000):
        one.socket.sendall(
            b"".join(one.frame(15, offsets | {"queueId": str(start + number)}, oneway=True) for number in range(1000))
        )
    one.ask(_UNKNOWN)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
