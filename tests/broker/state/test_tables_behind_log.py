"""Tables on disk are never ahead of the durable log; where they are all the same, they are brought back to its end."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from broker.delay.timer_files import DeliveryFiles, open_counts, open_index
from broker.state.clamping import clamp_to_log, clamp_to_own_log
from broker.state.files import StateWriter, load_state
from broker.state.names import STATE_TOPIC
from broker.state.pop_core import Checkpoint
from broker.state.pop_order import OrderedBatch
from broker.state.saver import StateSaver
from broker.state.settings import TopicConfig
from broker.state.tables import MARKS_KEY, TIMER_PROGRESS_KEY, ReplicatedState, StateChange
from dledger.config import PeerAddress
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import RequestCode
from store.directory.config_file import write_config
from store.log.flusher import FlushMode
from store.replicated_log import LogRole
from store.timer.checkpoint import read_check
from tests.broker.conftest import Desk, eventually, make_topic, send, small_config
from tests.broker.groups.test_offsets import key, make_group
from tests.broker.pop.support import pop
from tests.broker.send.test_numbering import bodies, names, send_batch
from tests.broker.transactions.test_transactions import COMMIT, end_fields, send_half
from tests.limits import WAIT_S
from tests.ports import free_ports

SMALL = {"mappedFileSizeCommitLog": 1 << 16, "transaction_op_interval_ms": 10}


def state_of(*topics: str, applied: int) -> ReplicatedState:
    state = ReplicatedState()
    state.apply(StateChange(topics={name: TopicConfig(name=name, read_queues=1, write_queues=1) for name in topics}), 1)
    state.applied_offset = applied
    return state


async def test_tables_wait_for_the_log_to_be_durable(tmp_path: Path) -> None:
    flushed = 0
    state = state_of("T", applied=100)
    saver = StateSaver(state, tmp_path, asyncio.get_running_loop(), lambda: flushed)
    saver.saved_offset = 0
    saver.save_soon()
    flushed = 99
    saver.write_durable()
    await asyncio.sleep(0.05)
    assert (saver.saved_offset, list(tmp_path.iterdir())) == (0, [])
    state.applied_offset = 200  # what changes meanwhile does not hold up the copy that waits
    flushed = 100
    saver.write_durable()
    await eventually(lambda: saver.saved_offset == 100)
    assert load_state(tmp_path).applied_offset == 100
    await saver.close()
    assert load_state(tmp_path).applied_offset == 100
    flushed = 200
    saver = StateSaver(state, tmp_path, asyncio.get_running_loop(), lambda: flushed)
    saver.saved_offset = 100
    await saver.close()
    assert load_state(tmp_path).applied_offset == 200


async def test_a_save_under_way_does_not_undo_an_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, is_writing = threading.Event(), threading.Event()

    def slow(path: Path, content: bytes) -> None:
        if not go_on.is_set():
            is_writing.set()
            threading.Timer(0.1, go_on.set).start()
            go_on.wait(WAIT_S)
        write_config(path, content)

    monkeypatch.setattr("broker.state.files.write_config", slow)
    state = state_of("old", applied=100)
    saver = StateSaver(state, tmp_path, asyncio.get_running_loop(), lambda: 100)
    saver.saved_offset = 0
    saver.save_soon()
    await eventually(is_writing.is_set)
    state.restore(state_of("new", applied=900).snapshot())
    saver.install()
    for _ in range(2):  # what was under way ends, and a further round begins
        await saver.close() if _ else saver.save_soon()
    found = load_state(tmp_path)
    assert (list(found.topics), found.applied_offset, saver.saved_offset) == (["new"], 900, 900)


async def test_a_copy_that_waits_for_the_log_is_not_written_over_an_install(tmp_path: Path) -> None:
    flushed = 0
    state = state_of("old", applied=100)
    saver = StateSaver(state, tmp_path, asyncio.get_running_loop(), lambda: flushed)
    saver.saved_offset = 0
    saver.save_soon()
    state.restore(state_of("new", applied=900).snapshot())
    saver.install()
    flushed = 900
    saver.write_durable()
    for _ in range(3):  # a save that had begun is in the saver's thread by then
        await asyncio.sleep(0)
    found = saver.saved()
    assert (list(found.topics), found.applied_offset, saver.saved_offset) == (["new"], 900, 900)
    await saver.close()


async def test_tables_taken_back_never_lie_beside_the_mark_of_newer_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records between an older table and a newer mark would not be replayed."""
    state = state_of("kept", "gone", applied=900)
    saver = StateSaver(state, tmp_path, asyncio.get_running_loop(), lambda: 900)
    for _ in range(2):  # a .bak, too
        saver.install()
    state.restore(state_of("kept", applied=100).snapshot())
    seen: list[tuple[int, bool]] = []

    def note(path: Path, content: bytes) -> None:
        write_config(path, content)
        found = load_state(tmp_path)
        seen.append((found.applied_offset, "gone" in found.topics))

    monkeypatch.setattr("broker.state.files.write_config", note)
    saver.cut()
    assert {applied for applied, _ in seen} == {100}
    assert seen[-1] == (100, False)
    assert all(b"gone" not in path.read_bytes() for path in tmp_path.iterdir()), "nor in a .bak"
    await saver.close()


