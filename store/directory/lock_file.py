"""Lock file: one process per store directory, whichever broker it is.

Two locks on `lock`, both of which die with their process: a POSIX one on the first byte, which is what Java's
`FileChannel.tryLock(0, 1)` takes, and, since a POSIX lock is also lost when anything in this process opens and closes
the file, a `flock`. Neither stops its own process from taking it twice, so the paths held here are remembered.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (start), `lock` of section 4.1 in the store reference.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from ledgermq.lock_holder import LOCK_NAME, holder_of
from store.directory.abort_file import ABORT_NAME, RAFT_ABORT_NAME
from store.errors import DiskFailedError, StoreLockedError

_CONTENT = b"lock"

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
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            pid = self._holder()
            os.close(self._descriptor)
            raise StoreLockedError(self.path, pid) from error
        os.pwrite(self._descriptor, _CONTENT, 0)
        _held_here.add(self.path)

    def release(self) -> None:
        """Release the lock, so that another process can take it."""
        _held_here.discard(self.path)
        os.close(self._descriptor)

    def _holder(self) -> int | None:
        pid = holder_of(self._descriptor)
        if pid is not None and pid > 0:
            return pid
        for name in (ABORT_NAME, RAFT_ABORT_NAME):
            with contextlib.suppress(OSError, ValueError):
                return int((self.path.parent / name).read_text())  # written there by the holder of the lock
        return None
