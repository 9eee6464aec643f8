"""Saves the timer index and the counts of open transactions, periodically and in a thread.

Files of the timer log whose units all point before the start of the commit log are deleted.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from store.errors import StoreError
from store.message_store import MessageStore
from store.timer.metrics import TopicCounts, write_counts
from store.timer.placing import TimerIndexConfig
from store.timer.timer_index import TimerIndex

log = logging.getLogger(__name__)

CLEAN_SECONDS: Final = 30.0


def open_index(config: BrokerConfig, clock_ms: Callable[[], int]) -> TimerIndex:
    """Open and recover the timer index of a broker's directory.

    Raises:
        StoreFormatError: its files cannot be read.
        DiskFullError, DiskFailedError: the disk refused.
    """
    index = TimerIndex(
        TimerIndexConfig(
            root=config.store.folders.root,
            precision_ms=config.timer_precision_ms,
            roll_window_slots=config.timer_roll_window_slots,
            log_file_size_bytes=config.timer_log_file_size_bytes,
        ),
        clock_ms,
    )
    index.load()
    return index


def open_counts(config: BrokerConfig, clock_ms: Callable[[], int]) -> TopicCounts:
    """Return the number of open transactions by topic, as last saved."""
    counts = TopicCounts("transactionCount", clock_ms)
    counts.load(_counts_path(config))
    return counts


class DeliveryFiles:
    """Saves the index and the counts.

    Attributes:
        failures: saves that the disk refused. Nothing is lost by them, since the log has everything. At most one in
            ten seconds is logged.
    """

    def __init__(self, config: BrokerConfig, index: TimerIndex, counts: TopicCounts, store: MessageStore) -> None:
        self._path = _counts_path(config)
        self._index = index
        self._counts = counts
        self._saved_counts = counts.version
        self._store = store
        self._durable_read_ms = index.read_ms
        self._noted = (index.read_ms, 0)  # a read time, and the log offset that must be durable before it is saved
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-timers")
        self._flushing: asyncio.Future[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self.failures = 0
        self._refusals = RateLimitedLog(log)

    def flush_index(self) -> None:
        """Begin to flush the index, unless a flush is running."""
        if self._flushing is None:
            if self._store.log.flushed_offset >= self._noted[1]:
                self._durable_read_ms = self._noted[0]
                self._noted = (self._index.read_ms, self._store.log.max_offset)
            loop = asyncio.get_running_loop()
            self._flushing = loop.run_in_executor(self._executor, self._index.prepare_flush(self._durable_read_ms))
            self._flushing.add_done_callback(self._flushed)

    def wait(self) -> None:
        """Block until no thread writes the index. Later deliveries are saved when the log is durable up to them."""
        self._executor.submit(lambda: None).result()
        self._durable_read_ms, self._noted = 0, (0, 0)

    def save_counts(self) -> None:
        """Begin to save the counts of transactions if they have changed, unless a save is running."""
        if self._saving is None and self._counts.version != self._saved_counts:
            self._saved_counts = self._counts.version
            loop = asyncio.get_running_loop()
            self._saving = loop.run_in_executor(None, write_counts, self._path, self._counts.encode())
            self._saving.add_done_callback(self._saved)

    def clean(self) -> None:
        """Delete files of the timer log whose records the commit log has dropped; does nothing during a flush."""
        if self._flushing is not None:
            return  # the thread of the flush uses their descriptors
        try:
            self._index.forget_before(self._store.log.min_offset)
        except StoreError as error:
            log.error("old files of the timer log cannot be deleted: %s", error)

    async def close(self) -> None:
        """Wait for running saves, then save the counts."""
        under_way = [future for future in (self._flushing, self._saving) if future is not None]
        if under_way:
            await asyncio.wait(under_way)
        if self._counts.version != self._saved_counts:
            try:
                await asyncio.to_thread(write_counts, self._path, self._counts.encode())
            except StoreError as error:
                log.error("counts of transactions cannot be saved: %s", error)
        self._executor.shutdown()

    def _flushed(self, future: asyncio.Future[None]) -> None:
        self._flushing = None
        self._note(future)

    def _saved(self, future: asyncio.Future[None]) -> None:
        self._saving = None
        self._note(future)

    def _note(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self.failures += 1
            self._refusals.warning("files of timers or transactions cannot be saved, but are in the log: %s", error)


def _counts_path(config: BrokerConfig) -> Path:
    return config.store.folders.tables / "transactionMetrics"
