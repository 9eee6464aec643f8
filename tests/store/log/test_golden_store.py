"""Stores that the Java broker wrote, whole and damaged: everything it kept is kept, and no unit is wrong."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgermq.message.queue_unit import UNIT
from ledgermq.message.record import decode_record
from store.errors import StoreFormatError
from store.opening import OpenStore
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from tests.store.support import GOLDEN, bodies_of, golden, open_classic, put_all, queued

TREES = GOLDEN / "store-classic"
VARIANTS: list[dict[str, Any]] = json.loads((TREES / "variants.json").read_text())
LOG_FILE, QUEUE_FILE = 65536, 1200


async def open_golden(root: Path, *, untrusted_walk_bytes: int = 1 << 30) -> OpenStore:
    return await open_classic(
        root, file_size=LOG_FILE, queue_file_size=QUEUE_FILE, untrusted_walk_bytes=untrusted_walk_bytes
    )


def queue_of(store: OpenStore, name: str) -> ConsumeQueue:
    topic, _, queue_id = name.rpartition("/")
    queue = store.store.queues.find(topic, int(queue_id))
    assert queue is not None, name
    return queue


def readable(store: OpenStore) -> Iterator[tuple[str, bool]]:
    """Each unit of each queue: the queue's name, and whether the record is the one it should be."""
    for queue in store.store.queues:
        for offset, (physical_offset, size, _) in queue.iterate(queue.min_offset, queue.max_offset):
            if size == BLANK_SIZE:
                continue  # a damaged record: shown to nobody
            record = decode_record(store.store.log.read(physical_offset, size), check_crc=False)
            found = (record.topic, record.queue_id, record.queue_offset, record.physical_offset, record.size)
            wanted = (queue.topic, queue.queue_id, offset, physical_offset, size)
            yield f"{queue.topic}/{queue.queue_id}", found == wanted


@pytest.mark.parametrize("tree", ["clean", "kill9"])
async def test_every_message_is_at_its_queue_and_offset(tmp_path: Path, tree: str) -> None:
    golden.restore_tree(TREES / tree, tmp_path)
    store = await open_golden(tmp_path)
    lines = (TREES / tree / "messages.jsonl").read_text().splitlines()
    for message in map(json.loads, lines):
        queue = queue_of(store, f"{message['topic']}/{message['queueId']}")
        (record,) = store.store.reader.get(queue, message["queueOffset"], 1, 1 << 20).records
        assert hashlib.sha256(record).hexdigest() == message["recordSha256"]
        assert store.store.reader.look_up(message["physicalOffset"]) == record
    assert len(list(store.store.log.walk(0, store.store.log.max_offset))) == len(lines)
    await store.close()


@pytest.mark.parametrize("tree", ["clean", "kill9"])
@pytest.mark.parametrize("rebuilt", [False, True])
async def test_every_queue_equals_the_manifest_found_or_made_again(tmp_path: Path, tree: str, rebuilt: bool) -> None:
    golden.restore_tree(TREES / tree, tmp_path)
    if rebuilt:
        golden.apply_ops(tmp_path, [{"op": "delete", "path": "consumequeue"}])
    store = await open_golden(tmp_path)
    manifest = json.loads((TREES / tree / "queues.json").read_text())["queues"]
    found = {
        f"{queue.topic}/{queue.queue_id}": {
            "firstOffset": queue.min_offset,
            "units": [list(unit) for _, unit in queue.iterate(queue.min_offset, queue.max_offset)],
        }
        for queue in store.store.queues
    }
    assert found == manifest
    await store.close()


async def test_queue_files_made_again_equal_javas_byte_for_byte(tmp_path: Path) -> None:
    golden.restore_tree(TREES / "clean", tmp_path)
    queues = tmp_path / "consumequeue"
    files = {path.relative_to(queues): path.read_bytes() for path in queues.rglob("*") if path.is_file()}
    golden.apply_ops(tmp_path, [{"op": "delete", "path": "consumequeue"}])
    await (await open_golden(tmp_path)).close()
    assert {path.relative_to(queues): path.read_bytes() for path in queues.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["name"])
async def test_a_damaged_store_keeps_at_least_what_java_kept(tmp_path: Path, variant: dict[str, Any]) -> None:
    golden.restore_tree(TREES / variant["base"], tmp_path)
    golden.apply_ops(tmp_path, variant["ops"])
    java = variant["recovered"]
    if not java["loaded"]:
        with pytest.raises(StoreFormatError, match="is 60000 bytes long, must be 65536"):
            await open_golden(tmp_path)
        return
    store = await open_golden(tmp_path)
    units = list(readable(store))
    assert all(is_right for _, is_right in units)
    assert len(units) >= java["afterStart"]["readableThroughQueues"]
    for name, queue in java["afterStart"]["queues"].items():
        assert [found for found, _ in units].count(name) >= queue["readable"], name
    assert store.store.log.min_offset == max(java["afterStart"]["minPhyOffset"], 0)
    await goes_on(store, tmp_path)


async def goes_on(store: OpenStore, root: Path) -> None:
    """What was recovered takes messages, and is the same after a clean stop."""
    queue = store.store.queues.get("GoldenNormal", 0)
    await put_all(store, [queued(queue, b"one more", tags="T") for _ in range(100)])
    before = {(queue.topic, queue.queue_id): bytes_of(queue) for queue in store.store.queues}
    await store.close()
    again = await open_golden(root)
    assert again.recovery.record_count == 0
    assert {(queue.topic, queue.queue_id): bytes_of(queue) for queue in again.store.queues} == before
    assert bodies_of(again, again.store.queues.get("GoldenNormal", 0))[-100:] == [b"one more"] * 100
    await again.close()


def bytes_of(queue: ConsumeQueue) -> bytes:
    return b"".join(UNIT.pack(*unit) for _, unit in queue.iterate(queue.min_offset, queue.max_offset))


@pytest.mark.parametrize(
    "name", ["clean-cq-cut-5", "clean-cq-file-missing", "clean-cq-topic-missing", "kill9-cq-all-missing"]
)
async def test_lost_units_are_made_again_where_java_leaves_them_lost(tmp_path: Path, name: str) -> None:
    variant = next(variant for variant in VARIANTS if variant["name"] == name)
    golden.restore_tree(TREES / variant["base"], tmp_path)
    golden.apply_ops(tmp_path, variant["ops"])
    store = await open_golden(tmp_path)
    count = len((TREES / variant["base"] / "messages.jsonl").read_text().splitlines())
    assert len(list(readable(store))) == count
    await store.close()


async def test_a_short_walk_finds_out_that_a_queue_lacks_older_units_and_fills_it(tmp_path: Path) -> None:
    golden.restore_tree(TREES / "kill9", tmp_path)
    golden.apply_ops(tmp_path, [{"op": "delete", "path": "consumequeue/GoldenNormal/0"}])
    store = await open_golden(tmp_path, untrusted_walk_bytes=100_000)
    assert queue_of(store, "GoldenNormal/0").max_offset == 131
    assert store.recovery.rebuilt == 1
    assert all(is_right for _, is_right in readable(store))
    await store.close()
