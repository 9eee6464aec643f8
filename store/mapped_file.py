"""Mapped file: one fixed-size piece of a log, named by its 20-digit start offset; written by pwrite, read by mmap.

    0            flush_position     write_position         size_bytes
    |--- durable ------|---- visible -----|------ zeros ------|

The owner writes and moves `write_position`; the flusher moves `flush_position`. (`store.pooled_file` puts a third
position between them.) Bytes behind `write_position` are zeros: recovery may take the first thing that does not parse
for the end, and never finds a record there that was cut off long ago.

Two signals could kill the process at a touch of the mapping; neither does. A full disk is met when the file is
allocated, before anything is written. A page that the disk cannot read is met in `ensure_readable`, which whoever
reads bytes that may have left the memory calls first.

A file is mapped, and opened, when that is first needed, and may be unmapped whenever it is idle (`store.mappings`).
Readers keep slices of `view`; a mapping lives until the last of them is gone, whatever `unmap`, `close` and `delete`
did to the file. Not thread-safe, except that the flusher may call `sync` on a pinned file.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (5.3.3).
"""

import contextlib
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from store import pages
from store.disk import (
    FILE_NAME_DIGITS,
    allocate,
    create_file,
    file_name,
    find_file,
    punch,
    sync_directory,
    write_at,
)
from store.errors import DiskFailedError, DiskReadError

if TYPE_CHECKING:
    from store.mappings import Mappings

__all__ = ["CHUNK_BYTES", "FILE_NAME_DIGITS", "MappedFile", "allocate", "file_name", "punch", "sync_directory"]

CHUNK_SHIFT = 16
CHUNK_BYTES = 1 << CHUNK_SHIFT
"""Readability is asked for, and remembered, by the chunk."""

WINDOW_BYTES = 4 * CHUNK_BYTES

_CLEAR_BY_HAND_BYTES = 1 << 20
_FRAME_BYTES = 64
_NOTHING = memoryview(b"")


@cache
def _unknown(size_bytes: int) -> bytes:
    """What is known of the chunks of a file of this length that is not mapped."""
    return bytes((size_bytes >> CHUNK_SHIFT) + 1)


