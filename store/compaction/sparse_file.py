"""Sparse file: a file of fixed length that is written by file calls and read through a mapping.

Its blocks come with its bytes: a topic of many queues, each with two files, holds no room that it does not need, and a
full disk is an error of a write here, never a signal at a store into a mapping.
"""

import mmap
import os
from pathlib import Path

from store.errors import DiskFailedError, DiskReadError, StoreFormatError
from store.files import pages
from store.files.disk import refusal_of_disk


class SparseFile:
    """One file; made when missing.

    Attributes:
        path: where it is; the owner changes it when it has moved the file.
        view: the whole file; read it only where `ensure_readable` was called. Slices keep the mapping alive.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFailedError: it cannot be made or opened.
    """

    __slots__ = ("_buffer", "_fd", "_sync_fault", "path", "size_bytes", "view")

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._sync_fault: str | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskFailedError(path, f"cannot be opened: {error}") from error
        try:
            self._check_length()
            self._buffer = mmap.mmap(self._fd, size_bytes)
            self.view = memoryview(self._buffer).toreadonly()
        except BaseException:
            os.close(self._fd)
            raise

    def ensure_readable(self, start: int, end: int) -> None:
        """Have the pages of `[start, end)` in memory, as far as the file goes.

        Raises:
            DiskReadError: the disk cannot read one of them; a touch of it would have killed the process.
        """
        start, end = start & -mmap.PAGESIZE, min(end, self.size_bytes)
        if end <= start or pages.populate(self._buffer, start, end):
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DiskReadError(self.path, start, str(error)) from error
        try:
            pages.read_through(descriptor, self.path, start, end)
        finally:
            os.close(descriptor)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes in their place.

        Raises:
            DiskFullError: some or none of them are there; a later try may succeed.
            DiskFailedError: another error of the disk.
        """
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], position + done)
        except OSError as error:
            what = f"write of {len(data)} bytes at {position}"
            raise refusal_of_disk(self.path, len(data) - done, what, error) from error

    def clear_from(self, position: int) -> None:
        """Make everything at or past `position` read as zeros.

        Raises:
            DiskReadError: what is there cannot be read.
            DiskFullError, DiskFailedError: as `write`.
        """
        self.ensure_readable(position, self.size_bytes)
        with self.view[position:] as rest:
            dirty = len(bytes(rest).rstrip(b"\0"))
        if dirty:
            self.write(position, bytes(dirty))

    def sync(self) -> None:
        """Make what was written durable; a closed file is so already. For any thread.

        Raises:
            DiskFailedError: the disk lost bytes; so does every later call, since the kernel tells of it once.
        """
        if self._sync_fault is None:
            try:
                if self._fd >= 0:
                    os.fdatasync(self._fd)
            except OSError as error:
                if self._fd < 0:  # closed between the two looks, which is done after a sync
                    return
                self._sync_fault = f"sync failed: {error}"
        if self._sync_fault is not None:
            raise DiskFailedError(self.path, self._sync_fault)

    def close(self) -> None:
        """Close the file for writing, after `sync`; `view` can still be read."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check_length(self) -> None:
        length = os.fstat(self._fd).st_size
        if length == 0:
            os.ftruncate(self._fd, self.size_bytes)
        elif length != self.size_bytes:
            raise StoreFormatError(self.path, f"is {length} bytes long, must be {self.size_bytes}")
