"""Batches as one draft: what lies on disk is what the same messages leave when each comes alone."""

import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.message.batch import cut_batch, encode_batch
from ledgermq.message.flags import BORN_HOST_V6
from ledgermq.message.hashing import tags_code
from ledgermq.message.record import decode_record, record_size
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFullError
from store.index import service
from store.index.config import IndexConfig
from store.log.commit_log import CommitLogConfig
from store.log.drafts import BatchDraft, QueuedDraft
from store.opening import OpenStore, open_classic_store
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_kinds import PLAIN_ONLY, QueueKinds
from store.queues.queue_offsets import NotYetError
from store.store_config import StoreConfig
from tests.store.index.support import LAYOUT, found
from tests.store.support import HOST, Outcomes, bodies_of, eventually, put_all, queued

FILE_SIZE = 8192
BORN_V6 = bytes(range(16)) + struct.pack(">i", 4711)
LONG_TOPIC = "t" * 130
Shape = tuple[str, int, list[tuple[int, bytes, bytes]]]
"""Topic, queue, messages: flag, body and properties of each. One message comes alone."""


@pytest.fixture(autouse=True)
def still_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Records of two stores have the same time."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    yield


async def open_here(root: Path, *, stamps_crc: bool = False, kinds: QueueKinds = PLAIN_ONLY) -> OpenStore:
    index = IndexConfig(directory=root / "index", slot_count=LAYOUT.slots, entry_count=LAYOUT.entries)
    return await open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=200,
            checkpoint_interval_ms=3_600_000,
            kinds=kinds,
            index=index,
        ),
        CommitLogConfig(
            directory=root / "commitlog", store_host=HOST, file_size_bytes=FILE_SIZE, stamps_crc=stamps_crc
        ),
    )


def batch_of(store: OpenStore, shape: Shape, *, born_host: bytes = HOST) -> BatchDraft:
    topic, queue_id, messages = shape
    body = encode_batch(messages)
    sys_flag = BORN_HOST_V6 if len(born_host) == 20 else 0
    sizes = [record_size(len(body), len(topic), len(own), sys_flag, v2=len(topic) > 127) for _, body, own in messages]
    tags_codes = [tags_code(own[5:-1]) if own.startswith(b"TAGS\x01") else 0 for _, _, own in messages]
    draft = BatchDraft(body, *cut_batch(body), tags_codes, sizes)
    draft.topic, draft.queue_id, draft.tally, draft.sys_flag = topic.encode(), queue_id, None, sys_flag
    draft.queue = store.store.queues.get(draft.topic, queue_id)
    draft.born_timestamp, draft.born_host, draft.reconsume_times = 1_700_000_000_001, born_host, 3
    return draft


def shapes(seed: int) -> Iterator[list[Shape]]:
    """Turns, each of a few batches and single messages; together they fill many files of log and queues."""
    rng = random.Random(seed)
    for turn in range(40):
        shapes: list[Shape] = []
        for number in range(rng.randrange(1, 4)):
            count = rng.choice((1, 1, 2, 7, 30))
            size = rng.choice((0, 10, 200))
            messages = [
                (rng.randrange(9), rng.randbytes(rng.randrange(size + 1)), b"TAGS\x01t%d\x02KEYS\x01k%d-%d-%d\x02"
                 % (place % 3, turn, number, place))
                for place in range(count)
            ]  # fmt: skip
            shapes.append((rng.choice(("A", "A", "B", LONG_TOPIC)), rng.randrange(2), messages))
        yield shapes


async def fill(store: OpenStore, seed: int, *, apart: bool, born_host: bytes = HOST) -> None:
    for turn in shapes(seed):
        drafts: list[QueuedDraft] = []
        for shape in turn:
            batch = batch_of(store, shape, born_host=born_host)
            drafts += [batch] if batch.messages > 1 and not apart else batch.singles()
        await put_all(store, drafts)


