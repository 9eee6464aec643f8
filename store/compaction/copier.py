"""Copier: brings dispatched messages into the compaction logs, in slices of the loop's time, never ahead of the disk.

on_dispatched -> add -> slice, slice, ... -> full segment? synced in a thread, then on
not durable yet: looked at again soon     the disk is full: again in a second
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from ledgermq.message.errors import CorruptRecordError
from store.compaction.compaction_log import CompactionLog, Copied
from store.compaction.segment import Segment
from store.errors import DiskReadError, RecordUnavailableError, StoreError
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from store.replicated_log import ReplicatedLog
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005
_RETRY_S: Final = 1.0
_DURABLE_RETRY_S: Final = 0.05
_DRAIN_S: Final = 5.0
_KEPT_BYTES_MAX: Final = 64 << 20
_FAULTS: Final = (StoreError, OSError, CorruptRecordError)


class LogClosedError(StoreError):
    """The log is closed and the record was not kept in memory; it is copied when the store is opened again."""


class LastRecords:
    """Records to be copied after their log has closed, when they are durable and the log cannot be read."""

    def __init__(self, source: ReplicatedLog) -> None:
        self._source = source
        self._records: dict[int, bytes] = {}
        self._room = _KEPT_BYTES_MAX

    def keep(self, queue: ConsumeQueue, start: int) -> None:
        """Keep the records of a queue from `start` on, as far as they can be read and there is room."""
        for _, (physical_offset, size, _) in queue.iterate(start, queue.max_offset):
            if size == BLANK_SIZE or physical_offset in self._records or size > self._room:
                continue
            with contextlib.suppress(RecordUnavailableError, DiskReadError):
                self._records[physical_offset] = bytes(self._source.read(physical_offset, size))
                self._room -= size

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`."""
        if (kept := self._records.get(physical_offset)) is not None:
            return memoryview(kept)
        try:
            return self._source.read(physical_offset, size_bytes)
        except RecordUnavailableError as error:
            if physical_offset < self._source.min_offset:
                raise
            raise LogClosedError(str(error)) from error


class Copier:
    """Copies the queues of `add`. Owned by the loop's thread.

    Args:
        source: the log.
        durable_offset: returns the end of the log's durable bytes.
    """

    def __init__(
        self,
        source: ReplicatedLog,
        durable_offset: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self._source = source
        self._durable_offset = durable_offset
        self._loop = loop
        self._executor = executor
        self._to_copy: dict[CompactionLog, ConsumeQueue] = {}
        self._syncing: dict[CompactionLog, asyncio.Task[None]] = {}
        self._last_records: LastRecords | None = None
        self._is_copying = False
        self._is_stopped = False

    def add(self, compaction_log: CompactionLog, queue: ConsumeQueue) -> None:
        """Copy the messages of the queue that are not copied yet, in slices from now on."""
        if self._last_records is not None:
            self._last_records.keep(queue, compaction_log.end_offset)
        self._to_copy[compaction_log] = queue
        self._copy_soon()

    def forget(self, compaction_log: CompactionLog) -> None:
        """Stop copying to a log whose topic was removed."""
        self._to_copy.pop(compaction_log, None)

    def finish(self) -> None:
        """Keep the records that are not copied yet in memory: the log is closed before they can be copied."""
        self._last_records = LastRecords(self._source)
        for compaction_log, queue in self._to_copy.items():
            self._last_records.keep(queue, compaction_log.end_offset)

    async def drain(self) -> None:
        """Copy the last records of the log, which is closed and durable, for at most `_DRAIN_S` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while any(kept.fault is None for kept in (*self._to_copy, *self._syncing)):
                    await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Stop copying; return when running syncs have ended."""
        self._is_stopped = True
        await asyncio.gather(*self._syncing.values())

    def _copy_soon(self, delay_s: float = 0.0) -> None:
        if not self._is_copying and not self._is_stopped:
            self._is_copying = True
            self._loop.call_later(delay_s, self._copy)

    def _copy(self) -> None:
        """Copy for one slice of time, each queue in its turn."""
        self._is_copying = False
        time_slice = TimeSlice(SLICE_S)
        delay_s = _RETRY_S
        for compaction_log, queue in list(self._to_copy.items()):
            delay_s = min(delay_s, self._copy_from(compaction_log, queue, time_slice))
            if time_slice.is_over():
                delay_s = 0.0
                break
        if self._to_copy:
            self._copy_soon(delay_s)

    def _copy_from(self, compaction_log: CompactionLog, queue: ConsumeQueue, time_slice: TimeSlice) -> float:
        """Copy one queue; return the seconds after which to continue, 0 when it is copied: others need not wait."""
        try:
            source = self._last_records or self._source
            copied = compaction_log.copy(queue, source, self._durable_offset(), time_slice)
        except _FAULTS as error:
            if compaction_log.fault is None:
                log.error("%s: messages cannot be copied now: %s", compaction_log, error)
            compaction_log.fault = error
            return _RETRY_S
        compaction_log.fault = None
        if compaction_log.undurable is not None and compaction_log not in self._syncing:
            sync = self._make_durable(compaction_log, queue, compaction_log.undurable)
            self._syncing[compaction_log] = self._loop.create_task(sync)
        if copied in (Copied.ALL, Copied.SEGMENT_NOT_DURABLE):
            del self._to_copy[compaction_log]
        return _DURABLE_RETRY_S if copied is Copied.NOT_DURABLE else 0.0

    async def _make_durable(self, compaction_log: CompactionLog, queue: ConsumeQueue, segment: Segment) -> None:
        """Sync a full segment in a thread; then the next segment may be begun."""
        try:
            await self._loop.run_in_executor(self._executor, segment.sync)
        except StoreError as error:
            compaction_log.fault = error
            log.error("%s: no further segment is begun, since the last one cannot be synced: %s", compaction_log, error)
            return
        segment.close()
        compaction_log.undurable = None
        del self._syncing[compaction_log]
        if not compaction_log.is_dropped:
            self._to_copy[compaction_log] = queue
            self._copy_soon()
