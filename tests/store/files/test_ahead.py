"""Files made ahead: one at first, two once the log has grown, one where Java must start on it; the old ones cool."""

import threading
from pathlib import Path

import pytest

from store.files.allocator import FileAllocator
from store.files.mapped_file import MappedFile, file_name
from store.files.mapped_file_queue import MappedFileQueue
from tests.limits import WAIT_S

SIZE = 4096


def names(directory: Path) -> list[int]:
    return sorted(int(path.name) // SIZE for path in directory.iterdir())


def settle(allocator: FileAllocator) -> None:
    """Wait for what the thread was asked for so far."""
    allocator._executor.submit(lambda: None).result()


@pytest.mark.parametrize(("ahead_max", "grown"), [(2, [0, 1, 2, 3]), (1, [0, 1, 2])])
def test_a_log_that_grew_has_so_many_files_ahead(tmp_path: Path, ahead_max: int, grown: list[int]) -> None:
    allocator = FileAllocator()
    queue = MappedFileQueue(tmp_path, SIZE, allocator, ahead_max=ahead_max)
    queue.roll()
    settle(allocator)
    assert names(tmp_path) == [0, 1]
    queue.roll()
    settle(allocator)
    assert names(tmp_path) == grown
    assert [queue.roll().start_offset // SIZE for _ in range(4)] == [2, 3, 4, 5]
    queue.close()
    allocator.close()
    assert names(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_blank_files_ahead_that_a_crash_left_are_no_part_of_the_log(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).write_bytes(b"x" * 100 + bytes(SIZE - 100))
    for number in (1, 2):
        (tmp_path / file_name(number * SIZE)).write_bytes(bytes(SIZE))
    queue = MappedFileQueue(tmp_path, SIZE)
    queue.load()
    queue.truncate_to(100)
    assert (queue.max_offset, names(tmp_path)) == (100, [0])


def test_a_full_file_is_unlocked_and_the_one_before_it_cooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(MappedFile, "unlock", lambda file: done.append(("unlock", file.start_offset // SIZE)))
    monkeypatch.setattr(MappedFile, "cool", lambda file: done.append(("cool", file.start_offset // SIZE)))
    allocator = FileAllocator()
    queue = MappedFileQueue(tmp_path, SIZE, allocator)
    for _ in range(4):
        queue.roll()
    settle(allocator)
    assert done == [("unlock", 0), ("unlock", 1), ("cool", 0), ("unlock", 2), ("cool", 1)]
    queue.close()
    allocator.close()


def test_a_file_that_is_being_made_when_nobody_needs_it_any_more_goes_without_a_wait(tmp_path: Path) -> None:
    gate, begun = threading.Event(), threading.Event()

    def make(path: Path, start_offset: int, size_bytes: int) -> MappedFile:
        begun.set()
        assert gate.wait(WAIT_S)
        return MappedFile(path, start_offset, size_bytes)

    allocator = FileAllocator(make=make)
    allocator.request(tmp_path / file_name(0), 0, SIZE)
    assert begun.wait(WAIT_S)
    allocator.discard(tmp_path)  # would wait for ever
    allocator.request(tmp_path / file_name(0), 0, SIZE)  # and now it is needed again
    gate.set()
    file = allocator.take(tmp_path / file_name(0), 0, SIZE)
    assert names(tmp_path) == [0]
    file.close()
    allocator.close()


def test_a_cut_inside_the_last_file_keeps_the_files_ahead(tmp_path: Path) -> None:
    allocator = FileAllocator()
    queue = MappedFileQueue(tmp_path, SIZE, allocator)
    queue.roll().write(memoryview(b"x" * 100))
    settle(allocator)
    inode = (tmp_path / file_name(SIZE)).stat().st_ino
    queue.truncate_to(50)
    assert queue.roll().path.stat().st_ino == inode
    queue.close()
    allocator.close()
