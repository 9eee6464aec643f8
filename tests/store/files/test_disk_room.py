"""A file system that had no room counts as full until what it lacked has been allocated, or is free again."""

import errno
import os
from pathlib import Path

import pytest

from store.errors import DiskFullError
from store.files import disk


def test_a_file_as_large_as_the_one_that_was_refused_ends_the_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert disk.no_room(tmp_path) is None
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", refuse)
        with pytest.raises(DiskFullError):
            disk.create_file(tmp_path / "large", 1 << 16)
    os.close(disk.create_file(tmp_path / "small", 1 << 12))
    assert disk.no_room(tmp_path) is not None
    os.close(disk.create_file(tmp_path / "large", 1 << 16))
    assert disk.no_room(tmp_path) is None