class MappedFile:
    """One file; found, or created and allocated when missing.

    Args:
        path: where; the name is `file_name(start_offset)` for files of a log.
        start_offset: offset in the log of the first byte.
        size_bytes: exact length.

    Attributes:
        known: one byte for each chunk: not 0 when the file is mapped and this chunk and the next one were found
            readable lately.
        mapped: `view` where `known` says so; empty while the file is not mapped.
        fd: its descriptor, or -1 while none is needed. Open from the first write to the last sync: an error of the
            disk is reported once per open description.
        mappings: who is told of each mapping, and may undo it.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFullError: no room; no file is left behind.
        DiskFailedError: another error of the disk.
    """

    __slots__ = (
        "_buffer",
        "_is_allocated",
        "_is_closed",
        "_is_locked",
        "_left_behind",
        "_pins",
        "fd",
        "flush_position",
        "known",
        "mapped",
        "mappings",
        "path",
        "size_bytes",
        "start_offset",
        "write_position",
    )

    def __init__(self, path: Path, start_offset: int, size_bytes: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self.size_bytes = size_bytes
        self.write_position = 0
        self.flush_position = 0
        self.mappings: Mappings | None = None
        self.fd = -1
        self._pins = 0
        self._is_closed = False
        self._is_locked = False
        self._buffer: mmap.mmap | None = None
        self.mapped = _NOTHING
        self.known: bytes | bytearray = _unknown(size_bytes)
        self._left_behind: weakref.ref[mmap.mmap] | None = None
        found = find_file(path, size_bytes)
        if found is None:
            self.fd = create_file(path, size_bytes)
        self._is_allocated = found is None or found

    def __repr__(self) -> str:
        return f"<MappedFile {self.path.name} {self.flush_position}/{self.write_position}/{self.size_bytes}>"

    @property
    def end_offset(self) -> int:
        """Offset in the log just behind the last byte of the file, written or not."""
        return self.start_offset + self.size_bytes

    @property
    def last_modified_ms(self) -> int:
        """When the file was last written, ms since the epoch, by its time stamp on disk.

        Raises:
            FileNotFoundError: it is gone.
        """
        return self.path.stat().st_mtime_ns // 1_000_000

    # -- mapping

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping; target of `pack_into` and of slice stores. Raises as `map`."""
        return self._buffer if self._buffer is not None else self.map()

    @property
    def view(self) -> memoryview:
        """The same bytes, for slices without a copy. Raises as `map`."""
        if self._buffer is None:
            self.map()
        return self.mapped

    @property
    def is_mapped(self) -> bool:
        """Whether there is a mapping at present."""
        return self._buffer is not None

    def map(self) -> mmap.mmap:
        """Map the file, if it is not mapped.

        Raises:
            DiskFailedError: no; the process may have too many files open.
            ValueError: it was closed.
        """
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if self._buffer is None:
            try:
                buffer = mmap.mmap(self._descriptor(), self.size_bytes)
            except OSError as error:
                raise DiskFailedError(self.path, f"cannot be mapped: {error}") from error
            self.mapped = memoryview(buffer)
            self.forget_known()
            self._buffer = buffer
            if self.mappings is not None:
                self.mappings.added(self)
        return self._buffer

    def unmap(self) -> None:
        """Let go of the mapping, and of the descriptor unless a sync may still need it; both come back when needed.

        Readers' slices, and whoever is using `buffer` in another thread, keep the mapping alive for themselves.
        """
        self._drop_mapping()
        if self.flush_position == self.size_bytes:
            self._close_descriptor()

    def ensure_readable(self, start: int, end: int) -> None:
        """Have the pages of `[start, end)` in memory, and, if possible, those of one chunk behind.

        Raises:
            DiskReadError: the disk cannot read one of them; a touch of it would have killed the process.
        """
        first, last = start >> CHUNK_SHIFT, max(end - 1, start) >> CHUNK_SHIFT
        if self.known.find(0, first, last + 1) < 0:
            return
        low, high = first << CHUNK_SHIFT, min((last + 2) << CHUNK_SHIFT, self.size_bytes)
        if not pages.populate(self.buffer, low, high):
            pages.read_through(self._descriptor(), self.path, start & -mmap.PAGESIZE, end)
        elif isinstance(self.known, bytearray):
            self.known[first : last + 1] = b"\x01" * (last + 1 - first)

    def ensure_window(self, position: int, limit: int, end: int = 0) -> int:
        """For who walks through the file: have a window from `position` on in memory, up to `end` at least.

        Without an `end`, the 64 bytes that a record's frame needs are enough.

        Returns:
            Where the window ends: at `limit`, or before.

        Raises:
            DiskReadError: the disk cannot read a page of it.
        """
        window_end = min(max(end, position + WINDOW_BYTES), limit)
        try:
            self.ensure_readable(position, window_end)
        except DiskReadError:  # what is in front of a bad page can still be read
            window_end = min(max(end, position + _FRAME_BYTES), limit)
            self.ensure_readable(position, window_end)
        return window_end

    def forget_known(self) -> None:
        """Ask again for what is read from now on: it may have left the memory since."""
        self.known = bytearray(_unknown(self.size_bytes))

    def lock(self) -> OSError | None:
        """Read all pages ahead and keep them in memory; the error when that is not allowed."""
        pages.will_need(self.buffer)
        error = pages.lock(self.buffer)
        self._is_locked = error is None
        return error

    def unlock(self) -> None:
        """Undo `lock`. Like `cool` it may run in a thread, whatever happens to the file meanwhile."""
        if self._is_locked:
            self._is_locked = False
            self._tell_pages(pages.unlock)

    def cool(self) -> None:
        """The file is full and old: give back what this process holds of its pages; readers get them again."""
        self.unlock()
        self._tell_pages(pages.forget)

    # -- writing

    def ensure_allocated(self) -> None:
        """Fill holes of a file that was found on disk (an allocation cut short, a copy made sparse).

        Raises:
            DiskFullError: no room.
        """
        if not self._is_allocated:
            allocate(self._descriptor(), self.path, 0, self.size_bytes)
            self._is_allocated = True

    def write(self, data: memoryview) -> None:
        """Append `data`, for which there is room, by the descriptor; readers of the mapping see it at once.

        One call costs a batch half of what the page faults of storing it into fresh mapped pages would.

        Raises:
            DiskFullError: a file system that needs room for each write has none; nothing of it counts as written.
            DiskFailedError: the disk refused; nothing of it counts as written.
        """
        position = self.write_position
        write_at(self.fd if self.fd >= 0 else self._descriptor(), self.path, data, position)
        self.write_position = position + len(data)

    def write_over(self, position: int, data: memoryview) -> None:
        """Replace bytes that were written before. Raises as `write`; a part of it may be written then."""
        write_at(self._descriptor(), self.path, data, position)

    def fill(self) -> None:
        """The file takes no more: count what was not written as written."""
        self.write_position = self.size_bytes

    def written_end(self, position: int) -> int:
        """Where what was ever written behind `position` ends at most, as far as the file system knows its holes."""
        end = min(-(-position // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)
        descriptor = self._descriptor()
        try:
            while end < self.size_bytes:
                end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else self.size_bytes
        return end

    def clear_from(self, position: int) -> None:
        """Zero everything from `position` to the end of the file, cheaply however much that is.

        Raises:
            DiskFailedError: the disk refused.
        """
        stale = self.write_position - position
        if stale <= _CLEAR_BY_HAND_BYTES:
            self._zero(position, max(self.write_position, position))
        elif punch(self._descriptor(), position, self.size_bytes):
            self._is_allocated = False
        else:
            self._zero(position, self.size_bytes)

    def sync(self) -> None:
        """Make every store so far durable, without the GIL; for the flusher, on a pinned file.

        Raises:
            OSError: as `os.fdatasync`; never to be tried again.
        """
        descriptor = self._descriptor()
        if descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(descriptor)

    # -- closing

    def pin(self) -> None:
        """Keep a descriptor open across a sync, even when the file is closed or deleted meanwhile."""
        self._descriptor()
        self._pins += 1

    def unpin(self) -> None:
        """Undo one `pin`."""
        self._pins -= 1
        if self._is_closed:
            self._close_descriptor()

    @property
    def is_held(self) -> bool:
        """Whether readers still hold slices of a file that was closed."""
        return self._left_behind is not None and self._left_behind() is not None

    def close(self) -> None:
        """Let go of the file; slices that readers hold stay valid."""
        if self._is_closed:
            return
        self._is_closed = True
        buffer, view = self._buffer, self.mapped
        self._drop_mapping()
        if buffer is not None:
            view.release()
            try:
                buffer.close()
            except BufferError:  # readers hold slices: unmapped with the last of them
                self._left_behind = weakref.ref(buffer)
        self._close_descriptor()

    def delete(self) -> None:
        """Close and remove the file. The caller syncs the directory."""
        self.close()
        self.path.unlink(missing_ok=True)

    def reclaim(self) -> None:
        """Give the blocks of a deleted, pinned file back although readers hold slices: these read as zeros."""
        punch(self.fd, 0, self.size_bytes)

    # -- inside

    def _drop_mapping(self) -> None:
        self._buffer, self.mapped, self.known = None, _NOTHING, _unknown(self.size_bytes)
        self._is_locked = False

    def _tell_pages(self, advice: Callable[[mmap.mmap], None]) -> None:
        """In a thread: the mapping may go meanwhile, and that is as good."""
        buffer = self._buffer
        if buffer is not None:
            with contextlib.suppress(ValueError):  # it is closed
                advice(buffer)

    def _descriptor(self) -> int:
        if self.fd < 0 and not self._is_closed:
            try:
                self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise DiskFailedError(self.path, f"cannot be opened: {error}") from error
        return self.fd

    def _close_descriptor(self) -> None:
        if self._pins == 0 and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _zero(self, start: int, end: int) -> None:
        zeros = memoryview(bytes(min(_CLEAR_BY_HAND_BYTES, max(end - start, 0))))
        for position in range(start, end, _CLEAR_BY_HAND_BYTES):
            write_at(self._descriptor(), self.path, zeros[: end - position], position)
