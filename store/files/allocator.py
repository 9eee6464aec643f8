"""File allocator: one thread that makes the next files while the present one fills.

    loop thread   request(n+1), request(n+2) ......... fills file n ......... take(n+1)   request(n+3)
    allocator               open, fallocate, fsync directory, perhaps warm -->

Source: apache/rocketmq `store/.../AllocateMappedFileService.java` (5.3.3).
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from store.errors import AllocationPendingError, DiskFullError
from store.files.mapped_file import MappedFile

FULL_RETRY_S = 0.5
"""A full disk is asked again after this long; until then the answer is the same."""


class FileAllocator:
    """Makes files in a thread. Shared by the queues of one process; used on one thread.

    Args:
        wait_s: see the attribute.
        clock: seconds, monotonic.
        make: makes one file, in the thread.

    Attributes:
        wait_s: how long `take` may hold its caller when the file is not ready; None: until it is.
    """

    def __init__(
        self,
        *,
        wait_s: float | None = 1.0,
        clock: Callable[[], float] = time.monotonic,
        make: Callable[[Path, int, int], MappedFile] = MappedFile,
    ) -> None:
        self._make = make
        self.wait_s = wait_s
        self._clock = clock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-allocator")
        self._pending: dict[Path, Future[MappedFile]] = {}
        self._full: tuple[float, DiskFullError] | None = None

    def request(self, path: Path, start_offset: int, size_bytes: int) -> None:
        """Start making a file, if that has not been started; errors show in `take`."""
        if path not in self._pending:
            self._pending[path] = self._executor.submit(self._make, path, start_offset, size_bytes)

    def take(self, path: Path, start_offset: int, size_bytes: int) -> MappedFile:
        """Return the file; wait for it if it is not made yet.

        Raises:
            DiskFullError: no room; asked again at the next call, at most every `FULL_RETRY_S`.
            AllocationPendingError: not ready after `wait_s`; still under way.
            DiskFailedError, StoreFormatError: as `MappedFile`.
        """
        if self._full is not None and self._clock() < self._full[0]:
            raise self._full[1]
        self._forget_old_failure(path)
        self.request(path, start_offset, size_bytes)
        try:
            file = self._pending[path].result(self.wait_s)
        except FutureTimeoutError as error:
            raise AllocationPendingError(path, self.wait_s or 0.0) from error
        except DiskFullError as error:
            self._full = (self._clock() + FULL_RETRY_S, error)
            del self._pending[path]
            raise
        except BaseException:
            del self._pending[path]
            raise
        self._full = None
        del self._pending[path]
        return file

    def discard(self, directory: Path) -> None:
        """Remove the files made ahead in a directory; one that is being made goes when it is made."""
        for path in [path for path in self._pending if path.parent == directory]:
            future = self._pending.pop(path)
            if not future.cancel():
                future.add_done_callback(_delete_made)

    def run(self, chore: Callable[[], None]) -> None:
        """Run `chore` in the thread, when it has time."""
        self._executor.submit(chore)

    def _forget_old_failure(self, path: Path) -> None:
        """Forget that the file could not be made ahead: it may be possible by now."""
        future = self._pending.get(path)
        if future is not None and future.done() and future.exception() is not None:
            del self._pending[path]

    def close(self) -> None:
        """Remove every file made ahead and stop the thread."""
        for directory in {path.parent for path in self._pending}:
            self.discard(directory)
        self._executor.shutdown()


def _delete_made(future: Future[MappedFile]) -> None:
    if future.exception() is None:
        future.result().delete()
