"""Put, dispatch, get: on a log whose role and confirm offset the test moves."""

import asyncio
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ledgermq.message.hashing import tags_code
from ledgermq.remoting.refusal import Cause, Refusal
from store import message_store
from store.errors import DiskFullError
from store.files import disk
from store.log.drafts import QueuedDraft
from store.message_store import MessageStore
from store.queues import queue_reader
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_offsets import NotYetError
from store.queues.queue_reader import GetStatus
from store.replicated_log import LogRole, LogState
from tests.store.support import (
    FOLLOWING,
    LEADING,
    MemoryLog,
    Outcomes,
    Recorder,
    body_of,
    eventually,
    fast_directory,
    make_draft,
    queue_table,
    queued,
)
from tests.store.test_mapped_file import refuse_allocation


class Rig:
    """A store on a log in memory."""

    def __init__(
        self, directory: Path, log: MemoryLog | None = None, cold_limits: ColdLimits | None = None, units: int = 10
    ) -> None:
        self.log = log if log is not None else MemoryLog()
        self.queues = queue_table(directory, units)
        self.store = MessageStore(self.log, self.queues, asyncio.get_running_loop(), cold_limits=cold_limits)
        self.recorder = Recorder()
        self.store.add_listener(self.recorder)

    def queue(self, topic: str = "T", queue_id: int = 0) -> ConsumeQueue:
        return self.queues.get(topic, queue_id)

    def put(self, *bodies: bytes, topic: str = "T", tags: str | None = None, sys_flag: int = 0) -> list[QueuedDraft]:
        drafts = [queued(self.queue(topic), body, tags=tags, sys_flag=sys_flag) for body in bodies]
        self.store.put(drafts, Outcomes())
        return drafts

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [body_of(record) for record in self.store.reader.get(self.queue(topic), 0, 100, 1 << 20).records]


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.store.start()
    return rig


# -- putting


async def test_messages_to_many_new_queues_wait_together_while_files_are_made_a_few_at_a_time(rig: Rig) -> None:
    drafts = [queued(rig.queue("T", number % 5), b"%d" % number) for number in range(10)]
    for _ in range(4):
        with pytest.raises(NotYetError):
            rig.store.put(drafts, Outcomes(), deadline_s=0.0)
        assert [queue.next_offset for queue in rig.queues] == [0] * 5
    rig.store.put(drafts, Outcomes(), deadline_s=0.0)
    assert [draft.queue_offset for draft in drafts] == [0] * 5 + [1] * 5
    rig.log.confirm()
    assert [queue.max_offset for queue in rig.queues] == [2] * 5


async def test_offsets_are_assigned_at_once_and_readable_when_confirmed(rig: Rig) -> None:
    drafts = rig.put(b"a", b"b")
    assert [draft.queue_offset for draft in drafts] == [0, 1]
    assert (rig.bodies(), rig.queue().next_offset, rig.queue().max_offset) == ([], 2, 0)
    rig.log.confirm()
    assert rig.bodies() == [b"a", b"b"]
    assert rig.store.dispatched_offset == rig.log.confirm_offset
    assert rig.recorder.of("dispatched") == [{("T", 0)}]


async def test_what_was_put_and_cut_off_again_is_not_dispatched_with_what_lies_there_instead(rig: Rig) -> None:
    rig.put(b"ours")
    rig.log.truncate(0)  # a leader of a later term has another entry there; the role is told after the log is written
    (other,) = [queued(rig.queue("T", 1), b"theirs")]
    other.queue_offset = 0
    rig.log.receive([other])
    rig.log.confirm()
    assert (rig.queue("T", 0).max_offset, rig.queue("T", 1).max_offset) == (0, 1)


async def test_a_batch_becomes_visible_as_a_whole(rig: Rig) -> None:
    first = rig.put(b"a", b"b")
    rig.put(b"c")
    rig.log.confirm(first[0].physical_offset + first[0].size)
    assert rig.bodies() == []
    rig.log.confirm(first[1].physical_offset + first[1].size)
    assert rig.bodies() == [b"a", b"b"]


