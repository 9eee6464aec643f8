"""Trash: folders that are removed from the store by one rename, and deleted by a thread later.

    <root>/consumequeue/T  --- one rename --->  <root>/.trash/<n>  --- thread: file by file --->  nothing

The next start removes what a crash leaves there.
"""

import contextlib
import logging
import shutil
import threading
import uuid
from pathlib import Path

from store.errors import DiskFailedError
from store.files.disk import NO_ROOM

log = logging.getLogger(__name__)

_FOLDER = ".trash"


class Trash:
    """The trash of one store.

    Args:
        root: the store's directory; the folders are on its file system.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / _FOLDER
        self._lock = threading.Lock()  # between moving into the trash and putting the empty one away

    def empty(self) -> None:
        """Begin to remove what an earlier process left."""
        if self._folder.is_dir():
            self._remove_soon(list(self._folder.iterdir()))

    def take(self, folder: Path) -> None:
        """Move a folder, if it exists, into the trash; on a full disk, delete it before returning.

        Raises:
            DiskFailedError: it cannot be moved, or not be removed.
        """
        if not folder.exists():
            return
        target = self._folder / uuid.uuid4().hex  # in a container each process has the number of the one that crashed
        try:
            with self._lock:
                self._folder.mkdir(exist_ok=True)
                folder.rename(target)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise DiskFailedError(folder, f"cannot be moved to {target}: {error}") from error
            _remove_here(folder)
        else:
            self._remove_soon([target])

    def _remove_soon(self, folders: list[Path]) -> None:
        threading.Thread(target=self._remove, args=(folders,), name="ledgermq-trash", daemon=True).start()

    def _remove(self, folders: list[Path]) -> None:
        for folder in folders:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                log.warning("the next start tries again to remove %s: %s", folder, error)
        with self._lock, contextlib.suppress(OSError):  # more has come in
            self._folder.rmdir()


def _remove_here(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise DiskFailedError(folder, f"cannot be removed: {error}") from error
