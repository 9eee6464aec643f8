"""Durable folders: the name of a new folder is only in memory until the folder above it is synced."""

from pathlib import Path

from store.errors import DiskFailedError, DiskFullError
from store.files.disk import NO_ROOM, sync_directory

_BLOCK_BYTES = 4096


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; durable on return.

    Raises:
        DiskFullError: there is no room for it.
        DiskFailedError: it cannot be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(path, _BLOCK_BYTES) from error
        raise DiskFailedError(path, f"cannot be made: {error}") from error
    sync_directory(path.parent)
