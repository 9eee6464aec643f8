"""A compacted topic that the Java broker and ours take turns with: each reads what the other compacted, and goes on."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.message.properties import encode_properties
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.codec.java_json import load_json
from tests.java_store.conftest import TurnOrder, turn_orders
from tests.java_store.nodes import Seat, wait_until
from tests.java_store.wire import Wire
from tests.jvm import QUIET
from tests.ports import free_ports

TOPIC = "JavaStoreCompacted"
FILES = {
    **QUIET,  # no message here has a timer
    "compactionCqMappedFileSize": 4600,
    "compactionMappedFileSize": 85000,
    "compactionScheduleInternal": 1500,
    "flushDiskType": "SYNC_FLUSH",
}
SENT_A_TURN = 230
_KEYS = 12


@pytest.fixture
def compacted_seat(tmp_path: Path, jars: Path) -> Iterator[Seat]:
    """A place for a broker with small files of compaction."""
    place = Seat(tmp_path / "broker", free_ports(1)[0], jars, FILES)
    yield place
    place.kill()


class Model:
    """All that was sent, by queue offset, and what must be left of it."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send(self, wire: Wire, count: int, *, removing: bool) -> None:
        for _ in range(count):
            number = len(self.sent)
            key, body = f"k{number % _KEYS}", b"" if removing and number % 97 == 96 else b"body %d" % number
            fields: dict[str, object] = {"a": "P", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "h": 0, "j": 0}
            fields |= {"g": time.time_ns() // 1_000_000, "k": "false", "m": "false", "n": "broker-a"}
            answer = wire.must(310, {**fields, "i": encode_properties({"KEYS": key, "TAGS": "t"}).decode()}, body)
            assert int(answer.fields["queueOffset"]) == number
            self.sent.append((key, body))

    def check(self, found: list[Record]) -> None:
        offsets = [record.queue_offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert (" ".join(record.keys), record.body) == self.sent[record.queue_offset]
        last = {key: offset for offset, (key, _) in enumerate(self.sent)}
        assert {offset for offset in last.values() if self.sent[offset][1]} <= set(offsets)


def pull_all(wire: Wire, end: int) -> list[Record]:
    """All that a consumer gets who begins at 0."""
    found: list[Record] = []
    offset = 0
    while offset < end:
        fields: dict[str, object] = {"consumerGroup": "TOOLS_CONSUMER", "topic": TOPIC, "queueId": 0, "maxMsgNums": 32}
        fields |= {"queueOffset": offset, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        answer = wire.ask(11, {**fields, "subscription": "*", "expressionType": "TAG"})
        assert answer.code in (0, 20), answer
        found += decode_records(answer.body)
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])
    return found


def position_of(seat: Seat) -> int:
    """Up to which queue offset the broker that sits there says to have compacted."""
    path = seat.store / "compaction/position-checkpoint"
    if not path.exists() or not (content := path.read_bytes()):
        return -1
    return int(load_json(content)["queueOffsetMap"].get(f"{TOPIC}_0", -1))


@turn_orders(
    "java:stop ours:stop java:stop ours:kill",
    ["ours:stop java:stop ours:stop java:stop", "java:kill ours:kill java:kill ours:stop"],
)
def test_each_broker_reads_what_the_other_compacted_and_compacts_on(compacted_seat: Seat, order: TurnOrder) -> None:
    seat, model = compacted_seat, Model()
    before: list[Record] = []
    for turn, (who, how) in enumerate(order):
        seat.start(who)
        seat.await_writable()
        with Wire(seat.port) as wire:
            if turn == 0:
                topic = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
                topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
                wire.must(17, {**topic, "attributes": "+cleanup.policy=COMPACTION"})
            else:
                found = pull_all(wire, len(model.sent))
                model.check(found)
                if order[turn - 1][1] == "stop":
                    assert len(found) <= len(before)
            position = position_of(seat)
            # Java's broker answers a message without a body, which would remove its key, with a NullPointerException
            model.send(wire, SENT_A_TURN, removing=who == "ours")

            def is_compacted(earlier: int = position, wire: Wire = wire) -> bool:
                """Both say the position about when they serve the new files, which may lack what was sent last."""
                return position_of(seat) > earlier and len(pull_all(wire, len(model.sent))) < SENT_A_TURN

            wait_until(is_compacted, f"{who} compacts")
            before = pull_all(wire, len(model.sent))
            model.check(before)
        seat.stop() if how == "stop" else seat.kill()
