"""Mappings of files that keep no descriptor, for tens of thousands of queue files, and a bound of their number.

Before Python 3.13 a `mmap.mmap` of a file keeps a duplicate of its descriptor. The file is therefore mapped over the
pages of an anonymous `mmap.mmap`, at the same address; that object still guards its slices and unmaps the pages.

Linux limits the mappings of a process (`vm.max_map_count`, 65,530 by default). At the limit even `malloc` fails, so
only so many queues have mapped files; another one that needs its file takes the place of one that got no units lately.
"""

import ctypes
import errno
import mmap
import os
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value

_MAPPINGS_MAX = 65_530
"""Linux's default of `vm.max_map_count`."""

_LOOKS = 8
"""Queues looked at, to find one that got no units lately."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)


def map_file(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Map the first `size_bytes` of a file, shared and writable; the descriptor may be closed at once.

    Raises:
        OSError: the file is too short, or the system refuses the mapping.
    """
    if os.fstat(descriptor).st_size < size_bytes:
        raise OSError(errno.EINVAL, f"the file is shorter than {size_bytes} bytes")
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    exported = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(exported)
    del exported
    flags = mmap.MAP_SHARED | _MAP_FIXED
    if _libc.mmap(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0) == _FAILED:
        code = ctypes.get_errno()
        mapping.close()
        raise OSError(code, os.strerror(code))
    return mapping


class Mapper(Protocol):
    """A queue, as far as its mapped files are concerned: two at most."""

    max_offset: int

    def close(self) -> None:
        """Unmap the files; the next use maps them again."""


class MappedQueues:
    """The queues of one store that have mapped files.

    Args:
        count_max: so many at most, at least 1; None takes three eighths of the process's mappings, with two a queue.
    """

    def __init__(self, count_max: int | None = None) -> None:
        self._count_max = count_max or _mappings_max() * 3 // 8
        self._ends: OrderedDict[Mapper, int] = OrderedDict()  # max offset when the queue was looked at last

    def add(self, queue: Mapper) -> None:
        """Tell that a queue is about to map a file; another one may be closed to make room."""
        if queue not in self._ends:
            if len(self._ends) >= self._count_max:
                self._close_one()
            self._ends[queue] = queue.max_offset

    def __len__(self) -> int:
        return len(self._ends)

    def discard(self, queue: Mapper) -> None:
        """Tell that a queue has unmapped its files."""
        self._ends.pop(queue, None)

    def _close_one(self) -> None:
        """Close the queue that was mapped first, or one of the next if those before it have got units since."""
        for _ in range(_LOOKS):
            queue, end = self._ends.popitem(last=False)
            if queue.max_offset == end:
                break
            self._ends[queue] = queue.max_offset
        else:
            queue, _ = self._ends.popitem(last=False)
        queue.close()


def _mappings_max() -> int:
    """Return how many mappings this process may have."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return _MAPPINGS_MAX
