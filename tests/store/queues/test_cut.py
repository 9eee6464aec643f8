"""A log that is cut below what was dispatched: everything that was made of the records behind the cut goes back.

The store is compared with one that never had those records, and, at every step of a cut, with one that is made from
the log alone: a crash may end the process there.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest import mock

import pytest

from ledgermq.remoting.refusal import Cause, Refusal
from store.compaction.config import CompactionConfig
from store.directory.checkpoint import StoreCheckpointFile
from store.errors import DiskFailedError
from store.index.config import IndexConfig
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.opening import OpenStore, open_classic_store
from store.queues.consume_queue import ConsumeQueue
from store.queues.ext_queue import ExtQueue
from store.queues.held_units import MAPPED_MIN
from store.queues.queue_file import QueueFile
from store.queues.queue_kinds import PLAIN_ONLY, QueueKinds
from store.replicated_log import LogRole, LogState
from store.store_config import StoreConfig
from tests.store.index.support import LAYOUT, index_of
from tests.store.queues.extensions import extend_queues
from tests.store.queues.test_kinds import KINDS, batch, with_properties
from tests.store.support import HOST, Outcomes, Recorder, bodies_of, eventually, put_all, queued

HELD = QueueKinds()
"""As `PLAIN_ONLY`, and units are held in memory."""
ALL = pytest.mark.parametrize("kinds", [PLAIN_ONLY, HELD, KINDS], ids=["plain", "held", "kinds"])
QUEUES = [("T", 0), ("T", 1), ("Batch", 0), ("%LMQ%a", 0), ("Late", 0)]


async def open_store(root: Path, kinds: QueueKinds) -> OpenStore:
    return await open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=200,
            checkpoint_interval_ms=3_600_000,
            kinds=kinds,
            hold_from=0 if kinds is HELD else MAPPED_MIN,
            index=IndexConfig(directory=root / "index", slot_count=LAYOUT.slots, entry_count=LAYOUT.entries),
        ),
        CommitLogConfig(directory=root / "commitlog", store_host=HOST, file_size_bytes=4096, flush_mode=FlushMode.SYNC),
    )


@contextlib.asynccontextmanager
async def opened(root: Path, kinds: QueueKinds) -> AsyncIterator[OpenStore]:
    store = await open_store(root, kinds)
    yield store
    await store.close()


def log_of(store: OpenStore) -> CommitLog:
    assert isinstance(store.store.log, CommitLog)
    return store.store.log


async def work(store: OpenStore, name: str, count: int, *, late: bool = False) -> int:
    """Messages for every kind of queue there is; the log's end behind them."""
    get, has_kinds = store.store.queues.get, store.store.queues.has_kinds
    for number in range(count):
        body = f"{name}{number}".encode()
        plain = queued(get("T", number % 2), body, tags=name)
        drafts: list[QueuedDraft] = [with_properties(plain, KEYS=f"k{number} {name}")]
        if late:
            drafts.append(queued(get("Late", 0), body))
        if has_kinds:
            drafts.append(batch(get("Batch", 0), body, 1 + number % 3))
            drafts.append(with_properties(queued(get("T", 1), body), INNER_MULTI_DISPATCH="%LMQ%a"))
        await put_all(store, drafts)
    return store.store.log.max_offset


def begin_cut(store: OpenStore, offset: int) -> None:
    """As a mode of replication does, up to the cut of its own files."""
    log = log_of(store)
    log._refusal = refusal = Refusal(Cause.NOT_LEADER, "follows another master")
    store.store.on_role_change(LogState(LogRole.SLAVE, 1, None, refusal))
    log.stop_writing(refusal)
    log._confirm_offset = offset
    store.store.on_truncated(offset)


def end_cut(store: OpenStore, offset: int) -> None:
    log = log_of(store)
    log.local.cut(offset)
    log._refusal = None
    store.store.on_role_change(log.state)


def cut(store: OpenStore, offset: int) -> None:
    begin_cut(store, offset)
    end_cut(store, offset)


def units(queue: ConsumeQueue) -> list[tuple[int, int, int, int | None]]:
    """Each unit's number, place, size and tags code, by which consumers find and filter."""
    found = queue.records_from(queue.min_offset, queue.max_offset)
    return [(start, unit[0], unit[1], queue.tags_code(unit)) for start, _, unit in found]


def picture(store: OpenStore) -> dict[str, object]:
    """Everything that consumers and producers see of the queues."""
    seen: dict[str, object] = {}
    for topic, queue_id in QUEUES:
        queue = store.store.queues.find(topic, queue_id)
        if queue is not None and queue.max_offset:
            seen[str(queue)] = (queue.next_offset, units(queue), bodies_of(store, queue))
    return seen


