"""What a broker is given to store in these tests: every kind of message that both brokers serve, offsets, settings.

A round's messages carry its name, so that each is one of a kind, and what was acknowledged is kept to be compared.
"""

import itertools
import struct
import time
import zlib
from dataclasses import dataclass, field

from ledgermq.message.batch import encode_batch
from ledgermq.message.properties import encode_properties
from tests.java_store.wire import Answer, Wire

STILL = {"JavaStoreA": 4, "JavaStoreB": 1, "Java_Store-C%|": 2}
LATE = "JavaStoreLate"
"""Where delayed messages and committed halves arrive: the one topic here that grows by itself."""
TOPICS = {**STILL, LATE: 1}
GROUP = "JavaStoreGroup"
SOON_LEVEL, LONG_LEVEL = 3, 18
SOON_S, LONG_S = 10, 7200
COMPRESSED_ZLIB = 0x1 | 0x300
PREPARED = 0x4
COMMIT, ROLLBACK = 8, 12

_unique = itertools.count()


@dataclass(frozen=True, slots=True)
class Sent:
    """One acknowledged message: where it was said to be, and what was sent."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    key: str
    body: bytes


@dataclass(slots=True)
class Round:
    """What one turn of a broker left behind.

    Attributes:
        due_soon: keys of delayed and timed messages that arrive within some ten seconds; others wait for hours.
        halves: `(message, commitLogOffset, tranStateTableOffset, transaction id)` of half messages not yet ended.
    """

    name: str
    sent: list[Sent] = field(default_factory=list)
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    due_soon: set[str] = field(default_factory=set)
    halves: list[tuple[str, int, int, str]] = field(default_factory=list)


def make_topics(wire: Wire) -> None:
    """The topics and the group of this test, with settings that are not the defaults."""
    for name, queues in TOPICS.items():
        fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
        fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        wire.must(17, fields)
    body = b'{"groupName":"JavaStoreGroup","consumeEnable":true,"retryQueueNums":2,"retryMaxTimes":7,"brokerId":0}'
    wire.must(200, {}, body)


def put_round(wire: Wire, name: str) -> Round:
    """One turn's worth of every kind."""
    done = Round(name)
    for number in range(60):
        _send_plain(wire, done, number)
    _send_compressed(wire, done)
    for size in (3, 8):
        _send_batch(wire, done, size)
    for kind, soon, long in (("DELAY", SOON_LEVEL, LONG_LEVEL), ("TIMER_DELAY_SEC", SOON_S, LONG_S)):
        _send_late(wire, done, kind, soon)
        _send_late(wire, done, kind, long)
        done.due_soon.add(f"{name}-{kind}-{soon}")
    _send_halves(wire, done)
    _commit_offsets(wire, done)
    return done


def end_half(wire: Wire, half: tuple[str, int, int, str], how: int) -> Answer:
    """Commit or roll back a half message."""
    _, commit_log_offset, queue_offset, transaction_id = half
    fields: dict[str, object] = {"producerGroup": "JavaStoreProducer", "tranStateTableOffset": queue_offset}
    fields |= {"commitLogOffset": commit_log_offset, "commitOrRollback": how, "fromTransactionCheck": "false"}
    return wire.must(37, fields | {"msgId": transaction_id, "transactionId": transaction_id, "bname": "broker-a"})


def _send_plain(wire: Wire, done: Round, number: int) -> None:
    topics = list(STILL)
    topic = topics[number % len(topics)]
    properties = {"TAGS": f"Tag{number % 3}", "who": "größer", "long": "x" * (number * 7 % 300)}
    body = f"{done.name} {number} ".encode() * (1 + number * 13 % 200)
    _send(wire, done, topic, number % STILL[topic], properties, body, flag=number)


def _send_compressed(wire: Wire, done: Round) -> None:
    body = zlib.compress(f"{done.name} compressed ".encode() * 500)
    _send(wire, done, "JavaStoreA", 1, {"TAGS": "Zip"}, body, sys_flag=COMPRESSED_ZLIB)


