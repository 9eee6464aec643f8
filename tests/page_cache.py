"""A page cache that forgets what a failed sync did not write, as Linux does."""

import errno
import os
from pathlib import Path

import pytest


class PageCache:
    """What of the files below a directory is on the disk, of what was written by `os.pwrite`.

    A sync that fails marks the pages clean all the same, as Linux does: the next one has nothing to write.
    """

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._dirty: dict[str, set[int]] = {}
        self.lost: dict[str, set[int]] = {}
        self.is_failing = False
        self._pwrite, self._fdatasync = os.pwrite, os.fdatasync
        patch.setattr("os.pwrite", self.pwrite)
        patch.setattr("os.fdatasync", self.fdatasync)

    def pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        written = self._pwrite(descriptor, data, position)
        self._of(self._dirty, descriptor).update(range(position, position + written))
        return written

    def fdatasync(self, descriptor: int) -> None:
        dirty, lost = self._of(self._dirty, descriptor), self._of(self.lost, descriptor)
        if self.is_failing:
            lost |= dirty
            dirty.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        lost -= dirty
        dirty.clear()
        self._fdatasync(descriptor)

    def _of(self, table: dict[str, set[int]], descriptor: int) -> set[int]:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(self._directory)
        return table.setdefault(str(name), set())