def files_of(root: Path) -> dict[str, bytes]:
    folders = ("commitlog", "consumequeue", "index")
    return {
        f"{path.parent.relative_to(root)}/{path.name if folder != 'index' else ''}": path.read_bytes()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", ["plain", "born by IPv6", "with a CRC property", "with light queues"])
async def test_batches_leave_the_files_that_their_messages_would_leave_alone(
    tmp_path: Path, seed: int, form: str
) -> None:
    born_host = BORN_V6 if form == "born by IPv6" else HOST
    kinds = QueueKinds(multi_dispatch=True) if form == "with light queues" else PLAIN_ONLY
    for name in ("whole", "apart"):
        store = await open_here(tmp_path / name, stamps_crc=form == "with a CRC property", kinds=kinds)
        await fill(store, seed, apart=name == "apart", born_host=born_host)
        await store.close()
    whole, apart = files_of(tmp_path / "whole"), files_of(tmp_path / "apart")
    assert sum(name.startswith("commitlog/") for name in whole) > 3
    assert whole == apart


async def test_a_batch_in_one_file_is_not_taken_apart_and_knows_where_each_record_lies(tmp_path: Path) -> None:
    store = await open_here(tmp_path)
    batch = batch_of(store, ("A", 0, [(number, b"x" * number, b"") for number in range(5)]))
    await put_all(store, [queued(batch.queue, b"before")])
    await put_all(store, [batch, queued(batch.queue, b"behind")])
    assert not batch.parts
    offsets = batch.physical_offsets()
    records = [decode_record(store.store.log.read(at, size)) for at, size in zip(offsets, batch.sizes, strict=True)]
    assert [record.physical_offset for record in records] == offsets
    assert [record.queue_offset for record in records] == [1, 2, 3, 4, 5]
    assert [record.body for record in records] == [b"x" * number for number in range(5)]
    assert [record.flag for record in records] == [0, 1, 2, 3, 4]
    assert batch.first_queue_offset() == 1
    assert batch.queue.max_offset == 7
    assert len(batch.body) == 0, "the request's bytes are let go"
    await store.close()


async def test_a_batch_over_the_end_of_a_file_lies_in_both(tmp_path: Path) -> None:
    store = await open_here(tmp_path)
    batch = batch_of(store, ("A", 0, [(0, b"%02d" % number * 250, b"") for number in range(30)]))
    await put_all(store, [batch])
    offsets = batch.physical_offsets()
    assert offsets[-1] > FILE_SIZE
    assert FILE_SIZE in offsets
    records = [decode_record(store.store.log.read(at, size)) for at, size in zip(offsets, batch.sizes, strict=True)]
    assert [record.body[:2] for record in records] == [b"%02d" % number for number in range(30)]
    assert store.store.last_timestamp == 1_700_000_000_000
    await store.close()


async def test_keys_of_batches_are_found_as_soon_as_they_are_dispatched(tmp_path: Path) -> None:
    store = await open_here(tmp_path)
    for topic in ("A", LONG_TOPIC):
        batch = batch_of(store, (topic, 0, [(0, b"x", b"KEYS\x01k%d\x02" % number) for number in range(5)]))
        await put_all(store, [batch])
        for number, offset in enumerate(batch.physical_offsets()):
            assert await found(store, f"k{number}", topic) == [offset]
    await store.close()


async def test_a_batch_with_a_message_that_fits_into_no_file_is_refused_whole(tmp_path: Path) -> None:
    store = await open_here(tmp_path)
    good = batch_of(store, ("A", 0, [(0, b"good", b"")] * 3))
    bad = batch_of(store, ("A", 0, [(0, b"fits", b""), (0, bytes(FILE_SIZE), b"")]))
    with pytest.raises(Refusal) as caught:
        store.store.put([good, bad], Outcomes())
    assert caught.value.cause is Cause.MESSAGE_ILLEGAL
    assert (store.store.log.max_offset, good.queue.next_offset) == (0, 0)
    await put_all(store, [good])
    assert (good.first_queue_offset(), bodies_of(store, good.queue)) == (0, [b"good"] * 3)
    await store.close()


async def test_batches_to_new_queues_wait_together_until_all_have_files(tmp_path: Path) -> None:
    store = await open_here(tmp_path)
    first, second = (batch_of(store, (topic, 0, [(0, b"x", b"")] * 25)) for topic in "AB")
    drafts, outcomes = [first, second], Outcomes()
    with pytest.raises(NotYetError):
        store.store.put(drafts, outcomes, 0.0)
    assert (first.queue.next_offset, second.queue.next_offset, store.store.log.max_offset) == (0, 0, 0)
    store.store.put(drafts, outcomes, 0.0)
    await eventually(lambda: second.queue.max_offset == 25)
    assert (first.queue.max_offset, outcomes.causes) == (25, [None])
    await store.close()


async def test_a_batch_without_room_for_its_units_is_refused_with_all_that_came_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_here(tmp_path)
    first, second = (batch_of(store, (topic, 0, [(0, b"x", b"")] * 25)) for topic in "AB")
    reserve = ConsumeQueue.reserve

    def is_full(queue: ConsumeQueue, end_offset: int) -> None:
        if queue is second.queue:
            raise DiskFullError(tmp_path, 1)
        reserve(queue, end_offset)

    monkeypatch.setattr(ConsumeQueue, "reserve", is_full)
    with pytest.raises(Refusal) as caught:
        store.store.put([first, second], Outcomes())
    assert caught.value.cause is Cause.DISK_FULL
    assert (first.queue.next_offset, second.queue.next_offset, store.store.log.max_offset) == (0, 0, 0)
    await store.close()


async def test_units_of_a_batch_that_met_a_full_disk_are_made_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_here(tmp_path)
    batch = batch_of(store, ("A", 0, [(0, b"%d" % number, b"") for number in range(25)]))
    queue, extend = batch.queue, ConsumeQueue.extend

    def fills_up(queue: ConsumeQueue, units: bytes) -> None:
        monkeypatch.setattr(ConsumeQueue, "extend", extend)
        queue.extend(units[:60])
        raise DiskFullError(tmp_path, 1)

    monkeypatch.setattr(ConsumeQueue, "extend", fills_up)
    outcomes = Outcomes()
    store.store.put([batch], outcomes)
    await eventually(lambda: queue.max_offset == 25)
    assert bodies_of(store, queue) == [b"%d" % number for number in range(25)]
    await store.close()


async def test_batches_wait_for_the_index_without_their_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted with their bodies they were dropped at high rates, and the index read the log again."""
    monkeypatch.setattr(service, "_DELAY_S", 3600.0)
    monkeypatch.setattr(service, "_DRAFT_BYTES_MAX", 5 * FILE_SIZE)
    from_log = list[int]()

    def read(_: service.IndexService, end: int, slice_s: float | None) -> tuple[None, int]:
        from_log.append(end)
        return None, end

    monkeypatch.setattr(service.IndexService, "_from_log", read)
    store = await open_here(tmp_path)
    assert store.store.index is not None
    body = bytes(FILE_SIZE // 4)
    for _ in range(20):
        await put_all(store, [batch_of(store, ("T", 0, [(0, body, b"KEYS\x01k\x02")] * 2))])
    await store.store.index.catch_up()
    assert not from_log
    await store.close()
