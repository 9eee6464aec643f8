"""What a broker serves of its store, asked over its port: two pictures of one directory agree, whoever serves it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ledgermq.message.properties import decode_properties
from ledgermq.message.record import Record, decode_record
from tests.java_store.wire import Wire
from tests.java_store.work import GROUP, STILL, TOPICS, Round

READER = "JavaStoreReader"
SYSTEM_QUEUES = {
    "SCHEDULE_TOPIC_XXXX": 18,
    "rmq_sys_wheel_timer": 1,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
}
_FOUND, _SLEEP = 0, 19


@dataclass(slots=True)
class Queue:
    """One queue: its bounds `[minimum, maximum)`, and its records as bytes, from `minimum` on."""

    minimum: int
    maximum: int
    records: list[bytes]


@dataclass(slots=True)
class Picture:
    """All that was asked for.

    Attributes:
        topics: the settings of this test's topics, by name.
        group: the settings of its group.
        offsets: consumer offsets by `topic@group`, then queue id, as a number or text as the broker writes it.
        delays: progress of each delay level that was ever used.
    """

    topics: dict[str, dict[str, Any]]
    group: dict[str, Any]
    offsets: dict[str, dict[int, int]]
    queues: dict[tuple[str, int], Queue] = field(default_factory=dict)

    def records(self) -> Iterator[Record]:
        """Every record of every queue."""
        return (decode_record(memoryview(record)) for queue in self.queues.values() for record in queue.records)


def take_picture(wire: Wire) -> Picture:
    """Ask for everything."""
    topics = wire.must(21).json()["topicConfigTable"]
    groups = wire.must(201).json()["subscriptionGroupTable"]
    offsets = wire.must(43).json()["offsetTable"]
    picture = Picture(
        {name: _known_settings(topics[name]) for name in TOPICS},
        _known_settings(groups[GROUP]),
        {key: {int(i): int(offset) for i, offset in table.items()} for key, table in offsets.items() if GROUP in key},
    )
    for topic, count in {**TOPICS, **SYSTEM_QUEUES}.items():
        for queue_id in range(count if topic in topics else 0):
            picture.queues[topic, queue_id] = _take_queue(wire, topic, queue_id)
    return picture


def knows_tables(wire: Wire) -> bool:
    """Whether this test's topics and group are there: a Java follower's copying empties them for a moment."""
    topics = wire.must(21).json()["topicConfigTable"]
    return TOPICS.keys() <= topics.keys() and GROUP in wire.must(201).json()["subscriptionGroupTable"]


def check_grown(before: Picture, after: Picture) -> None:
    """`after` holds all of `before`, unchanged byte for byte; what is new lies behind it."""
    assert after.topics == before.topics
    assert after.group == before.group
    for place, old in before.queues.items():
        if old.maximum == 0 and place not in after.queues:
            continue  # a system queue nobody has used yet
        new = after.queues[place]
        assert new.minimum == old.minimum, place
        assert new.maximum >= old.maximum, place
        for number, (was, is_) in enumerate(zip(old.records, new.records, strict=False)):
            assert is_ == was, f"{place} at {old.minimum + number}: {_read(was)} became {_read(is_)}"


def check_same(before: Picture, after: Picture) -> None:
    """As `check_grown`, and the topics that do not grow by themselves have not, nor have the offsets changed."""
    check_grown(before, after)
    assert after.offsets == before.offsets, f"before {before.offsets}, after {after.offsets}"
    for topic, queue_id in before.queues:
        if topic in STILL:
            old, new = before.queues[topic, queue_id], after.queues[topic, queue_id]
            assert (new.minimum, new.maximum) == (old.minimum, old.maximum), (topic, queue_id)


def check_holds(picture: Picture, done: Round) -> None:
    """Everything acknowledged in `done` is where the acknowledgement said, with what was sent."""
    for sent in done.sent:
        queue = picture.queues[sent.topic, sent.queue_id]
        record = _read(queue.records[sent.queue_offset - queue.minimum])
        properties = decode_properties(record.properties)
        assert (bytes(record.body), record.queue_offset) == (sent.body, sent.queue_offset), sent
        assert properties["KEYS"] == sent.key
        assert record.physical_offset == int(sent.message_id[-16:], 16), sent


def check_views(wire: Wire, picture: Picture) -> None:
    """Each record is found by its physical offset too."""
    for queue in picture.queues.values():
        for record in queue.records[:: max(1, len(queue.records) // 8)]:
            assert wire.must(33, {"offset": _read(record).physical_offset}).body == record


def check_times(wire: Wire, picture: Picture) -> None:
    """The search by store time names the same place on both brokers: the first message of that time or later."""
    for (topic, queue_id), queue in picture.queues.items():
        if topic not in STILL or not queue.records:
            continue
        times = [_read(record).store_timestamp for record in queue.records]
        for index in (0, len(times) // 2, len(times) - 1):
            answer = wire.must(29, {"topic": topic, "queueId": queue_id, "timestamp": times[index]})
            assert int(answer.fields["offset"]) == queue.minimum + times.index(times[index]), (topic, queue_id, index)


def check_queries(wire: Wire, picture: Picture, done: Round) -> None:
    """The index finds messages by their keys."""
    for sent in done.sent[::7]:
        fields: dict[str, object] = {"topic": sent.topic, "key": sent.key, "maxNum": 32, "beginTimestamp": 0}
        answer = wire.ask(12, {**fields, "endTimestamp": (1 << 63) - 1})
        queue = picture.queues[sent.topic, sent.queue_id]
        assert queue.records[sent.queue_offset - queue.minimum] in list(_split(answer.body)), f"{sent}: {answer.remark}"


def keys_in(picture: Picture, topic: str) -> list[str]:
    """KEYS of every record of a topic, in no order worth a test."""
    found = []
    for (name, _), queue in picture.queues.items():
        if name == topic:
            found += [decode_properties(_read(record).properties).get("KEYS", "") for record in queue.records]
    return found


def _take_queue(wire: Wire, topic: str, queue_id: int) -> Queue:
    place = {"topic": topic, "queueId": queue_id}
    minimum, maximum = (int(wire.must(code, place).fields["offset"]) for code in (31, 30))
    records: list[bytes] = []
    while minimum + len(records) < maximum:
        fields: dict[str, object] = {"consumerGroup": READER, "queueOffset": minimum + len(records), "maxMsgNums": 32}
        fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        answer = wire.ask(11, {**place, **fields, "expressionType": "TAG"})
        assert answer.code == _FOUND, f"pull {place} at {minimum + len(records)} of {maximum}: {answer}"
        records += _split(answer.body)
    return Queue(minimum, maximum, records)


def _split(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        yield body[at : at + size]
        at += size


def _read(record: bytes) -> Record:
    return decode_record(memoryview(record))


def _known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the differences removed that mean nothing: absent and empty are one."""
    return {name: value for name, value in settings.items() if value not in (None, {}, [])}
