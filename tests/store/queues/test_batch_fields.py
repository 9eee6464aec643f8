"""Units made by the batch are those that are made one by one, whatever the records are."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.queue_unit import SCHEDULE_TOPIC
from store.files.mapped_file import MappedFile, file_name
from store.queues.consume_queue import ConsumeQueue
from store.queues.dispatch import unit_fields
from store.recovery.batch_fields import QueueRun, runs_of
from store.recovery.record_batches import read_batch

_V1, _V2 = -626843481, -626843477
_TOPICS = (b"A", b"TopicA", b"TopicB", b"t" * 127, "Straße".encode(), SCHEDULE_TOPIC, b"12345678", b"1234567")
_PARTS = (
    *(b"TAGS\x01TagA", b"TAGS\x01", b"TAGS\x01" + b"x" * 70, "TAGS\x01ä".encode(), b"TAGS\x01y", b"TAGS\x01TagLonger"),
    *(b"KEYS\x01k", b"XTAGS\x01no", b"UNIQ_KEY\x017F0000", b"DELAY\x013", b"TAG", b"TAGS", b"", b"e\x01"),
)


def _record(place: int, source: random.Random, queue_offset: int) -> bytes:
    body = source.randbytes(source.choice((0, 1, 30, 700)))
    topic = source.choice(_TOPICS)
    properties = b"\x02".join(source.choices(_PARTS, k=source.randrange(5))) + source.choice((b"\x02", b""))
    magic = source.choice((_V1, _V1, _V1, _V2))
    flag = source.choice((0, 0, 0, 1 << 4, 3 << 4, 4, 8, 12))
    host = bytes(20) if flag & 1 << 4 else bytes(8)
    store_host = bytes(20) if flag & 1 << 5 else bytes(8)
    head = struct.pack(">iiiqqiq", 0, source.choice((0, 1, 2, 513)), 0, queue_offset, place, flag, 1_700_000_000_000)
    head += host + struct.pack(">q", 1_700_000_000_001) + store_host + struct.pack(">iqi", 0, 0, len(body))
    length = struct.pack(">h" if magic == _V2 else ">b", len(topic))
    tail = body + length + topic + struct.pack(">h", len(properties)) + properties
    return struct.pack(">ii", 8 + len(head) + len(tail), magic) + head + tail


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MappedFile]:
    file = MappedFile(tmp_path / file_name(1 << 20), 1 << 20, 1 << 20)
    yield file
    file.close()


@pytest.mark.parametrize("pieces_of", [23, 300])
@pytest.mark.parametrize("alike", [1, 7, 300])
@pytest.mark.parametrize("seed", range(20))
def test_units_of_batches_are_those_of_their_records(
    file: MappedFile, tmp_path: Path, seed: int, alike: int, pieces_of: int
) -> None:
    """`alike` so many records, one behind the other, are of one kind and length."""
    queues: dict[tuple[bytes, int], ConsumeQueue] = {}
    expected: dict[tuple[bytes, int], list[tuple[tuple[int, int, int], int]]] = {}
    for number in range(300):
        place = file.start_offset + file.write_position
        record = _record(place, random.Random(seed * 1000 + number // alike), number)
        file.write(memoryview(record))
        size, queue_id, sys_flag, queue_offset, _, topic, code = unit_fields(place, memoryview(record))
        if not sys_flag & TRANSACTION_PREPARED:
            expected.setdefault((topic, queue_id), []).append(((place, size, code), queue_offset))

    def find(topic: bytes, queue_id: int, _offset: int) -> ConsumeQueue:
        return queues.setdefault((topic, queue_id), ConsumeQueue(topic.decode(), queue_id, tmp_path, 100))

    batch = read_batch(file, 0, file.write_position, check=False)
    assert len(batch.starts) == 300
    runs = list(runs_of([(file, piece) for piece in batch.pieces(pieces_of)], find))
    assert {(run.queue.topic_bytes, run.queue.queue_id): _content(run) for run in runs} == expected
    assert len(runs) == len(expected)


@pytest.mark.parametrize(
    ("magic", "host"), [(_V1, bytes(8)), (_V1, bytes(20)), (_V2, bytes(8))], ids=["V1", "IPv6", "V2"]
)
def test_a_rotten_body_is_found_in_every_form_of_record(file: MappedFile, magic: int, host: bytes) -> None:
    body, topic = b"a body of some length", b"TopicA"
    place, flag = file.start_offset, 1 << 4 if len(host) == 20 else 0
    head = struct.pack(">iiiqqiq", crc32(body) & CRC_MASK, 1, 0, 0, place, flag, 0) + host + bytes(8) + bytes(8)
    length = struct.pack(">h" if magic == _V2 else ">b", len(topic))
    tail = struct.pack(">iqi", 0, 0, len(body)) + body + length + topic + bytes(2)
    record = struct.pack(">ii", 8 + len(head) + len(tail), magic) + head + tail
    rotten = record.replace(body, body.replace(b"some", b"same"))
    file.write(memoryview(record + rotten.replace(struct.pack(">q", place), struct.pack(">q", place + len(record)))))
    batch = read_batch(file, 0, file.write_position, check=True)
    assert batch.starts.tolist() == [0, len(record)]
    assert batch.sound.tolist() == [True, False]


def _content(run: QueueRun) -> list[tuple[tuple[int, int, int], int]]:
    return list(zip(run.units.tolist(), run.offsets.tolist(), strict=True))


@pytest.mark.parametrize(("level", "wait_s"), [(b"3", 10), (b"18", 7200), (b"19", 7200), (b"9" * 5000, 7200)])
def test_a_parked_record_is_due_by_its_level_however_that_is_written(level: bytes, wait_s: int) -> None:
    topic, properties = SCHEDULE_TOPIC, b"K\x01v\x02DELAY\x01" + level + b"\x02"
    head = struct.pack(">iiiqqiq", 0, 2, 0, 0, 0, 0, 0) + bytes(8) + struct.pack(">q", 7) + bytes(8)
    tail = struct.pack(">iqib", 0, 0, 0, len(topic)) + topic + struct.pack(">h", len(properties)) + properties
    record = struct.pack(">ii", 8 + len(head) + len(tail), _V1) + head + tail
    assert unit_fields(0, memoryview(record))[-1] == 7 + wait_s * 1000
