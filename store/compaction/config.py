"""Settings of compaction, with RocketMQ's defaults."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ledgermq.remoting.config_key import BOOL, POSITIVE, STORE, key
from store.compaction.unit import UNIT_SIZE

_LOG_FILE_RATIO_MIN = 5
_UNIT_FILE_MIN = 100 * UNIT_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """How topics are compacted."""

    ORIGIN: ClassVar[str] = STORE

    enable: bool = key(
        "enableCompaction",
        BOOL,
        True,
        "Serve topics that keep only the last message of each key.",
        note="Each member of a Raft group compacts its own copy; only what is on disk is copied.",
    )
    log_file_size_bytes: int = key(
        "compactionMappedFileSize",
        POSITIVE,
        100 << 20,
        "Bytes of a log file of compacted topics.",
        note="Made a multiple of compactionCqMappedFileSize, five times it at least, as upstream.",
    )
    unit_file_size_bytes: int = key(
        "compactionCqMappedFileSize", POSITIVE, 10 << 20, "Bytes of a consume-queue file of compacted topics."
    )
    interval_ms: int = key("compactionScheduleInternal", POSITIVE, 15 * 60_000, "Time in ms between two compactions.")
    thread_count: int = key(
        "compactionThreadNum", POSITIVE, 6, "Threads that compact.", note="At most as many as the machine has cores."
    )
    offset_map_bytes: int = key(
        "maxOffsetMapSize",
        POSITIVE,
        100 << 20,
        "Bytes of the table that compaction works with.",
        note="Of all threads together; keys that find no room are compacted the next time.",
    )
    flush_interval_ms: int = 10_000
    """Between two syncs of what was copied."""

    @property
    def unit_file_bytes(self) -> int:
        """Length of a file of units: whole units."""
        return self.unit_file_size_bytes // UNIT_SIZE * UNIT_SIZE

    @property
    def log_file_bytes(self) -> int:
        """Length of a log file: at least five times `unit_file_bytes`, and a multiple of it, as in RocketMQ."""
        unit = self.unit_file_bytes
        count, rest = divmod(self.log_file_size_bytes, unit)
        if count < _LOG_FILE_RATIO_MIN:
            return unit * _LOG_FILE_RATIO_MIN
        return count * unit if 0 < rest < unit >> 1 else (count + 1) * unit

    @property
    def workers(self) -> int:
        """Number of threads."""
        return min(os.cpu_count() or 1, max(1, self.thread_count))

    @property
    def key_bytes_max(self) -> int:
        """Bytes of memory for the keys of one compaction."""
        return self.offset_map_bytes // max(1, self.thread_count)

    def problems(self, body_bytes_max: int) -> Iterator[tuple[str, str]]:
        """Yield `(key, sentence)` of each relation between values that does not hold."""
        log, unit = self.log_file_size_bytes, self.unit_file_size_bytes
        if body_bytes_max * 2 > log:
            yield "compactionMappedFileSize", f"{log} is too small: it must hold two messages of {body_bytes_max} bytes"
        if unit < _UNIT_FILE_MIN:
            yield "compactionCqMappedFileSize", f"{unit} is below {_UNIT_FILE_MIN}, which is 100 units"
