"""A log larger than what may be mapped: idle files give way, reads go on, descriptors stay few."""

import mmap
import os
from pathlib import Path

import pytest

from store.files.deleted_files import DeletedFiles
from store.files.mapped_file import CHUNK_BYTES, file_name
from store.files.mapped_file_queue import MappedFileQueue
from store.files.mapping_limit import Mappings

SIZE = 4 * CHUNK_BYTES


def make_queue(directory: Path, files: int, mapped_max: int, deleted: DeletedFiles | None = None) -> MappedFileQueue:
    """A loaded queue whose file n is full of the byte n."""
    for number in range(files):
        (directory / file_name(number * SIZE)).write_bytes(bytes([number]) * SIZE)
    queue = MappedFileQueue(directory, SIZE, mappings=Mappings(mapped_max), deleted=deleted)
    queue.load()
    return queue


def mapped(queue: MappedFileQueue) -> list[int]:
    return [number for number, file in enumerate(queue.files) if file.is_mapped]


def maps_of(directory: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(directory))


def descriptors_of(directory: Path) -> int:
    links = (entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return sum(link.is_relative_to(directory) for link in links)


def test_loading_maps_and_opens_nothing(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 10, 3)
    assert (mapped(queue), maps_of(tmp_path), descriptors_of(tmp_path)) == ([], 0, 0)


def test_any_number_of_files_is_read_through_few_mappings(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 20, 3)
    for number in [*range(20), *reversed(range(20))]:
        assert bytes(queue.slice(number * SIZE + 7, 3)) == bytes([number]) * 3
        assert maps_of(tmp_path) <= 3
    assert descriptors_of(tmp_path) <= 6
    queue.close()
    assert (maps_of(tmp_path), descriptors_of(tmp_path)) == (0, 0)


def test_the_file_that_was_idle_longest_gives_way(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 4, 3)
    for number in range(3):
        queue.slice(number * SIZE, 1)
    queue.release_idle()
    queue.slice(0, 1)
    queue.slice(2 * SIZE, 1)
    queue.release_idle()
    queue.slice(3 * SIZE, 1)
    assert mapped(queue) == [0, 2, 3]


def test_a_slice_outlives_the_mapping_s_turn(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 5, 2)
    held = queue.slice(0, 5)
    for number in range(5):
        queue.slice(number * SIZE, 1)
    assert 0 not in mapped(queue)
    assert bytes(held) == bytes(5)
    del held
    assert maps_of(tmp_path) <= 2


def test_what_is_not_flushed_keeps_its_descriptor(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 3, 2)
    file = queue.files[0]
    file.flush_position = 100
    file.map()
    descriptor = file.fd
    file.unmap()
    assert file.fd == descriptor >= 0
    file.flush_position = SIZE
    file.map()
    file.unmap()
    assert file.fd < 0


def test_a_descriptor_is_closed_once_by_a_sync_s_thread_and_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_queue(tmp_path, 1, 2).files[0]
    file.pin()
    closed: list[int] = []

    def close_meanwhile(descriptor: int) -> None:
        closed.append(descriptor)
        if len(closed) == 1:
            file._close_descriptor()  # the other thread, while this one waits for the system without the GIL

    descriptor = file.fd
    with monkeypatch.context() as patch:
        patch.setattr("os.close", close_meanwhile)
        file.close()
        assert closed == []  # pinned
        file.unpin()
    assert closed == [descriptor]
    os.close(descriptor)


def test_a_chunk_is_asked_for_once_between_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def populate(_buffer: object, start: int, end: int) -> bool:
        asked.append((start, end))
        return True

    monkeypatch.setattr("store.files.pages.populate", populate)
    queue = make_queue(tmp_path, 1, 2)
    for _ in range(3):
        queue.slice(CHUNK_BYTES + 1, 10)
    assert asked == [(CHUNK_BYTES, 3 * CHUNK_BYTES)]
    queue.slice(0, SIZE)
    assert asked[1:] == [(0, SIZE)]
    queue.release_idle()
    queue.slice(CHUNK_BYTES + 1, 10)
    assert len(asked) == 3


def test_eight_chunks_are_read_ahead_of_a_reader_that_goes_forward_but_for_those_before_a_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, count = 20, 24
    asked: list[tuple[int, int]] = []
    populated: set[int] = set()

    def populate(_buffer: object, start: int, end: int) -> bool:
        chunks = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        asked.append((chunks.start, chunks.stop))
        if bad in chunks:
            return False
        populated.update(chunks)
        return True

    monkeypatch.setattr("store.files.pages.populate", populate)
    (tmp_path / file_name(0)).write_bytes(bytes(count * CHUNK_BYTES))
    queue = MappedFileQueue(tmp_path, count * CHUNK_BYTES, mappings=Mappings(2))
    queue.load()
    for chunk in range(count):
        queue.slice(chunk * CHUNK_BYTES, 10)
    assert asked[:5] == [(0, 2), (1, 10), (9, 18), (17, 24), (17, 19)]
    assert asked[5:] == [(18, 24), (18, 20), (19, 24), (19, 21), (20, 22), (21, 23), (22, 24), (23, 24)]
    known = queue.files[0].known
    assert {chunk for chunk in range(count - 1) if known[chunk]} == {*range(19), 21, 22}
    assert all({chunk, chunk + 1} <= populated for chunk in range(count - 1) if known[chunk])


def test_pages_behind_the_writer_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def populate(_buffer: object, start: int, end: int) -> bool:
        asked.append((start, end))
        return True

    monkeypatch.setattr("store.files.pages.populate", populate)
    file = make_queue(tmp_path, 1, 2).files[0]
    file.write_position = mmap.PAGESIZE + 1
    file.ensure_readable(0, 100)
    file.ensure_readable(100, mmap.PAGESIZE + 1)  # known
    assert asked == [(0, 2 * mmap.PAGESIZE)]
    file.write_position = 0  # as in recovery, before the end is found
    file.forget_known()
    file.ensure_readable(0, 100)
    assert asked[1:] == [(0, 2 * CHUNK_BYTES)]


def test_an_old_kernel_reads_by_file_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.files.pages.populate", lambda *_: False)
    queue = make_queue(tmp_path, 2, 2)
    assert bytes(queue.slice(SIZE + 5, 2)) == b"\x01\x01"


def test_a_deleted_file_s_readers_keep_their_bytes_and_its_blocks_go_with_them(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 3, 3)
    held = queue.slice(SIZE, 4)
    queue.delete_before(2 * SIZE)
    queue.release_idle()
    assert bytes(held) == b"\x01" * 4
    assert descriptors_of(tmp_path) > 0
    del held
    queue.release_idle()
    assert (descriptors_of(tmp_path), maps_of(tmp_path)) == (0, 0)


def test_a_deleted_file_that_is_held_too_long_loses_its_blocks_and_nobody_is_killed(tmp_path: Path) -> None:
    now = 0.0
    deleted = DeletedFiles(120.0, clock=lambda: now)
    queue = make_queue(tmp_path, 3, 3, deleted)
    held = queue.slice(SIZE, 4)
    queue.delete_before(2 * SIZE)
    now = 119.0
    queue.release_idle()
    assert (len(deleted), bytes(held)) == (1, b"\x01" * 4)
    now = 120.0
    queue.release_idle()
    assert (len(deleted), bytes(held)) == (0, bytes(4))
    queue.close()


def test_cold_pages_leave_this_process_and_come_back_when_read(tmp_path: Path) -> None:
    queue = make_queue(tmp_path, 1, 2)
    file = queue.files[0]
    file.buffer[10:14] = b"abcd"
    file.cool()
    assert bytes(file.view[10:14]) == b"abcd"
