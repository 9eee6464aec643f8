"""Unit arithmetic against a list, gaps, first units past 0, and recovery that keeps a prefix."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.queue_unit import UNIT
from store.errors import DiskFullError, StoreFormatError
from store.files.mapped_file import file_name
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, Unit
from store.queues.queue_file import CHUNK_BYTES, QueueFile
from tests.store.support import fast_directory
from tests.store.test_mapped_file import refuse_allocation

UNITS = 7
BLANK = (0, BLANK_SIZE, 0)


def make(directory: Path, units: int = UNITS) -> ConsumeQueue:
    return ConsumeQueue("T", 0, directory, units)


def unit_of(number: int) -> Unit:
    return (number * 100, 100, number % 5 - 2)


def put(queue: ConsumeQueue, start: int, end: int) -> None:
    for number in range(start, end):
        queue.put(*unit_of(number), number)


def all_units(queue: ConsumeQueue) -> list[Unit]:
    return [unit for _, unit in queue.iterate(queue.min_offset, queue.max_offset)]


def reopen(queue: ConsumeQueue, end_offset: int, *, scan: bool = False) -> ConsumeQueue:
    queue.close()
    again = make(queue._files.directory, queue._files.file_units)
    again.load()
    again.recover(end_offset, scan=scan)
    return again


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return make(tmp_path / "T" / "0")


@given(count=st.integers(0, 40), units=st.integers(1, 9), offset=st.integers(-3, 45), size=st.integers(1, 20))
def test_units_read_like_slices_of_a_list_that_end_with_their_file(
    count: int, units: int, offset: int, size: int
) -> None:
    with fast_directory() as directory:
        queue = make(directory / "0", units)
        put(queue, 0, count)
        model = [unit_of(number) for number in range(count)]
        expected = model[offset : min(offset + size, offset - offset % units + units)] if 0 <= offset < count else []
        assert list(UNIT.iter_unpack(queue.units(offset, size))) == expected
        assert queue.unit(offset) == (model[offset] if 0 <= offset < count else None)
        assert all_units(queue) == model
        queue.close()


@given(
    count=st.integers(1, 40),
    kept=st.integers(0, 45),
    scan=st.booleans(),
    again=st.integers(0, 30),
    start=st.integers(0, 20),
)
@settings(max_examples=60)
def test_recovery_keeps_the_units_of_whole_records_and_goes_on_from_there(
    count: int, kept: int, scan: bool, again: int, start: int
) -> None:
    with fast_directory() as directory:
        queue = make(directory / "0")
        put(queue, start, start + count)
        recovered = reopen(queue, (start + kept) * 100 + 50, scan=scan)
        left = min(count, kept)
        assert [unit for unit in all_units(recovered) if unit != BLANK] == [
            unit_of(number) for number in range(start, start + left)
        ]
        assert recovered.max_offset == start + left
        put(recovered, start + left, start + left + again)
        recovered.correct_min_offset(0)
        assert all_units(recovered) == [unit_of(number) for number in range(start, start + left + again)]
        recovered.close()


@given(count=st.integers(1, 30), cut=st.integers(0, 35))
@settings(max_examples=40)
def test_what_recovery_cuts_reads_as_zeros(count: int, cut: int) -> None:
    with fast_directory() as directory:
        queue = make(directory / "0")
        put(queue, 0, count)
        queue.recover(cut * 100, scan=False)
        left = min(count, cut)
        assert all_units(queue) == [unit_of(number) for number in range(left)]
        queue.close()
        raw = b"".join(path.read_bytes() for path in sorted((directory / "0").iterdir()))
        assert not any(raw[left * 20 :])


def test_a_unit_put_again_is_left_alone_or_corrected(queue: ConsumeQueue) -> None:
    put(queue, 0, 10)
    put(queue, 3, 10)
    assert all_units(queue) == [unit_of(number) for number in range(10)]
    queue.put(555, 5, 5, 4)
    put(queue, 10, 16)
    assert queue.unit(4) == (555, 5, 5)
    assert queue.max_offset == 16
    assert not queue.is_gapped


def test_units_below_the_queue_are_ignored(queue: ConsumeQueue) -> None:
    put(queue, 9, 12)
    queue.put(1, 2, 3, 8)
    queue.put(1, 2, 3, -1)
    assert (queue.min_offset, queue.max_offset) == (9, 12)


def test_a_first_unit_past_zero_lies_where_rocketmq_puts_it_behind_blanks(queue: ConsumeQueue) -> None:
    put(queue, 9, 10)
    (path,) = queue._files.directory.iterdir()
    assert path.name == file_name(7 * 20)
    raw = path.read_bytes()
    assert raw == UNIT.pack(*BLANK) * 2 + UNIT.pack(*unit_of(9)) + bytes(4 * 20)
    assert (queue.min_offset, queue.max_offset) == (9, 10)
    assert not queue.is_gapped


def test_leading_blanks_are_hidden_after_a_restart_even_when_the_log_begins_at_zero(queue: ConsumeQueue) -> None:
    put(queue, 9, 12)
    again = reopen(queue, 10_000)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset) == (9, 12)


@pytest.mark.parametrize("offset", [0, 5, 7, 16])
def test_a_restarted_queue_is_empty_and_goes_on_with_its_number_even_after_a_restart_of_the_process(
    queue: ConsumeQueue, offset: int
) -> None:
    put(queue, 0, 12)
    queue.restart(offset)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (offset,) * 3
    if offset:
        for _ in range(2):
            queue = reopen(queue, 100_000)
            queue.correct_min_offset(0)
            assert (queue.min_offset, queue.max_offset) == (offset, offset)
    put(queue, offset, offset + 9)
    assert all_units(queue) == [unit_of(number) for number in range(offset, offset + 9)]
    assert not queue.is_gapped


def test_an_empty_queue_takes_any_first_unit(queue: ConsumeQueue) -> None:
    queue.restart(5)
    put(queue, 40, 42)
    assert (queue.min_offset, queue.max_offset) == (40, 42)
    assert not queue.is_gapped


def test_a_restart_without_room_leaves_an_empty_queue(queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    put(queue, 0, 12)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
    with pytest.raises(DiskFullError):
        queue.restart(5)
    assert (queue.min_offset, queue.max_offset) == (0, 0)


def test_a_gap_is_filled_with_blanks_and_remembered(queue: ConsumeQueue) -> None:
    put(queue, 0, 3)
    put(queue, 8, 10)
    assert queue.is_gapped
    assert [unit[1] for unit in all_units(queue)] == [100] * 3 + [BLANK_SIZE] * 5 + [100] * 2
    queue.correct_min_offset(0)
    assert queue.min_offset == 0


def test_a_gap_of_a_whole_file_is_not_filled(queue: ConsumeQueue) -> None:
    put(queue, 0, 3)
    queue.put(1, 1, 1, 1 << 60)
    assert queue.is_gapped
    assert queue.max_offset == 3
    put(queue, 3, 5)
    assert queue.max_offset == 5


def test_a_file_missing_in_the_middle_leaves_the_part_before_it(queue: ConsumeQueue) -> None:
    put(queue, 0, 20)
    queue.close()
    (queue._files.directory / file_name(7 * 20)).unlink()
    again = reopen(queue, 10_000)
    assert again.is_gapped
    assert all_units(again) == [unit_of(number) for number in range(7)]
    assert [path.name for path in again._files.directory.iterdir()] == [file_name(0)]


@pytest.mark.parametrize(("name", "size"), [("x", 140), (file_name(0), 139)])
def test_a_file_of_another_name_or_length_is_refused_by_name(queue: ConsumeQueue, name: str, size: int) -> None:
    queue._files.directory.mkdir(parents=True)
    (queue._files.directory / name).write_bytes(bytes(size))
    with pytest.raises(StoreFormatError) as caught:
        queue.load()
    assert caught.value.file == queue._files.directory / name


def test_zeros_in_the_middle_end_a_queue_that_is_scanned(queue: ConsumeQueue) -> None:
    put(queue, 0, 6)
    queue.close()
    with (queue._files.directory / file_name(0)).open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))
    assert reopen(queue, 10_000, scan=True).max_offset == 2


def test_the_log_hides_units_whose_records_it_dropped(queue: ConsumeQueue) -> None:
    put(queue, 0, 20)
    queue.correct_min_offset(750)
    assert queue.min_offset == 8
    queue.correct_min_offset(100_000)
    assert (queue.min_offset, queue.max_offset) == (20, 20)


def test_room_is_asked_for_ahead_and_a_full_disk_changes_nothing(
    queue: ConsumeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(queue, 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        with pytest.raises(DiskFullError):
            queue.reserve(9)
        with pytest.raises(DiskFullError):
            put(queue, 5, 9)
    assert queue.max_offset == 7
    queue.reserve(9)
    assert queue.room_end >= 9
    put(queue, 7, 9)
    assert all_units(queue) == [unit_of(number) for number in range(9)]


def test_a_large_file_takes_disk_chunk_by_chunk(tmp_path: Path) -> None:
    queue = make(tmp_path / "0", 300_000)
    put(queue, 0, 1)
    (path,) = queue._files.directory.iterdir()
    assert path.stat().st_size == 6_000_000
    assert path.stat().st_blocks * 512 <= 2 * CHUNK_BYTES
    put(queue, 1, 2 * CHUNK_BYTES // 20)
    assert all_units(queue) == [unit_of(number) for number in range(2 * CHUNK_BYTES // 20)]


def test_a_reopened_queue_knows_the_blocks_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(tmp_path / "q", 300_000)
    put(queue, 0, 3)
    queue.close()
    asked: list[int] = []
    monkeypatch.setattr("store.queues.queue_file.allocate", lambda _fd, _path, start, _size: asked.append(start))
    queue = reopen(queue, 300)
    put(queue, 3, 4)
    assert asked == [], "the unit lies in a block that is there"
    put(queue, 4, 205)
    assert asked == [4096]


def test_blocks_behind_a_hole_are_not_taken_for_room(tmp_path: Path) -> None:
    file = QueueFile(str(tmp_path), 0, 6_000_000)
    with file.path.open("r+b") as raw:
        raw.seek(8192)
        raw.write(b"x")
    file.map()
    assert (file.allocated_bytes, file.data_end) == (0, 12288)
    file.close()


def test_no_descriptor_of_its_own_stays_open_for_a_queue(tmp_path: Path) -> None:
    before = open_descriptors()
    queue = make(tmp_path / "0", 300_000)
    put(queue, 0, 1)
    assert open_descriptors() <= before + 1  # the mapping's own, before Python 3.13
    queue.close()
    assert open_descriptors() == before


def test_of_the_older_files_one_stays_mapped_while_reading_and_writing_go_on(queue: ConsumeQueue) -> None:
    put(queue, 0, 31)
    before = open_descriptors()
    for number in range(31, 200):
        queue.reserve(number + 5)
        assert queue.unit(number * 7 % 31) == unit_of(number * 7 % 31)
        queue.put(*unit_of(number * 7 % 29), number * 7 % 29)
        put(queue, number, number + 1)
    assert open_descriptors() <= before + 3
    assert all_units(queue) == [unit_of(number) for number in range(200)]


def test_files_to_sync_are_those_with_new_units(queue: ConsumeQueue) -> None:
    put(queue, 0, 8)
    assert [file.start_bytes for file in queue.take_unflushed()] == [0, 140]
    assert [file.start_bytes for file in queue.take_unflushed()] == [140], "its name may say where the queue continues"
    put(queue, 8, 9)
    assert [file.start_bytes for file in queue.take_unflushed()] == [140]
    queue.put(5, 5, 5, 0)
    assert [file.start_bytes for file in queue.take_unflushed()] == [0, 140]


def test_bisecting_finds_the_first_unit_for_which_the_question_is_false(queue: ConsumeQueue) -> None:
    put(queue, 0, 20)
    for limit, expected in [(0, 0), (1, 1), (700, 7), (701, 8), (99_999, 20)]:
        assert queue.bisect(lambda unit: unit[0] < limit) == expected  # noqa: B023  # called before the loop goes on


def test_a_unit_is_twenty_bytes_offset_size_tags_code(queue: ConsumeQueue) -> None:
    queue.put(0x0102030405060708, 0x0A0B0C0D, -2, 0)
    assert bytes(queue.units(0, 1)) == struct.pack(">qiq", 0x0102030405060708, 0x0A0B0C0D, -2)


def test_a_queue_that_is_cut_at_its_first_unit_goes_on_with_that_number_after_a_restart(tmp_path: Path) -> None:
    queue = make(tmp_path / "queue")
    queue.restart(2 * UNITS)
    put(queue, 2 * UNITS, 3 * UNITS + 2)
    queue.cut_at(unit_of(2 * UNITS)[0])
    assert (queue.min_offset, queue.max_offset) == (2 * UNITS,) * 2
    again = reopen(queue, unit_of(2 * UNITS)[0], scan=True)
    assert (again.min_offset, again.max_offset, again.next_offset) == (2 * UNITS,) * 3
