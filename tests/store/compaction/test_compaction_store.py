"""Compacted topics in a whole store: copied as they are dispatched, compacted beside it, pulled, dropped, reopened."""

import asyncio
import contextlib
import errno
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledgermq.message.properties import encode_properties
from ledgermq.message.record import decode_record, record_size
from ledgermq.remoting.codec.java_json import load_json
from ledgermq.remoting.refusal import Cause, Refusal
from store.compaction import missing_history
from store.compaction.compaction_store import CompactionStore, KeptPart
from store.compaction.missing_history import MissingHistory
from store.compaction.sparse_file import SparseFile
from store.errors import DiskFailedError, DiskFullError
from store.log.commit_log import CommitLogConfig
from store.log.drafts import QueuedDraft
from store.log.flusher import FlushMode
from store.opening import OpenStore, open_classic_store
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import LogRole, LogState
from store.store_config import StoreConfig
from tests.store.compaction.support import SMALL, contents
from tests.store.support import HOST, eventually, killed_image, put_all, queued


def attributes(topic: str) -> Mapping[str, str]:
    return {"cleanup.policy": "COMPACTION"} if topic.startswith("C") else {}


async def open_store(root: Path, flush_mode: FlushMode = FlushMode.SYNC) -> OpenStore:
    return await open_classic_store(
        StoreConfig(
            root=root,
            queue_file_size_bytes=200,
            compaction=SMALL,
            topic_attributes=attributes,
        ),
        CommitLogConfig(directory=root / "commitlog", store_host=HOST, file_size_bytes=8192, flush_mode=flush_mode),
    )


@contextlib.asynccontextmanager
async def opened(root: Path, flush_mode: FlushMode = FlushMode.SYNC) -> AsyncIterator[OpenStore]:
    store = await open_store(root, flush_mode)
    try:
        yield store
    finally:
        await store.close()


def keyed(queue: ConsumeQueue, key: str | None, body: bytes) -> QueuedDraft:
    draft = queued(queue, body)
    draft.properties = encode_properties({} if key is None else {"KEYS": key})
    draft.size = record_size(len(body), len(draft.topic), len(draft.properties), 0, v2=False)
    return draft


async def send(store: OpenStore, topic: str, *messages: tuple[str | None, bytes]) -> ConsumeQueue:
    queue = store.store.queues.get(topic, 0)
    for start in range(0, len(messages), 20):
        await put_all(store, [keyed(queue, key, body) for key, body in messages[start : start + 20]])
    return queue


def compaction_of(store: OpenStore) -> CompactionStore:
    assert store.store.compaction is not None
    return store.store.compaction


async def copied(store: OpenStore, queue: ConsumeQueue) -> None:
    def is_copied() -> bool:
        found = compaction_of(store).log_of(queue.topic, queue.queue_id)
        return found is not None and found.end_offset == queue.max_offset

    await eventually(is_copied)


def pull_all(store: OpenStore, queue: ConsumeQueue) -> list[tuple[int, str, bytes]]:
    found: list[tuple[int, str, bytes]] = []
    offset = 0
    while offset < queue.max_offset:
        result = store.store.reader.get(queue, offset, 3, 1 << 20)
        assert result.next_offset > offset
        offset = result.next_offset
        records = [decode_record(record) for record in result.records]
        found += [(record.queue_offset, " ".join(record.keys), record.body) for record in records]
    return found


ROUNDS = [(f"k{number % 6}", b"%d" % number) for number in range(60)]


