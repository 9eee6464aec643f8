"""A log that is copied, or caught up with, is dispatched by the batch: with the results of record by record."""

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest

from ledgermq.message.flags import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from store import message_store
from store.files.mapped_file import MappedFile
from store.index.batch import Entries, log_batch, records_batch
from store.message_store import MessageStore
from store.opening import OpenStore
from store.recovery.batch_fields import put_plain
from store.recovery.record_batches import RecordBatch
from tests.store.support import FOLLOWING, MemoryLog, Recorder, eventually, open_classic, put_all, queue_table, queued

_WATCHED = "state"
_KEYS = (b"UNIQ_KEY\x017F0000\x02", b"KEYS\x01a b\x02TAGS\x01x\x02", "KEYS\x01ä\x02".encode())
_PROPERTIES = (b"", *_KEYS, b"DELAY\x012\x02")


async def _filled(directory: Path, source: random.Random) -> OpenStore:
    """A store of some hundred records in several files: runs to one queue, new queues, watched and prepared ones."""
    store = await open_classic(directory, file_size=100_000, queue_file_size=20_000)
    topics = ["T", "T", "T", "SCHEDULE_TOPIC_XXXX", "t" * 127]
    for number in range(60):
        topic = _WATCHED if number % 20 == 13 else source.choice(topics) if number < 40 else f"late{number % 7}"
        queue = store.store.queues.get(topic, source.randrange(3))
        drafts = []
        for _ in range(source.choice((1, 3, 20))):
            sys_flag = source.choice((0, 0, 0, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK))
            drafts.append(draft := queued(queue, source.randbytes(source.choice((0, 50, 700))), sys_flag=sys_flag))
            properties = source.choice(_PROPERTIES)
            draft.size += len(properties) - len(draft.properties)
            draft.properties = properties
        await put_all(store, drafts)
    return store


async def _dispatched(store: OpenStore, directory: Path) -> tuple[dict[tuple[str, int], bytes], list[object], int]:
    """Units of each queue, watched records and last time of another store, which finds this one's log as it is."""
    other = MessageStore(store.store.log, queue_table(directory, 100), asyncio.get_running_loop())
    other.watch_topic(_WATCHED)
    other.add_listener(recorder := Recorder())
    other.start()
    await eventually(lambda: other.dispatched_offset == store.store.log.confirm_offset)
    units = {
        (queue.topic, queue.queue_id): b"".join(bytes(queue.units(at, 1)) for at in range(queue.max_offset))
        for queue in other.queues
    }
    other.close()
    return units, recorder.of("state"), other.last_timestamp


@pytest.mark.parametrize("count", [7, 1024])
@pytest.mark.parametrize("seed", range(4))
async def test_a_log_is_dispatched_by_the_batch_as_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int
) -> None:
    store = await _filled(tmp_path / "a", random.Random(seed))
    monkeypatch.setattr(message_store, "_BATCH_RECORDS", count)
    monkeypatch.setattr(message_store, "_BATCH_BYTES", 0)
    by_batch = await _dispatched(store, tmp_path / "b")
    monkeypatch.setattr(message_store, "_BATCH_BYTES", 1 << 40)
    one_by_one = await _dispatched(store, tmp_path / "c")
    assert by_batch == one_by_one
    assert len(by_batch[0]) > 10
    assert by_batch[1]
    await store.close()


async def test_the_first_records_of_many_queues_are_dispatched_by_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they cost several times as much, and with thousands of topics most records are such for a while."""
    store = await open_classic(tmp_path / "a")
    await put_all(store, [queued(store.store.queues.get(f"T{number}", 0), bytes(300)) for number in range(100)])
    await put_all(store, [queued(store.store.queues.get("t" * 127, 0), bytes(300)) for _ in range(3)])
    monkeypatch.setattr(message_store, "_BATCH_BYTES", 0)
    by_batch = Mock(wraps=put_plain)
    monkeypatch.setattr("store.message_store.put_plain", by_batch)
    monkeypatch.setattr(MessageStore, "_new_queue", Mock(side_effect=AssertionError))
    units, _, _ = await _dispatched(store, tmp_path / "b")
    assert {len(found) for found in units.values()} == {20, 60}
    assert by_batch.call_count > 0
    await store.close()


@pytest.mark.parametrize("seed", range(4))
async def test_keys_of_a_batch_are_those_of_its_records(tmp_path: Path, seed: int) -> None:
    store = await _filled(tmp_path, random.Random(seed))
    log = store.store.log
    source, found = log.batches(), []
    assert source is not None
    for file, batch in source.batches(0, log.confirm_offset):
        found += _rows(log_batch(file, batch).entries())
    assert found == _rows(records_batch(list(log.walk(0, log.confirm_offset))).entries())
    assert len(found) > 100
    await store.close()


def _rows(entries: Entries) -> list[tuple[int, int, int]]:
    columns = (entries.hashes, entries.offsets, entries.timestamps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


async def test_records_are_dispatched_in_each_slice_however_long_finding_them_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spend: Callable[[float], None]
) -> None:
    monkeypatch.setattr(message_store, "_BATCH_BYTES", 16 << 10)
    store = await open_classic(tmp_path / "a", file_size=100_000)
    await put_all(store, [queued(store.store.queues.get(_WATCHED, 0), bytes(300)) for _ in range(200)])
    log, turns, seen = store.store.log, list[int](), list[int]()

    class Source:
        window_bytes = 0

        def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
            turns.append(len(seen))
            spend(2 * message_store.SLICE_S)
            source = log_batches()
            assert source is not None
            yield from source.batches(start, end)

    class Told(Recorder):
        def on_state_record(self, physical_offset: int, record: memoryview) -> None:
            seen.append(physical_offset)
            spend(message_store.SLICE_S / 10)

    log_batches = log.batches
    monkeypatch.setattr(log, "batches", Source)
    other = MessageStore(log, queue_table(tmp_path / "b", 100), asyncio.get_running_loop())
    other.watch_topic(_WATCHED)
    other.add_listener(Told())
    other.start()
    await eventually(lambda: len(seen) == 200)
    assert {after - before for before, after in pairwise(turns)} == {10, 11}
    other.close()
    await store.close()


@pytest.mark.parametrize("gather_s", [0.01, 3600.0])
async def test_a_follower_lets_records_gather_where_many_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather_s: float
) -> None:
    monkeypatch.setattr(message_store, "_GATHER_S", gather_s)
    log = MemoryLog(FOLLOWING)
    store = MessageStore(log, queue_table(tmp_path), asyncio.get_running_loop())
    store.start()
    queue = store.queues.get("T", 0)

    def receive(size: int) -> None:
        draft = queued(queue, b"x" * size)
        draft.queue_offset = 0
        log.receive([draft])
        log.confirm()

    receive(100)
    assert store.dispatched_offset == log.confirm_offset
    receive(100)
    assert store.dispatched_offset == log.confirm_offset, "few arrive"
    receive(message_store._MANY_BYTES)
    behind = log.confirm_offset
    assert store.dispatched_offset == behind
    receive(100)
    if gather_s > 1.0:
        assert store.dispatched_offset == behind
        receive(message_store._GATHERED_BYTES)
        assert store.dispatched_offset == log.confirm_offset, "enough have come"
    else:
        await eventually(lambda: store.dispatched_offset == log.confirm_offset)
    store.close()
