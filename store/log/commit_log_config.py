"""How a commit log is kept: RocketMQ's settings, by their meaning. Times are milliseconds, sizes bytes."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ledgermq.remoting.config_key import BOOL, NOT_NEGATIVE, POSITIVE, STORE, key, member_of
from store.files.disk import require_first_file
from store.files.mapping_limit import MAPPED_COUNT_MAX
from store.log.flusher import FlushMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLogConfig:
    """Settings of a classic log. `flush_mode`, `flush_interval_ms` and `file_size_bytes` hold for a Raft log, too.

    Attributes:
        directory: made when missing.
        store_host: this broker's address as records hold it: 8 or 20 bytes.
    """

    ORIGIN: ClassVar[str] = STORE

    directory: Path = Path("commitlog")
    store_host: bytes = bytes(8)
    file_size_bytes: int = key("mappedFileSizeCommitLog", POSITIVE, 1 << 30, "Bytes of a file of the log.")
    flush_mode: FlushMode = key(
        "flushDiskType",
        member_of(FlushMode),
        FlushMode.ASYNC,
        "Whether an acknowledgement waits for the disk.",
        shown="<SYNC_FLUSH in Raft mode, else ASYNC_FLUSH>",
        upstream="ASYNC_FLUSH",
        note="In Raft mode an entry counts for the quorum on a node when it is durable by this rule.",
    )
    flush_interval_ms: int = key(
        "flushIntervalCommitLog", POSITIVE, 500, "Time in ms between two flushes of the log with ASYNC_FLUSH."
    )
    flush_least_pages: int = key(
        "flushCommitLogLeastPages",
        NOT_NEGATIVE,
        4,
        "Fewest pages worth a flush with ASYNC_FLUSH.",
        note="Of the standalone log; a Raft log with ASYNC_FLUSH flushes whatever waits.",
    )
    flush_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval",
        NOT_NEGATIVE,
        10_000,
        "Time in ms after which the log is flushed whatever waits.",
    )
    flush_timed: bool = key(
        "flushCommitLogTimed",
        BOOL,
        True,
        "Flush at fixed times rather than when enough waits.",
        note="false also flushes when records were committed, or placed (wakeFlushWhenPutMessage).",
    )
    flush_wakes: bool = key("wakeFlushWhenPutMessage", BOOL, False, "Wake the flushing thread at each append.")
    sync_flush_timeout_ms: int = key(
        "syncFlushTimeout", POSITIVE, 5000, "Time in ms a batch may wait for the disk before its senders get code 10."
    )
    stamps_crc: bool = key(
        "enabledAppendPropCRC",
        BOOL,
        False,
        "Add a sum over the whole record to its properties.",
        note="Of the standalone log; properties that would become too long get none.",
    )
    transient_pool: bool = key(
        "transientStorePoolEnable",
        BOOL,
        False,
        "Write into a pool of buffers first.",
        note="Standalone only. Messages are acknowledged when committed; RocketMQ answers before.",
    )
    pool_count: int = key("transientStorePoolSize", POSITIVE, 5, "Buffers of the pool.")
    pool_refuses: bool = key(
        "fastFailIfNoBufferInStorePool", BOOL, False, "Refuse sends when the pool of write buffers is empty."
    )
    commit_wakes: bool = key(
        "wakeCommitWhenPutMessage",
        BOOL,
        True,
        "Wake the copying of write buffers at each append.",
        note="true commits at the end of each turn; false by interval and pages.",
    )
    commit_interval_ms: int = key(
        "commitIntervalCommitLog", POSITIVE, 200, "Time in ms between two copies from the pool of write buffers."
    )
    commit_least_pages: int = key(
        "commitCommitLogLeastPages", NOT_NEGATIVE, 4, "Fewest pages copied at once from the pool of write buffers."
    )
    commit_thorough_interval_ms: int = key(
        "commitCommitLogThoroughInterval",
        NOT_NEGATIVE,
        200,
        "Time in ms after which the pool's buffers are copied whatever they hold.",
    )
    warms_up: bool = key(
        "warmMapedFileEnable",
        BOOL,
        False,
        "Touch every page of a new file beforehand.",
        note="Of the standalone log: zeros are written, flushed with SYNC_FLUSH, and the pages locked.",
    )
    warm_up_flush_pages: int = key(
        "flushLeastPagesWhenWarmMapedFile", NOT_NEGATIVE, 4096, "Pages after which a file being warmed is flushed."
    )
    mapped_file_swap: bool = key("mappedFileSwapEnable", BOOL, True, "Swap old mappings out.")
    mapped_count_max: int = key(
        "commitLogSwapMapReserveFileNum",
        POSITIVE,
        MAPPED_COUNT_MAX,
        "Newest log files whose mappings are not swapped.",
        note="Most files of the log mapped at once; others are mapped when read.",
    )
    reads_ahead: bool = key(
        "dataReadAheadEnable",
        BOOL,
        True,
        "Let the system read ahead in the log's files.",
        note="Of the standalone log.",
    )
    forced_delete_after_ms: int = key(
        "destroyMapedFileIntervalForcibly",
        NOT_NEGATIVE,
        120_000,
        "Time in ms after which a file in use is deleted anyway.",
        note="A file goes at once; readers keep its bytes as long, then they are freed.",
    )

    def require_first_file(self, advice: str) -> None:
        """See `store.files.disk.require_first_file`; for a file of this log."""
        require_first_file(self.directory, self.file_size_bytes, advice)

    def why_too_large(self, body_bytes: int) -> str | None:
        """Return why bodies of this many bytes are too large for the files; None if they are not."""
        if body_bytes * 2 <= self.file_size_bytes:
            return None
        return f"{body_bytes} is too large: a file of {self.file_size_bytes} bytes must hold two such messages"
