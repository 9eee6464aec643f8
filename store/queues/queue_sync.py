"""Sync of queue files: a few by `fdatasync`, many by one `syncfs` of their file system.

A journalling file system commits once for each `fdatasync`, so thousands of them take seconds and many threads.
`syncfs` writes the same pages with one commit. It also writes all other dirty pages of the file system; most of them
are the log's, which is flushed continuously anyway.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store.files import disk
from store.queues.queue_file import QueueFile

SINGLY_MAX = 32
"""Up to this many files are synced one by one."""

_SYNC_THREADS = 8
"""Parallel syncs where `syncfs` is not to be relied on; a journal commits syncs together that wait together."""


class QueueSync:
    """Makes queue files durable, in the checkpointer's thread.

    Args:
        roots: the directories that hold all queues, those that exist; one descriptor a file system stays open.

    Raises:
        OSError: one cannot be opened.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        by_device = {root.stat().st_dev: root for root in roots}
        opened = [disk.open_file_system(root) for root in by_device.values()]
        self._file_systems = [descriptor for descriptor in opened if descriptor is not None]
        self._has_syncfs = len(self._file_systems) == len(opened)

    def sync(self, files: Sequence[QueueFile]) -> None:
        """Make the content of these files, and the names of new ones, durable. Blocks.

        Raises:
            DiskFailedError, OSError: a sync failed; it must not be tried again.
        """
        if not (len(files) > SINGLY_MAX and self._has_syncfs and self._sync_file_systems()):
            _sync_each(files)
        for file in files:
            file.is_new = False

    def close(self) -> None:
        """Close the descriptors of the file systems."""
        for descriptor in self._file_systems:
            os.close(descriptor)
        self._file_systems.clear()
        self._has_syncfs = False

    def _sync_file_systems(self) -> bool:
        """Sync the file systems; return whether that succeeded.

        An error may concern any file of the disk; the caller then syncs the queue files one by one.
        """
        try:
            for descriptor in self._file_systems:
                disk.sync_file_system(descriptor)
        except OSError:
            return False
        return True


def _sync_each(files: Sequence[QueueFile]) -> None:
    if len(files) <= _SYNC_THREADS:
        for file in files:
            file.sync()
    else:
        with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="ledgermq-queue-sync") as threads:
            for _ in threads.map(QueueFile.sync, files):
                pass
    folders = {folder for file in files if file.is_new for folder in list(file.path.parents)[:3]}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # its queue was deleted meanwhile
            disk.sync_directory(folder)
