"""Keeps on disk what timers and transactions count: the timer index, and the counts of open transactions.

Every so often, in a thread; the index's timer log loses files that point only before the commit log's beginning.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig
from store.errors import DiskFailedError, StoreError
from store.message_store import MessageStore
from store.timer.metrics import TopicCounts, write_counts
from store.timer.placing import TimerIndexConfig
from store.timer.timer_index import TimerIndex

log = logging.getLogger(__name__)

CLEAN_SECONDS: Final = 30.0


def open_index(config: BrokerConfig, clock_ms: Callable[[], int]) -> TimerIndex:
    """The timer index of a broker's directory, recovered.

    Raises:
        StoreFormatError, DiskFullError, DiskFailedError.
    """
    index = TimerIndex(
        TimerIndexConfig(
            root=config.store.root,
            precision_ms=config.timer_precision_ms,
            roll_window_slots=config.timer_roll_window_slots,
            log_file_size_bytes=config.timer_log_file_size_bytes,
        ),
        clock_ms,
    )
    index.load()
    return index


def open_counts(config: BrokerConfig, clock_ms: Callable[[], int]) -> TopicCounts:
    """Open transactions by topic, as last written."""
    counts = TopicCounts("transactionCount", clock_ms)
    counts.load(_counts_path(config))
    return counts


class DeliveryFiles:
    """Writes them.

    Attributes:
        failures: writes that the disk refused; what is in the log is not lost by that, only found later.
    """

    def __init__(self, config: BrokerConfig, index: TimerIndex, counts: TopicCounts, store: MessageStore) -> None:
        self._path = _counts_path(config)
        self._index = index
        self._counts = counts
        self._saved_counts = counts.version
        self._store = store
        self._durable_read_ms = index.read_ms
        self._noted = (index.read_ms, 0)  # a read time, and up to where the log must be durable before it is told
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledgermq-timers")
        self._flushing: asyncio.Future[None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self.failures = 0

    def flush_index(self) -> None:
        """Begin to make the index durable, unless that is under way."""
        if self._flushing is None:
            if self._store.log.flushed_offset >= self._noted[1]:
                self._durable_read_ms = self._noted[0]
                self._noted = (self._index.read_ms, self._store.log.max_offset)
            loop = asyncio.get_running_loop()
            self._flushing = loop.run_in_executor(self._executor, self._index.prepare_flush(self._durable_read_ms))
            self._flushing.add_done_callback(self._flushed)

    def wait(self) -> None:
        """Wait until no thread writes the index; blocks. What is delivered from now on is told when it is durable."""
        self._executor.submit(lambda: None).result()
        self._durable_read_ms, self._noted = 0, (0, 0)

    def save_counts(self) -> None:
        """Write the counts of transactions when they have changed, unless that is under way."""
        if self._saving is None and self._counts.version != self._saved_counts:
            self._saved_counts = self._counts.version
            loop = asyncio.get_running_loop()
            self._saving = loop.run_in_executor(None, write_counts, self._path, self._counts.encode())
            self._saving.add_done_callback(self._saved)

    def clean(self) -> None:
        """Drop files of the timer log that nothing in the commit log is behind of; not while they are flushed."""
        if self._flushing is not None:
            return  # the flush's thread lets go of their descriptors
        try:
            self._index.forget_before(self._store.log.min_offset)
        except StoreError as error:
            log.error("files of the timer log not deleted: %s", error)

    async def close(self) -> None:
        """Wait for what is under way, and write the counts."""
        under_way = [future for future in (self._flushing, self._saving) if future is not None]
        if under_way:
            await asyncio.wait(under_way)
        if self._counts.version != self._saved_counts:
            try:
                await asyncio.to_thread(write_counts, self._path, self._counts.encode())
            except DiskFailedError as error:
                log.error("counts of transactions not saved: %s", error)
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
            log.error("timers or transactions not saved: %s", error)


def _counts_path(config: BrokerConfig) -> Path:
    return config.store.root / "config" / "transactionMetrics"
