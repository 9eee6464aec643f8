"""The classic log: blanks and rolls against a model, group commit, and every way of saying no with nothing placed."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ledgermq.message.draft import RecordDraft
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK_MAGIC, decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.store_progress import Progress
from store.directory.checkpoint import StoreCheckpoint
from store.errors import RecordUnavailableError, StoreFormatError
from store.files.mapped_file import file_name
from store.log.commit_log import CommitLog, CommitLogConfig
from store.log.flusher import FlushMode
from store.replicated_log import AppendReceipt, LogState
from tests.page_cache import PageCache
from tests.store.log.test_flusher import Disk
from tests.store.support import HOST, Outcomes, eventually, fast_directory, make_draft
from tests.store.test_mapped_file import refuse_allocation

SIZE = 4096
HEAD = 88 + 1 + 1 + 2
TAIL = 4
"""Bytes of a record of topic T with an empty body."""


def make_log(
    directory: Path, flush_mode: FlushMode = FlushMode.ASYNC, *, timeout_ms: int = 5000, recover: bool = True
) -> CommitLog:
    config = CommitLogConfig(
        directory=directory,
        store_host=HOST,
        file_size_bytes=SIZE,
        flush_mode=flush_mode,
        flush_interval_ms=3_600_000,
        sync_flush_timeout_ms=timeout_ms,
    )
    log = CommitLog(config, asyncio.get_running_loop(), clock=lambda: 1_700_000_000_000)
    if recover:
        log.recover(StoreCheckpoint(), clean=True)
        log.start()
    return log


class Listener:
    def __init__(self) -> None:
        self.events: list[tuple[str, int | bool]] = []

    def on_confirmed(self, confirm_offset: int) -> None:
        self.events.append(("confirmed", confirm_offset))

    def on_role_change(self, state: LogState) -> None:
        self.events.append(("writable", state.writable))

    def on_truncated(self, max_offset: int) -> None:
        self.events.append(("truncated", max_offset))


def sizes(*lengths: int) -> list[RecordDraft]:
    """Drafts whose records are that many bytes long."""
    return [make_draft(bytes([number % 251]) * (length - HEAD)) for number, length in enumerate(lengths)]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr("store.files.mapped_file.MappedFile.sync", lambda file: disk.sync(file))
    yield disk
    disk.gate.set()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[CommitLog]:
    log = make_log(tmp_path)
    yield log
    await log.close()


@pytest.fixture
async def sync_log(tmp_path: Path, disk: Disk) -> AsyncIterator[CommitLog]:
    log = make_log(tmp_path, FlushMode.SYNC)
    yield log
    disk.gate.set()
    await log.close()


# -- placing


async def test_a_draft_is_stamped_and_lies_where_it_says(log: CommitLog) -> None:
    draft = make_draft(b"hello", queue_offset=7)
    log.append([draft], Outcomes())
    await eventually(lambda: log.confirm_offset == draft.size)
    record = decode_record(log.read(draft.physical_offset, draft.size))
    assert (record.physical_offset, record.queue_offset, record.body) == (0, 7, b"hello")
    assert record.store_timestamp == draft.store_timestamp == 1_700_000_000_000
    assert str(record.store_host) == "127.0.0.1:10911"


@pytest.mark.parametrize(("left", "rolls"), [(300 + 8, False), (300 + 7, True)])
async def test_a_record_rolls_when_it_would_leave_no_room_for_a_blank(log: CommitLog, left: int, rolls: bool) -> None:
    log.append(sizes(SIZE - left), Outcomes())
    draft = make_draft(bytes(300 - HEAD))
    log.append([draft], Outcomes())
    assert draft.physical_offset == (SIZE if rolls else SIZE - left)
    if rolls:
        view = log._queue.files[0].view
        assert struct.unpack_from(">ii", view, SIZE - left) == (left, BLANK_MAGIC)
        assert not any(view[SIZE - left + 8 :])


async def test_a_record_that_fits_into_no_file_is_refused_and_nothing_is_placed(log: CommitLog) -> None:
    with pytest.raises(Refusal) as caught:
        log.append(sizes(200, SIZE - 7), Outcomes())
    assert caught.value.cause is Cause.MESSAGE_ILLEGAL
    assert str(SIZE - 7) in caught.value.remark
    assert log.max_offset == 0
    log.append(sizes(SIZE - 8), Outcomes())
    assert log.max_offset == SIZE - 8


async def test_a_draft_that_cannot_be_encoded_leaves_zeros(log: CommitLog) -> None:
    log.append(sizes(200), Outcomes())
    broken = make_draft(b"x")
    broken.queue_id = 1 << 40
    for batch in ([*sizes(300), broken], [*sizes(3000, 3000), broken]):
        with pytest.raises(struct.error):
            log.append(batch, Outcomes())
        assert log.max_offset == 200
        assert len(log._queue.files) == 1
        assert not any(log._queue.files[0].view[200:])
    log.append(sizes(200), Outcomes())
    assert [offset for offset, _ in log.walk(0, 400)] == [0, 200]


async def test_store_times_never_go_back(tmp_path: Path) -> None:
    times = iter([1000, 900, 1100])
    config = CommitLogConfig(directory=tmp_path, store_host=HOST, file_size_bytes=SIZE)
    log = CommitLog(config, asyncio.get_running_loop(), clock=lambda: next(times))
    log.recover(StoreCheckpoint(), clean=True)
    log.start()
    drafts = sizes(200, 200, 200)
    for draft in drafts:
        log.append([draft], Outcomes())
    assert [draft.store_timestamp for draft in drafts] == [1000, 1000, 1100]
    await log.close()


# -- a model


@given(st.lists(st.lists(st.integers(HEAD, SIZE - 8), min_size=1, max_size=5), max_size=8))
@settings(max_examples=60)
def test_appends_roll_walk_and_read_like_a_list_of_records(batches: list[list[int]]) -> None:
    async def run(directory: Path) -> None:
        log = make_log(directory)
        model: list[tuple[int, int]] = []
        position = 0
        for batch in batches:
            drafts = sizes(*batch)
            log.append(drafts, Outcomes())
            for draft in drafts:
                if position % SIZE + draft.size + 8 > SIZE:
                    position += SIZE - position % SIZE
                model.append((position, draft.size))
                position += draft.size
        assert log.max_offset == position
        await eventually(lambda: log.confirm_offset == position)
        assert [(offset, len(record)) for offset, record in log.walk(0, position)] == model
        for offset, size in model:
            assert decode_record(log.read(offset, size)).physical_offset == offset
        for number, (offset, _) in enumerate(model):
            end = sum(model[-1])
            assert [start for start, _ in log.walk(offset, end)] == [start for start, _ in model[number:]]
            assert [start for start, _ in log.walk(0, offset)] == [start for start, _ in model[:number]]
        await log.close()

    with fast_directory() as directory:
        asyncio.run(run(directory))


# -- acknowledging


async def test_async_flush_acknowledges_after_the_turn_and_after_the_listeners(log: CommitLog) -> None:
    listener, outcomes = Listener(), Outcomes()
    log.add_listener(listener)

    def done(outcome: AppendReceipt | Refusal) -> None:
        listener.events.append(("done", 0))
        outcomes(outcome)

    log.append(sizes(200), done)
    log.append(sizes(200, 200), outcomes)
    assert (outcomes.all, log.confirm_offset) == ([], 0)
    await eventually(lambda: len(outcomes.all) == 2)
    assert listener.events == [("confirmed", 600), ("done", 0)]
    assert outcomes.all == [AppendReceipt(0, 1, 0)] * 2


async def test_sync_flush_confirms_only_what_is_flushed(sync_log: CommitLog, disk: Disk) -> None:
    listener, outcomes = Listener(), Outcomes()
    sync_log.add_listener(listener)
    disk.gate.clear()
    sync_log.append(sizes(200), outcomes)
    await eventually(lambda: disk.syncs == 1)
    sync_log.append(sizes(200), outcomes)
    sync_log.append(sizes(200), outcomes)
    assert (outcomes.all, sync_log.confirm_offset) == ([], 0)
    with pytest.raises(RecordUnavailableError):
        sync_log.read(0, 200)
    assert sync_log.local.flush_pending_since is not None
    disk.gate.set()
    await eventually(lambda: len(outcomes.all) == 3)
    assert outcomes.all == [AppendReceipt(0, 1, 1)] * 3
    assert listener.events == [("confirmed", 200), ("confirmed", 600)]
    assert disk.syncs == 2


async def test_a_flush_that_takes_too_long_is_said_once_and_the_record_stays(tmp_path: Path, disk: Disk) -> None:
    log = make_log(tmp_path, FlushMode.SYNC, timeout_ms=10)
    outcomes = Outcomes()
    disk.gate.clear()
    log.append(sizes(200), outcomes)
    await eventually(lambda: bool(outcomes.all))
    assert outcomes.causes == [Cause.FLUSH_TIMEOUT]
    disk.gate.set()
    await eventually(lambda: log.confirm_offset == 200)
    assert len(outcomes.all) == 1
    await log.close()


async def test_a_failed_sync_ends_writing_for_good(sync_log: CommitLog, disk: Disk) -> None:
    listener, outcomes = Listener(), Outcomes()
    sync_log.add_listener(listener)
    disk.error = OSError(5, "Input/output error")
    sync_log.append(sizes(200), outcomes)
    await eventually(lambda: bool(outcomes.all))
    disk.error = None
    assert outcomes.causes == [Cause.DISK_FAILED]
    assert listener.events == [("writable", False)]
    assert not sync_log.state.writable
    with pytest.raises(Refusal, match="Input/output error") as caught:
        sync_log.append(sizes(200), outcomes)
    assert caught.value.cause is Cause.DISK_FAILED
    assert sync_log.confirm_offset == 0


async def test_a_full_disk_refuses_before_anything_is_placed_and_ends_by_itself(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.local._allocator._clock = lambda: 0.0
    log.append(sizes(200), Outcomes())
    log.local._allocator.discard(log.config.directory)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        with pytest.raises(Refusal) as caught:
            log.append(sizes(200, 4000), Outcomes())
        assert caught.value.cause is Cause.DISK_FULL
        assert caught.value.retry_after_ms is not None
        assert log.max_offset == 200
        log.append(sizes(200), Outcomes())  # what fits into the present file is still taken
    log.local._allocator._clock = lambda: 1.0
    log.append(sizes(200, 4000), Outcomes())
    assert log.max_offset == SIZE + 4000


async def test_closing_acknowledges_what_it_flushes_and_refuses_more(tmp_path: Path) -> None:
    log = make_log(tmp_path, FlushMode.SYNC)
    outcomes = Outcomes()
    log.append(sizes(200), outcomes)
    await log.close()
    assert outcomes.all == [AppendReceipt(0, 1, 1)]
    with pytest.raises(Refusal) as caught:
        log.append(sizes(200), outcomes)
    assert caught.value.cause is Cause.SHUTTING_DOWN


async def test_a_log_that_is_not_started_refuses(tmp_path: Path) -> None:
    log = make_log(tmp_path, recover=False)
    with pytest.raises(Refusal) as caught:
        log.append(sizes(200), Outcomes())
    assert caught.value.cause is Cause.RECOVERING
    await log.close()


# -- reading


async def test_reads_end_at_the_confirm_offset(log: CommitLog) -> None:
    log.append(sizes(200), Outcomes())
    await eventually(lambda: log.confirm_offset == 200)
    for offset, size in [(0, 201), (-1, 10), (199, 2), (1 << 40, 1)]:
        with pytest.raises(RecordUnavailableError):
            log.read(offset, size)


async def test_the_batch_placed_last_is_read_without_its_mapping_until_it_is_cut(log: CommitLog) -> None:
    queue, answers = log.local.queue, Outcomes()
    log.append(sizes(200, 300), answers)
    log.append(sizes(200, 100), answers)
    last = queue.last()
    assert last is not None
    fresh = bytes(queue.fresh_slice(550, 250))
    assert not last.is_mapped
    assert fresh == bytes(queue.slice(550, 250))
    assert queue.fresh_slice(450, 250) == queue.slice(450, 250), "also of the batch before"
    await eventually(lambda: len(answers.all) == 2)
    log.cut_back(500)
    log.receive(memoryview(bytes(range(250)) + bytes(50)))
    assert queue.fresh_slice(550, 250) == bytes(range(50, 250)) + bytes(50)


async def test_the_batch_placed_last_is_not_read_after_a_reset(log: CommitLog) -> None:
    queue, answers = log.local.queue, Outcomes()
    log.append(sizes(200, 300), answers)
    await eventually(lambda: len(answers.all) == 1)
    queue.reset_to(0)
    with pytest.raises(RecordUnavailableError):
        queue.fresh_slice(200, 300)


async def test_walking_into_what_is_no_record_says_where(log: CommitLog) -> None:
    log.append(sizes(200, 300), Outcomes())
    log._queue.files[0].buffer[204] ^= 1
    found = log.walk(0, 500)
    assert next(found)[0] == 0
    with pytest.raises(CorruptRecordError) as caught:
        next(found)
    assert caught.value.position == 200


# -- recovery


async def written(directory: Path, lengths: list[int]) -> list[tuple[int, int]]:
    log = make_log(directory)
    drafts = sizes(*lengths)
    log.append(drafts, Outcomes())
    await log.close()
    return [(draft.physical_offset, draft.physical_offset + draft.size) for draft in drafts]


def damage(directory: Path, offset: int, kind: str) -> None:
    """Tear the files at a log offset as a crash may: zeros, or garbage, from there on."""
    for path in sorted(directory.iterdir()):
        start = max(offset - int(path.name), 0)
        if start < SIZE:
            with path.open("r+b") as file:
                file.seek(start)
                file.write(bytes(SIZE - start) if kind == "zeros" else b"\xa5" * (SIZE - start))


@given(
    lengths=st.lists(st.integers(HEAD, 1500), min_size=1, max_size=12),
    cut=st.floats(0, 1),
    kind=st.sampled_from(["zeros", "garbage"]),
    clean=st.booleans(),
    trusted=st.integers(0, 12),
)
@settings(max_examples=80)
def test_whatever_is_lost_of_the_tail_a_prefix_remains_and_goes_on(
    lengths: list[int], cut: float, kind: str, clean: bool, trusted: int
) -> None:
    async def run(directory: Path) -> None:
        records = await written(directory, lengths)
        offset = int(cut * records[-1][1])
        assume(not any(end - TAIL < offset < end for _, end in records))  # topic and properties have no CRC
        damage(directory, offset, kind)
        whole = [end for _, end in records if end <= offset]
        flushed = whole[: trusted + 1][-1] if whole else 0
        progress = Progress(flushed, 0, 0) if trusted < 12 else None
        log = make_log(directory, recover=False)
        assert log.recover(StoreCheckpoint(progress=progress), clean=clean and progress is None) == []
        log.start()
        assert log.max_offset == log.confirm_offset == (whole[-1] if whole else 0)
        log.append(sizes(500, 500), Outcomes())
        await log.close()
        again = make_log(directory)
        starts = [start for start, _ in again.walk(0, again.max_offset)]
        assert starts[: len(whole)] == [start for start, end in records if end <= offset]
        assert len(starts) == len(whole) + 2
        await again.close()

    with fast_directory() as directory:
        asyncio.run(run(directory))


async def test_a_damaged_body_inside_the_log_is_kept_and_named(tmp_path: Path) -> None:
    await written(tmp_path, [200] * 5)
    with (tmp_path / file_name(0)).open("r+b") as file:
        for position in (290, 490):
            file.seek(position)
            file.write(b"\xff")
    log = make_log(tmp_path, recover=False)
    assert log.recover(StoreCheckpoint(), clean=False) == [200, 400]
    assert log.max_offset == 1000


async def test_a_damaged_last_body_is_a_torn_tail(tmp_path: Path) -> None:
    await written(tmp_path, [200] * 5)
    with (tmp_path / file_name(0)).open("r+b") as file:
        for position in (690, 890):
            file.seek(position)
            file.write(b"\xff")
    log = make_log(tmp_path, recover=False)
    assert log.recover(StoreCheckpoint(), clean=False) == []
    assert log.max_offset == 600


async def test_a_record_that_says_another_offset_ends_the_log(tmp_path: Path) -> None:
    await written(tmp_path, [200] * 3)
    path = tmp_path / file_name(0)
    raw = bytearray(path.read_bytes())
    raw[400:600] = raw[200:400]
    path.write_bytes(raw)
    log = make_log(tmp_path, recover=False)
    log.recover(StoreCheckpoint(), clean=True)
    assert log.max_offset == 400


@pytest.mark.parametrize(("lengths", "position", "next_record"), [([200] * 5, 204, 400), ([3000] * 3, 4, SIZE)])
async def test_records_behind_a_damaged_place_after_a_clean_stop_are_not_thrown_away(
    tmp_path: Path, lengths: list[int], position: int, next_record: int
) -> None:
    await written(tmp_path, lengths)
    with (tmp_path / file_name(0)).open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    # the scan of a log without a checkpoint of ours begins at its newest file: let it begin at the oldest
    checkpoint = StoreCheckpoint(progress=Progress(0, 0, 0))
    with pytest.raises(
        StoreFormatError, match=f"one at {next_record}: damaged, although the last stop was clean"
    ) as caught:
        make_log(tmp_path, recover=False).recover(checkpoint, clean=True)
    assert caught.value.file == tmp_path / file_name(0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    log = make_log(tmp_path, recover=False)
    log.recover(checkpoint, clean=False)
    assert log.max_offset == position - 4


async def test_an_old_record_behind_the_end_never_comes_back(tmp_path: Path) -> None:
    await written(tmp_path, [200] * 5)
    with (tmp_path / file_name(0)).open("r+b") as file:
        file.seek(204)
        file.write(b"\xff")
    log = make_log(tmp_path, recover=False)
    log.recover(StoreCheckpoint(), clean=False)
    log.start()
    assert log.max_offset == 200
    log.append(sizes(200), Outcomes())
    await log.close()
    assert make_log(tmp_path).max_offset == 400


async def test_a_checkpoint_that_does_not_fit_the_files_is_not_believed(tmp_path: Path) -> None:
    await written(tmp_path, [200] * 3)
    for offset in (SIZE + 1, 1 << 50):
        log = make_log(tmp_path, recover=False)
        log.recover(StoreCheckpoint(progress=Progress(offset, 0, 0)), clean=True)
        assert log.max_offset == 600


async def test_a_file_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).write_bytes(bytes(SIZE - 1))
    with pytest.raises(StoreFormatError, match=f"{file_name(0)}: is {SIZE - 1} bytes long"):
        make_log(tmp_path, recover=False).recover(StoreCheckpoint(), clean=True)


async def test_what_a_failed_sync_lost_is_written_again_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PageCache(tmp_path, monkeypatch)
    log = make_log(tmp_path)
    queue = log.local.queue
    log.append(sizes(1000, 1000), Outcomes())
    durable = log.max_offset
    for file in queue.files:
        file.sync()
    log.append(sizes(*[1000] * 10), Outcomes())
    end = log.max_offset
    cache.is_failing = True
    for file in queue.files:
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    await log.close()
    cache.is_failing = False
    assert any(cache.lost.values())
    again = make_log(tmp_path, recover=False)
    again.recover(StoreCheckpoint(progress=Progress(durable, durable, 0)), clean=False)
    again.start()
    assert again.flushed_offset == again.max_offset == end
    assert not any(cache.lost.values())
    await again.close()