def extension_ends(store: OpenStore) -> dict[str, int]:
    """Where the extension of each queue that has messages ends."""
    queues = [queue for queue in store.store.queues if isinstance(queue, ExtQueue) and queue.max_offset]
    return {str(queue): queue._extension_end for queue in queues}


async def keys(store: OpenStore) -> dict[str, list[int]]:
    """Physical offsets by key."""
    index = index_of(store)
    await index.catch_up()
    names = ["before", "gone", "after", *(f"k{number}" for number in range(20))]
    return {name: (await index.query("T", name, 1000, 0, 1 << 60)).offsets for name in names}


async def from_the_log_alone(root: Path, copy: Path, kinds: QueueKinds) -> object:
    """What a store has that knows nothing but the log."""
    (copy / "config").mkdir(parents=True)
    shutil.copytree(root / "commitlog", copy / "commitlog")
    async with opened(copy, kinds) as store:
        return picture(store), await keys(store)


@ALL
@pytest.mark.parametrize("kept", [0, 3, 11, 20])
async def test_a_cut_store_is_one_that_never_had_the_records(tmp_path: Path, kinds: QueueKinds, kept: int) -> None:
    async with opened(tmp_path / "cut", kinds) as store, opened(tmp_path / "other", kinds) as other:
        end = await work(store, "before", kept)
        assert await work(other, "before", kept) == end
        await work(store, "gone", 8, late=True)
    if kinds is KINDS:
        extend_queues(tmp_path / "cut", 200)
        extend_queues(tmp_path / "other", 200)
    async with opened(tmp_path / "cut", kinds) as store, opened(tmp_path / "other", kinds) as other:
        await work(store, "gone", 7, late=True)
        await keys(store)
        cut(store, end)
        assert store.store.dispatched_offset == store.store.log.max_offset == end
        assert picture(store) == picture(other)
        assert extension_ends(store) == extension_ends(other)
        assert (await keys(store)) == await keys(other)
        late = store.store.queues.get("Late", 0)
        assert (late.min_offset, late.max_offset, late.next_offset) == (0, 0, 0)
        await work(store, "after", 12)
        await work(other, "after", 12)
        assert picture(store) == picture(other)
        assert (await keys(store)) == await keys(other)
        expected = picture(store), await keys(store)
    async with opened(tmp_path / "cut", kinds) as again:
        assert (picture(again), await keys(again)) == expected


@ALL
async def test_a_crash_at_any_step_of_a_cut_leaves_what_the_log_has(tmp_path: Path, kinds: QueueKinds) -> None:
    root, images = tmp_path / "store", list[Path]()

    def image(_offset: int = 0) -> None:
        images.append(tmp_path / f"image{len(images)}")
        for attempt in range(10):
            try:
                shutil.copytree(root, images[-1])
                return
            except shutil.Error:  # the index's thread has removed a file of the cut meanwhile: copy what is there now
                if attempt == 9:
                    raise
                shutil.rmtree(images[-1])

    async with opened(root, kinds) as store:
        end = await work(store, "before", 7)
        await work(store, "gone", 4, late=True)
    if kinds is KINDS:
        extend_queues(root, 200)
    store = await open_store(root, kinds)
    await work(store, "gone", 5, late=True)
    await keys(store)
    store.checkpointer.save()
    await asyncio.sleep(0.05)
    await asyncio.to_thread(store.checkpointer._executor.submit(lambda: None).result)
    recorder = Recorder()
    recorder.on_cut = image  # type: ignore[assignment, method-assign]
    store.store.add_listener(recorder)
    sync = QueueFile.sync

    def image_and_sync(file: QueueFile) -> None:
        image()
        sync(file)

    with mock.patch.object(QueueFile, "sync", autospec=True, side_effect=image_and_sync):
        begin_cut(store, end)
    found = StoreCheckpointFile(root).found
    assert found.progress is not None and found.index is not None
    assert found.progress.dispatched_offset == found.index.dispatched_offset == end
    image()
    end_cut(store, end)
    image()
    await work(store, "after", 9)
    image()
    assert len(images) > 4
    for number, crashed in enumerate(images):
        expected = await from_the_log_alone(crashed, tmp_path / f"alone{number}", kinds)
        async with opened(crashed, kinds) as again:
            assert (picture(again), await keys(again)) == expected, crashed
    await store.close()


