"""Small files of a Raft log, replaced and removed durably; disk errors are the store's own."""

import errno
from pathlib import Path

from ledgermq.durable_files import NO_DESCRIPTORS, replace_durably, sync
from store.errors import DiskFailedError, DiskFullError, NoDescriptorError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; on return it is durable.

    Raises:
        DiskFullError: no space, or no descriptor; the old content is unchanged.
        DiskFailedError: any other disk error; whether the file has the old or the new content is not known.
    """
    try:
        replace_durably(path, content)
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFullError(path, len(content)) from error
        if error.errno in NO_DESCRIPTORS:
            raise NoDescriptorError(path) from error
        raise DiskFailedError(path, str(error)) from error


def remove_durably(path: Path) -> None:
    """Remove `path` if it exists; on return its absence is durable.

    Raises:
        DiskFailedError: the disk failed.
    """
    try:
        path.unlink(missing_ok=True)
        sync(path.parent)
    except OSError as error:
        raise DiskFailedError(path, str(error)) from error
