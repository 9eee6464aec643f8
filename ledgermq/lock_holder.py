"""Which process holds the lock of a store directory, asked without taking it (Linux).

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
    """Return the process that holds the lock of `directory`; None without one, or where it cannot be asked for.

    Opens and closes the file, which would drop a lock of this process itself.
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

    Its number is -1 where it cannot be told, and 0 in another namespace of processes.

    Raises:
        OSError: the file system knows no locks.
    """
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return int(pid) if kind != fcntl.F_UNLCK else None
