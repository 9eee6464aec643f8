"""Mapped file: one fixed-size piece of a log, named by its 20-digit start offset; written by pwrite, read by mmap.

    0            flush_position     write_position         size_bytes
    |--- durable ------|---- visible -----|------ zeros ------|

The owner writes and moves `write_position`; the flusher moves `flush_position`. (`store.files.pooled_file` puts a third
position between them.) Bytes behind `write_position` are zeros. So recovery may take the first bytes that do not parse
for the end of the log, and never finds there a record that was cut off earlier.

Blocks are allocated before anything is written, so that a full disk is an error and not a signal at a store into the
mapping. Not thread-safe, except that the flusher may call `sync` on a pinned file.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (5.3.3).
"""

import errno
import mmap
import os
from pathlib import Path

from store.errors import DiskFailedError, DiskReadError
from store.files.disk import (
    FILE_NAME_DIGITS,
    allocate,
    create_file,
    file_name,
    find_file,
    punch,
    sync_directory,
    unwritten_parts,
    write_at,
    write_past_cache,
)
from store.files.file_mapping import CHUNK_BYTES, CHUNK_SHIFT, FileMapping

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_SHIFT",
    "FILE_NAME_DIGITS",
    "MappedFile",
    "allocate",
    "file_name",
    "punch",
    "sync_directory",
]

_CLEAR_BY_HAND_BYTES = 1 << 20
_FOLIO_BYTES_MAX = 8 << 20
"""Most bytes of a file that Linux keeps in its page cache as one folio, at a multiple of its size."""


class MappedFile(FileMapping):
    """One file; found, or created and allocated when missing.

    Args:
        path: where; the name is `file_name(start_offset)` for files of a log.
        start_offset: offset in the log of the first byte.
        size_bytes: exact length.

    Attributes:
        write_position: the bytes below it are written.
        flush_position: the bytes below it are durable; set by the owner.

    Raises:
        StoreFormatError: the file exists with another length.
        DiskFullError: no room; no file is left behind.
        DiskFailedError: another error of the disk.
    """

    __slots__ = ("_is_allocated", "flush_position", "start_offset", "write_position")

    def __init__(self, path: Path, start_offset: int, size_bytes: int) -> None:
        super().__init__(path, size_bytes)
        self.start_offset = start_offset
        self.write_position = 0
        self.flush_position = 0
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

    def rewrite(self, start: int, end: int) -> bool:
        """Write the bytes of `[start, end)` once more; False, and nothing is written, where the disk cannot read them.

        Raises:
            DiskFullError, DiskFailedError: the disk refused.
        """
        try:
            self.ensure_readable(start, end)
        except DiskReadError:
            return False
        self.write_over(start, memoryview(bytes(self.view[start:end])))
        return True

    def write_unwritten(self, start: int) -> None:
        """Write what a sync has left unwritten behind `start`, see `disk.unwritten_parts`, past the page cache.

        What the disk has not is only in the page cache, which drops whole folios for such a write: so all of a folio is
        read before. Folios whose unwritten parts are zeros need no write, and what else they hold is not read.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError: it is not on the disk.
        """
        limit = self.size_bytes & -mmap.PAGESIZE
        parts = list(unwritten_parts(self._descriptor(), start & -mmap.PAGESIZE, min(self.write_position, limit)))
        folios = {at for begin, end in parts for at in range(begin // _FOLIO_BYTES_MAX, -(-end // _FOLIO_BYTES_MAX))}
        for low in sorted(folio * _FOLIO_BYTES_MAX for folio in folios):
            high = min(low + _FOLIO_BYTES_MAX, limit)
            if any(self._has_data(max(begin, low), min(end, high)) for begin, end in parts):
                self.ensure_readable(low, high)
                if not write_past_cache(self.path, bytes(self.view[low:high]), low):
                    raise DiskFailedError(self.path, f"some bytes behind {low} are not written by a sync")
        if folios:
            self.forget_known()

    def _has_data(self, start: int, end: int) -> bool:
        if start >= end:
            return False
        self.ensure_readable(start, end)
        return bool(bytes(self.view[start:end]).strip(b"\0"))

    def fill(self) -> None:
        """Set `write_position` to the end of the file, which takes no more records."""
        self.write_position = self.size_bytes

    def written_end(self, position: int) -> int:
        """Return a position, at or behind `position`, from which on the file system has only holes."""
        end = min(-(-position // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)
        descriptor = self._descriptor()
        try:
            while end < self.size_bytes:
                end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return end if error.errno == errno.ENXIO else self.size_bytes
        return end

    def clear_from(self, position: int) -> None:
        """Zero everything from `position` to the end of the file, at a cost that does not depend on its size.

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
        """Make all bytes written so far durable, without holding the GIL; called by the flusher, on a pinned file.

        Raises:
            OSError: as `os.fdatasync`; never to be tried again.
        """
        descriptor = self._descriptor()
        if descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        os.fdatasync(descriptor)

    def _populated_end(self, end: int) -> int:
        """Return the end of the page of `write_position`: pages behind it hold zeros, and reading them is useless.

        Only recovery reads behind it, where an earlier process may have written.
        """
        if end > self.write_position:
            return self.size_bytes
        return min(-(-self.write_position // mmap.PAGESIZE) * mmap.PAGESIZE, self.size_bytes)

    # -- letting go

    def unmap(self) -> None:
        """Unmap the file, and close its descriptor unless a sync may still need it; both come back when needed."""
        super().unmap()
        if self.flush_position == self.size_bytes:
            self._close_descriptor()

    def delete(self) -> None:
        """Close and remove the file. The caller syncs the directory."""
        self.close()
        self.path.unlink(missing_ok=True)

    def reclaim(self) -> None:
        """Free the blocks of a deleted, pinned file although readers hold slices, which read zeros from now on."""
        punch(self.fd, 0, self.size_bytes)

    def _zero(self, start: int, end: int) -> None:
        zeros = memoryview(bytes(min(_CLEAR_BY_HAND_BYTES, max(end - start, 0))))
        for position in range(start, end, _CLEAR_BY_HAND_BYTES):
            write_at(self._descriptor(), self.path, zeros[: end - position], position)
