"""Queue file: one file of a consume queue. A store has many, most of them small, so each uses few resources.

    0            what units need, in chunks         size_bytes
    |== units ==|.... allocated ....|     hole      |

A file is mapped at its first use and keeps no descriptor. Blocks are allocated chunk by chunk, always before a store
into the mapping, so that a full disk raises an error and ten thousand queues do not take 60 GB.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from store.errors import DiskFailedError, StoreFormatError
from store.files import pages
from store.files.disk import refusal_of_disk, write_at
from store.files.mapped_file import allocate, file_name, punch
from store.queues.queue_mapping import map_file

CHUNK_BYTES = 64 * 1024


class QueueFile:
    """One file; opened, or created when missing.

    Args:
        folder: of the queue; the file's name is `file_name(start_bytes)`.
        start_bytes: position in the queue of the first byte.
        size_bytes: exact length.

    Attributes:
        allocated_bytes: blocks are known to be there below this position.
        data_end: everything from here on is zeros; known once the file was mapped.
        is_new: its name may not be durable yet: `QueueSync` has not synced it in this process.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFullError, DiskFailedError: it cannot be created.
    """

    __slots__ = ("_buffer", "_folder", "_view", "allocated_bytes", "data_end", "is_new", "size_bytes", "start_bytes")

    def __init__(self, folder: str, start_bytes: int, size_bytes: int) -> None:
        self._folder = folder  # shared by all files of a queue, since ten thousand queues have many
        self.start_bytes = start_bytes
        self.size_bytes = size_bytes
        self.allocated_bytes = 0
        self.data_end = 0
        self.is_new = True
        self._buffer: mmap.mmap | None = None
        self._view: memoryview | None = None
        try:
            length = os.stat(self._name).st_size  # noqa: PTH116 - faster by a Path
        except FileNotFoundError:
            length = 0
        if length == 0:
            self._create()
        elif length != size_bytes:
            raise StoreFormatError(self.path, f"is {length} bytes long, must be {size_bytes}")

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return Path(self._name)

    @property
    def _name(self) -> str:
        return f"{self._folder}/{file_name(self.start_bytes)}"

    @property
    def is_mapped(self) -> bool:
        """Return whether the file is mapped."""
        return self._buffer is not None

    @property
    def buffer(self) -> mmap.mmap:
        """Return the mapping; callers store only below `allocated_bytes`.

        Raises:
            DiskFailedError: as `map`.
        """
        return self._buffer if self._buffer is not None else self.map()

    def map(self) -> mmap.mmap:
        """Map the file if needed and read its data into memory, since touching an unreadable page is a SIGBUS.

        Raises:
            DiskFailedError: the file cannot be mapped; the process may have too many files open.
            DiskReadError: the disk cannot read the data.
        """
        if self._buffer is None:
            with self._opened() as descriptor:
                buffer = map_file(descriptor, self.size_bytes)
                hole_start, data_end = pages.read_data(descriptor, self._name, buffer)
            self.allocated_bytes = max(self.allocated_bytes, hole_start)
            self.data_end = max(self.allocated_bytes, data_end)
            buffer.madvise(mmap.MADV_RANDOM)  # else the first store into each 128 KiB waits for the disk's read-around
            self._buffer = buffer
        return self._buffer

    @property
    def view(self) -> memoryview:
        """Return the mapping as a memoryview."""
        if self._view is None:
            self._view = memoryview(self.buffer)
        return self._view

    def reserve(self, end: int) -> None:
        """Allocate blocks for at least `[0, end)`, in whole chunks.

        Raises:
            DiskFullError, DiskFailedError: `allocated_bytes` is unchanged.
        """
        if end <= self.allocated_bytes:
            return
        start = self.allocated_bytes
        stop = min(-(-end // CHUNK_BYTES) * CHUNK_BYTES, self.size_bytes)
        with self._opened() as descriptor:
            allocate(descriptor, self.path, start, stop - start)
        self.allocated_bytes = stop
        self.data_end = max(self.data_end, stop)

    def write(self, position: int, units: bytes | bytearray) -> None:
        """Write units without mapping the file.

        Raises:
            DiskFullError, DiskFailedError: not all of them are written.
        """
        self.data_end = max(self.data_end, position + len(units))  # also where only some of them get written
        try:
            descriptor = os.open(self._name, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise refusal_of_disk(self.path, len(units), "opening", error) from error
        try:
            write_at(descriptor, self.path, memoryview(units), position)
        finally:
            os.close(descriptor)

    def clear_from(self, position: int) -> None:
        """Zero everything from `position` on.

        Raises:
            DiskFailedError: the disk refused; only a part may be zeroed.
        """
        if position >= self.size_bytes:
            return
        if self._buffer is None or self.data_end - position > CHUNK_BYTES:
            with self._opened() as descriptor:
                data_bytes = sum(
                    end - start for start, end in pages.data_extents(descriptor, position, self.size_bytes)
                )
                # freeing blocks costs the file system a hundred times as much as writing a few pages of zeros
                if data_bytes <= CHUNK_BYTES or not punch(descriptor, position, self.size_bytes):
                    self._zero(descriptor, position)
                else:
                    self.allocated_bytes = min(self.allocated_bytes, position // CHUNK_BYTES * CHUNK_BYTES)
        else:
            self._zero_mapped(self._buffer, position)

    def sync(self) -> None:
        """Make all stores so far durable; may run in a thread. A deleted file is ignored.

        The name of a new file (`is_new`) needs a sync of its folder, of the topic's and of the root of all queues.

        Raises:
            DiskFailedError: a sync failed.
        """
        with contextlib.suppress(FileNotFoundError), open(self._name, "rb") as file:  # noqa: PTH123
            try:
                os.fdatasync(file.fileno())
            except OSError as error:
                raise DiskFailedError(self.path, f"sync failed: {error}") from error

    def close(self) -> None:
        """Unmap the file, as soon as readers have released their slices."""
        if self._view is not None:
            self._view.release()
        if self._buffer is not None:
            with contextlib.suppress(BufferError):
                self._buffer.close()
        self._view = self._buffer = None

    def delete(self) -> None:
        """Close and delete the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            descriptor = os.open(self._name, os.O_RDWR | os.O_CLOEXEC)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DiskFailedError(self.path, str(error)) from error

    def _create(self) -> None:
        try:
            os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 - a third of the time of a Path
            descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(descriptor, self.size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refusal_of_disk(self.path, self.size_bytes, "creation", error) from error

    def _zero_mapped(self, buffer: mmap.mmap, position: int) -> None:
        """By stores, and only into pages that hold something: those have blocks, so that no full disk is met."""
        while position < self.data_end:
            page_end = min(position // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE, self.size_bytes)
            length = page_end - position
            if buffer[position:page_end].count(0) != length:
                buffer[position:page_end] = bytes(length)
            position = page_end

    def _zero(self, descriptor: int, position: int) -> None:
        """By writing, and only where something is: zeros in holes would fill them."""
        for begin, end in pages.data_extents(descriptor, position, self.size_bytes):
            for start in range(begin, end, CHUNK_BYTES):
                length = min(CHUNK_BYTES, end - start)
                left = os.pread(descriptor, length, start).lstrip(b"\0")
                if left:
                    os.pwrite(descriptor, bytes(len(left.rstrip(b"\0"))), start + length - len(left))
