"""Files that are whole or absent after a crash at any moment."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` into the file at once: the old content or the new one, both durable, never a mixture.

    Raises:
        OSError: the disk.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)  # what was renamed before comes first
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: the disk.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