def cut_log(store_dir: Path, end: int) -> None:
    """As a power cut leaves it: everything from `end` on never reached the disk."""
    (path,) = (store_dir / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(end)
        file.write(bytes(path.stat().st_size - end))
    (store_dir / "checkpoint").unlink()


@pytest.mark.parametrize("desk", [SMALL], indirect=True)
async def test_what_is_changed_after_the_end_of_the_log_was_lost_has_effect(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client, queues=2)
    await make_group(client)
    await send(client, b"kept")
    durable = desk.store.log.max_offset
    for n in range(12):
        await send(client, b"lost%d" % n)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="12"))
    await send(client, b"delayed", i="DELAY\x011\x02")
    await client.ask(RequestCode.END_TRANSACTION, end_fields(await send_half(client), COMMIT))
    assert (await pop(client, invisibleTime=60_000)).code == 0
    await make_topic(client, "removed")
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "removed"})
    await asyncio.sleep(1.5)  # the delayed message is delivered, its progress recorded
    await desk.stop()
    cut_log(desk.config.store.root, durable)

    await desk.start()
    client, state = desk.client(), desk.parts.context.state
    assert desk.store.log.max_offset == state.applied_offset == durable
    await make_topic(client, "after")
    await make_group(client, "after")
    assert "after" in state.topics
    assert "after" in state.groups
    assert state.offsets["T@g"] == {0: 1, 1: 0}
    assert all(taken.offsets == (0,) for taken in state.pop.checkpoints.values())
    assert max(state.removed.values()) < durable
    assert (await client.ask(RequestCode.END_TRANSACTION, end_fields(await send_half(client), COMMIT))).code == 0
    await send(client, b"delayed again", i="DELAY\x011\x02")
    queues = desk.store.queues
    await eventually(lambda: queues.get("T", 0).max_offset == 2, "the delayed message comes")
    await eventually(lambda: queues.get("T", 1).max_offset == 1, "the committed message comes")
    assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert "T" not in state.topics
    saved = load_state(desk.config.store.root / "config")
    assert saved.applied_offset == durable  # at once: the log grows past what the files said


@pytest.mark.parametrize("desk", [SMALL], indirect=True)
async def test_a_lane_whose_last_request_was_lost_goes_on_behind_the_one_before(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client, queues=1)
    await send_batch(client, 0, 2)
    durable = desk.store.log.max_offset
    for first in (2, 4):
        await send_batch(client, first, 2)
    await desk.stop()
    cut_log(desk.config.store.root, durable)
    await desk.start()
    client = desk.client()
    await send(client, bytes(700))  # where the lost request began is no record's begin now
    await send_batch(client, 0, 5)
    assert [body for body in bodies(desk) if len(body) < 700] == names(0, 1, 2, 3, 4)


async def test_every_position_that_tables_name_is_brought_back_to_the_log(desk: Desk) -> None:
    client = desk.client()
    await make_topic(client, queues=1)
    for _ in range(3):
        await send(client, b"m")
    end, far = desk.store.dispatched_offset, 1 << 40
    state = ReplicatedState()
    state.removed = {"gone": far, "before": 7}
    state.offsets = {
        "T@g": {0: 9, 5: 9},
        "T@h": {0: 2},
        MARKS_KEY: {0: far, 1: 5},
        TIMER_PROGRESS_KEY: {0: far, 1: far},
    }
    state.resets = {"T@g": {0: 8}}
    taken = Checkpoint("T", "g", 0, 0, 1000, 60_000, (0, 2, 3, 4), acked=0b1010)
    lost = taken._replace(group="lost", offsets=(3, 4))
    state.pop.checkpoints = {taken.key: taken, lost.key: lost}
    state.pop.orders = {f"T@{last}@0": OrderedBatch("", 1000, 60_000, (0, last)) for last in (2, 3)}
    clamp_to_log(state, desk.store)
    assert (state.applied_offset, state.removed) == (end, {"gone": end - 1, "before": 7})
    assert state.offsets["T@g"] == {0: 3, 5: 0}
    assert state.offsets["T@h"] == {0: 2}
    assert state.offsets[MARKS_KEY] == {0: end, 1: 5}
    assert state.offsets[TIMER_PROGRESS_KEY] == {0: 0, 1: far}, "the second one is a time"
    assert state.resets == {"T@g": {0: 3}}
    assert list(state.pop.checkpoints.values()) == [taken._replace(offsets=(0, 2), acked=0b10)]
    assert list(state.pop.orders) == ["T@2@0"]