@pytest.mark.parametrize("sys_flag", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
async def test_prepared_and_rolled_back_records_have_no_place_in_a_queue(rig: Rig, sys_flag: int) -> None:
    rig.put(b"a")
    (half,) = rig.put(b"half", sys_flag=sys_flag)
    (commit,) = rig.put(b"b", sys_flag=TRANSACTION_COMMIT)
    rig.log.confirm()
    assert (half.queue_offset, commit.queue_offset) == (0, 1)
    assert rig.bodies() == [b"a", b"b"]


async def test_a_refused_batch_gives_its_offsets_back(rig: Rig) -> None:
    rig.put(b"a")
    rig.log.refuse_next = Refusal(Cause.DISK_FULL, "no room")
    drafts = [queued(rig.queue("T", number % 2)) for number in range(6)]
    with pytest.raises(Refusal, match="no room"):
        rig.store.put(drafts, Outcomes())
    assert (rig.queue("T", 0).next_offset, rig.queue("T", 1).next_offset) == (1, 0)
    rig.put(b"b")
    rig.log.confirm()
    assert rig.bodies() == [b"a", b"b"]


async def test_a_queue_without_room_on_disk_refuses_before_the_log_is_touched(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(*[b"x"] * 9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        with pytest.raises(Refusal) as caught:
            rig.put(b"a", b"b")
    assert caught.value.cause is Cause.DISK_FULL
    assert (rig.queue().next_offset, len(rig.log.dones)) == (9, 1)
    assert [draft.queue_offset for draft in rig.put(b"a", b"b")] == [9, 10]


async def test_a_follower_refuses_with_the_logs_reason(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    with pytest.raises(Refusal, match="this node follows") as caught:
        rig.put(b"a")
    assert caught.value.cause is Cause.NOT_LEADER
    assert not rig.store.is_writable


async def test_a_closed_store_refuses(rig: Rig) -> None:
    rig.store.close()
    with pytest.raises(Refusal) as caught:
        rig.put(b"a")
    assert caught.value.cause is Cause.SHUTTING_DOWN


# -- following


class Slow(Recorder):
    """A listener that each record keeps busy for a slice."""

    def __init__(self, spend: Callable[[float], None]) -> None:
        super().__init__()
        self._spend = spend

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        super().on_state_record(physical_offset, record)
        self._spend(message_store.SLICE_S * 1.5)


def receive(rig: Rig, *bodies: bytes, topic: str = "T", start: int = 0, tags: str | None = None) -> None:
    """Records that a leader wrote."""
    drafts = [queued(rig.queue(topic), body, tags=tags) for body in bodies]
    for offset, draft in enumerate(drafts, start):
        draft.queue_offset = offset
    rig.log.receive(drafts)


async def test_a_follower_dispatches_from_the_log_what_a_leader_dispatches_from_its_drafts(tmp_path: Path) -> None:
    leader, follower = Rig(tmp_path / "a"), Rig(tmp_path / "b", MemoryLog(FOLLOWING))
    leader.store.start()
    follower.store.start()
    for number in range(30):
        draft = queued(leader.queue(f"T{number % 3}"), b"x" * number, tags=f"tag{number % 4}" if number % 5 else None)
        leader.store.put([draft], Outcomes())
        follower.log.receive([draft])
    leader.log.confirm()
    follower.log.confirm()
    for number in range(3):
        one, other = leader.queue(f"T{number}"), follower.queue(f"T{number}")
        assert bytes(one.units(0, 10)) == bytes(other.units(0, 10)) != b""


async def test_only_the_confirmed_part_is_dispatched(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    receive(rig, b"a", b"b")
    middle = rig.log.max_offset
    receive(rig, b"c", start=2)
    rig.log.confirm(middle)
    assert rig.bodies() == [b"a", b"b"]
    rig.log.truncate(middle)
    receive(rig, b"d", start=2)
    rig.log.confirm()
    assert rig.bodies() == [b"a", b"b", b"d"]


async def test_a_long_walk_gives_the_loop_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "SLICE_S", 0.0)
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    receive(rig, *[b"x"] * 300)
    rig.log.confirm()
    assert 0 < rig.queue().max_offset < 300
    await eventually(lambda: rig.queue().max_offset == 300)
    assert rig.store.dispatched_offset == rig.log.confirm_offset


async def test_one_record_that_takes_its_listener_long_is_a_slice_of_its_own(
    tmp_path: Path, spend: Callable[[float], None]
) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.watch_topic("T")
    rig.store.add_listener(slow := Slow(spend))
    rig.store.start()
    receive(rig, *[b"x"] * 10)
    for _ in range(3):  # as the messages of a leader that arrive together
        rig.log.confirm()
    assert len(slow.of("state")) == 1
    await eventually(lambda: len(slow.of("state")) == 10)
    assert rig.bodies() == [b"x"] * 10


async def test_a_node_that_is_behind_goes_on_after_an_error_that_nobody_expects(
    tmp_path: Path, spend: Callable[[float], None]
) -> None:
    class Failing(Slow):
        def on_state_record(self, physical_offset: int, record: memoryview) -> None:
            super().on_state_record(physical_offset, record)
            if len(self.of("state")) == 2:
                raise RuntimeError("once")

    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.watch_topic("T")
    rig.store.add_listener(Failing(spend))
    rig.store.start()
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    receive(rig, *[b"x"] * 3)
    rig.log.confirm()
    await eventually(lambda: bool(errors))
    receive(rig, b"y", start=3)
    rig.log.confirm()
    await eventually(lambda: rig.bodies() == [b"x"] * 3 + [b"y"])


async def test_a_new_leader_takes_messages_only_when_everything_confirmed_is_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "SLICE_S", 0.0)
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    receive(rig, *[b"x"] * 300)
    rig.log.confirm_offset = rig.log.max_offset
    rig.log.change_role(LEADING)
    assert not rig.store.is_writable
    with pytest.raises(Refusal, match="not dispatched yet") as caught:
        rig.put(b"early")
    assert caught.value.cause is Cause.RECOVERING
    await eventually(lambda: rig.store.is_writable)
    assert rig.recorder.of("role") == [False, True]
    assert rig.recorder.events[-1] == ("role", True)
    (draft,) = rig.put(b"next")
    assert draft.queue_offset == 300


async def test_a_deposed_leader_dispatches_what_survives_of_its_batches(rig: Rig) -> None:
    rig.put(b"a")
    survives = rig.log.max_offset
    rig.put(b"lost")
    rig.log.change_role(FOLLOWING)
    rig.log.truncate(survives)
    receive(rig, b"other", start=1)
    rig.log.confirm()
    assert rig.bodies() == [b"a", b"other"]
    rig.log.change_role(LEADING)
    assert rig.put(b"c")[0].queue_offset == 2
    assert rig.recorder.of("role") == [True, False, True]


async def test_a_new_generation_of_the_same_writer_is_told(rig: Rig) -> None:
    rig.log.change_role(LEADING)
    assert rig.recorder.of("role") == [True]
    rig.log.change_role(LogState(LogRole.LEADER, 2, None, None))
    assert rig.recorder.of("role") == [True, True]


async def test_what_the_log_itself_wrote_before_the_first_batch_is_walked(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    receive(rig, b"a")
    rig.log.change_role(LEADING)
    rig.put(b"b")
    assert rig.queue().max_offset == 0
    rig.queue().next_offset = 2  # as it is when the log is writable only after its own record is confirmed
    rig.log.confirm()
    assert rig.store.dispatched_offset == rig.log.max_offset


async def test_dispatch_that_finds_no_room_comes_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    receive(rig, b"a", b"b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        rig.log.confirm()
        assert "no room on the disk" in str(rig.store.dispatch_error)
    await eventually(lambda: rig.queue().max_offset == 2)
    assert rig.store.dispatch_error is None
    assert rig.bodies() == [b"a", b"b"]


async def test_a_record_that_cannot_be_parsed_stops_dispatch_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()

    receive(rig, b"a")
    struct.pack_into(">i", rig.log._data, 48 + 84, 1 << 20)  # a body longer than the record
    monkeypatch.setattr("tests.store.support.check_record", lambda *_, **__: len(rig.log._data) - 48)
    rig.log.confirm()
    assert isinstance(rig.store.dispatch_error, CorruptRecordError)
    assert rig.store.dispatch_error.position == 48
    assert rig.store.dispatched_offset == 0


async def test_a_record_whose_topic_names_no_folder_enters_no_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path, MemoryLog(FOLLOWING))
    rig.store.start()
    rig.log.receive([make_draft(b"bad", "../T")])
    receive(rig, b"a")
    rig.log.confirm()
    assert rig.bodies() == [b"a"]
    assert [queue.topic for queue in rig.queues] == ["T"]


async def test_a_log_that_starts_anew_is_followed_with_the_queue_starts_of_its_giver(tmp_path: Path) -> None:
    giver = Rig(tmp_path / "giver")
    giver.store.start()
    giver.put(b"old", b"old", topic="Quiet")
    giver.put(b"0", b"1")
    giver.log.confirm()
    giver.log.min_offset = giver.log.max_offset
    giver.put(b"2", b"3")
    giver.log.confirm()
    starts = giver.store.queue_starts()
    assert starts == {"Quiet": {0: 2}, "T": {0: 2}}

    for known in (True, False):
        rig = Rig(tmp_path / f"taker-{known}", MemoryLog(FOLLOWING))
        rig.store.start()
        receive(rig, b"a")
        rig.log.confirm()
        rig.log._data, rig.log.min_offset = giver.log._data, giver.log.min_offset
        if known:
            rig.store.restart(starts)
        rig.log.confirm()
        queue = rig.queue()
        if known:
            assert (queue.min_offset, queue.max_offset) == (2, 4)
            assert [body_of(record) for record in rig.store.reader.get(queue, 2, 9, 1 << 20).records] == [b"2", b"3"]
            rig.log.change_role(LEADING)
            assert rig.put(b"next", topic="Quiet")[0].queue_offset == 2
        else:
            assert (queue.min_offset, queue.max_offset) == (2, 4)
        assert rig.store.dispatch_error is None


async def test_watched_records_are_told_in_order_before_the_queues_are(tmp_path: Path) -> None:
    for state in (LEADING, FOLLOWING):
        rig = Rig(tmp_path / str(state.writable), MemoryLog(state))
        rig.store.watch_topic("state")
        rig.store.start()
        rig.recorder.events.clear()
        for bodies, topic in [((b"one", b"two"), "state"), ((b"message",), "T")]:
            if state.writable:
                rig.put(*bodies, topic=topic)
            else:
                receive(rig, *bodies, topic=topic)
        rig.log.confirm()
        kinds = [kind for kind, _ in rig.recorder.events]
        assert kinds == ["state", "state", "dispatched"]
        assert [value[1] for value in rig.recorder.of("state") if isinstance(value, tuple)] == [b"one", b"two"]
        queue = rig.queue("state")
        second = queue.unit(1)
        assert second is not None
        assert [body_of(record) for _, record in rig.store.reader.records_from(queue, second[0])] == [b"two"]


# -- reading


@pytest.fixture
async def read(rig: Rig) -> Rig:
    for number in range(25):
        rig.put(b"%d" % number, tags=f"tag{number % 2}")
    rig.log.confirm()
    return rig


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (4, GetStatus.OFFSET_TOO_SMALL, 5),
        (25, GetStatus.OFFSET_OVERFLOW_ONE, 25),
        (26, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
        (1 << 50, GetStatus.OFFSET_OVERFLOW_BADLY, 25),
        (-1, GetStatus.OFFSET_TOO_SMALL, 5),
        (24, GetStatus.FOUND, 25),
        (5, GetStatus.FOUND, 8),
        (8, GetStatus.FOUND, 10),  # one queue file an answer
    ],
)
async def test_every_offset_has_its_status(read: Rig, offset: int, status: GetStatus, next_offset: int) -> None:
    read.queue().min_offset = 5
    result = read.store.reader.get(read.queue(), offset, 3, 1 << 20)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 5, 25)
    assert result.count == (next_offset - offset if status is GetStatus.FOUND else 0)
    assert result.size_bytes == sum(len(record) for record in result.records)


async def test_no_queue_and_an_empty_queue_are_told_apart(read: Rig) -> None:
    assert read.store.reader.get(None, 3, 1, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    assert read.store.reader.get(read.queue("U"), 3, 1, 1).status is GetStatus.NO_MESSAGE_IN_QUEUE


async def test_the_first_message_goes_whatever_its_size_and_the_next_only_within_the_limits(read: Rig) -> None:
    size = read.store.reader.get(read.queue(), 0, 1, 1 << 20).size_bytes
    assert read.store.reader.get(read.queue(), 0, 0, 1).count == 1
    assert read.store.reader.get(read.queue(), 0, 10, 2 * size).count == 2
    assert read.store.reader.get(read.queue(), 0, 10, 2 * size - 1).count == 1


async def test_a_filter_is_asked_with_the_tags_code(read: Rig) -> None:
    code = tags_code("tag1")
    result = read.store.reader.get(read.queue(), 0, 32, 1 << 20, lambda found: found == code)
    assert [body_of(record) for record in result.records] == [b"1", b"3", b"5", b"7", b"9"]
    assert result.next_offset == 10
    result = read.store.reader.get(read.queue(), 3, 32, 1 << 20, lambda _: False)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)


async def test_messages_that_the_log_dropped_are_stepped_over(read: Rig) -> None:
    third = read.queue().unit(3)
    assert third is not None
    read.log.min_offset = third[0]
    result = read.store.reader.get(read.queue(), 0, 2, 1 << 20)
    assert [body_of(record) for record in result.records] == [b"3", b"4"]
    read.log.min_offset = read.log.max_offset
    result = read.store.reader.get(read.queue(), 0, 2, 1 << 20)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 10)


async def test_messages_far_behind_the_end_are_read_in_small_steps(tmp_path: Path) -> None:
    rig = Rig(tmp_path, cold_limits=ColdLimits(memory_bytes=1000, bytes_max=4000))
    rig.store.start()
    rig.put(*[bytes(100)] * 30)
    rig.log.confirm()
    assert rig.store.reader.get(rig.queue(), 0, 10, 1 << 20).count == 8
    bulk = rig.store.reader.get(rig.queue(), 0, 30, 1 << 20, joins=True)
    assert 8 < bulk.count < 30 and bulk.size_bytes <= 4000, "a bulk pull is limited by bytes only"
    assert rig.store.reader.get(rig.queue(), 28, 10, 1 << 20).count == 2


async def test_a_bulk_pull_reads_few_records_from_the_disk_that_lie_far_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop waits for each of them, half a second for a few hundred."""
    rig = Rig(tmp_path, cold_limits=ColdLimits(memory_bytes=1000), units=40)
    rig.store.start()
    for _ in range(30):
        rig.put(bytes(10))
        rig.put(bytes(2000), topic="OTHER")
    rig.log.confirm()
    reader = rig.store.reader
    assert reader.get(rig.queue(), 0, 30, 1 << 20, joins=True).count == 30
    assert reader.get(rig.queue(), 0, 30, 1 << 20, lambda _: True, joins=True).count == 8
    monkeypatch.setattr(queue_reader, "_NEAR_BYTES", 30_000)
    assert reader.get(rig.queue(), 0, 30, 1 << 20, joins=True).count == 14
    monkeypatch.setattr(queue_reader, "_NEAR_BYTES", 3_000)
    assert reader.get(rig.queue(), 0, 30, 1 << 20, joins=True).count == 8


async def test_looking_up_finds_records_by_their_start_only(read: Rig) -> None:
    unit = read.queue().unit(7)
    assert unit is not None
    record = read.store.reader.look_up(unit[0])
    assert record is not None
    assert body_of(record) == b"7"
    for offset in (unit[0] + 1, unit[0] - 48, -1, read.log.max_offset, 1 << 60):
        assert read.store.reader.look_up(offset) is None


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    asked=st.integers(-2, 60),
    dropped=st.integers(0, 5),
)
@settings(max_examples=50)
def test_offset_by_time_agrees_with_a_list_of_times(steps: list[int], asked: int, dropped: int) -> None:
    async def run(directory: Path) -> None:
        rig = Rig(directory)
        rig.store.start()
        base = 1_700_000_000_000
        times: list[int] = []
        for step in steps:
            times.append((times[-1] if times else 0) + step)
            (draft,) = rig.put(b"x")
            struct.pack_into(">q", rig.log._data, draft.physical_offset + 56, base + times[-1])
        rig.log.confirm()
        low = min(dropped, len(times) - 1)
        queue = rig.queue()
        queue.min_offset = low
        kept = range(low, len(times))
        first = next((number for number in kept if times[number] >= asked), len(times))
        last = next((number for number in reversed(kept) if times[number] <= asked), low)
        assert rig.store.reader.offset_by_time(queue, base + asked) == first
        assert rig.store.reader.offset_by_time(queue, base + asked, upper=True) == last
        assert rig.store.reader.earliest_store_time(queue) == base + times[low]
        assert rig.store.reader.store_time(queue, len(times)) == -1
        rig.queues.close()

    with fast_directory() as directory:
        asyncio.run(run(directory))


async def test_the_oldest_record_of_the_log_has_a_time(read: Rig) -> None:
    assert read.store.reader.earliest_store_time() == 1_700_000_000_048
    read.log.confirm_offset = 0
    assert read.store.reader.earliest_store_time() == -1


async def test_a_full_disk_of_the_queues_alone_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    full = DiskFullError(rig.queues.directory / "file", 4096)
    monkeypatch.setattr(
        "store.message_store.no_room", lambda directory: full if directory == rig.queues.directory else None
    )
    assert rig.store.why_full() == str(full)
    monkeypatch.undo()
    assert rig.store.why_full() is None


async def test_a_full_disk_that_cannot_be_asked_stays_full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_directory: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.posix_fallocate", lambda *_: refuse_allocation(errno.ENOSPC))
    with pytest.raises(DiskFullError):
        disk.create_file(rig.queues.directory / "file", 4096)
    monkeypatch.setattr(disk, "FULL_S", 0.0)
    monkeypatch.setattr("os.statvfs", fail)
    assert "not known whether the disk has room: [Errno 5]" in str(rig.store.why_full())
    monkeypatch.undo()
    monkeypatch.setattr(disk, "FULL_S", 0.0)
    assert rig.store.why_full() is None
