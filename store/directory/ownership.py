"""Whether a directory may be used as a store; checked before anything is written to it.

empty, or only what lies beside a store (configuration, logs, lost+found, hidden files)   -> a new store
a name that RocketMQ or LedgerMQ gives                                                    -> a store
anything else                                                                             -> refused
"""

import os
from collections.abc import Iterable
from pathlib import Path

from store.errors import DiskFailedError, StoreFormatError

_STORE_NAMES = frozenset(
    {
        "abort",
        "batchconsumequeue",
        "brokerIdentity",
        "checkpoint",
        "commitlog",
        "compaction",
        "config",
        "consumequeue",
        "consumequeue_ext",
        "epochFileCheckpoint",
        "index",
        "ledgermq.abort",
        "ledgermq.boot",
        "ledgermq.json",
        "lock",
        "rocksdbstore",
        "timerlog",
        "timerwheel",
    }
)
_STORE_PREFIX = "dledger-"
_BESIDE_NAMES = frozenset({"logs", "lost+found"})
_BESIDE_SUFFIXES = (".conf", ".json", ".log", ".properties", ".toml", ".xml", ".yml")
_SHOWN_MAX = 3


def ensure_store(root: Path) -> None:
    """Check that a directory is empty or a store's, and may be written.

    Raises:
        StoreFormatError: it holds something else; nothing was changed.
        DiskFailedError: it is read-only, or cannot be read.
    """
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise DiskFailedError(root, f"cannot be read: {error}") from error
    strange = _strange(names)
    if strange:
        shown = ", ".join(strange[:_SHOWN_MAX]) + (", ..." if len(strange) > _SHOWN_MAX else "")
        raise StoreFormatError(root, f"is not a store: it holds {shown}; name an empty folder, or a store of RocketMQ")
    ensure_writable(root)


def ensure_writable(directory: Path) -> None:
    """Check that this process may make files in a directory.

    Raises:
        DiskFailedError: it is read-only.
    """
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DiskFailedError(directory, "is read-only for this process")


def _strange(names: Iterable[str]) -> list[str]:
    """Return the names in a directory that has no file of a store; none if it has one."""
    visible = [name for name in names if not name.startswith(".")]
    if any(name in _STORE_NAMES or name.startswith(_STORE_PREFIX) for name in visible):
        return []
    return [name for name in visible if name not in _BESIDE_NAMES and not name.endswith(_BESIDE_SUFFIXES)]