async def test_stale_units_do_not_come_back_behind_a_log_that_has_grown_again(tmp_path: Path) -> None:
    """Units behind a cut that a power cut brings back would look good once the log has passed their offsets."""
    root = tmp_path / "store"
    store = await open_store(root, PLAIN_ONLY)
    end = await work(store, "before", 3)
    await work(store, "gone", 5, late=True)
    synced: list[Path] = []
    sync = QueueFile.sync

    def note(file: QueueFile) -> None:
        synced.append(file.path)
        sync(file)

    with mock.patch.object(QueueFile, "sync", autospec=True, side_effect=note):
        begin_cut(store, end)
    cut_queues = {path.parent for path in synced}
    assert cut_queues >= {root / "consumequeue" / "T" / "0", root / "consumequeue" / "T" / "1"}
    end_cut(store, end)
    await store.close()


async def test_a_cut_that_the_disk_refuses_is_told_and_can_be_tried_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "cut", PLAIN_ONLY) as store:
        end = await work(store, "before", 3)
        await work(store, "gone", 5)
        failing = mock.patch.object(QueueFile, "sync", side_effect=DiskFailedError(tmp_path, "no"))
        with failing, pytest.raises(DiskFailedError):
            begin_cut(store, end)
        assert store.store.log.max_offset > end
        cut(store, end)
        assert bodies_of(store, store.store.queues.get("T", 0)) == [b"before0", b"before2"]


async def test_a_cut_whose_checkpoint_is_not_written_is_told(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "cut", PLAIN_ONLY)
    await work(store, "before", 3)
    failing = mock.patch.object(StoreCheckpointFile, "save", side_effect=DiskFailedError(tmp_path, "no"))
    with failing, pytest.raises(DiskFailedError, match="checkpoint of a cut"):
        begin_cut(store, 0)
    await store.close()


async def test_the_checkpoint_of_a_cut_counts_what_is_left(tmp_path: Path) -> None:
    async with opened(tmp_path / "cut", PLAIN_ONLY) as store:
        end = await work(store, "before", 3)
        await work(store, "gone", 6)
        for offset, count in ((end, 3), (0, 0)):
            store.store.save_checkpoint()
            cut(store, offset)
            found = StoreCheckpointFile(tmp_path / "cut").found
            assert found.progress is not None
            assert (found.progress.unit_count, found.progress.dispatched_offset) == (count, offset)
            assert (found.queues_timestamp == 0) == (count == 0)


async def test_kept_drafts_and_what_waits_for_the_confirm_offset_go_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "cut", PLAIN_ONLY) as store:
        end = await work(store, "before", 2)
        await work(store, "gone", 2)
        queue, other, outcomes = store.store.queues.get("T", 0), store.store.queues.get("T", 1), Outcomes()
        stored_ms = store.store.reader.store_time(queue, 0)
        store.store.put([queued(queue, b"waits")], outcomes)
        assert store.store._kept
        store.store.last_timestamp += 1  # as if what is cut had come later
        cut(store, end)
        assert not store.store._kept
        assert store.store.last_timestamp == max(stored_ms, store.store.reader.store_time(other, 0))
        assert outcomes.causes == [Cause.NOT_LEADER]
        assert (queue.max_offset, queue.next_offset) == (1, 1)
        await work(store, "after", 1)
        assert bodies_of(store, queue) == [b"before0", b"after0"]


async def test_a_compacted_queue_is_copied_again_from_what_is_left(tmp_path: Path) -> None:
    compacted = {"cleanup.policy": "COMPACTION"}
    store = await open_classic_store(
        StoreConfig(
            root=tmp_path,
            compaction=CompactionConfig(log_file_size_bytes=1024, unit_file_size_bytes=460, interval_ms=3_600_000),
            topic_attributes=lambda topic: compacted if topic == "T" else {},
        ),
        CommitLogConfig(directory=tmp_path / "commitlog", store_host=HOST, flush_mode=FlushMode.SYNC),
    )
    queue, compaction = store.store.queues.get("T", 0), store.store.compaction
    assert compaction is not None

    async def put(name: str, count: int) -> None:
        for number in range(count):
            await put_all(store, [with_properties(queued(queue, f"{name}{number}".encode()), KEYS=f"k{number % 4}")])

    def copied(count: int) -> Callable[[], bool]:
        return lambda: (found := compaction.log_of("T", 0)) is not None and found.end_offset == count

    await put("before", 8)
    end = store.store.log.max_offset
    await put("gone", 16)
    await eventually(copied(24))
    await compaction.compact()
    assert b"before7" not in bodies_of(store, queue)  # a later message of its key stands for it
    cut(store, end)
    await eventually(copied(8))
    assert bodies_of(store, queue) == [f"before{number}".encode() for number in range(8)]
    await put("after", 16)
    await eventually(copied(24))
    await compaction.compact()
    assert not any(body.startswith(b"gone") for body in bodies_of(store, queue))
    assert bodies_of(store, queue)[-4:] == [f"after{number}".encode() for number in range(12, 16)]
    await store.close()
