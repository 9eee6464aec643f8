"""Stores with queues of other kinds: put, read, close, crash, and be opened again."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from ledgermq.message.flags import INNER_BATCH, NEED_UNWRAP
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import decode_properties, encode_properties
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFullError
from store.log.drafts import QueuedDraft
from store.message_reader import MessageReader
from store.opening import OpenStore
from store.queues import queue_reader
from store.queues.batch_queue import BatchQueue
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import ConsumeQueue
from store.queues.ext_queue import ExtQueue, extension_position
from store.queues.queue_entries import NOT_DISPATCHED
from store.queues.queue_kinds import QueueKinds
from store.queues.queue_reader import GetStatus
from tests.store.queues.extensions import extend_queues
from tests.store.support import Outcomes, bodies_of, body_of, open_classic, put_all, queued


def attributes(topic: str) -> Mapping[str, str]:
    return {"queue.type": "BatchCQ"} if topic.startswith("Batch") else {}


KINDS = QueueKinds(
    ext_file_size_bytes=200,
    batch_file_size_bytes=230,
    multi_dispatch=True,
    light=True,
    topic_attributes=attributes,
)


def with_properties(draft: QueuedDraft, **properties: str) -> QueuedDraft:
    before = len(draft.properties)
    draft.properties = encode_properties({**decode_properties(draft.properties), **properties})
    draft.size += len(draft.properties) - before
    return draft


def batch(queue: ConsumeQueue, body: bytes, messages: int) -> QueuedDraft:
    """A record of several messages, as a broker makes one."""
    draft = queued(queue, body, tags="TagA", sys_flag=INNER_BATCH | NEED_UNWRAP)
    return with_properties(draft, INNER_NUM=str(messages))


async def open_kinds(root: Path) -> OpenStore:
    return await open_classic(root, kinds=KINDS)


def properties_of(record: memoryview) -> dict[str, str]:
    return decode_properties(dispatch_fields(record, 0)[7])


async def test_messages_of_a_batch_record_have_an_offset_each(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    queue = opened.store.queues.get("Batch", 0)
    assert isinstance(queue, BatchQueue)
    drafts = [batch(queue, b"three", 3), queued(queue, b"one", tags="TagB"), batch(queue, b"two", 2)]
    await put_all(opened, drafts)
    assert [draft.queue_offset for draft in drafts] == [0, 3, 4]
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 6, 6)
    result = opened.store.reader.get(queue, 1, 32, 1 << 20)
    assert [body_of(record) for record in result.records] == [b"three", b"one", b"two"]
    assert (result.status, result.next_offset) == (GetStatus.FOUND, 6)
    assert [properties_of(record).get("INNER_BASE") for record in result.records] == ["0", None, "4"]
    assert [body_of(record) for record in opened.store.reader.get(queue, 3, 1, 1 << 20).records] == [b"one"]
    only_b = opened.store.reader.get(queue, 0, 32, 1 << 20, lambda code: code == tags_code("TagB"))
    assert [body_of(record) for record in only_b.records] == [b"one"]
    await opened.close()


async def test_a_bulk_pull_from_the_disk_takes_all_that_is_near_and_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_kinds(tmp_path)
    queue = opened.store.queues.get("Batch", 0)
    await put_all(opened, [batch(queue, bytes(100), 2) for _ in range(30)])
    reader = MessageReader(opened.store.log, ColdLimits(memory_bytes=0, bytes_max=5000))
    assert reader.get(queue, 0, 100, 1 << 20).next_offset == 8, "no bulk pull"
    assert reader.get(queue, 0, 100, 1 << 20, lambda _: True, joins=True).next_offset == 8, "with a filter"
    bulk = reader.get(queue, 0, 100, 1 << 20, joins=True)
    assert 8 < bulk.next_offset < 60 and bulk.size_bytes <= 5000, "limited by bytes only"
    monkeypatch.setattr(queue_reader, "_NEAR_BYTES", 2000)
    assert reader.get(queue, 0, 100, 1 << 20, joins=True).size_bytes <= 2000 + 2 * len(bulk.records[0])
    monkeypatch.setattr(queue_reader, "_NEAR_BYTES", 100)
    assert reader.get(queue, 0, 100, 1 << 20, joins=True).next_offset == 8
    await opened.close()


async def test_a_pull_counts_the_messages_of_a_batch_and_always_takes_the_first(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    queue = opened.store.queues.get("Batch", 0)
    await put_all(opened, [batch(queue, b"%d" % n, 4) for n in range(4)])
    assert opened.store.reader.get(queue, 0, 8, 1 << 20).next_offset == 8
    assert opened.store.reader.get(queue, 0, 7, 1 << 20).next_offset == 4
    assert opened.store.reader.get(queue, 0, 1, 1).next_offset == 4
    await opened.close()


@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "queues"])
async def test_queues_of_all_kinds_come_back_with_what_they_held(tmp_path: Path, lost: str) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    for number in range(12):
        plain = with_properties(queued(queues.get("T", 0), b"t%d" % number, tags="x"), INNER_MULTI_DISPATCH="%LMQ%a,L")
        await put_all(opened, [batch(queues.get("Batch", 0), b"b%d" % number, number % 4 + 1), plain])
    before = {str(queue): bodies_of(opened, queue) for queue in queues}
    await opened.close()
    if lost != "nothing":
        (tmp_path / "checkpoint").unlink()
    if lost == "queues":
        for folder in ("consumequeue", "batchconsumequeue"):
            shutil.rmtree(tmp_path / folder)
    opened = await open_kinds(tmp_path)
    assert {str(queue): bodies_of(opened, queue) for queue in opened.store.queues} == before
    assert len(before) == 4
    assert bodies_of(opened, opened.store.queues.get("%LMQ%a", 0)) == [b"t%d" % number for number in range(12)]
    more = queued(opened.store.queues.get("Batch", 0), b"more")
    await put_all(opened, [more])
    assert more.queue_offset == sum(number % 4 + 1 for number in range(12))
    await opened.close()


async def test_a_message_tells_its_place_in_each_of_its_queues(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    for names in ("%LMQ%one,%LMQ%two", "%LMQ%one", "%LMQ%one,%LMQ%two"):
        draft = with_properties(queued(queues.get("T", 3), names.encode()), INNER_MULTI_DISPATCH=names)
        await put_all(opened, [draft])
    records = opened.store.reader.get(queues.get("T", 3), 0, 9, 9999).records
    told = [properties_of(record)["INNER_MULTI_QUEUE_OFFSET"] for record in records]
    assert told == ["0,0", "1", "2,1"]
    assert queues.get("%LMQ%one", 0).max_offset == 3
    assert queues.get("%LMQ%two", 0).max_offset == 2
    await opened.close()


async def test_names_without_the_light_prefix_keep_the_queue_id(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    await put_all(opened, [with_properties(queued(queues.get("T", 3), b"x"), INNER_MULTI_DISPATCH="Other")])
    assert bodies_of(opened, queues.get("Other", 3)) == [b"x"]
    await opened.close()


@pytest.mark.parametrize("topic", ["%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "%DLQ%g"])
async def test_retried_undecided_and_dead_messages_are_not_dispatched_further(tmp_path: Path, topic: str) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    draft = with_properties(queued(queues.get(topic, 0), b"x"), INNER_MULTI_DISPATCH="%LMQ%one")
    properties = draft.properties
    await put_all(opened, [draft])
    assert (queues.find("%LMQ%one", 0), draft.properties) == (None, properties)
    await opened.close()


async def test_a_half_message_that_rocketmq_gave_an_offset_in_a_light_queue_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    names = {"INNER_MULTI_DISPATCH": "%LMQ%one"}
    with monkeypatch.context() as patch:
        patch.setattr("store.queues.queue_offsets.NO_OFFSETS", NOT_DISPATCHED)
        await put_all(opened, [with_properties(queued(queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0), b"half"), **names)])
    await put_all(opened, [with_properties(queued(queues.get("T", 0), b"later"), **names)])
    await opened.close()
    shutil.rmtree(tmp_path / "consumequeue")
    opened = await open_kinds(tmp_path)
    assert bodies_of(opened, opened.store.queues.get("%LMQ%one", 0)) == [b"half", b"later"]
    await opened.close()


@pytest.mark.parametrize(
    ("names", "cause"), [("a/b", Cause.MESSAGE_ILLEGAL), (",".join(f"%LMQ%{n}" for n in range(20_001)), None)]
)
async def test_a_batch_that_is_refused_leaves_no_place_taken(tmp_path: Path, names: str, cause: Cause | None) -> None:
    opened = await open_classic(tmp_path, kinds=QueueKinds(multi_dispatch=True, light=True, light_max=2))
    queues = opened.store.queues
    good = with_properties(queued(queues.get("T", 0), b"good"), INNER_MULTI_DISPATCH="%LMQ%one")
    bad = queued(queues.get("T", 0), b"bad")
    bad.properties = f"INNER_MULTI_DISPATCH\x01{names}\x02".encode()
    before = (good.properties, good.size)
    with pytest.raises(Refusal) as refused:
        opened.store.put([good, bad], Outcomes())
    assert refused.value.cause is (cause or Cause.SYSTEM_ERROR)
    assert (good.properties, good.size) == before
    assert queues.get("T", 0).next_offset == queues.get("%LMQ%one", 0).next_offset == 0
    await opened.close()


async def test_a_log_that_refuses_gives_all_places_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_kinds(tmp_path)
    queues = opened.store.queues
    drafts = [batch(queues.get("Batch", 0), b"x", 3)]
    drafts.append(with_properties(queued(queues.get("T", 0), b"y"), INNER_MULTI_DISPATCH="%LMQ%one"))
    before = [(draft.properties, draft.size) for draft in drafts]

    def full(*_: object) -> None:
        raise DiskFullError(tmp_path, 1)

    with monkeypatch.context() as patch:
        patch.setattr("store.log.placing.Placer.place", full)
        with pytest.raises(Refusal):
            opened.store.put(drafts, Outcomes())
    assert [(draft.properties, draft.size) for draft in drafts] == before
    assert [queue.next_offset for queue in queues] == [0, 0, 0]
    await put_all(opened, drafts)
    assert [draft.queue_offset for draft in drafts] == [0, 0]
    await opened.close()


async def extended_by_java(root: Path) -> OpenStore:
    """As `open_kinds`, of a store that was closed and whose plain queues RocketMQ has given extensions."""
    extend_queues(root, 200)
    return await open_kinds(root)


async def test_tags_are_filtered_by_the_extension(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    await put_all(opened, [queued(opened.store.queues.get("T", 0), b"%d" % n, tags=f"Tag{n % 2}") for n in range(20)])
    await opened.close()
    opened = await extended_by_java(tmp_path)
    queue = opened.store.queues.get("T", 0)
    assert isinstance(queue, ExtQueue)
    await put_all(opened, [queued(queue, b"%d" % n, tags=f"Tag{n % 2}") for n in range(20, 30)])
    units = [unit for _, unit in queue.iterate(0, 30)]
    assert [queue.extension(unit) is not None for unit in units] == [True] * 20 + [False] * 10
    found = opened.store.reader.get(queue, 0, 32, 1 << 20, lambda code: code == tags_code("Tag1"))
    assert [body_of(record) for record in found.records] == [b"%d" % n for n in range(1, 30, 2)]
    await opened.close()


async def test_extensions_are_cleaned_with_their_queue(tmp_path: Path) -> None:
    opened = await open_kinds(tmp_path)
    await put_all(opened, [queued(opened.store.queues.get("T", 0), b"%d" % n) for n in range(100)])
    await opened.close()
    opened = await extended_by_java(tmp_path)
    queue = opened.store.queues.get("T", 0)
    folders = [tmp_path / name / "T" / "0" for name in ("consumequeue", "consumequeue_ext")]
    before = sorted(path.name for path in folders[1].iterdir())
    await put_all(opened, [queued(queue, b"%d" % n) for n in range(100, 130)])

    def clean_below(offset: int) -> list[int]:
        unit = queue.unit(offset)
        assert unit is not None
        queue.correct_min_offset(unit[0])
        for file in queue.take_expired():
            file.delete()
        return [int(path.name) for path in sorted(folders[1].iterdir())]

    left = clean_below(70)
    assert min(int(path.name) for path in folders[0].iterdir()) == 70 * 20
    assert [f"{start:020d}" for start in left] == before[-len(left) :]
    unit = queue.unit(70)
    assert unit is not None
    assert left[0] <= (extension_position(unit[2]) or 0) < left[0] + 200
    assert bodies_of(opened, queue)[0] == b"70"
    assert clean_below(99)
    assert not clean_below(100)
    assert bodies_of(opened, queue) == [b"%d" % n for n in range(100, 130)]
    await opened.close()


@pytest.mark.parametrize("topic", ["Batch", "T"])
async def test_units_from_an_offset_on_are_forgotten_and_numbers_go_on_from_there(tmp_path: Path, topic: str) -> None:
    opened = await open_kinds(tmp_path)
    queue = opened.store.queues.get(topic, 0)
    await put_all(opened, [batch(queue, b"%d" % n, 2) for n in range(9)])
    count = 10 if topic == "Batch" else 5
    queue.keep_before(count)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, count, count)
    assert bodies_of(opened, queue) == [b"%d" % n for n in range(5)]
    queue.keep_before(count)
    queue.keep_before(0)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    await opened.close()