async def test_offsets_of_a_group_s_member_stay_where_they_were_moved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an install and a kill the log is behind the tables, and the same records come again."""
    as_follower = replace(desk.store.log.state, role=LogRole.FOLLOWER)
    monkeypatch.setattr(type(desk.store.log), "state", property(lambda _: as_follower))
    state = ReplicatedState()
    state.offsets, state.resets = {"T@g": {0: 72}}, {"T@g": {0: 70}}
    state.applied_offset = 1 << 40
    clamp_to_log(state, desk.store)
    assert (state.offsets, state.resets) == ({"T@g": {0: 72}}, {"T@g": {0: 70}})
    assert state.applied_offset == desk.store.dispatched_offset, "what the log has behind it is applied again"
    assert state.ahead_to == 1 << 40
    state.ahead_to = desk.store.dispatched_offset  # as if the same records had come again
    assert not clamp_to_own_log(state, desk.store)
    assert state.offsets == {"T@g": {0: 72}}


async def test_a_leader_sets_offsets_back_whose_records_its_log_has_lost(tmp_path: Path) -> None:
    """They would hide messages that are sent later: from a group that is away until the queue has grown, for ever."""
    peers = (PeerAddress("n0", "127.0.0.1", free_ports(1)[0]),)
    raft = {"enableDLegerCommitLog": True, "dLegerGroup": "b", "dLegerSelfId": "n0", "dLegerPeers": peers}
    desk = Desk(small_config(tmp_path, flushDiskType=FlushMode.SYNC, **raft))
    await desk.start()
    client = desk.client()
    await make_topic(client, queues=1)
    await make_group(client)
    for _ in range(3):
        await send(client)
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, key(commitOffset="2"))
    await desk.stop()
    tables = tmp_path / "config"
    state = load_state(tables)
    state.offsets["T@g"], state.resets = {0: 50}, {"T@g": {0: 40}}
    state.ahead_to = 1 << 30  # as a start leaves them that found them ahead of the log
    StateWriter(tables).write(state)
    assert load_state(tables).ahead_to == 1 << 30
    await desk.start()
    state = desk.parts.context.state
    assert (state.offsets["T@g"], state.resets, state.ahead_to) == ({0: 3}, {"T@g": {0: 3}}, 0)

    def is_told() -> bool:
        return any(change.offsets.get("T@g") == {0: 3} for change in state_changes(desk))

    await eventually(is_told, "the other members learn it from the log")
    await make_topic(desk.client(), "U")
    await desk.stop()
    assert {"T", "U"} <= load_state(tables).topics.keys()
    assert not load_state(tables).is_foreign


def state_changes(desk: Desk) -> list[StateChange]:
    bodies = [record.body for record in desk.records() if record.topic == STATE_TOPIC]
    return [StateChange.decode(body, "here") for body in bodies]


async def test_tables_ahead_of_the_log_are_so_until_their_last_record_has_come_again(desk: Desk) -> None:
    await make_topic(desk.client())
    state, queue = ReplicatedState(), desk.store.queues.get(STATE_TOPIC, 0)
    (at, record), *_ = desk.store.reader.records_from(queue, 0)
    end = at + decode_record(record).size
    for ahead_to, left in ((end + 1, end + 1), (end, 0)):
        state.applied_offset, state.ahead_to = 0, ahead_to
        state.apply_record(at, record)
        assert (state.ahead_to, state.copy().ahead_to) == (left, left)


@pytest.mark.parametrize("desk", [{"flushCommitLogLeastPages": 0}], indirect=True)
async def test_the_read_time_of_timers_waits_for_their_deliveries_to_be_durable(desk: Desk) -> None:
    index, log = open_index(desk.config, lambda: 0), desk.store.log
    delivery_files = DeliveryFiles(desk.config, index, open_counts(desk.config, lambda: 0), desk.store)
    path = desk.config.store.root / "config" / "timercheck"

    async def flush() -> int:
        delivery_files.flush_index()
        await eventually(lambda: delivery_files._flushing is None)
        return read_check(path).read_ms

    index.read_ms = 1000
    await flush()
    index.read_ms = 2000
    await make_topic(desk.client())
    if log.flushed_offset < log.max_offset:
        assert await flush() <= 1000
    async with asyncio.timeout(WAIT_S):
        while await flush() != 2000:
            await asyncio.sleep(0.05)


async def test_no_file_of_the_timer_log_is_deleted_while_a_thread_syncs_its_files(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, may_go_on, deleted = open_index(desk.config, lambda: 0), threading.Event(), list[int]()
    delivery_files = DeliveryFiles(desk.config, index, open_counts(desk.config, lambda: 0), desk.store)
    monkeypatch.setattr(index, "prepare_flush", lambda _: lambda: may_go_on.wait(WAIT_S))
    monkeypatch.setattr(index, "forget_before", deleted.append)
    delivery_files.flush_index()
    delivery_files.clean()
    assert deleted == []
    may_go_on.set()
    await eventually(lambda: delivery_files._flushing is None)
    delivery_files.clean()
    assert deleted == [desk.store.log.min_offset]
