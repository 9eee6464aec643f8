"""Folders that are still there after a power cut: a new name is only in memory until the folder above it is synced."""

from pathlib import Path

from store.errors import DiskFailedError
from store.files.mapped_file import sync_directory


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; durable on return.

    Raises:
        DiskFailedError: it cannot be made.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise DiskFailedError(path, f"cannot be made: {error}") from error
    sync_directory(path.parent)
