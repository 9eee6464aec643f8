"""Abort file: there while a store is open, so that the next start knows of an unclean stop.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (createTempFile).
"""

import os
from pathlib import Path

from store.mapped_file import sync_directory

ABORT_NAME = "abort"


class AbortFile:
    """The marker of one store directory.

    Attributes:
        was_present: the last run did not end cleanly.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / ABORT_NAME
        self.was_present = self.path.exists()

    def create(self) -> None:
        """Mark the store as open; durable when this returns."""
        self.path.write_text(str(os.getpid()))
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """The store is closed cleanly, and everything else is durable by now."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
