"""Queue file: one file of a consume queue. A store has many, most of them small, so each uses few resources.

    0            what units need, in chunks         size_bytes
    |== units ==|.... allocated ....|     hole      |

A file is mapped at its first use and keeps no descriptor. Blocks are allocated chunk by chunk, always before a store
into the mapping, so that a full disk raises an error and ten thousand queues do not take 60 GB.

The first units of a queue are in memory only: making folders and a file takes a file system up to milliseconds, and a
start after a crash makes units again from the log anyway.

    small, in memory --- checkpointer's thread: `store` ---> small, stored --- next unit ---> mapped
           `---------------------- more than SMALL_BYTES ------------------------------------'

A stored file that still is small when the process starts is read instead of mapped, until its next unit comes.
"""

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from store.errors import DiskFailedError, DiskReadError, StoreFormatError
from store.files import pages
from store.files.disk import refusal_of_disk, write_at
from store.files.mapped_file import allocate, file_name, punch
from store.queues.queue_mapping import map_file

CHUNK_BYTES = 64 * 1024

SMALL_BYTES = 1280
"""As many bytes of a queue's first file may be in memory only: 64 units of a plain queue."""

_FIRST_ROOM_BYTES = 160
_UNIT_SIZE_MAX = 64

making = threading.RLock()
"""Held while a small file is stored or deleted: the loop's thread deletes it, the checkpointer's thread stores it."""


