"""One mapped file: allocated before it is mapped, cleared where it is cut, alive as long as readers hold slices."""

import errno
import os
from pathlib import Path

import pytest

from store.errors import DiskFailedError, DiskFullError, StoreFormatError
from store.files import disk, mapped_file
from store.files.mapped_file import MappedFile, file_name

SIZE = 4 << 20


def refuse_allocation(code: int) -> None:
    raise OSError(code, os.strerror(code))


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    return MappedFile(tmp_path / file_name(0), 0, SIZE)


def test_a_new_file_has_all_its_blocks_and_reads_as_zeros(file: MappedFile) -> None:
    status = file.path.stat()
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE
    assert not any(file.view)


def test_a_file_name_is_its_start_offset_in_twenty_digits() -> None:
    assert file_name(1 << 30) == "00000000001073741824"


def test_what_was_stored_is_there_when_the_file_is_opened_again(file: MappedFile) -> None:
    file.buffer[10:14] = b"abcd"
    file.close()
    assert bytes(MappedFile(file.path, 0, SIZE).view[10:14]) == b"abcd"


def test_a_file_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    path.write_bytes(bytes(100))
    with pytest.raises(StoreFormatError, match="100 bytes long, must be 4194304") as caught:
        MappedFile(path, 0, SIZE)
    assert caught.value.file == path
    assert path.read_bytes() == bytes(100)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, DiskFailedError)]
)
def test_a_file_that_cannot_be_allocated_is_a_typed_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: refuse_allocation(code))
    with pytest.raises(error):
        MappedFile(tmp_path / file_name(0), 0, SIZE)
    assert list(tmp_path.iterdir()) == []


def test_holes_of_a_file_found_on_disk_are_filled_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    with path.open("wb") as sparse:
        sparse.truncate(SIZE)
    file = MappedFile(path, 0, SIZE)
    assert path.stat().st_blocks * 512 < SIZE
    file.ensure_allocated()
    assert path.stat().st_blocks * 512 >= SIZE


@pytest.mark.parametrize("written", [3000, SIZE])
def test_clearing_zeroes_everything_behind_a_position(file: MappedFile, written: int) -> None:
    file.buffer[0:written] = b"x" * written
    file.write_position = written
    file.clear_from(1000)
    assert bytes(file.view[:1000]) == b"x" * 1000
    assert not any(file.view[1000:])


def test_clearing_works_where_holes_cannot_be_punched(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "punch", lambda *_: False)
    file.buffer[0:SIZE] = b"x" * SIZE
    file.write_position = SIZE
    file.clear_from(5)
    assert bytes(file.view) == b"xxxxx" + bytes(SIZE - 5)


def test_slices_stay_readable_after_the_file_is_deleted(file: MappedFile) -> None:
    file.buffer[0:5] = b"hello"
    held = file.view[0:5]
    file.delete()
    assert not file.path.exists()
    assert bytes(held) == b"hello"


def test_a_pinned_file_can_be_synced_after_it_was_closed(file: MappedFile) -> None:
    file.pin()
    file.delete()
    file.sync()
    file.unpin()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.sync()


def test_closing_twice_is_harmless(file: MappedFile) -> None:
    file.close()
    file.close()


def test_a_file_system_is_full_for_a_while_and_until_it_has_the_room_that_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota does not show in the free blocks, so those alone do not end it."""
    now_s, free = 1000.0, 1 << 40
    monkeypatch.setattr(disk, "_full", {})
    monkeypatch.setattr("store.files.disk.time.monotonic", lambda: now_s)
    monkeypatch.setattr(disk, "free_bytes", lambda _: free)
    disk.refusal_of_disk(tmp_path / "file", 500, "write", OSError(errno.EDQUOT, "quota"))
    now_s += disk.FULL_S - 0.1
    assert disk.no_room(tmp_path) is not None
    now_s, free = now_s + 0.2, 499
    assert disk.no_room(tmp_path) is not None
    free = 500
    assert disk.no_room(tmp_path) is None
    disk.require_first_file(tmp_path / "log", 500, "")
    with pytest.raises(DiskFullError, match="for 501 bytes; take another disk"):
        disk.require_first_file(tmp_path / "log", 501, "take another disk")
