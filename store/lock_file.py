"""Lock file: one process per store directory, whichever broker it is.

The lock is a POSIX one on the first byte of `lock`, which is what Java's `FileChannel.tryLock(0, 1)` takes; it dies
with its process. Such a lock does not stop its own process, so the paths held here are remembered as well.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (start), `lock` of section 4.1 in the store reference.
"""

import fcntl
import os
import struct
from pathlib import Path

from store.errors import DiskFailedError, StoreLockedError

LOCK_NAME = "lock"
_CONTENT = b"lock"
_FLOCK = struct.Struct("hhqqi4x")  # Linux struct flock: type, whence, start, length, pid

_held_here: set[Path] = set()


class LockFile:
    """The lock of one directory, held from construction to `release`.

    Raises:
        StoreLockedError: another process, or another store of this one, holds it.
        DiskFailedError: the file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory.resolve() / LOCK_NAME
        if self.path in _held_here:  # opening and closing it again would drop the lock that is held
            raise StoreLockedError(self.path, os.getpid())
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskFailedError(self.path, f"cannot be opened: {error}") from error
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            pid = self._holder()
            os.close(self._descriptor)
            raise StoreLockedError(self.path, pid) from error
        os.pwrite(self._descriptor, _CONTENT, 0)
        _held_here.add(self.path)

    def release(self) -> None:
        """Let another process in."""
        _held_here.discard(self.path)
        os.close(self._descriptor)

    def _holder(self) -> int | None:
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        pid: int = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, question))[4]
        return pid if pid > 0 else None
