"""Making of new files for a commit log before they are needed, in the allocator's thread.

    allocate -> [borrow a buffer of the transient pool] -> [warm up: touch by page, flush by pages, lock]

Warming up writes each block once, so that later appends need no new page of the page cache and, on many file systems,
no work of the journal. Zeros are written by file calls; stores into the mapping would cost a page fault each.

Source: apache/rocketmq `store/.../logfile/DefaultMappedFile.java` (warmMappedFile, mlock, 5.3.3).
"""

import logging
import mmap
from pathlib import Path

from store.errors import DiskFailedError
from store.files.disk import write_at
from store.files.mapped_file import MappedFile
from store.files.pooled_file import PooledFile
from store.files.transient_pool import TransientPool

_TOUCH_BYTES = 1 << 20

log = logging.getLogger(__name__)


class FileMaker:
    """Makes files as a commit log's configuration says.

    Args:
        pool: new files borrow from it; None: they are written directly.
        warms_up: whether new files are warmed up.
        flush_pages: while a file is warmed up, flush it after every so many pages; 0: leave that to the system.
    """

    def __init__(self, pool: TransientPool | None = None, *, warms_up: bool = False, flush_pages: int = 0) -> None:
        self._pool = pool
        self._warms_up = warms_up
        self._flush_bytes = flush_pages * mmap.PAGESIZE
        self._has_warned = False
        self._is_stopped = False

    def stop(self) -> None:
        """End the warm-up that is under way: no warm files are needed any more."""
        self._is_stopped = True

    def __call__(self, path: Path, start_offset: int, size_bytes: int) -> MappedFile:
        """Make one file.

        Raises:
            As `PooledFile`.
        """
        if self._pool is None:
            file = MappedFile(path, start_offset, size_bytes)
        else:
            file = PooledFile(path, start_offset, size_bytes, self._pool)
        if self._warms_up:
            try:
                self._warm_up(file)
            except BaseException:
                file.delete()
                raise
        return file

    def _warm_up(self, file: MappedFile) -> None:
        zeros = memoryview(bytes(_TOUCH_BYTES))
        unflushed = 0
        for position in range(0, file.size_bytes, _TOUCH_BYTES):
            if self._is_stopped:
                return
            part = zeros[: file.size_bytes - position]
            write_at(file.fd, file.path, part, position)
            unflushed += len(part)
            if 0 < self._flush_bytes <= unflushed:
                _sync(file)
                unflushed = 0
        error = file.lock()
        if error is not None and not self._has_warned:
            self._has_warned = True
            log.warning("%s is warm, but not locked in memory: %s", file.path, error)


def _sync(file: MappedFile) -> None:
    try:
        file.sync()
    except OSError as error:
        raise DiskFailedError(file.path, f"sync failed: {error}") from error
