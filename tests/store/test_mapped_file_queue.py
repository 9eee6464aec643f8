"""Files of one size as one log: what may be loaded, how it rolls, and a model that any steps agree with."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import DiskFullError, RecordUnavailableError, StoreFormatError
from store.files.allocator import FileAllocator
from store.files.mapped_file import file_name
from store.files.mapped_file_queue import MappedFileQueue
from tests.store.support import fast_directory
from tests.store.test_mapped_file import refuse_allocation

SIZE = 4096


def write(queue: MappedFileQueue, data: bytes) -> None:
    """Bytes across files, as a log without framing would."""
    while data:
        file = queue.last()
        if file is None or file.write_position == SIZE:
            file = queue.roll()
        part = data[: SIZE - file.write_position]
        file.buffer[file.write_position : file.write_position + len(part)] = part
        file.write_position += len(part)
        data = data[len(part) :]


def content(queue: MappedFileQueue) -> bytes:
    return b"".join(bytes(file.view[: file.write_position]) for file in queue.files)


def make_files(directory: Path, *names: str, size: int = SIZE, first_byte: bytes = b"x") -> None:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(first_byte.ljust(size, b"\0") if size else b"")


def load(directory: Path) -> MappedFileQueue:
    queue = MappedFileQueue(directory, SIZE)
    queue.load()
    return queue


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    queue = load(tmp_path / "log")
    assert (queue.min_offset, queue.max_offset, queue.last(), queue.file_at(0)) == (0, 0, None, None)


def test_a_reader_takes_a_place_of_no_bytes_as_slice_does(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(0))
    queue = load(tmp_path)
    read = queue.reader(0, SIZE, queue.slice)
    assert bytes(read(0, 0)) == b"", "what a damaged unit of a queue says"
    assert bytes(read(0, 1)) == b"x"
    assert bytes(read(0, 0)) == bytes(read(1, 0)) == b""


def test_loaded_files_count_as_full_until_they_are_cut(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(SIZE), file_name(2 * SIZE))
    queue = load(tmp_path)
    assert (queue.min_offset, queue.max_offset, queue.flushed_offset) == (SIZE, 3 * SIZE, 3 * SIZE)
    queue.truncate_to(2 * SIZE + 7)
    assert (queue.max_offset, queue.flushed_offset) == (2 * SIZE + 7, 2 * SIZE + 7)


@pytest.mark.parametrize("name", ["1", "notes.txt", "0000000000000000000x", "٠" * 20])
def test_a_file_with_another_name_is_refused(tmp_path: Path, name: str) -> None:
    make_files(tmp_path, name)
    with pytest.raises(StoreFormatError) as caught:
        load(tmp_path)
    assert caught.value.file == tmp_path / name


def test_a_file_with_another_length_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(0))
    make_files(tmp_path, file_name(SIZE), size=100)
    with pytest.raises(StoreFormatError, match="100 bytes"):
        load(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_gap_before_a_file_in_use_is_refused(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(0), file_name(2 * SIZE))
    with pytest.raises(StoreFormatError, match=f"a file that starts at {SIZE} is missing"):
        load(tmp_path)


def test_a_file_made_ahead_behind_a_gap_is_removed(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(0))
    make_files(tmp_path, file_name(2 * SIZE), first_byte=b"")
    assert load(tmp_path).max_offset == SIZE
    assert [path.name for path in tmp_path.iterdir()] == [file_name(0)]


def test_an_empty_last_file_is_removed_and_folders_are_not_looked_at(tmp_path: Path) -> None:
    make_files(tmp_path, file_name(0))
    make_files(tmp_path, file_name(SIZE), size=0)
    (tmp_path / "lost+found").mkdir()
    assert load(tmp_path).max_offset == SIZE


def test_a_reader_says_what_slices_say_within_its_bounds(tmp_path: Path) -> None:
    queue = MappedFileQueue(tmp_path, SIZE)
    write(queue, bytes(range(200)) * (3 * SIZE // 200))
    start, end = 100, queue.max_offset - 100
    asked: list[int] = []

    def slow(offset: int, size_bytes: int) -> memoryview:
        asked.append(offset)
        if offset + size_bytes > end:
            raise RecordUnavailableError(offset, size_bytes, 0, end)
        return queue.slice(offset, size_bytes)

    read = queue.reader(start, end, slow)
    for offset in (50, 100, 150, SIZE - 20, SIZE, SIZE + 40, 2 * SIZE, SIZE, 50):
        assert read(offset, 20) == queue.slice(offset, 20)
    assert asked == [50, SIZE, 2 * SIZE, SIZE, 50]
    for offset, size_bytes in ((SIZE - 10, 20), (end - 10, 20), (0, 1 << 31), (-5, 3)):
        with pytest.raises(RecordUnavailableError):
            read(offset, size_bytes)


def test_slices_end_where_a_file_was_written(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, bytes(range(200)))
    assert bytes(queue.slice(10, 5)) == bytes(range(10, 15))
    for offset, size in [(198, 3), (-1, 1), (SIZE, 1)]:
        with pytest.raises(RecordUnavailableError):
            queue.slice(offset, size)


def test_a_slice_never_spans_files(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, bytes(SIZE + 10))
    with pytest.raises(RecordUnavailableError):
        queue.slice(SIZE - 1, 2)


def test_the_next_file_is_made_ahead_and_removed_when_it_is_not_needed(tmp_path: Path) -> None:
    allocator = FileAllocator()
    queue = MappedFileQueue(tmp_path, SIZE, allocator)
    queue.roll()
    allocator.close()  # waits for what is under way
    assert [path.name for path in tmp_path.iterdir()] == [file_name(0)]
    queue.close()


def test_a_file_made_ahead_is_the_one_that_is_rolled_to(tmp_path: Path) -> None:
    allocator = FileAllocator()
    queue = MappedFileQueue(tmp_path, SIZE, allocator)
    assert [queue.roll().start_offset for _ in range(5)] == [0, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]
    queue.close()
    allocator.close()
    assert len(list(tmp_path.iterdir())) == 5


def test_preparing_fails_before_anything_changes_and_works_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = load(tmp_path)
    write(queue, b"abc")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(28))
        with pytest.raises(DiskFullError):
            queue.prepare(1)
        with pytest.raises(DiskFullError):
            queue.roll()
    assert (queue.max_offset, len(queue.files)) == (3, 1)
    queue.ensure_room(SIZE)
    assert queue.roll().start_offset == SIZE


@pytest.mark.parametrize(("size", "files"), [(1, 1), (SIZE - 3, 1), (SIZE, 2), (SIZE + 1, 3)])
def test_room_is_made_in_whole_files(tmp_path: Path, size: int, files: int) -> None:
    queue = load(tmp_path)
    write(queue, b"abc")
    queue.ensure_room(size)
    assert len(list(tmp_path.iterdir())) == files


def test_files_prepared_behind_a_cut_are_not_used_at_another_place(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, b"x" * (2 * SIZE + 5))
    queue.flushed_offset = queue.max_offset
    for file in queue.files:
        file.flush_position = file.write_position
    queue.track_commits()
    queue.prepare(1)
    queue.truncate_to(SIZE - 7)
    assert (queue.max_offset, queue.flushed_offset, queue.committed_offset) == (SIZE - 7,) * 3
    assert [file.flush_position for file in queue.files] == [SIZE - 7]
    write(queue, b"y" * 9)
    assert [file.start_offset for file in queue.files] == [0, SIZE]
    assert content(queue) == b"x" * (SIZE - 7) + b"y" * 9


def test_a_reset_starts_anew_in_the_file_that_holds_the_offset(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, bytes(3 * SIZE))
    generation = queue.generation
    queue.reset_to(10 * SIZE + 5)
    assert (queue.max_offset, queue.flushed_offset) == (10 * SIZE + 5, 10 * SIZE + 5)
    assert queue.generation > generation
    assert [path.name for path in tmp_path.iterdir()] == [file_name(10 * SIZE)]
    queue.reset_to(20 * SIZE)
    assert (queue.min_offset, queue.max_offset, queue.files) == (20 * SIZE, 20 * SIZE, [])


def test_old_files_go_and_the_last_one_stays(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, bytes(3 * SIZE - 1))
    assert [path.name for path in queue.delete_before(2 * SIZE - 1)] == [file_name(0)]
    queue.delete_before(100 * SIZE)
    assert (queue.min_offset, queue.max_offset) == (2 * SIZE, 3 * SIZE - 1)


def test_files_to_flush_are_those_with_bytes_in_the_range(tmp_path: Path) -> None:
    queue = load(tmp_path)
    write(queue, bytes(3 * SIZE))
    starts: Callable[[int, int], list[int]] = lambda a, b: [file.start_offset for file in queue.unflushed(a, b)]  # noqa: E731
    assert starts(0, 0) == []
    assert starts(0, 1) == [0]
    assert starts(SIZE - 1, SIZE + 1) == [0, SIZE]
    assert starts(SIZE, 3 * SIZE) == [SIZE, 2 * SIZE]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 9000)),
        st.tuples(st.just("cut"), st.floats(0, 1)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS)
def test_any_writes_cuts_and_reopenings_read_like_one_string(steps: list[tuple[str, float]]) -> None:
    model = b""
    with fast_directory() as directory:
        queue = load(directory)
        for number, (step, value) in enumerate(steps):
            if step == "write":
                data = bytes([number + 1]) * int(value)
                write(queue, data)
                model += data
            elif step == "cut":
                model = model[: int(value * len(model))]
                queue.truncate_to(len(model))
            else:
                queue.close()
                queue = load(directory)
                queue.truncate_to(len(model))
            assert (content(queue), queue.max_offset) == (model, len(model))
            assert all(not any(file.view[file.write_position :]) for file in queue.files)
        queue.close()