def _send_late(wire: Wire, done: Round, kind: str, value: int) -> None:
    key = f"{done.name}-{kind}-{value}"
    _ask_send(wire, LATE, 0, {"KEYS": key, kind: str(value)}, f"late {key}".encode())


def _send_halves(wire: Wire, done: Round) -> None:
    for how in ("commit", "rollback"):
        key = f"{done.name}-half-{how}"
        properties = {"KEYS": key, "TRAN_MSG": "true", "PGROUP": "JavaStoreProducer"}
        answer = _ask_send(wire, LATE, 0, properties, key.encode(), sys_flag=PREPARED)
        offset = int(answer.fields["msgId"][-16:], 16)
        done.halves.append((key, offset, int(answer.fields["queueOffset"]), answer.fields["transactionId"]))


def _send_batch(wire: Wire, done: Round, size: int) -> None:
    keys = [f"{done.name}-batch-{size}-{number}" for number in range(size)]
    bodies = [f"{key} body".encode() for key in keys]
    inner = [encode_properties({"KEYS": key, "TAGS": "Batch"}) for key in keys]
    body = encode_batch((0, *pair) for pair in zip(bodies, inner, strict=True))
    fields = _fields("JavaStoreA", 2, {"UNIQ_KEY": _unique_key(), "WAIT": "true"}, 0, 0) | {"m": "true"}
    answer = wire.must(320, fields, body)
    first, ids = int(answer.fields["queueOffset"]), answer.fields["msgId"].split(",")
    for number, (key, body_) in enumerate(zip(keys, bodies, strict=True)):
        done.sent.append(Sent("JavaStoreA", 2, first + number, ids[number], key, body_))


def _send(
    wire: Wire,
    done: Round,
    topic: str,
    queue_id: int,
    properties: dict[str, str],
    body: bytes,
    *,
    flag: int = 0,
    sys_flag: int = 0,
) -> None:
    key = f"{done.name}-{len(done.sent)}"
    answer = _ask_send(wire, topic, queue_id, {"KEYS": key, **properties}, body, flag=flag, sys_flag=sys_flag)
    place = int(answer.fields["queueId"]), int(answer.fields["queueOffset"]), answer.fields["msgId"]
    done.sent.append(Sent(topic, *place, key, body))


def _ask_send(
    wire: Wire, topic: str, queue_id: int, properties: dict[str, str], body: bytes, *, flag: int = 0, sys_flag: int = 0
) -> Answer:
    whole = {**properties, "UNIQ_KEY": _unique_key(), "WAIT": "true"}
    return wire.must(310, _fields(topic, queue_id, whole, flag, sys_flag), body)


def _fields(topic: str, queue_id: int, properties: dict[str, str], flag: int, sys_flag: int) -> dict[str, object]:
    fields: dict[str, object] = {"a": "JavaStoreProducer", "b": topic, "c": "TBW102", "d": 4, "e": queue_id}
    fields |= {"f": sys_flag, "g": time.time_ns() // 1_000_000, "h": flag, "j": 0, "k": "false", "m": "false"}
    return fields | {"i": encode_properties(properties).decode(), "n": "broker-a"}


def _unique_key() -> str:
    return struct.pack(">16sQ", b"java-store-tests", next(_unique) << 32 | time.time_ns() & 0xFFFFFFFF).hex().upper()


def _commit_offsets(wire: Wire, done: Round) -> None:
    for topic, queues in STILL.items():
        for queue_id in range(queues):
            sent = [each.queue_offset for each in done.sent if (each.topic, each.queue_id) == (topic, queue_id)]
            if not sent:
                continue
            offset = sorted(sent)[len(sent) // 2]
            fields: dict[str, object] = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id}
            wire.must(15, fields | {"commitOffset": offset})
            done.offsets.setdefault(f"{topic}@{GROUP}", {})[queue_id] = offset
