"""File mapping: a file of fixed length, opened and mapped when it is first needed, and unmapped when it is idle.

    not opened  --- first read or write --->  opened, mapped  --- idle (`mapping_limit`), closed, deleted --->  not

Readers keep slices of `view`; a mapping lives until its last slice is gone, also after `unmap` and `close`. Touching a
page that the disk cannot read raises SIGBUS, which ends the process. So a reader of bytes that may not be in memory
calls `ensure_readable` first, which raises `DiskReadError` instead.
"""

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

from store.errors import DiskReadError
from store.files import pages
from store.files.disk import refusal_of_disk

CHUNK_SHIFT = 16
CHUNK_BYTES = 1 << CHUNK_SHIFT
"""Unit in which pages are checked to be readable, and noted as such."""

WINDOW_BYTES = 4 * CHUNK_BYTES
_CHUNKS_AHEAD = 8
_FRAME_BYTES = 64
_NOTHING = memoryview(b"")
_CLOSING = threading.Lock()
"""Prevents the sync thread, which unpins a file, and the loop, which closes it, from both closing its descriptor."""


@cache
def _unknown(size_bytes: int) -> bytes:
    """Return `FileMapping.known` of a file of this length that is not mapped."""
    return bytes((size_bytes >> CHUNK_SHIFT) + 1)


class MappingListener(Protocol):
    """The object that bounds the number of mappings: `store.files.mapping_limit`."""

    def added(self, file: "FileMapping") -> None:
        """Note that a file has mapped itself."""


