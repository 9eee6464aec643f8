"""Small files that must survive a power cut whole: written aside, synced, renamed, and the directory synced.

    name.tmp --write, fsync--> name.tmp --rename--> name --fsync of the directory--> durable

A reader finds the old content or the new one, never a mixture and never nothing.
"""

import errno
import os
from pathlib import Path

from store.errors import DiskFailedError, DiskFullError
from store.files.mapped_file import sync_directory

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; on return it is durable.

    Raises:
        DiskFullError: no space; the old content stands.
        DiskFailedError: any other error of the disk; old or new content stands, which of them is not known.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFullError(path, len(content)) from error
        raise DiskFailedError(path, str(error)) from error


def remove_durably(path: Path) -> None:
    """Remove `path` if it is there; on return its absence is durable.

    Raises:
        DiskFailedError: the disk refused.
    """
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise DiskFailedError(path, str(error)) from error
