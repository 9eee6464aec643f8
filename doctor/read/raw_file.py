"""Reads files that another process may be writing: by `pread`, never mapped, so that a truncation cannot kill this one.

A `FileWindow` holds the part of a file that is being looked at. Holes are found without reading them.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 8 << 20


class FileWindow:
    """A moving part of one file.

    Attributes:
        length: of the file when it was opened.
        data: the bytes of the part.
        start: position in the file of `data[0]`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.length = os.fstat(self._descriptor).st_size
        self.data = b""
        self.start = 0

    def __enter__(self) -> "FileWindow":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def move(self, position: int, needed: int = 0) -> int:
        """Move to `position`; return the bytes held from there, less than `needed` only at the end of the file."""
        self.start = position
        self.data = os.pread(self._descriptor, max(CHUNK_BYTES, needed), position)
        return len(self.data)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end; the window does not move."""
        return os.pread(self._descriptor, size, position) if size > 0 else b""

    def peek(self, position: int, size: int) -> bytes:
        """Return what `read` returns, from the bytes held where that is possible."""
        at = position - self.start
        return self.data[at : at + size] if 0 <= at <= len(self.data) - size else self.read(position, size)

    def used_end(self, position: int) -> int:
        """Return the end of the last byte at or past `position` that is not zero; `position` when all are."""
        end = position
        for start, stop in data_pieces(self, position):
            for at in range(start, stop, CHUNK_BYTES):
                used = np.flatnonzero(as_bytes(self.read(at, min(CHUNK_BYTES, stop - at))))
                if len(used):
                    end = at + int(used[-1]) + 1
        return end

    def next_piece(self, position: int) -> tuple[int, int] | None:
        """Return the next part of the file, `[start, end)`, that is not a hole; None after the last one."""
        if position >= self.length:
            return None
        try:
            start = os.lseek(self._descriptor, position, os.SEEK_DATA)
            return start, min(os.lseek(self._descriptor, start, os.SEEK_HOLE), self.length)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno == errno.EINVAL:  # the file system does not support holes
                return position, self.length
            raise


def as_bytes(data: bytes) -> npt.NDArray[np.uint8]:
    """Return the bytes as an array without copying them."""
    return np.frombuffer(data, np.uint8)


def data_pieces(window: FileWindow, position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the parts `[start, end)` of a file from `position` on that are not holes."""
    while (piece := window.next_piece(position)) is not None:
        yield piece
        position = piece[1]