class FileMapping:
    """The mapping and the descriptor of one file that exists, or is made before they are needed.

    Args:
        path: of the file.
        size_bytes: its exact length.

    Attributes:
        known: one byte for each chunk; not 0 if the file is mapped, and this chunk and the next one were readable at a
            recent check.
        mapped: `view` where `known` says so; empty while the file is not mapped.
        fd: its descriptor, or -1 while none is needed. Open from the first write to the last sync: an error of the
            disk is reported once per open description.
        mappings: called with each new mapping; it may undo mappings of other files.
    """

    __slots__ = (
        "_buffer",
        "_is_closed",
        "_is_locked",
        "_left_behind",
        "_pins",
        "fd",
        "known",
        "mapped",
        "mappings",
        "path",
        "size_bytes",
    )

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.mappings: MappingListener | None = None
        self.fd = -1
        self.mapped = _NOTHING
        self.known: bytes | bytearray = _unknown(size_bytes)
        self._buffer: mmap.mmap | None = None
        self._pins = 0
        self._is_closed = False
        self._is_locked = False
        self._left_behind: weakref.ref[mmap.mmap] | None = None

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
            NoDescriptorError, DiskFailedError: it cannot be mapped.
            ValueError: it was closed.
        """
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if self._buffer is None:
            try:
                buffer = mmap.mmap(self._descriptor(), self.size_bytes)
            except OSError as error:
                raise refusal_of_disk(self.path, 0, "mapping", error) from error
            self.mapped = memoryview(buffer)
            self.forget_known()
            self._buffer = buffer
            if self.mappings is not None:
                self.mappings.added(self)
        return self._buffer

    def unmap(self) -> None:
        """Remove the mapping; it is made again when needed.

        Slices that readers hold, and uses of `buffer` in other threads, keep the old mapping alive.
        """
        self._drop_mapping()

    def ensure_readable(self, start: int, end: int) -> None:
        """Read the pages of `[start, end)` into memory, and, if possible, those of the next chunk.

        If the chunk before `start` was read too, the reader goes forward through the file: the next eight chunks are
        read. Pages that are not written yet are left out: the writer has them in memory.

        Raises:
            DiskReadError: the disk cannot read one of them; touching it would have ended the process.
        """
        first, last = start >> CHUNK_SHIFT, max(end - 1, start) >> CHUNK_SHIFT
        known = self.known
        if known.find(0, first, last + 1) < 0:
            return
        for ahead in (_CHUNKS_AHEAD, 1) if first and known[first - 1] else (1,):
            low, high = first << CHUNK_SHIFT, min((last + 1 + ahead) << CHUNK_SHIFT, self._populated_end(end))
            if pages.populate(self.buffer, low, high):
                if isinstance(self.known, bytearray):
                    behind = max(last + 1, (high - 1) >> CHUNK_SHIFT)
                    self.known[first:behind] = b"\x01" * (behind - first)
                return
        pages.read_through(self._descriptor(), self.path, start & -mmap.PAGESIZE, end)

    def _populated_end(self, end: int) -> int:
        """Return the end of the pages that are worth reading ahead for a read that ends at `end`."""
        return self.size_bytes

    def ensure_window(self, position: int, limit: int, end: int = 0) -> int:
        """Read a window from `position` to at least `end` into memory, for walks through the file.

        Without an `end`, the 64 bytes that a record's frame needs are enough.

        Returns:
            The end of the window, `limit` at most.

        Raises:
            DiskReadError: the disk cannot read a page of it.
        """
        window_end = min(max(end, position + WINDOW_BYTES), limit)
        try:
            self.ensure_readable(position, window_end)
        except DiskReadError:  # the pages before a bad one can still be read
            window_end = min(max(end, position + _FRAME_BYTES), limit)
            self.ensure_readable(position, window_end)
        return window_end

    def forget_known(self) -> None:
        """Forget which pages are in memory, since some may have been evicted; the next read checks again."""
        self.known = bytearray(_unknown(self.size_bytes))

    def lock(self) -> OSError | None:
        """Read all pages ahead and keep them in memory; the error when that is not allowed."""
        pages.will_need(self.buffer)
        error = pages.lock(self.buffer)
        self._is_locked = error is None
        return error

    def unlock(self) -> None:
        """Undo `lock`. Like `cool` it may run in a thread, also while the file is unmapped or deleted."""
        if self._is_locked:
            self._is_locked = False
            self._advise(pages.unlock)

    def cool(self) -> None:
        """Give back the memory that this process holds for the pages of a full, old file; readers map them again."""
        self.unlock()
        self._advise(pages.forget)

    # -- closing

    def pin(self) -> None:
        """Keep a descriptor open across a sync, even when the file is closed or deleted meanwhile.

        Raises:
            NoDescriptorError, DiskFailedError: the file cannot be opened; it is not pinned.
        """
        self._descriptor()
        with _CLOSING:
            self._pins += 1

    def unpin(self) -> None:
        """Undo one `pin`; in any thread."""
        with _CLOSING:
            self._pins -= 1
        if self._is_closed:
            self._close_descriptor()

    @property
    def is_held(self) -> bool:
        """Whether readers still hold slices of a file that was closed."""
        return self._left_behind is not None and self._left_behind() is not None

    def close(self) -> None:
        """Close the file; slices that readers hold stay valid."""
        if self._is_closed:
            return
        self._is_closed = True
        buffer, view = self._buffer, self.mapped
        self._drop_mapping()
        if buffer is not None:
            try:
                view.release()
                buffer.close()
            except BufferError:  # readers hold slices: unmapped with the last of them
                self._left_behind = weakref.ref(buffer)
        self._close_descriptor()

    # -- inside

    def _drop_mapping(self) -> None:
        self._buffer, self.mapped, self.known = None, _NOTHING, _unknown(self.size_bytes)
        self._is_locked = False

    def _advise(self, advice: Callable[[mmap.mmap], None]) -> None:
        """Advise the kernel, in any thread; there is nothing to do if the mapping has gone meanwhile."""
        buffer = self._buffer
        if buffer is not None:
            with contextlib.suppress(ValueError):  # it is closed
                advice(buffer)

    def _descriptor(self) -> int:
        if self.fd < 0 and not self._is_closed:
            try:
                self.fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise refusal_of_disk(self.path, 0, "opening", error) from error
        return self.fd

    def _close_descriptor(self) -> None:
        with _CLOSING:
            if self._pins or self.fd < 0:
                return
            descriptor, self.fd = self.fd, -1
        os.close(descriptor)
