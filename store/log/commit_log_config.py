"""How a commit log is kept: RocketMQ's settings, by their meaning. Times are milliseconds, sizes bytes."""

from dataclasses import dataclass
from pathlib import Path

from store.files.mapping_limit import MAPPED_COUNT_MAX
from store.log.flusher import FlushMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig:
    """A classic log.

    Attributes:
        directory: made when missing.
        store_host: this broker's address as records hold it: 8 or 20 bytes.
        stamps_crc: append a sum over the whole record to its properties.
        flush_interval_ms: between syncs with ASYNC_FLUSH, if the threshold is reached.
        flush_least_pages: the threshold: pages of 4096 bytes; 0: any byte.
        flush_thorough_interval_ms: after this any byte is synced.
        flush_timed: sync at the interval only; otherwise also when something was placed (`flush_wakes`) or committed.
        sync_flush_timeout_ms: after this a batch is refused with FLUSH_TIMEOUT; it stays in the log.
        pool_count: buffers of the transient pool, each of a file's size; 0: records are written to their file directly.
        pool_refuses: when no buffer is left, refuse rather than write directly.
        commit_wakes: commit at the end of each turn; otherwise at `commit_interval_ms` only, by the threshold
            `commit_least_pages` and `commit_thorough_interval_ms`, and senders wait for it.
        warms_up: touch, and lock, new files beforehand.
        warm_up_flush_pages: with SYNC_FLUSH, sync each so many pages meanwhile.
        mapped_count_max: files mapped at once.
        reads_ahead: let the system read ahead.
        forced_delete_after_ms: how long readers keep the blocks of a deleted file.
    """

    directory: Path
    store_host: bytes
    file_size_bytes: int = 1 << 30
    stamps_crc: bool = False
    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    flush_timed: bool = True
    flush_wakes: bool = False
    sync_flush_timeout_ms: int = 5000
    pool_count: int = 0
    pool_refuses: bool = False
    commit_wakes: bool = True
    commit_interval_ms: int = 200
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200
    warms_up: bool = False
    warm_up_flush_pages: int = 4096
    mapped_count_max: int = MAPPED_COUNT_MAX
    reads_ahead: bool = True
    forced_delete_after_ms: int = 120_000
