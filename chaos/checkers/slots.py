"""Arrays of fixed-size elements in temporary files: a judge of many millions of operations needs little memory."""

import mmap
import os
import struct
import tempfile
from typing import Any

_LEAST = 1 << 12


class GrowingArray:
    """An array that grows; elements that were never set are zero bytes. The kernel keeps only used pages in memory.

    Args:
        layout: of an element, as in `struct`.
    """

    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct(layout)
        self._count = 0
        self._file = tempfile.TemporaryFile(prefix="ledgermq-judge-")  # noqa: SIM115 - closed by `close`
        self._map: mmap.mmap | None = None

    def get(self, index: int) -> tuple[Any, ...]:
        """Return an element."""
        if self._map is None or index >= self._count:
            return self._layout.unpack(bytes(self._layout.size))
        return self._layout.unpack_from(self._map, index * self._layout.size)

    def set(self, index: int, *values: Any) -> None:
        """Set an element.

        Raises:
            OSError: there is no room on the disk.
        """
        if index >= self._count:
            self._grow(index + 1)
        assert self._map is not None
        self._layout.pack_into(self._map, index * self._layout.size, *values)

    def close(self) -> None:
        """Close and delete the file."""
        if self._map is not None:
            self._map.close()
        self._file.close()

    def _grow(self, count: int) -> None:
        count = max(count, 2 * self._count, _LEAST)
        begin, end = self._count * self._layout.size, count * self._layout.size
        os.posix_fallocate(self._file.fileno(), begin, end - begin)  # a store into a hole of a full disk is fatal
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), end)
        else:
            self._map.resize(end)
        self._count = count
