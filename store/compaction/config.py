"""Settings of compaction, with RocketMQ's defaults."""

import os
from dataclasses import dataclass

from store.compaction.unit import UNIT_SIZE

_LOG_FILE_RATIO_MIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """How topics are compacted.

    Attributes:
        log_file_size_bytes: compactionMappedFileSize; see `log_file_bytes`.
        unit_file_size_bytes: compactionCqMappedFileSize; see `unit_file_bytes`.
        interval_ms: compactionScheduleInternal, between two compactions of a queue.
        thread_count: compactionThreadNum; never more than the machine has cores.
        offset_map_bytes: maxOffsetMapSize, memory for keys of all threads together.
        flush_interval_ms: between syncs of what was copied.
    """

    log_file_size_bytes: int = 100 << 20
    unit_file_size_bytes: int = 10 << 20
    interval_ms: int = 15 * 60_000
    thread_count: int = 6
    offset_map_bytes: int = 100 << 20
    flush_interval_ms: int = 10_000

    @property
    def unit_file_bytes(self) -> int:
        """Length of a file of units: whole units."""
        return self.unit_file_size_bytes // UNIT_SIZE * UNIT_SIZE

    @property
    def log_file_bytes(self) -> int:
        """Length of a log file: a multiple of `unit_file_bytes`, five of them at least, as RocketMQ makes it."""
        unit = self.unit_file_bytes
        count, rest = divmod(self.log_file_size_bytes, unit)
        if count < _LOG_FILE_RATIO_MIN:
            return unit * _LOG_FILE_RATIO_MIN
        return count * unit if 0 < rest < unit >> 1 else (count + 1) * unit

    @property
    def workers(self) -> int:
        """Threads."""
        return min(os.cpu_count() or 1, max(1, self.thread_count))

    @property
    def key_bytes_max(self) -> int:
        """Memory for the keys of one compaction."""
        return self.offset_map_bytes // max(1, self.thread_count)
