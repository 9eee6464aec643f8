"""File bytes: a file that is read and written by its descriptor, and whose beginning may be mapped to be stored into.

Errors of the disk have a type and name the place: what cannot be read is met here, not as a SIGBUS.
"""

import contextlib
import mmap
import os
from pathlib import Path

from store.errors import DiskFailedError, DiskFullError, DiskReadError
from store.files.disk import refusal_of_disk
from store.files.mapped_file import allocate, punch

_STEP_BYTES = 1 << 20


class FileBytes:
    """One file; opened, or created with no length.

    Raises:
        DiskFailedError: it cannot be opened.
    """

    __slots__ = ("_buffer", "_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._buffer: mmap.mmap | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskFailedError(path, f"cannot be opened: {error}") from error

    @property
    def size_bytes(self) -> int:
        """Length of the file in bytes."""
        return os.fstat(self._fd).st_size

    def set_size(self, size_bytes: int) -> None:
        """Give it a length; what is new are holes.

        Raises:
            DiskFullError, DiskFailedError: the length is as it was.
        """
        try:
            os.ftruncate(self._fd, size_bytes)
        except OSError as error:
            raise self._refused(error, size_bytes) from error

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return the bytes `[position, position + size_bytes)`.

        Raises:
            DiskReadError: not all of it can be read.
        """
        try:
            data = os.pread(self._fd, size_bytes, position)
            while len(data) < size_bytes and (more := os.pread(self._fd, size_bytes - len(data), position + len(data))):
                data += more
        except OSError as error:
            raise DiskReadError(self.path, position, str(error)) from error
        if len(data) < size_bytes:
            raise DiskReadError(self.path, position + len(data), "the file ends there")
        return data

    def write(self, data: bytes, position: int) -> None:
        """Write all of `data`.

        Raises:
            DiskFullError, DiskFailedError: a part may be written.
        """
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fd, view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise self._refused(error, len(data)) from error

    def clear_from(self, position: int) -> None:
        """Make everything from `position` on read as zeros.

        If the file system cannot free blocks, zeros are written over what is not zero.

        Raises:
            DiskReadError, DiskFullError, DiskFailedError: a part may be cleared.
        """
        size = self.size_bytes
        if position >= size or punch(self._fd, position, size):
            return
        for start in range(position, size, _STEP_BYTES):
            length = min(_STEP_BYTES, size - start)
            if any(self.read(start, length)):
                self.write(bytes(length), start)

    def map(self, size_bytes: int) -> mmap.mmap:
        """Map the first bytes, to be stored into: their blocks are allocated, and they can be read.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError: they cannot be mapped.
        """
        if self._buffer is None:
            allocate(self._fd, self.path, 0, size_bytes)
            self.read(0, size_bytes)
            try:
                self._buffer = mmap.mmap(self._fd, size_bytes)
            except OSError as error:
                raise DiskFailedError(self.path, f"cannot be mapped: {error}") from error
        return self._buffer

    def sync(self) -> None:
        """Make all writes and stores so far durable.

        Raises:
            DiskFailedError: the sync failed; it is never to be tried again.
        """
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise DiskFailedError(self.path, f"sync failed: {error}") from error

    def unmap(self) -> None:
        """Free the address space; the next `map` maps again."""
        if self._buffer is not None:
            with contextlib.suppress(BufferError):  # a view of it is in use: unmapped with the last view
                self._buffer.close()
            self._buffer = None

    def close(self) -> None:
        """Unmap and close."""
        self.unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refused(self, error: OSError, size_bytes: int) -> DiskFullError | DiskFailedError:
        return refusal_of_disk(self.path, size_bytes, f"write of {size_bytes} bytes", error)
