"""Disk: the few calls that files of a store are made of, with the disk's refusals as typed errors.

allocate   real blocks, so that no later write can meet a full disk        write_at   all of it, or an error
punch      blocks given back, zeros read                                   sync_directory   names durable
                                                                           sync_file_system everything durable
"""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from ledgermq.durable_files import NO_DESCRIPTORS
from store.errors import DiskFailedError, DiskFullError, NoDescriptorError, StoreFormatError

log = logging.getLogger(__name__)

FILE_NAME_DIGITS = 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PUNCH_HOLE_KEEP_SIZE = 0x03

FULL_S = 10.0
"""A file system without room counts as full for at least this long: a quota does not show in its free blocks."""

_SYNCFS_TELLS_ERRORS = (5, 8)
"""From this Linux on `syncfs` fails when a page could not be written; before, it reported nothing."""

_MAP = 0xC020660B  # FS_IOC_FIEMAP
_MAP_HEAD = struct.Struct("=QQIIII")  # start, length, flags, extents found, extents wanted, reserved
_MAP_EXTENT = struct.Struct("=QQQQQIIII")  # logical, physical, length, reserved, reserved, flags, reserved
_MAP_EXTENTS = 128
_MAP_UNWRITTEN = 0x800

_libc = ctypes.CDLL(None, use_errno=True)
_full: dict[int, tuple[float, DiskFullError]] = {}
"""By device number of a file system that had no room: when that was (monotonic seconds), and for what."""


def file_name(start_offset: int) -> str:
    """Return the start offset as 20 decimal digits."""
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


def open_file_system(directory: Path) -> int | None:
    """Return a descriptor for `sync_file_system`, for the caller to close; None where `syncfs` cannot be relied on.

    Raises:
        OSError: the directory cannot be opened.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or tuple(map(int, release.groups())) < _SYNCFS_TELLS_ERRORS or not hasattr(_libc, "syncfs"):
        return None
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_file_system(descriptor: int) -> None:
    """Make every file and name durable on the file system of an open directory; for a thread, without the GIL.

    Raises:
        OSError: something on that file system could not be written since the descriptor was opened or last synced.
    """
    if _libc.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def find_file(path: Path, size_bytes: int) -> bool | None:
    """Return whether an existing file has all its blocks; None if the file is missing or empty.

    Raises:
        StoreFormatError: it has another length.
        DiskFailedError: the disk refused.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskFailedError(path, f"its status cannot be read: {error}") from error
    if status.st_size == 0:
        return None
    if status.st_size != size_bytes:
        raise StoreFormatError(path, f"is {status.st_size} bytes long, must be {size_bytes}")
    return status.st_blocks * 512 >= size_bytes


def create_file(path: Path, size_bytes: int) -> int:
    """Make a file of zeros with all its blocks and a durable name; return its descriptor.

    Raises:
        DiskFullError: no room; no file is left behind.
        DiskFailedError: the disk refused; likewise.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise refusal_of_disk(path, size_bytes, "creation", error) from error
    try:
        os.ftruncate(descriptor, size_bytes)  # the length first: a crash in between leaves a loadable file
        allocate(descriptor, path, 0, size_bytes)
        os.fdatasync(descriptor)  # or a power cut may leave the durable name with no length
        sync_directory(path.parent)
    except BaseException as error:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refusal_of_disk(path, size_bytes, "creation", error) from error
        raise
    _note_room(path.parent, size_bytes)
    return descriptor


def allocate(descriptor: int, path: Path, start: int, size_bytes: int) -> None:
    """Give `[start, start + size_bytes)` of a file real blocks that read as zeros; existing data stays.

    Raises:
        DiskFullError: no room; the file may hold a part of the blocks.
        DiskFailedError: another error of the disk.
    """
    try:
        os.posix_fallocate(descriptor, start, size_bytes)
    except OSError as error:
        raise refusal_of_disk(path, size_bytes, "allocation", error) from error


def punch(descriptor: int, start: int, end: int) -> bool:
    """Make `[start, end)` of a file read as zeros by giving its blocks back; False where the file system cannot."""
    return not _libc.fallocate(
        descriptor, ctypes.c_int(_PUNCH_HOLE_KEEP_SIZE), ctypes.c_longlong(start), ctypes.c_longlong(end - start)
    )


def write_at(descriptor: int, path: Path, data: memoryview, position: int) -> None:
    """Write all of `data` at `position` of a file.

    Raises:
        DiskFullError, DiskFailedError: the disk refused; a part of it may be written.
    """
    try:
        written = os.pwrite(descriptor, data, position)
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], position + written)
    except OSError as error:
        raise refusal_of_disk(path, len(data), f"write of {len(data)} bytes at {position}", error) from error


def write_past_cache(path: Path, data: bytes, position: int) -> bool:
    """Write whole pages durably to the disk, past the page cache, which drops its copy; False if that is not possible.

    Raises:
        DiskFullError, DiskFailedError: the disk refused; a part of it may be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC | os.O_CLOEXEC)
        try:
            with mmap.mmap(-1, len(data)) as aligned:
                aligned[:] = data
                return os.pwrite(descriptor, aligned, position) == len(data)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return False
        raise refusal_of_disk(path, len(data), f"write of {len(data)} bytes at {position}", error) from error


