"""Queues of other kinds beside those that the Java broker wrote: read, and made again byte for byte."""

import json
from pathlib import Path

import pytest

from ledgermq.message.batch_unit import BATCH_UNIT
from ledgermq.message.queue_unit import UNIT
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue, QueueEntry
from store.queues.ext_queue import ExtQueue, decode_extension, extension_position
from store.queues.queue_entries import entries_of
from store.queues.queue_kinds import QueueKinds
from store.queues.queue_table import QueueTable
from tests.store.queues.extensions import encode_extension
from tests.store.support import GOLDEN, golden

STORES = GOLDEN / "records" / "stores"
KINDS = {
    "batchcq": QueueKinds(batch_file_size_bytes=460, topic_attributes=lambda _: {"queue.type": "BatchCQ"}),
    "cqext": QueueKinds(ext_file_size_bytes=4096),
    "lmq": QueueKinds(multi_dispatch=True, light=True),
}
BLANK_MAGIC = b"\xcb\xd4\x31\x94"
FOLDERS = {
    "batchcq": ["batchconsumequeue"],
    "cqext": ["consumequeue", "consumequeue_ext"],
    "lmq": ["consumequeue"],
}


def restore(name: str, target: Path) -> Path:
    golden.restore_tree(STORES / name, target)
    return target


def records(root: Path) -> list[tuple[int, memoryview]]:
    """Every record of the first file of the log."""
    log = memoryview((root / "commitlog" / f"{0:020d}").read_bytes())
    found, position = [], 0
    while (size := int.from_bytes(log[position : position + 4])) and log[position + 4 : position + 8] != BLANK_MAGIC:
        found.append((position, log[position : position + size]))
        position += size
    return found


def dispatch_again(name: str, source: Path, target: Path) -> QueueTable:
    table = QueueTable(target / "consumequeue", 400, KINDS[name])
    for offset, record in records(source):
        for queue, entry in entries_of(table, offset, record):
            queue.reserve(entry.queue_offset + entry.messages)
            queue.put_entry(entry)
    return table


def files_under(root: Path, folders: list[str]) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["batchcq", "lmq"])
def test_queues_made_from_javas_log_are_javas_byte_for_byte(name: str, tmp_path: Path) -> None:
    java = restore(name, tmp_path / "java")
    dispatch_again(name, java, tmp_path / "ours").close()
    assert files_under(tmp_path / "ours", FOLDERS[name]) == files_under(java, FOLDERS[name])


def test_queues_made_from_javas_log_hold_tags_codes_in_place_of_its_extensions(tmp_path: Path) -> None:
    theirs, _ = loaded("cqext", tmp_path, "GoldenExt")
    table = dispatch_again("cqext", tmp_path / "java", tmp_path / "ours")
    ours = table.get("GoldenExt", 0)
    assert not (tmp_path / "ours" / "consumequeue_ext").exists()
    expected = [(*unit[:2], theirs.tags_code(unit)) for _, unit in theirs.iterate(0, 9)]
    assert [unit for _, unit in ours.iterate(0, 9)] == expected
    assert len(expected) == 4


@pytest.mark.parametrize("name", KINDS)
def test_javas_queues_are_opened_and_dispatching_the_log_over_them_changes_nothing(name: str, tmp_path: Path) -> None:
    java = restore(name, tmp_path / "java")
    before = files_under(java, FOLDERS[name])
    table = QueueTable(java / "consumequeue", 400, KINDS[name])
    table.load()
    log = records(java)
    end = log[-1][0] + len(log[-1][1])
    for queue in table:
        queue.recover(end, scan=True)
        queue.correct_min_offset(0)
    bounds = {queue.topic: (queue.min_offset, queue.max_offset) for queue in table}
    for offset, record in log:
        for queue, entry in entries_of(table, offset, record):
            queue.put_entry(entry)
    assert {queue.topic: (queue.min_offset, queue.max_offset) for queue in table} == bounds
    table.close()
    assert files_under(java, FOLDERS[name]) == before


def loaded(name: str, tmp_path: Path, topic: str) -> tuple[ConsumeQueue, list[tuple[int, memoryview]]]:
    java = restore(name, tmp_path / "java")
    table = QueueTable(java / "consumequeue", 400, KINDS[name])
    table.load()
    log = records(java)
    queue = table.get(topic, 0)
    queue.recover(log[-1][0] + len(log[-1][1]), scan=True)
    return queue, log