async def test_pulls_get_the_compacted_messages_and_then_the_live_ones(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS)
        other = await send(store, "D", *ROUNDS)
        await copied(store, queue)
        assert len(pull_all(store, queue)) == 60
        await compaction_of(store).compact()
        queue = await send(store, "C", ("k0", b"live"))
        found = pull_all(store, queue)
        assert len(found) < 20
        assert {key: body for _, key, body in found} == {**dict(ROUNDS), "k0": b"live"}
        assert found[-1] == (60, "k0", b"live")
        assert len(pull_all(store, other)) == 60
        assert store.store.reader.min_offset(queue) == found[0][0]
        assert store.store.reader.min_offset(other) == 0
    assert not (tmp_path / "compaction/compactionLog/D").exists()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_store_opened_again_goes_on_where_it_was(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "store"
    async with opened(root) as store:
        queue = await send(store, "C", *ROUNDS)
        await copied(store, queue)
        await compaction_of(store).compact()
        before = pull_all(store, queue)
        if killed:
            killed_image(root, tmp_path / "killed")
    if killed:
        root = tmp_path / "killed"
    else:
        positions = load_json((root / "compaction/position-checkpoint").read_bytes())
        assert positions["empty"] is False
        assert positions["queueOffsetMap"]["C_0"] > 0
    async with opened(root) as store:
        queue = store.store.queues.get("C", 0)
        assert pull_all(store, queue) == before
        await send(store, "C", *ROUNDS)
        await copied(store, queue)
        await compaction_of(store).compact()
        assert {key: body for _, key, body in pull_all(store, queue)} == dict(ROUNDS)


async def test_what_is_compacted_outlives_the_log_it_came_from(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS * 3)
        await copied(store, queue)
        await compaction_of(store).compact()
        before = pull_all(store, queue)
        store.store.log.trim(store.store.log.confirm_offset)
        queue.correct_min_offset(store.store.log.min_offset)
        assert queue.min_offset > 0
        assert pull_all(store, queue) == before


async def test_a_cut_below_what_is_compacted_leaves_a_queue_that_lacks_what_has_left_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS * 3)
        await copied(store, queue)
        await compaction_of(store).compact()
        store.store.log.trim(store.store.log.confirm_offset)
        queue.correct_min_offset(store.store.log.min_offset)
        last = queue.unit(queue.max_offset - 1)
        assert last is not None
        queue.cut_at(last[0])
        compaction_of(store).on_cut(last[0])
        assert compaction_of(store).missing == [("C", 0)]
        with pytest.raises(Refusal, match="lacks the kept messages of C/0"):
            pull_all(store, queue)
        compaction_of(store).drop("C")
        assert compaction_of(store).missing == []


async def test_a_cut_that_cannot_be_noted_is_made_again_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS * 3)
        await copied(store, queue)
        store.store.log.trim(store.store.log.confirm_offset)
        queue.correct_min_offset(store.store.log.min_offset)
        last = queue.unit(queue.max_offset - 1)
        assert last is not None
        follows = LogState(LogRole.SLAVE, 1, None, Refusal(Cause.NOT_LEADER, "follows another master"))
        store.store.on_role_change(follows)
        with monkeypatch.context() as patch, pytest.raises(DiskFullError):
            patch.setattr(missing_history, "write_config", refuse)
            store.store.on_truncated(last[0])
        assert pull_all(store, queue)  # nothing is dropped yet
        store.store.on_truncated(last[0])
        assert compaction_of(store).missing == [("C", 0)]
        noted = MissingHistory(tmp_path / "compaction")
        noted.load()
        assert noted.queues == {("C", 0)}


async def test_only_what_is_on_disk_is_copied_and_the_log_keeps_the_rest(tmp_path: Path) -> None:
    """What a power cut takes back must not be in a compaction log, whose offsets others would then have."""
    async with opened(tmp_path) as store:
        queue = await send(store, "C", ("a", b"1"), ("b", b"2"))
        await copied(store, queue)
        compaction = compaction_of(store)
        log_of = compaction.log_of("C", 0)
        assert log_of is not None
        assert compaction.hold() == 0  # a power cut may take back the copies
        await compaction._sync([log_of])
        assert compaction.hold() == (1 << 63) - 1
        durable = store.store.log.max_offset
        compaction._copier._durable_offset = lambda: durable
        await send(store, "C", ("c", b"3"))
        await asyncio.sleep(0)
        assert compaction.hold() == durable
        assert log_of.end_offset == 2
        assert [body for _, _, body in pull_all(store, queue)] == [b"1", b"2", b"3"]
        compaction._copier._durable_offset = lambda: 1 << 62
        await copied(store, queue)