def unwritten_parts(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts `[start, end)` of a synced file whose blocks count as never written, so that they read as zeros.

    None where the file system cannot tell.
    """
    while start < end:
        request = bytearray(_MAP_HEAD.pack(start, end - start, 0, 0, _MAP_EXTENTS, 0))
        request += bytes(_MAP_EXTENTS * _MAP_EXTENT.size)
        try:
            fcntl.ioctl(descriptor, _MAP, request)
        except OSError:
            return
        count, behind = _MAP_HEAD.unpack_from(request)[3], start
        for number in range(count):
            fields = _MAP_EXTENT.unpack_from(request, _MAP_HEAD.size + number * _MAP_EXTENT.size)
            behind = fields[0] + fields[2]
            if fields[5] & _MAP_UNWRITTEN:
                yield max(fields[0], start), min(behind, end)
        if count < _MAP_EXTENTS:
            return
        start = behind


def refusal_of_disk(path: Path, size_bytes: int, what: str, error: OSError) -> DiskFullError | DiskFailedError:
    """Return the typed error of a failed operation: no room for `size_bytes` (noted for `no_room`), or `what` failed.

    If the process has no file descriptor left, it is a `NoDescriptorError`.
    """
    if error.errno in NO_DESCRIPTORS:
        return NoDescriptorError(path)
    if error.errno in NO_ROOM:
        full = DiskFullError(path, size_bytes)
        if no_room(path.parent) is None:
            log.error("the disk is full: %s", full)
        _full[_device(path.parent)] = time.monotonic(), full
        return full
    return DiskFailedError(path, f"{what} failed: {error}")


def no_room(directory: Path) -> DiskFullError | None:
    """Return the last failure for lack of room on the file system of `directory`; None once there is room for it.

    Quick enough for a health check. May be called in any thread.
    """
    device = _device(directory)
    if (found := _full.get(device)) is None:
        return None
    since, error = found
    if time.monotonic() - since < FULL_S or free_bytes(directory) < error.needed_bytes:
        return error
    if _full.pop(device, None) is not None:
        log.warning("the disk of %s has room again", directory)
    return None


def _note_room(directory: Path, size_bytes: int) -> None:
    """Note that there was room for `size_bytes`: a noted lack of at most that much is over."""
    if _full and (found := _full.get(device := _device(directory))) and found[1].needed_bytes <= size_bytes:
        _full.pop(device, None)
        log.warning("the disk of %s has room again", directory)


def require_first_file(directory: Path, size_bytes: int, advice: str) -> None:
    """Refuse to open a log that has no file and no room for one: its node would run and refuse every message.

    Raises:
        DiskFullError: fewer than `size_bytes` are free, and `directory` holds no file named by an offset. Its text
            ends with `advice`.
    """
    if any(directory.glob("[0-9]" * FILE_NAME_DIGITS)):
        return
    there = next(folder for folder in (directory, *directory.parents) if folder.exists())
    if free_bytes(there) < size_bytes:
        raise DiskFullError(directory / file_name(0), size_bytes, advice)


def free_bytes(directory: Path) -> int:
    """Free bytes of the file system of `directory` for a user without privileges."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize


def _device(directory: Path) -> int:
    while True:
        try:
            return directory.stat().st_dev
        except FileNotFoundError:
            directory = directory.parent
