"""Small files that are whole after a crash at any moment: they have the old content or the new one.

NAME.tmp --write, fsync--> NAME.tmp --rename--> NAME --fsync of the directory--> durable
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""Errors of a process, or machine, that may open no more files: not the disk's fault, and a later try may succeed."""


def replace_durably(path: Path, content: bytes, *, sync_names: Callable[[Path], None] | None = None) -> None:
    """Replace the content of `path`, or make the file; on return it is durable. Blocks for the disk.

    Args:
        path: the file.
        content: the whole content.
        sync_names: makes the names in the file's directory durable; None: `sync` does.

    Raises:
        OSError: the disk refused; the file has the old or the new content.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_synced(temporary, content)
    temporary.replace(path)
    (sync_names or sync)(path.parent)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file; on return its content is durable, its name in the directory may not be.

    Raises:
        OSError: the disk refused; the file has any part of the content.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable.

    Raises:
        OSError: it cannot be synced; `filename` is `path`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)
