"""The folders of a store directory, by RocketMQ's names."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """Where each part of a store is kept below `root`."""

    root: Path

    @property
    def tables(self) -> Path:
        """Of topics, groups, consumer offsets and users."""
        return self.root / "config"

    @property
    def commit_log(self) -> Path:
        """Of the classic log, unless the configuration names another folder."""
        return self.root / "commitlog"

    @property
    def queues(self) -> Path:
        """Of the plain consume queues; others lie beside it."""
        return self.root / "consumequeue"

    @property
    def index(self) -> Path:
        """Of the index by key."""
        return self.root / "index"
