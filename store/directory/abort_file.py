"""Abort file: there while a store is open, so that the next start knows of an unclean stop.

A Raft store's has a name that Java does not know. Finding its own, Java's DLedger mode would cut good ends off the
consume queues and never fill them again; without it, it keeps them and dispatches on from the committed index.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (createTempFile).
"""

import os
from pathlib import Path

from store.files.mapped_file import sync_directory

ABORT_NAME = "abort"
RAFT_ABORT_NAME = "ledgermq.abort"


class AbortFile:
    """The marker of one store directory.

    Attributes:
        was_present: the last run did not end cleanly.
    """

    def __init__(self, directory: Path, name: str = ABORT_NAME) -> None:
        self.path = directory / name
        self.was_present = self.path.exists()

    def create(self) -> None:
        """Mark the store as open; durable when this returns."""
        self.path.write_text(str(os.getpid()))
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Remove the marker: the store is closed cleanly, and everything else is durable."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