async def test_a_clean_stop_leaves_nothing_to_copy(tmp_path: Path) -> None:
    """A Java broker that goes on from here copies only what comes after: it dispatches nothing again."""
    async with opened(tmp_path, FlushMode.ASYNC) as store:
        queue = await send(store, "C", *ROUNDS)
        found = compaction_of(store).log_of("C", 0)
        assert found is not None
        assert found.end_offset < queue.max_offset  # not on disk yet
    shutil.rmtree(tmp_path / "commitlog")  # so that nothing can be copied now
    compaction = CompactionStore(tmp_path, SMALL, attributes)
    compaction.load(clean=True)
    found = compaction.log_of("C", 0)
    assert found is not None
    assert found.end_offset == len(ROUNDS)
    assert {key: body for _, key, body in contents(found)} == dict(ROUNDS)
    found.close()


async def test_with_its_topic_goes_all_that_was_kept_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS)
        await copied(store, queue)
        await compaction_of(store).compact()
        store.store.queues.delete_topic("C")
        assert not (tmp_path / "compaction/compactionLog/C").exists()
        queue = await send(store, "C", ("new", b"1"))
        await copied(store, queue)
        assert pull_all(store, queue) == [(0, "new", b"1")]
    assert load_json((tmp_path / "compaction/position-checkpoint").read_bytes()) == {
        "empty": True,
        "queueOffsetMap": {},
    }
    await eventually(lambda: not (tmp_path / "compaction" / ".trash").exists())


async def test_a_log_that_cannot_be_opened_leaves_its_queue_uncompacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS)
        await copied(store, queue)
    (tmp_path / "compaction/compactionLog/C/0/notes").write_text("mine")
    async with opened(tmp_path) as store:
        queue = store.store.queues.get("C", 0)
        assert len(pull_all(store, queue)) == 60
        assert "served without compaction" in caplog.text
    assert (tmp_path / "compaction/compactionLog/C/0/notes").read_text() == "mine"


async def test_copying_waits_for_room_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.compaction.copier._RETRY_S", 0.01)
    is_full = False
    real = SparseFile.write

    def write(file: SparseFile, position: int, data: bytes) -> None:
        if is_full:
            raise DiskFullError(file.path, len(data))
        real(file, position, data)

    monkeypatch.setattr(SparseFile, "write", write)
    async with opened(tmp_path) as store:
        is_full = True
        queue = await send(store, "C", ("a", b"1"))
        await eventually(lambda: compaction_of(store).log_of("C", 0) is not None)
        found = compaction_of(store).log_of("C", 0)
        assert found is not None
        await eventually(lambda: isinstance(found.fault, DiskFullError))
        assert compaction_of(store).hold() == (1 << 63) - 1  # else cleaning could not make room
        assert [body for _, _, body in pull_all(store, queue)] == [b"1"]
        is_full = False
        await copied(store, queue)
        assert found.fault is None


@pytest.mark.parametrize("damage", [b"", b'{"queueOffsetMap":{"C_0":"x"}}'])
async def test_a_damaged_checkpoint_costs_nothing_but_work(tmp_path: Path, damage: bytes) -> None:
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS)
        await copied(store, queue)
        await compaction_of(store).compact()
        before = pull_all(store, queue)
    for path in (tmp_path / "compaction").glob("position-checkpoint*"):
        path.write_bytes(damage)
    async with opened(tmp_path) as store:
        queue = store.store.queues.get("C", 0)
        await compaction_of(store).compact()
        assert pull_all(store, queue) == before


async def test_a_store_that_began_anew_serves_nothing_until_it_has_what_another_one_kept(tmp_path: Path) -> None:
    async def take(part: KeptPart, offset: int) -> int:
        kept = compaction_of(target).log_of("C", 0)
        assert kept is not None
        assert (len(part.records) <= 300, part.next_offset > offset) == (True, True)
        await compaction_of(target).take_kept(kept, part.records)
        return part.next_offset

    async with opened(tmp_path / "source") as source:
        queue = await send(source, "C", ("gone", b"x"), *ROUNDS, ("gone", b""), *ROUNDS)
        await copied(source, queue)
        await compaction_of(source).compact()
        expected, end = pull_all(source, queue), queue.max_offset
        async with opened(tmp_path / "target") as target:
            target.store.restart({"C": {0: end}})
            compaction_of(target).begin_anew({"C": {0: end}, "D": {0: 5}, "C-empty": {0: 0}})
            await send(target, "E", (None, b"the log is not empty"))
            target.store.save_checkpoint()
            compaction_of(target).begin_fetch("C", 0)
            await take(compaction_of(source).kept("C", 0, 0, 300), 0)
        async with opened(tmp_path / "target") as target:
            begun = compaction_of(target).begin_fetch("C", 0)
            assert compaction_of(target).missing == [("C", 0)]
            assert begun is not None
            queue, offset, editions = target.store.queues.get("C", 0), 0, set()
            with pytest.raises(Refusal, match="lacks the kept messages of C/0"):
                pull_all(target, queue)
            with pytest.raises(Refusal, match="lacks the kept messages of C/0"):
                compaction_of(target).kept("C", 0, 0, 300)
            while not compaction_of(target).has_reached_log(begun, offset):
                part = compaction_of(source).kept("C", 0, offset, 300)
                editions.add(part.edition)
                offset = await take(part, offset)
                await send(source, "C", *ROUNDS[:6])
                await copied(source, source.store.queues.get("C", 0))
                await compaction_of(source).compact()  # not while somebody reads it
            await compaction_of(target).complete(begun, offset)
            assert len(editions) == 1
        async with opened(tmp_path / "target") as target:
            assert compaction_of(target).missing == []
            assert pull_all(target, target.store.queues.get("C", 0)) == expected


