"""`missing-history.ledgermq`: queues of which this node lacks the messages that another one has kept by compaction.

    {"queues":[["TOPIC",0]]}

A queue is in the file from the install that emptied it until its kept messages have arrived and are durable. After a
stop in between, what has arrived is dropped, and all of it is fetched again. Without the file nothing is missing.
"""

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson

from store.directory.config_file import read_config, write_config
from store.files.disk import refusal_of_disk

FILE_NAME = "missing-history.ledgermq"

QueueKey = tuple[str, int]
"""Topic and queue id."""


class MissingHistory:
    """The queues without their kept messages, in memory and on disk.

    Attributes:
        queues: those queues.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._saving = threading.Lock()  # the loop and a thread save: the newest queues are those on disk
        self.queues: frozenset[QueueKey] = frozenset()

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreFormatError: it is damaged, and so is its `.bak`.
        """
        found = read_config(self._path, _queues)
        self.queues = frozenset(found.value) if found is not None else frozenset()

    def replace(self, queues: Collection[QueueKey]) -> None:
        """Set the queues; durable on return.

        Raises:
            DiskFullError, DiskFailedError: they may not be written.
        """
        self.queues = frozenset(queues)
        self.save()

    def save(self) -> None:
        """Write the file; durable on return; errors as `replace`."""
        with self._saving:
            if not self.queues and not self._path.exists():
                return
            content = orjson.dumps({"queues": sorted(self.queues)})
            try:
                write_config(self._path, content)
            except OSError as error:
                raise refusal_of_disk(self._path, len(content), "write", error) from error


def _queues(value: Mapping[str, Any]) -> set[QueueKey]:
    return {(str(topic), int(queue_id)) for topic, queue_id in value["queues"]}
