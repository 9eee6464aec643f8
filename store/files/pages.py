"""Advice to the kernel, and questions to it, about the pages of a mapping. No call here holds the GIL.

    populate   read the pages in now, or report that the disk cannot      (a plain touch would be a SIGBUS)
    read_data  the same for all that was ever written to a file
    lock       keep them in memory                unlock   let them go
    will_need  read them ahead                    forget   drop them from this process (not from the page cache)
    scattered  do not read ahead                  ordinary  read ahead as the system sees fit

The mapping cannot be closed under a call: each holds it by an export of its buffer.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from store.errors import DiskReadError

_MADV_POPULATE_READ = 22  # since Linux 5.14; it answers EFAULT where a touch would be answered with SIGBUS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def populate(buffer: mmap.mmap, start: int, end: int) -> bool:
    """Read the pages of `[start, end)` in; False when the kernel says that it cannot, or does not know how.

    `start` is a multiple of the page size.
    """
    return _advise(buffer, start, end - start, _MADV_POPULATE_READ) == 0


def read_through(descriptor: int, path: Path, start: int, end: int) -> None:
    """Read pages by file calls, which tell the first bad one, and work on kernels without `populate`.

    Raises:
        DiskReadError: with the first page that the disk cannot read.
    """
    try:
        _read_pages(descriptor, path, start, end)
    except DiskReadError:
        # What was read ahead in one piece fails as one: again, page by page. What is not on disk yet stays.
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            _read_pages(descriptor, path, start, end)
        finally:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NORMAL)


def _read_pages(descriptor: int, path: Path, start: int, end: int) -> None:
    scratch = bytearray(mmap.PAGESIZE)
    for position in range(start, end, mmap.PAGESIZE):
        try:
            got = os.preadv(descriptor, [scratch], position)
        except OSError as error:
            raise DiskReadError(path, position, str(error)) from error
        if got == 0:
            raise DiskReadError(path, position, "the file has been cut short")


def read_data(descriptor: int, path: Path | str, buffer: mmap.mmap) -> tuple[int, int]:
    """Read all data of a small file into memory; its holes stay holes.

    Returns:
        The start of the first hole, and the end of the last data. The first is 0 if the file system cannot tell holes
        from data.

    Raises:
        DiskReadError: with the first page that the disk cannot read.
    """
    hole_start = data_end = 0
    for start, data_end in data_extents(descriptor, 0, len(buffer)):
        if start == 0 and data_end < len(buffer):
            hole_start = data_end
        first = start & -mmap.PAGESIZE
        if not populate(buffer, first, data_end):
            read_through(descriptor, Path(path), first, data_end)
    return hole_start, data_end


def data_extents(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts `[start, end)` of a range of a file that are no holes, as far as the file system knows."""
    while start < end:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
            start = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but holes from here on
            begin, start = start, end
        if begin < end:
            yield begin, min(start, end)


def will_need(buffer: mmap.mmap) -> None:
    """Ask for all pages to be read ahead."""
    _advise(buffer, 0, len(buffer), mmap.MADV_WILLNEED)


def forget(buffer: mmap.mmap) -> None:
    """Give back what this process holds for the pages of a shared mapping; what they contain stays."""
    _advise(buffer, 0, len(buffer), mmap.MADV_DONTNEED)


def scattered(buffer: mmap.mmap) -> None:
    """Switch reading ahead off."""
    _advise(buffer, 0, len(buffer), mmap.MADV_RANDOM)


def ordinary(buffer: mmap.mmap) -> None:
    """Switch reading ahead on again."""
    _advise(buffer, 0, len(buffer), mmap.MADV_NORMAL)


def lock(buffer: mmap.mmap) -> OSError | None:
    """Keep all pages in memory; the error when that is not allowed (RLIMIT_MEMLOCK) or there is not enough of it."""
    anchor = ctypes.c_char.from_buffer(buffer)
    if _libc.mlock(ctypes.addressof(anchor), len(buffer)) == 0:
        return None
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def unlock(buffer: mmap.mmap) -> None:
    """Undo `lock`."""
    anchor = ctypes.c_char.from_buffer(buffer)
    _libc.munlock(ctypes.addressof(anchor), len(buffer))


def _advise(buffer: mmap.mmap, start: int, size: int, advice: int) -> int:
    """Return 0 or the number of the error; advice that the kernel does not know is no error."""
    anchor = ctypes.c_char.from_buffer(buffer)
    if _libc.madvise(ctypes.addressof(anchor) + start, size, advice) == 0:
        return 0
    return ctypes.get_errno() or errno.EINVAL
