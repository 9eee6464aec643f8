"""Entries that rot between the checkpoint of the queues and that of the Raft log, which opening the log does not read.

log    | ...            X rotten               |-- scanned at a start --|
queues | ... |-------- dispatched again at a start --------------------|
             their checkpoint                  the log's checkpoint     end
"""

import asyncio
from collections.abc import Callable

import pytest

from dledger.log.entry import FILLER_MAGIC, HEADER_SIZE
from dledger.log.raft_files import open_files
from dledger.raft_log import RaftLog
from store.directory.store_directory import StoreDirectory
from store.errors import DiskReadError
from store.files.mapped_file import MappedFile
from store.opening import OpenStore, open_store
from store.replicated_log import AppendReceipt
from store.store_config import StoreConfig
from tests.dledger.conftest import MemoryMachine, RaftCluster, make_draft, until
from tests.dledger.test_raft_log_faults import damage, data_file
from tests.store.support import bodies_of

COUNT, KNOWN = 60, 10
ROTTEN = 30
BODIES = [b"message %d" % number + bytes(400) for number in range(COUNT)]


async def opened(cluster: RaftCluster, node_id: str) -> OpenStore:
    """A member with a message store on its log, not started: it meets no peer yet."""
    config = cluster.config(node_id)
    files = await asyncio.to_thread(open_files, config)
    log = RaftLog(config, files, asyncio.get_running_loop(), machine=MemoryMachine())
    root = cluster.root / node_id
    return await open_store(StoreConfig(root=root), StoreDirectory(root, "raft"), log)


async def filled(cluster: RaftCluster) -> tuple[str, list[int]]:
    """A follower whose queues have the first messages, and its log all; the positions of all entries.

    Both stopped cleanly, and none of it is open.
    """
    await cluster.start()
    leader = await cluster.elected()
    node_id = next(node_id for node_id in cluster.logs if node_id != leader)
    for number, body in enumerate(BODIES):
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        cluster.logs[leader].append([make_draft(body, queue_offset=number)], answer.set_result)
        assert isinstance(await answer, AppendReceipt)
        if number == KNOWN - 1:
            await cluster.caught_up()
            await cluster.stop(node_id)
            store = await opened(cluster, node_id)
            assert [body for queue in store.store.queues for body in bodies_of(store, queue)] == BODIES[:KNOWN]
            await store.close()
            await cluster.start(node_id)
            await until(lambda: cluster.leader() is not None, "a leader")
    await cluster.caught_up()
    log = cluster.logs[node_id]
    places = [
        offset - HEADER_SIZE for offset, record in log.walk(0, log.confirm_offset) if b"message " in bytes(record)
    ]
    await cluster.stop(node_id)
    assert len(places) == COUNT
    return node_id, places


