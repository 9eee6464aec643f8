"""The folders of a store directory, by RocketMQ's names."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """Where each part of a store is kept below `root`."""

    root: Path

    @property
    def tables(self) -> Path:
        """Folder of the tables: topics, groups, consumer offsets and users."""
        return self.root / "config"

    @property
    def commit_log(self) -> Path:
        """Folder of the classic log, unless the configuration names another one."""
        return self.root / "commitlog"

    @property
    def queues(self) -> Path:
        """Folder of the plain consume queues; those of other kinds are beside it."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Folder of the key index."""
        return self.root / "index"
