"""Warm files: every page touched and flushed before the first record, locked if that is allowed, zeros all the same."""

import errno
import os
from pathlib import Path

import pytest

from store.errors import DiskFailedError, DiskFullError
from store.files import pages
from store.files.file_maker import FileMaker
from store.files.mapped_file import MappedFile, file_name

SIZE = 4 << 20
PAGES = SIZE // 4096


def locked_kilobytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck"))


def test_a_warm_file_is_zeros_in_memory_and_lets_go_when_it_is_full(tmp_path: Path) -> None:
    before = locked_kilobytes()
    file = FileMaker(warms_up=True)(tmp_path / file_name(0), 0, SIZE)
    if pages.lock(file.buffer) is None:
        assert locked_kilobytes() == before + SIZE // 1024
    assert not any(file.view)
    file.unlock()
    assert locked_kilobytes() == before
    file.close()


@pytest.mark.parametrize(("flush_pages", "syncs"), [(0, 0), (PAGES // 4, 4), (PAGES, 1)])
def test_it_is_flushed_by_so_many_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_pages: int, syncs: int
) -> None:
    counted: list[MappedFile] = []
    monkeypatch.setattr(MappedFile, "sync", lambda file: counted.append(file))  # a list's method would not be bound
    FileMaker(warms_up=True, flush_pages=flush_pages)(tmp_path / file_name(0), 0, SIZE).close()
    assert len(counted) == syncs


def test_a_lock_that_is_refused_is_said_once_and_the_file_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "lock", lambda _: OSError(errno.ENOMEM, "Cannot allocate memory"))
    make = FileMaker(warms_up=True)
    for number in range(2):
        file = make(tmp_path / file_name(number * SIZE), number * SIZE, SIZE)
        file.write(memoryview(b"abc"))
        assert bytes(file.view[:4]) == b"abc\0"
        file.close()
    assert [record.getMessage().split(" is ", 1)[1] for record in caplog.records] == [
        "warm, but not locked in memory: [Errno 12] Cannot allocate memory"
    ]


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, DiskFailedError)])
def test_a_file_that_cannot_be_warmed_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type[Exception]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(error):
        FileMaker(warms_up=True)(tmp_path / file_name(0), 0, SIZE)
    assert list(tmp_path.iterdir()) == []


def test_a_stop_ends_a_warm_up_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = FileMaker(warms_up=True)
    written: list[int] = []

    def write_one(_descriptor: int, data: memoryview, position: int) -> int:
        written.append(position)
        make.stop()
        return len(data)

    monkeypatch.setattr(os, "pwrite", write_one)
    make(tmp_path / file_name(0), 0, SIZE).close()
    assert written == [0]
