"""Tells which process holds the lock of a store directory, without taking it (Linux).

The lock is the POSIX one on the first byte of the file `lock`, which RocketMQ takes too.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "lock"
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


def lock_holder(directory: Path) -> int | None:
    """Return the process that holds the lock of `directory`; None if none does or it cannot be found out.

    It opens and closes the file, which would release a lock of this process.
    """
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return holder_of(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def holder_of(descriptor: int) -> int | None:
    """Return the other process that holds the lock of an open file; None without one.

    It is -1 if the kernel does not tell it, and 0 if it is in another PID namespace.

    Raises:
        OSError: the file system has no locks.
    """
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return int(pid) if kind != fcntl.F_UNLCK else None
