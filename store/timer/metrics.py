"""Counts by topic in RocketMQ's shape: the files `config/timermetrics` and `config/transactionMetrics`.

    {"dataVersion": {"counter", "stateVersion", "timestamp"}, "timingCount": {topic: {"count", "timeStamp"}}}

Source: apache/rocketmq `store/.../timer/TimerMetrics.java`, `broker/.../transaction/TransactionMetrics.java` (5.3.3).
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from ledgermq.message.hashing import java_string_hash
from store.directory.config_file import read_config, write_config
from store.errors import DiskFailedError, StoreFormatError

log = logging.getLogger(__name__)


class TopicCounts:
    """How many messages of each topic wait.

    Args:
        member: the table's name in the file: `timingCount` or `transactionCount`.
        clock_ms: wall clock.

    Attributes:
        counts: by topic; a topic without messages stays, with 0, as upstream.
    """

    def __init__(self, member: str, clock_ms: Callable[[], int]) -> None:
        self._member = member
        self._clock_ms = clock_ms
        self._stamps: dict[str, int] = {}
        self._by_hash: dict[int, str] = {}
        self._counter = 0
        self._timestamp = 0
        self.counts: dict[str, int] = {}

    @property
    def version(self) -> int:
        """Number that grows with every change."""
        return self._counter

    @property
    def total(self) -> int:
        """Number of messages that wait, of all topics."""
        return sum(self.counts.values())

    def add(self, topic: str, change: int) -> None:
        """Count `change` more messages of a topic as waiting."""
        if topic not in self.counts:
            self._by_hash[java_string_hash(topic)] = topic
        self.counts[topic] = self.counts.get(topic, 0) + change
        self._timestamp = self._stamps[topic] = self._clock_ms()
        self._counter += 1

    def clear(self) -> None:
        """Drop all counts; the file keeps them until the next save."""
        self.counts, self._stamps, self._by_hash = {}, {}, {}
        self._timestamp = self._clock_ms()
        self._counter += 1

    def add_by_hash(self, topic_hash: int, change: int) -> None:
        """Count as `add` does, for a topic that is known only by its hash; an unknown hash is ignored."""
        topic = self._by_hash.get(topic_hash)
        if topic is not None:
            self.add(topic, change)

    def encode(self) -> bytes:
        """Return the content of the file."""
        table = {topic: {"count": count, "timeStamp": self._stamps[topic]} for topic, count in self.counts.items()}
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": self._timestamp}
        return orjson.dumps({"dataVersion": version, self._member: table})

    def load(self, path: Path) -> None:
        """Load the counts from the file, or else from its `.bak`; if neither can be read, log that and start at 0."""
        try:
            read_config(path, self._take)
        except StoreFormatError as error:
            log.warning("counts by topic start at 0 again: %s", error)

    def _take(self, values: Mapping[str, Any]) -> None:
        version, table = values["dataVersion"], values[self._member]
        counter, timestamp = int(version["counter"]), int(version["timestamp"])
        counts = {str(topic): int(entry["count"]) for topic, entry in table.items()}
        stamps = {str(topic): int(entry["timeStamp"]) for topic, entry in table.items()}
        self._counter, self._timestamp, self.counts, self._stamps = counter, timestamp, counts, stamps
        self._by_hash = {java_string_hash(topic): topic for topic in counts}


def write_counts(path: Path, content: bytes) -> None:
    """Replace the file, the one before becomes `.bak`; for a thread.

    Raises:
        DiskFullError, DiskFailedError: the disk refused.
    """
    try:
        write_config(path, content)
    except OSError as error:
        raise DiskFailedError(path, f"write failed: {error}") from error
