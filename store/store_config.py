"""Settings of the store; times are milliseconds, sizes bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ledgermq.message.queue_unit import UNIT_SIZE
from ledgermq.remoting.config_key import PATH, POSITIVE, STORE, converted, key, section
from store.cleaning.config import CleaningConfig
from store.compaction.config import CompactionConfig
from store.index.config import IndexConfig
from store.queues.cold_limits import ColdLimits
from store.queues.held_units import MAPPED_MIN
from store.queues.queue_kinds import PLAIN_ONLY, QueueKinds, TopicAttributes

UNTRUSTED_WALK_BYTES = 4 << 30
"""More than the queues' files may lack: what `store.recovery.checkpointer` lets come before it writes held units."""
_WHOLE_UNITS = converted(POSITIVE, lambda size: -(-size // UNIT_SIZE) * UNIT_SIZE, int)
"""Sizes, rounded up to whole units as RocketMQ does."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders below `root` in which the parts of a store are kept, by RocketMQ's names."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of the message store on any log.

    Attributes:
        checkpoint_interval_ms: between two checkpoints, for which the queues are synced, at most; sooner when much of
            the log was dispatched, later where thousands of queues hold units in memory.
        untrusted_walk_bytes: how much of the log is dispatched again where no checkpoint of ours is found.
        hold_from: number of queues with mapped files from which on units of further queues are held in memory.
        cleaning: when old files go; None: never, and the disk is not watched.
        index: of messages by key; None: none is built.
        compaction: of topics by key; None: such topics are served as others are.
        topic_attributes: of a topic; asked from the recovery of the queues on.
    """

    ORIGIN: ClassVar[str] = STORE

    root: Path = key(
        "storePathRootDir",
        PATH,
        Path.home() / "store",
        "Folder of everything that the broker stores.",
        shown="<home folder/store>",
    )
    queue_file_size_bytes: int = key(
        "mappedFileSizeConsumeQueue",
        _WHOLE_UNITS,
        6_000_000,
        "Bytes of a file of a consume queue, rounded up to whole units of 20.",
        note="Rounded up to whole units of 20 bytes.",
    )
    checkpoint_interval_ms: int = key(
        "flushConsumeQueueThoroughInterval",
        POSITIVE,
        10_000,
        "Time in ms after which consume queues are flushed whatever waits.",
        upstream="60000",
        note="Queues are synced and the checkpoint written then, or after 128 MiB of log. With thousands of queues in "
        "use it is written after six times as long, or 512 MiB, and the files of most after sixty times, or 2 GiB.",
    )
    untrusted_walk_bytes: int = UNTRUSTED_WALK_BYTES
    hold_from: int = MAPPED_MIN
    cold_limits: ColdLimits = section(ColdLimits)
    cleaning: CleaningConfig | None = section(CleaningConfig, None)
    kinds: QueueKinds = section(QueueKinds, PLAIN_ONLY)
    index: IndexConfig | None = section(IndexConfig, None)
    compaction: CompactionConfig | None = section(CompactionConfig, None)
    topic_attributes: TopicAttributes = lambda _topic: {}

    @property
    def folders(self) -> Folders:
        """Where each part of the store is kept."""
        return Folders(self.root)

    def problems(self, body_bytes_max: int) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold."""
        if self.queue_file_size_bytes % UNIT_SIZE:
            yield (
                "mappedFileSizeConsumeQueue",
                (f"{self.queue_file_size_bytes} is not a multiple of {UNIT_SIZE}, the size of a unit"),
            )
        if self.cleaning is not None:
            yield from self.cleaning.problems()
        if self.index is not None:
            yield from self.index.problems()
        if self.compaction is not None:
            yield from self.compaction.problems(body_bytes_max)
