"""Trash: folders that are gone for the store at once, and from the disk when a thread has come round to it.

    <root>/consumequeue/T  --- one rename --->  <root>/.trash/<n>  --- thread: file by file --->  nothing

What a crash leaves there the next start removes.
"""

import contextlib
import itertools
import logging
import os
import shutil
import threading
from pathlib import Path

from store.errors import DiskFailedError

log = logging.getLogger(__name__)

_FOLDER = ".trash"


class Trash:
    """The trash of one store.

    Args:
        root: the store's directory, on whose file system the folders lie.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / _FOLDER
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # between moving into the trash and putting the empty one away

    def empty(self) -> None:
        """Begin to remove what an earlier process left."""
        if self._folder.is_dir():
            self._remove_soon(list(self._folder.iterdir()))

    def take(self, folder: Path) -> None:
        """Take a folder that may be missing.

        Raises:
            DiskFailedError: it cannot be moved.
        """
        if not folder.exists():
            return
        target = self._folder / f"{os.getpid()}-{next(self._numbers)}"
        try:
            with self._lock:
                self._folder.mkdir(exist_ok=True)
                folder.rename(target)
        except OSError as error:
            raise DiskFailedError(folder, f"cannot be moved to {target}: {error}") from error
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
