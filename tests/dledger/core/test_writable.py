"""When a leader takes messages again: never while an entry placed before is undecided."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.message.record import decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.files.mapped_file import MappedFile
from store.message_store import MessageStore
from store.queues.queue_table import QueueTable
from store.replicated_log import AppendReceipt
from tests.dledger.conftest import RaftCluster, until
from tests.limits import WAIT_S
from tests.store.support import Outcomes, queued

Make = Callable[..., RaftCluster]


class Sync:
    """`MappedFile.sync`, held up on the data files of some nodes until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._slow: tuple[str, ...] = ()
        self._may_go = threading.Event()
        sync = MappedFile.sync

        def held_up(file: MappedFile) -> None:
            if any(f"dledger-{node_id}/data/" in str(file.path) for node_id in self._slow):
                self._may_go.wait(WAIT_S)
            sync(file)

        monkeypatch.setattr(MappedFile, "sync", held_up)

    def hold_up(self, *node_ids: str) -> None:
        self._slow = node_ids
        self._may_go.clear()

    def release(self) -> None:
        self._slow = ()
        self._may_go.set()


def bodies(store: MessageStore) -> list[bytes]:
    """What a consumer of the queue reads, by queue offset."""
    queue = store.queues.get("T", 0)
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        unit = queue.unit(offset)
        assert unit is not None, offset
        position, size, _ = unit
        found.append(decode_record(bytes(store.log.read(position, size))).body)
    return found


async def test_messages_that_wait_through_a_hand_over_given_up_keep_their_queue_offsets(
    raft_cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, disks = raft_cluster(3, disk_stall_ms=60_000, append_timeout_ms=60_000), Sync(monkeypatch)
    await cluster.start()
    leader = await cluster.elected()
    followers = [node_id for node_id in cluster.logs if node_id != leader]
    log = cluster.logs[leader]
    store = MessageStore(log, QueueTable(tmp_path / "queues", 4000), asyncio.get_running_loop())
    store.start()
    outcomes = Outcomes()
    store.put([queued(store.queues.get("T", 0), b"first")], outcomes)
    await until(lambda: outcomes.all, "the first message acknowledged")
    await until(lambda: len({log.confirm_offset for log in cluster.logs.values()}) == 1, "equal logs")

    disks.hold_up(*followers)
    try:
        store.put([queued(store.queues.get("T", 0), b"waits")], outcomes)
        await asyncio.sleep(0.1)
        log.transfer(followers[0])
        await asyncio.sleep(
            3 * cluster.config(leader).timing.election_max_ms / 1000
        )  # the hand-over is given up meanwhile
        assert not store.is_writable
        with pytest.raises(Refusal, match="waits until what lies in its log is committed") as refused:
            log.append([], lambda outcome: None)
        assert refused.value.cause is Cause.RECOVERING
    finally:
        disks.release()
    await until(lambda: store.is_writable, "the store writable again")
    store.put([queued(store.queues.get("T", 0), b"last")], outcomes)
    await until(lambda: len(outcomes.all) == 3, "all acknowledged")
    assert all(isinstance(outcome, AppendReceipt) for outcome in outcomes.all)
    assert bodies(store) == [b"first", b"waits", b"last"]
    store.close()
