"""Durable folders: the name of a new folder is only in memory until the folder above it is synced."""

from pathlib import Path

from store.errors import DiskFailedError, DiskFullError
from store.files.disk import NO_ROOM, refusal_of_disk, sync_directory

_BLOCK_BYTES = 4096


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; durable on return.

    Raises:
        DiskFullError: there is no room for it, or no file descriptor.
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
    _sync_names(path.parent)


def open_folder(path: Path) -> None:
    """Make a folder as `make_folder` does, or make the name of one that is there durable.

    The process that made it, or the lowest of those above it that are there, may have been killed before it had synced
    the folder above. A folder above that this process may not read, or that lies on another file system, was made by
    somebody else.

    Raises:
        DiskFullError: there is no room for it, or no file descriptor.
        DiskFailedError: it cannot be made or synced.
    """
    if not path.is_dir():
        open_folder(path.parent)
        make_folder(path)
    elif not path.is_mount():
        _sync_names(path.parent, may_be_denied=True)


def _sync_names(folder: Path, *, may_be_denied: bool = False) -> None:
    try:
        sync_directory(folder)
    except OSError as error:
        if not (may_be_denied and isinstance(error, PermissionError)):
            raise refusal_of_disk(folder, _BLOCK_BYTES, "sync", error) from error
