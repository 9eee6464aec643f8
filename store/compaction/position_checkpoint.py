"""`position-checkpoint`: for each queue the queue offset up to which (inclusive) it is compacted.

    {"empty":false,"queueOffsetMap":{"TOPIC_0":1234}}

Nothing is lost with it: without a position all of a queue is looked at again.

Source: apache/rocketmq `store/.../kv/CompactionPositionMgr.java` (5.3.3).
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ledgermq.remoting.codec.java_json import file_json
from store.directory.config_file import read_config, write_config
from store.errors import StoreFormatError

log = logging.getLogger(__name__)

FILE_NAME = "position-checkpoint"


class PositionCheckpoint:
    """The positions of all queues. Any thread may save."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._lock = threading.Lock()
        self._positions: dict[str, int] = {}

    def load(self) -> None:
        """Read the file; a damaged one is logged and counts as missing."""
        try:
            found = read_config(self._path, _positions)
        except StoreFormatError as error:
            log.warning("%s; every compacted queue is compacted from its start", error)
            return
        self._positions = found.value if found is not None else {}

    def get(self, topic: str, queue_id: int) -> int:
        """Return the position of a queue; -1 for none."""
        return self._positions.get(f"{topic}_{queue_id}", -1)

    def set(self, topic: str, queue_id: int, position: int) -> None:
        """Set a position; `save` makes it durable."""
        with self._lock:
            self._positions[f"{topic}_{queue_id}"] = position

    def forget(self, topic: str, queue_id: int) -> None:
        """Drop the position of a queue that was removed."""
        with self._lock:
            self._positions.pop(f"{topic}_{queue_id}", None)

    def save(self) -> None:
        """Write all positions.

        Raises:
            OSError, DiskFailedError: they were not written; the file is unchanged.
        """
        with self._lock:
            content = file_json({"empty": not self._positions, "queueOffsetMap": dict(sorted(self._positions.items()))})
            write_config(self._path, content)


def _positions(value: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(position) for name, position in (value.get("queueOffsetMap") or {}).items()}