def rot(cluster: RaftCluster, node_id: str, position: int, change: Callable[[bytearray], None]) -> None:
    damage(data_file(cluster, node_id, position // 16384), position % 16384, change)


def flip(place: int, bit: int = 0x40) -> Callable[[bytearray], None]:
    def change(raw: bytearray) -> None:
        raw[place] ^= bit

    return change


async def expect_all(cluster: RaftCluster, store: OpenStore) -> None:
    log = store.store.log
    assert isinstance(log, RaftLog)
    await log.start()
    await until(lambda: log.confirm_offset == log.max_offset, "confirmed")
    await until(lambda: store.store.dispatched_offset == log.confirm_offset, "dispatched")
    await until(lambda: not log.damages, "the copies are there")
    (queue,) = store.store.queues
    assert bodies_of(store, queue) == BODIES
    await store.close()


@pytest.mark.parametrize(
    ("number", "place", "bit"),
    [
        (ROTTEN, 2, 0x40),
        (ROTTEN, 3, 0x02),
        (ROTTEN, 6, 0x40),
        (COUNT - 2, 6, 0x08),
        (ROTTEN, 31, 0x40),
        (ROTTEN, 47, 0x40),
        (ROTTEN, HEADER_SIZE + 20, 0x40),
        (ROTTEN, HEADER_SIZE + 92, 0x40),
    ],
    ids=[
        "magic",
        "magic of a newer DLedger",
        "size",
        "size that ends behind all entries, in the file",
        "position",
        "body size",
        "queue offset",
        "topic",
    ],
)
async def test_what_follows_a_rotten_entry_is_dispatched_when_the_copy_is_there(
    raft_cluster: Callable[..., RaftCluster], number: int, place: int, bit: int
) -> None:
    cluster = raft_cluster()
    node_id, places = await filled(cluster)
    rot(cluster, node_id, places[number], flip(place, bit))
    for _ in range(2):  # the next start finds it, too
        store = await opened(cluster, node_id)
        (queue,) = store.store.queues
        assert store.store.dispatched_offset == store.store.log.confirm_offset <= places[number]
        assert bodies_of(store, queue) == BODIES[:number]
        log = store.store.log
        assert isinstance(log, RaftLog)
        assert log.status().durable_index < log.status().last_index
        await store.close()
    await expect_all(cluster, await opened(cluster, node_id))


async def test_several_rotten_entries_are_all_found_at_the_start(raft_cluster: Callable[..., RaftCluster]) -> None:
    cluster = raft_cluster()
    node_id, places = await filled(cluster)
    for number in (ROTTEN, ROTTEN + 1, COUNT - 3):
        rot(cluster, node_id, places[number], flip(2))
    store = await opened(cluster, node_id)
    log = store.store.log
    assert isinstance(log, RaftLog)
    assert [found.position for found in log.damages] == [places[n] for n in (ROTTEN, ROTTEN + 1, COUNT - 3)]
    await expect_all(cluster, store)


async def test_an_entry_that_the_disk_cannot_read_is_fetched_too(
    raft_cluster: Callable[..., RaftCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    node_id, places = await filled(cluster)
    bad, readable = places[ROTTEN] + HEADER_SIZE + 200, MappedFile.ensure_readable
    path = data_file(cluster, node_id, bad // 16384)

    def ensure_readable(file: MappedFile, start: int, end: int) -> None:
        if file.path == path and start <= bad % 16384 < end:
            raise DiskReadError(path, bad % 16384, "a bad sector")
        readable(file, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "ensure_readable", ensure_readable)
        store = await opened(cluster, node_id)
    assert store.store.dispatched_offset == places[ROTTEN]
    await expect_all(cluster, store)


async def test_a_bad_sector_behind_a_files_last_entry_hides_nothing(
    raft_cluster: Callable[..., RaftCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = raft_cluster()
    node_id, _ = await filled(cluster)
    path, readable = data_file(cluster, node_id, 0), MappedFile.ensure_readable
    bad = path.read_bytes().rfind(FILLER_MAGIC.to_bytes(4, "big", signed=True)) + 16

    def ensure_readable(file: MappedFile, start: int, end: int) -> None:
        if file.path == path and start <= bad < end:
            raise DiskReadError(path, bad, "a bad sector")
        readable(file, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "ensure_readable", ensure_readable)
        store = await opened(cluster, node_id)
    await expect_all(cluster, store)


async def test_a_rotten_filler_hides_nothing(raft_cluster: Callable[..., RaftCluster]) -> None:
    cluster = raft_cluster()
    node_id, _ = await filled(cluster)
    path = data_file(cluster, node_id, 0)
    at = path.read_bytes().rfind(FILLER_MAGIC.to_bytes(4, "big", signed=True))
    damage(path, at, flip(1))
    store = await opened(cluster, node_id)
    await expect_all(cluster, store)


@pytest.mark.parametrize("place", [15, 23], ids=["index", "term"])
async def test_an_entry_with_a_rotten_index_or_term_is_not_passed_over_by_readers_and_is_replaced(
    raft_cluster: Callable[..., RaftCluster], place: int
) -> None:
    """A start needs neither, and dispatches the record; who reads it waits for the copy."""
    cluster = raft_cluster()
    node_id, places = await filled(cluster)
    rot(cluster, node_id, places[ROTTEN], flip(place, 1))
    store = await opened(cluster, node_id)
    (queue,) = store.store.queues
    assert queue.max_offset > ROTTEN + 1
    with pytest.raises(DiskReadError, match="header is of entry"):
        bodies_of(store, queue)
    log = store.store.log
    assert isinstance(log, RaftLog)
    assert [found.position for found in log.damages] == [places[ROTTEN]]
    await expect_all(cluster, store)