async def test_fetched_messages_count_as_here_only_when_the_disk_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(descriptor: int) -> None:
        raise OSError(errno.EIO, "lost")

    async with opened(tmp_path / "source") as source, opened(tmp_path / "target") as target:
        queue = await send(source, "C", *ROUNDS)
        await copied(source, queue)
        compaction, end = compaction_of(target), queue.max_offset
        target.store.restart({"C": {0: end}})
        compaction.begin_anew({"C": {0: end}})
        begun = compaction.begin_fetch("C", 0)
        assert begun is not None
        await compaction.take_kept(begun, compaction_of(source).kept("C", 0, 0, 1 << 20).records)
        assert compaction.is_in_log(begun)
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", lose)
            await compaction._sync([begun])  # as the flush of each interval does
        assert isinstance(begun.fault, DiskFailedError)
        with pytest.raises(DiskFailedError):
            await compaction.complete(begun, end)
        assert compaction.missing == [("C", 0)]


@pytest.mark.parametrize("is_fetched", [False, True])
async def test_a_queue_that_was_not_compacted_is_looked_at_again_when_the_state_of_another_node_is_taken(
    tmp_path: Path, is_fetched: bool
) -> None:
    """Its topic may have been removed and made again meanwhile, as a compacted one."""
    async with opened(tmp_path) as store:
        await send(store, "D", *ROUNDS)
        compaction = compaction_of(store)
        assert compaction.log_of("D", 0) is None
        compaction._topic_attributes = lambda _: attributes("C")
        if is_fetched:
            assert compaction.begin_fetch("D", 0) is not None
        else:
            store.store.restart({"D": {0: 0}})
            compaction.begin_anew({"D": {0: 0}})
            await copied(store, await send(store, "D", *ROUNDS))


async def test_messages_that_have_not_come_to_the_log_are_not_taken_as_kept(tmp_path: Path) -> None:
    async with opened(tmp_path / "source") as source, opened(tmp_path / "target") as target:
        queue = await send(source, "C", *ROUNDS)
        await copied(source, queue)
        compaction, end = compaction_of(target), queue.max_offset
        target.store.restart({"C": {0: end - 1}})
        compaction.begin_anew({"C": {0: end - 1}})
        begun = compaction.begin_fetch("C", 0)
        assert begun is not None
        await compaction.take_kept(begun, compaction_of(source).kept("C", 0, 0, 1 << 20).records)
        assert compaction.has_reached_log(begun, end)
        assert not compaction.is_in_log(begun)


async def test_a_node_that_fetches_for_ever_does_not_stop_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("store.compaction.compaction_store.time", SimpleNamespace(monotonic=lambda: now))
    async with opened(tmp_path) as store:
        queue = await send(store, "C", *ROUNDS * 3)
        await copied(store, queue)
        compaction, before = compaction_of(store), pull_all(store, queue)
        while now < 600:
            compaction.kept("C", 0, 0, 100)
            await compaction.compact()
            assert pull_all(store, queue) == before
            now += 20
        compaction.kept("C", 0, 0, 100)
        await compaction.compact()
        assert len(pull_all(store, queue)) < len(before)