def test_a_batch_queue_finds_the_record_of_each_message(tmp_path: Path) -> None:
    queue, log = loaded("batchcq", tmp_path, "GoldenBatchCq")
    assert isinstance(queue, BatchQueue)
    assert (queue.min_offset, queue.max_offset) == (0, 8)
    starts = [offset for offset, _ in log]
    expected = [starts[0], *[starts[1]] * 2, *[starts[2]] * 3, starts[3], starts[4]]
    found = [queue.unit(offset) for offset in range(8)]
    assert [unit[0] for unit in found if unit is not None] == expected
    assert queue.unit(8) is None


def test_an_extension_says_the_tags_and_the_time_of_each_message(tmp_path: Path) -> None:
    queue, log = loaded("cqext", tmp_path, "GoldenExt")
    assert isinstance(queue, ExtQueue)
    shown = [json.loads((GOLDEN / "records" / f"cqext-{n}.json").read_text())["records"][0] for n in range(4)]
    for (_, unit), record in zip(queue.iterate(0, 4), shown, strict=True):
        assert extension_position(unit[2]) is not None
        extension = queue.extension(unit)
        assert extension is not None
        assert (extension.tags_code, extension.store_timestamp) == (record["tagsCode"], record["storeTimestamp"])
        assert queue.tags_code(unit) == record["tagsCode"]
    assert len(log) == 4


def test_a_light_queue_holds_the_records_that_name_it(tmp_path: Path) -> None:
    java = restore("lmq", tmp_path / "java")
    table = dispatch_again("lmq", java, tmp_path / "ours")
    log = [offset for offset, _ in records(java)]
    one, two = table.get("%LMQ%one", 0), table.get("%LMQ%two", 0)
    assert [unit[0] for _, unit in one.iterate(0, 9)] == log[:3]
    assert [unit[0] for _, unit in two.iterate(0, 9)] == [log[0], log[2]]
    assert table.light_count == 2


def test_the_units_of_the_golden_files_decode_and_encode_to_the_same_bytes() -> None:
    raw = (STORES / "batchcq/files/batchconsumequeue/GoldenBatchCq/0" / f"{0:020d}").read_bytes()
    for at in range(0, 5 * 46, 46):
        fields = BATCH_UNIT.unpack_from(raw, at)
        assert BATCH_UNIT.pack(*fields) == raw[at : at + 46]
    queue = (STORES / "cqext/files/consumequeue/GoldenExt/0" / f"{0:020d}").read_bytes()
    ext = memoryview((STORES / "cqext/files/consumequeue_ext/GoldenExt/0" / f"{0:020d}").read_bytes())
    for at in range(0, 4 * 20, 20):
        position = extension_position(UNIT.unpack_from(queue, at)[2])
        assert position is not None
        unit = decode_extension(ext[position:])
        assert unit is not None
        assert encode_extension(unit.tags_code, unit.store_timestamp) == ext[position : position + unit.size]


def test_new_units_of_an_extended_queue_hold_their_tags_codes(tmp_path: Path) -> None:
    queue, _ = loaded("cqext", tmp_path, "GoldenExt")
    first = queue.unit(0)
    assert first is not None
    assert queue.tags_code(first) == 2598902
    queue.reserve(5)
    queue.put_entry(QueueEntry(10_000, 100, 7, 4, 0))
    unit = queue.unit(4)
    assert unit is not None
    assert unit[2] == queue.tags_code(unit) == 7


def test_a_unit_whose_extension_is_another_messages_gets_its_tags_code(tmp_path: Path) -> None:
    queue, _ = loaded("cqext", tmp_path, "GoldenExt")
    assert isinstance(queue, ExtQueue)
    first = queue.unit(0)
    assert first is not None
    extension = queue.extension(first)
    assert extension is not None
    same = QueueEntry(first[0], first[1], extension.tags_code, 0, extension.store_timestamp)
    queue.put_entry(same)
    assert queue.unit(0) == first
    for other in (same._replace(tags_code=7), same._replace(store_timestamp=extension.store_timestamp + 1)):
        queue.put_entry(other)
        assert queue.unit(0) == (*first[:2], other.tags_code)
        queue.put(*first, 0)


def test_without_its_extension_a_unit_has_no_tags(tmp_path: Path) -> None:
    java = restore("cqext", tmp_path / "java")
    for path in (java / "consumequeue_ext" / "GoldenExt" / "0").iterdir():
        path.unlink()
    table = QueueTable(java / "consumequeue", 400, KINDS["cqext"])
    table.load()
    queue = table.get("GoldenExt", 0)
    queue.recover(1 << 40, scan=True)
    unit = queue.unit(0)
    assert unit is not None
    assert queue.tags_code(unit) is None
