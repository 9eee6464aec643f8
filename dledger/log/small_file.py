"""Replaces small files so that they survive a power cut whole: written aside, synced, renamed, the directory synced.

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
        DiskFullError: no space; the old content is unchanged.
        DiskFailedError: any other disk error; whether the file has the old or the new content is not known.
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
    """Remove `path` if it exists; on return its absence is durable.

    Raises:
        DiskFailedError: the disk failed.
    """
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise DiskFailedError(path, str(error)) from error
