"""Mapped file: one fixed-size piece of a log, named by its 20-digit start offset and written through mmap.

    0            flush_position     write_position         size_bytes
    |--- durable ------|---- visible -----|------ zeros ------|

The owner writes into `buffer` and moves `write_position`; the flusher moves `flush_position`. A transient pool would
put a third position between them. Bytes behind `write_position` are zeros: recovery may take the first thing that
does not parse for the end, and never finds a record there that was cut off long ago.

The file is allocated before it is mapped, so a full disk is an exception here and never a SIGBUS at a store into the
mapping. Readers keep slices of `view`; the mapping lives until the last of them is gone, whatever `close` and
`delete` did to the file. Not thread-safe, except that the flusher may call `sync` on a pinned file.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (5.3.3), without the transient pool.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path

from store.errors import DiskFailedError, DiskFullError, StoreFormatError

FILE_NAME_DIGITS = 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PUNCH_HOLE_KEEP_SIZE = 0x03
_CLEAR_BY_HAND_BYTES = 1 << 20

_libc = ctypes.CDLL(None)


def file_name(start_offset: int) -> str:
    """20 decimal digits."""
    return f"{start_offset:0{FILE_NAME_DIGITS}d}"


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable.

    Raises:
        DiskFailedError: the sync failed.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise DiskFailedError(directory, f"directory sync failed: {error}") from error
    finally:
        os.close(descriptor)


def allocate(descriptor: int, path: Path, start: int, size_bytes: int) -> None:
    """Give `[start, start + size_bytes)` of a file real blocks that read as zeros; existing data stays.

    Raises:
        DiskFullError: no room; the file may hold a part of the blocks.
        DiskFailedError: another error of the disk.
    """
    try:
        os.posix_fallocate(descriptor, start, size_bytes)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFullError(path, size_bytes) from error
        raise DiskFailedError(path, f"allocation failed: {error}") from error


def punch(descriptor: int, start: int, end: int) -> bool:
    """Make `[start, end)` of a file read as zeros by giving its blocks back; False where the file system cannot."""
    return not _libc.fallocate(
        descriptor, ctypes.c_int(_PUNCH_HOLE_KEEP_SIZE), ctypes.c_longlong(start), ctypes.c_longlong(end - start)
    )


class MappedFile:
    """One mapped file; opened, or created and allocated when missing.

    Args:
        path: where; the name is `file_name(start_offset)` for files of a log.
        start_offset: offset in the log of the first byte.
        size_bytes: exact length.

    Attributes:
        buffer: the mapping; target of `pack_into` and of slice stores.
        view: the same bytes, for slices without a copy.
        fd: kept open as long as the file lives: an error of the disk is reported once per open description.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFullError: no room; no file is left behind.
        DiskFailedError: another error of the disk.
    """

    __slots__ = (
        "_is_allocated",
        "_is_closing",
        "_pins",
        "buffer",
        "fd",
        "flush_position",
        "path",
        "size_bytes",
        "start_offset",
        "view",
        "write_position",
    )

    def __init__(self, path: Path, start_offset: int, size_bytes: int) -> None:
        self.path = path
        self.start_offset = start_offset
        self.size_bytes = size_bytes
        self.write_position = 0
        self.flush_position = 0
        self._pins = 0
        self._is_closing = False
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._is_allocated = self._prepare()
            self.buffer = mmap.mmap(self.fd, size_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self.buffer)

    def __repr__(self) -> str:
        return f"<MappedFile {self.path.name} {self.flush_position}/{self.write_position}/{self.size_bytes}>"

    @property
    def end_offset(self) -> int:
        """Offset in the log just behind the last byte of the file, written or not."""
        return self.start_offset + self.size_bytes

    def ensure_allocated(self) -> None:
        """Fill holes of a file that was found on disk (an allocation cut short, a copy made sparse).

        Raises:
            DiskFullError: no room.
        """
        if not self._is_allocated:
            allocate(self.fd, self.path, 0, self.size_bytes)
            self._is_allocated = True

    def write(self, data: memoryview) -> None:
        """Append `data`, for which there is room, by the descriptor; readers of the mapping see it at once.

        One call costs a batch half of what the page faults of storing it into fresh mapped pages would.

        Raises:
            DiskFailedError: the disk refused; nothing of it counts as written.
        """
        position = self.write_position
        try:
            written = os.pwrite(self.fd, data, position)
            while written < len(data):
                written += os.pwrite(self.fd, data[written:], position + written)
        except OSError as error:
            raise DiskFailedError(self.path, f"write of {len(data)} bytes at {position} failed: {error}") from error
        self.write_position = position + len(data)

    def clear_from(self, position: int) -> None:
        """Zero everything from `position` to the end of the file, cheaply however much that is."""
        stale = self.write_position - position
        if stale <= _CLEAR_BY_HAND_BYTES:
            self._zero(position, max(self.write_position, position))
        elif punch(self.fd, position, self.size_bytes):
            self._is_allocated = False
        else:
            self._zero(position, self.size_bytes)

    def sync(self) -> None:
        """Make every store into the mapping so far durable, without the GIL; for the flusher, on a pinned file.

        Raises:
            OSError: as `os.fdatasync`; never to be tried again.
        """
        os.fdatasync(self.fd)

    def pin(self) -> None:
        """Keep the descriptor open across a sync, even when the file is closed or deleted meanwhile."""
        self._pins += 1

    def unpin(self) -> None:
        """Undo one `pin`."""
        self._pins -= 1
        if self._is_closing and self._pins == 0:
            os.close(self.fd)

    def close(self) -> None:
        """Let go of the file; slices that readers hold stay valid."""
        if self._is_closing:
            return
        self._is_closing = True
        self.view.release()
        with contextlib.suppress(BufferError):  # readers hold slices: unmapped with the last of them
            self.buffer.close()
        if self._pins == 0:
            os.close(self.fd)

    def delete(self) -> None:
        """Close and remove the file. The caller syncs the directory."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _prepare(self) -> bool:
        """Create or check the file behind `fd`; answer whether it has all its blocks."""
        status = os.fstat(self.fd)
        if status.st_size == self.size_bytes:
            return status.st_blocks * 512 >= self.size_bytes
        if status.st_size != 0:
            raise StoreFormatError(self.path, f"is {status.st_size} bytes long, must be {self.size_bytes}")
        try:
            os.ftruncate(self.fd, self.size_bytes)  # the length first: a crash in between leaves a loadable file
            allocate(self.fd, self.path, 0, self.size_bytes)
        except (OSError, DiskFullError, DiskFailedError):
            self.path.unlink(missing_ok=True)
            raise
        sync_directory(self.path.parent)
        return True

    def _zero(self, start: int, end: int) -> None:
        zeros = bytes(min(_CLEAR_BY_HAND_BYTES, max(end - start, 0)))
        for position in range(start, end, _CLEAR_BY_HAND_BYTES):
            stop = min(position + _CLEAR_BY_HAND_BYTES, end)
            self.buffer[position:stop] = zeros[: stop - position]