class QueueFile:
    """One file; opened, or begun in memory when missing.

    Args:
        folder: of the queue; the file's name is `file_name(start_bytes)`.
        start_bytes: position in the queue of the first byte.
        size_bytes: exact length.

    Attributes:
        allocated_bytes: units below this position can be stored; blocks are known to be there unless the file is small.
        data_end: everything from here on is zeros; known once the file was mapped.
        is_new: created by this process, and its name is not durable yet.
        is_stored: it is on disk, maybe without the last units of a small file.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFullError, DiskFailedError: it cannot be created.
    """

    __slots__ = (
        "_buffer",
        "_folder",
        "_is_deleted",
        "_view",
        "allocated_bytes",
        "data_end",
        "is_new",
        "is_stored",
        "size_bytes",
        "start_bytes",
    )

    def __init__(self, folder: str, start_bytes: int, size_bytes: int) -> None:
        self._folder = folder  # shared by all files of a queue, since ten thousand queues have many
        self.start_bytes = start_bytes
        self.size_bytes = size_bytes
        self.allocated_bytes = 0
        self.data_end = 0
        self.is_new = self._is_deleted = False
        self.is_stored = True
        self._buffer: mmap.mmap | bytearray | None = None
        self._view: memoryview | None = None
        try:
            length = os.stat(self._name).st_size  # noqa: PTH116 - faster by a Path
        except FileNotFoundError:
            length = 0
        if length == 0:
            self.is_stored = False
            self._buffer = bytearray()
            if size_bytes <= SMALL_BYTES:
                self.store()
                self._buffer = None
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
    def buffer(self) -> mmap.mmap | bytearray:
        """Return the content, for reading.

        Raises:
            DiskFailedError, DiskReadError: as `map`.
        """
        return self._buffer if self._buffer is not None else self.map()

    @property
    def is_small(self) -> bool:
        """Return whether the content is in memory and not mapped."""
        return type(self._buffer) is bytearray

    def writable(self) -> mmap.mmap | bytearray:
        """Return the content, for stores below `allocated_bytes`. A small file that is stored is mapped by that.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError: as `map`.
        """
        if self.is_small and self.is_stored:
            self._map_small()
        return self.buffer

    def map(self) -> mmap.mmap | bytearray:
        """Map the file if needed and read its data into memory, since touching an unreadable page is a SIGBUS.

        Raises:
            DiskFailedError: the file cannot be mapped; the process may have too many files open.
            DiskReadError: the disk cannot read the data.
        """
        if self._buffer is None:
            with self._opened() as descriptor:
                self._buffer = self._read_small(descriptor) or self._mapped(descriptor)
        return self._buffer

    def _read_small(self, descriptor: int) -> bytearray | None:
        """Return the content if there is so little that it needs no mapping."""
        if self.size_bytes <= SMALL_BYTES:
            return None
        data_end = max((end for _, end in pages.data_extents(descriptor, 0, self.size_bytes)), default=0)
        if data_end > mmap.PAGESIZE:
            return None
        try:
            data = os.pread(descriptor, mmap.PAGESIZE, 0).rstrip(b"\0")
        except OSError as error:
            raise DiskReadError(self.path, 0, str(error)) from error
        if len(data) > SMALL_BYTES:
            return None
        self.allocated_bytes = self.data_end = len(data)
        return bytearray(data + bytes(_UNIT_SIZE_MAX))  # the last unit may end with zeros

    def _mapped(self, descriptor: int) -> mmap.mmap:
        buffer = map_file(descriptor, self.size_bytes)
        hole_start, data_end = pages.read_data(descriptor, self._name, buffer)
        self.allocated_bytes = max(self.allocated_bytes, hole_start)
        self.data_end = max(self.allocated_bytes, data_end)
        buffer.madvise(mmap.MADV_RANDOM)  # else the first store into each 128 KiB waits for the disk's read-around
        return buffer

    @property
    def view(self) -> memoryview:
        """Return the content as a memoryview."""
        if self._view is None:
            self._view = memoryview(self.buffer)
        return self._view

    def reserve(self, end: int) -> None:
        """Make room for at least `[0, end)`: allocate blocks in whole chunks, but for a small file.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError: `allocated_bytes` is unchanged.
        """
        if end <= self.allocated_bytes:
            return
        if self.is_small and not self.is_stored and end <= SMALL_BYTES:
            self._grow(end)
            return
        if self.is_small:
            self._map_small()
        if end <= self.allocated_bytes:
            return
        start = self.allocated_bytes
        stop = min(-(-end // CHUNK_BYTES) * CHUNK_BYTES, self.size_bytes)
        with self._opened() as descriptor:
            allocate(descriptor, self.path, start, stop - start)
        self.allocated_bytes = stop
        self.data_end = max(self.data_end, stop)

    def _grow(self, end: int) -> None:
        """Give a small file more room in memory. Views of what it had stay as they are."""
        had = self.buffer
        larger = bytearray(min(max(_FIRST_ROOM_BYTES, end, 2 * len(had)), SMALL_BYTES))
        larger[: len(had)] = had
        self._buffer, self._view = larger, None
        self.allocated_bytes = self.data_end = len(larger)

    def _map_small(self) -> None:
        """Store a small file and map it from now on."""
        with making:
            self.store()
            with self._opened() as descriptor:
                self._buffer, self._view = self._mapped(descriptor), None

    def store(self) -> None:
        """Write a small file to disk, with its folders; not synced. Does nothing if the file is mapped or deleted.

        Any thread may call it.

        Raises:
            DiskFullError, DiskFailedError: the disk refused.
        """
        with making:
            if not self.is_small or self._is_deleted:
                return
            content = bytes(self.buffer)
            try:
                descriptor = self._open_or_create()
                try:
                    if not self.is_stored:
                        os.ftruncate(descriptor, self.size_bytes)
                    write_at(descriptor, self.path, memoryview(content), 0)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise refusal_of_disk(self.path, mmap.PAGESIZE, "creation", error) from error
            self.is_stored = True

    def _open_or_create(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if self.is_stored:
            return os.open(self._name, flags)
        self.is_new = True
        try:
            return os.open(self._name, flags | os.O_CREAT, 0o644)
        except FileNotFoundError:
            os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 - faster by a Path
            return os.open(self._name, flags | os.O_CREAT, 0o644)

    def clear_from(self, position: int) -> None:
        """Zero everything from `position` on.

        Raises:
            DiskFailedError: the disk refused; only a part may be zeroed.
        """
        if position >= self.size_bytes:
            return
        if self.is_small:
            self._clear_small(position)
        elif self._buffer is None or self.data_end - position > CHUNK_BYTES:
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

    def _clear_small(self, position: int) -> None:
        small = self.buffer
        if small[position:].count(0) < len(small) - position:
            small[position:] = bytes(len(small) - position)
            if self.is_stored:
                self.store()

    def sync(self) -> None:
        """Make all stores so far durable; may run in a thread. A deleted file is ignored.

        A small file is stored by that.

        The name of a new file (`is_new`) needs a sync of its folder, of the topic's and of the root of all queues.

        Raises:
            DiskFullError: a small file has no room.
            DiskFailedError: a sync failed.
        """
        self.store()
        with contextlib.suppress(FileNotFoundError), open(self._name, "rb") as file:  # noqa: PTH123
            try:
                os.fdatasync(file.fileno())
            except OSError as error:
                raise DiskFailedError(self.path, f"sync failed: {error}") from error

    def close(self) -> None:
        """Unmap the file, as soon as readers have released their slices. The content of a small one stays."""
        if self._view is not None:
            self._view.release()
            self._view = None
        if isinstance(self._buffer, mmap.mmap):
            with contextlib.suppress(BufferError):
                self._buffer.close()
            self._buffer = None

    def delete(self) -> None:
        """Close and delete the file."""
        self.close()
        with making:
            self._is_deleted = True
            if self.is_stored:
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

    def _zero_mapped(self, buffer: mmap.mmap | bytearray, position: int) -> None:
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
