"""The queues of a store: their names, their kinds, and the files with their units.

consumequeue/TOPIC/ID/       20-byte units, one a message
batchconsumequeue/TOPIC/ID/  46-byte units, one a batch
consumequeue_ext/TOPIC/ID/   extensions, which units of the first kind may point at
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from doctor.check.columns import QueueName
from doctor.read.directory import offset_files, usual_length
from doctor.read.unit_files import BATCH_UNIT, QUEUE_UNIT, UnitFiles, open_units
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.errors import JsonError

QUEUE_DIR: Final = "consumequeue"
BATCH_DIR: Final = "batchconsumequeue"
EXT_DIR: Final = "consumequeue_ext"
QUEUE_FILE_SIZE: Final = 300_000 * QUEUE_UNIT.itemsize
BATCH_FILE_SIZE: Final = 300_000 * BATCH_UNIT.itemsize


@dataclass(slots=True)
class QueueSet:
    """Queues below a store's root. Directories are listed once, when they are first needed.

    Attributes:
        root: of the store.
        file_size: of 20-byte units; `batch_file_size`: of 46-byte ones.
        topics: topics that the broker knows; None where its table is missing or unreadable.
        removed: topics that a LedgerMQ broker removed, with the log offset of the removal: earlier records belong to
            the removed topic.
    """

    root: Path
    file_size: int
    batch_file_size: int
    topics: frozenset[bytes] | None = None
    removed: Mapping[bytes, int] = field(default_factory=dict)
    _deleted: dict[bytes, bool] = field(default_factory=dict)
    _opened: dict[tuple[QueueName, bool], UnitFiles] = field(default_factory=dict)

    def closed(self) -> "QueueSet":
        """Return the same queues with none of them open."""
        return QueueSet(self.root, self.file_size, self.batch_file_size, self.topics, self.removed)

    def get(self, name: QueueName, *, batch: bool = False) -> UnitFiles:
        """Return the units of a queue, which may have none yet."""
        found = self._opened.get((name, batch))
        if found is None:
            kind, usual = (BATCH_UNIT, self.batch_file_size) if batch else (QUEUE_UNIT, self.file_size)
            found = self._opened[name, batch] = open_units(self.directory(name, batch=batch), kind, usual)
        return found

    def directory(self, name: QueueName, *, batch: bool = False) -> Path:
        """Return the directory of a queue."""
        topic = os.fsdecode(name.topic).replace("/", "_") or "_"
        return self.root / (BATCH_DIR if batch else QUEUE_DIR) / topic / str(name.queue_id)

    def is_deleted(self, topic: bytes) -> bool:
        """Return whether the broker has deleted the topic: it is not in topics.json and has no queue."""
        found = self._deleted.get(topic)
        if found is None:
            folder = os.fsdecode(topic).replace("/", "_") or "_"
            is_there = any((self.root / kind / folder).is_dir() for kind in (QUEUE_DIR, BATCH_DIR))
            found = self._deleted[topic] = self.topics is not None and topic not in self.topics and not is_there
        return found

    def is_batch(self, topic: bytes) -> bool:
        """Return whether the topic's messages are queued by batches."""
        return (self.root / BATCH_DIR / (os.fsdecode(topic).replace("/", "_") or "_")).is_dir()


def open_queues(root: Path, file_size: int = 0) -> QueueSet:
    """Return the queues below `root`. `file_size`: of a queue's file where there is none to measure; 0: the default."""
    size = _usual(root / QUEUE_DIR, QUEUE_UNIT.itemsize, file_size or QUEUE_FILE_SIZE)
    batch_size = _usual(root / BATCH_DIR, BATCH_UNIT.itemsize, BATCH_FILE_SIZE)
    return QueueSet(root, size, batch_size, known_topics(root), removed_topics(root))


def known_topics(root: Path) -> frozenset[bytes] | None:
    """Return the topics of `config/topics.json`; None when there is no such table."""
    try:
        table = loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
    except (OSError, JsonError, KeyError, TypeError):
        return None
    return frozenset(os.fsencode(name) for name in table) if isinstance(table, dict) and table else None


def removed_topics(root: Path) -> dict[bytes, int]:
    """Return the topics that a LedgerMQ broker removed, and the physical offset at which it did; empty if not known."""
    try:
        table = loads((root / "config" / "ledgermqState.json").read_bytes())["removed"]
        return {os.fsencode(name): int(offset) for name, offset in table.items()}
    except (OSError, JsonError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def list_queues(root: Path, kind: str) -> Iterator[QueueName]:
    """Yield the queues that have a directory, sorted; of QUEUE_DIR or BATCH_DIR. Other directories are left out."""
    top = root / kind
    if not top.is_dir():
        return
    for topic in sorted(path for path in top.iterdir() if path.is_dir()):
        ids = [path.name for path in topic.iterdir() if path.is_dir() and path.name.isascii() and path.name.isdigit()]
        for queue_id in sorted(map(int, ids)):
            yield QueueName(os.fsencode(topic.name), queue_id)


def _usual(top: Path, unit_size: int, otherwise: int) -> int:
    """Return the length of most files with whole units, from the first few hundred queues."""
    files = []
    for number, name in enumerate(list_queues(top.parent, top.name)):
        if number >= 256:
            break
        files += offset_files(top / os.fsdecode(name.topic) / str(name.queue_id))[0]
    return usual_length(file for file in files if file.length % unit_size == 0) or otherwise
