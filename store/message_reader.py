"""Reading messages: by queue and offset, by physical offset, by time. Bounded by the log's confirm offset throughout.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (getMessage, lookMessageByOffset, getOffsetInQueueByTime,
5.3.3).
"""

import struct
from collections.abc import Callable, Iterator
from typing import Protocol

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import check_record, dispatch_fields
from store.errors import DiskReadError, RecordUnavailableError
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_reader import GetResult, RecordFilter, TagsFilter, read_queue
from store.replicated_log import ReplicatedLog

_SIZE = struct.Struct(">i")


class CompactedQueues(Protocol):
    """Serves queues of compacted topics in place of their own units."""

    def read(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, accepts: TagsFilter | None
    ) -> GetResult | None:
        """See `MessageReader.get`; None if the queue itself is to be read."""

    def first_offset(self, queue: ConsumeQueue) -> int | None:
        """Return the first queue offset that can be read if it is below the queue's own; else None."""


class MessageReader:
    """Reads a log through its queues.

    Attributes:
        log: what is read.
        compacted: serves compacted topics; None where none are compacted.
    """

    def __init__(self, log: ReplicatedLog, cold_limits: ColdLimits) -> None:
        self.log = log
        self.compacted: CompactedQueues | None = None
        self._cold_limits = cold_limits

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        accepts: TagsFilter | None = None,
        matches: RecordFilter | None = None,
        *,
        joins: bool = False,
    ) -> GetResult:
        """Return messages of a queue from queue offset `offset` on.

        `accepts` is asked with the unit's tags code, `matches` with the record. With `joins`, for bulk pulls, see
        `read_queue`.
        """
        if self.compacted is not None and queue is not None:
            result = self.compacted.read(queue, offset, max_count, max_bytes, accepts)
            if result is not None:
                return result.only(matches) if matches is not None else result
        return read_queue(
            self.log, queue, offset, max_count, max_bytes, accepts, self._cold_limits, matches, joins=joins
        )

    def look_up(self, physical_offset: int) -> memoryview | None:
        """Return the confirmed record that starts at `physical_offset`; None if none does."""
        try:
            (size,) = _SIZE.unpack(self.log.read(physical_offset, _SIZE.size))
            record = self.log.read(physical_offset, size)
            is_record = check_record(record, 0, size, check_crc=False) == size
        except (RecordUnavailableError, CorruptRecordError, ValueError):
            return None
        return record if is_record and dispatch_fields(record, 0)[4] == physical_offset else None

    def min_offset(self, queue: ConsumeQueue) -> int:
        """Return the first queue offset that can be read; in a compacted queue it may be older than the log."""
        first = self.compacted.first_offset(queue) if self.compacted is not None else None
        return queue.smallest_offset if first is None else first

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Return the store time (ms) of the message at a queue offset; -1 if it is missing or cannot be read now."""
        unit = queue.unit(offset)
        return self._store_time(unit[0], unit[1]) if unit is not None else -1

    def earliest_store_time(self, queue: ConsumeQueue | None = None) -> int:
        """Return the store time (ms) of the oldest message, of a queue or of the log; -1 without one."""
        if queue is not None:
            return self.store_time(queue, queue.min_offset)
        for physical_offset, record in self.log.walk(self.log.min_offset, self.log.confirm_offset):
            return self._store_time(physical_offset, len(record))
        return -1

    def offset_by_time(self, queue: ConsumeQueue, timestamp: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after `timestamp` (ms), `max_offset` if none is.

        With `upper`: the last one stored at or before it, `min_offset` if none is.
        """
        if not upper:
            return self._bisect_by_time(queue, lambda time: time < timestamp)
        return max(self._bisect_by_time(queue, lambda time: time <= timestamp) - 1, queue.min_offset)

    def _bisect_by_time(self, queue: ConsumeQueue, is_before: Callable[[int], bool]) -> int:
        """Return the first offset whose message was not stored `before`; an unreadable one counts as the next."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            probe = middle = (low + high) // 2
            while probe < high and (time := self.store_time(queue, probe)) < 0:
                probe += 1
            if probe < high and is_before(time):
                low = probe + 1
            else:
                high = middle
        return low

    def records_from(self, queue: ConsumeQueue, physical_offset: int) -> Iterator[tuple[int, memoryview]]:
        """Yield `(physical_offset, record)` of a queue's dispatched messages at or past a physical offset, in order."""
        start = queue.bisect(lambda unit: unit[0] < physical_offset)
        for _, (offset, size, _) in queue.iterate(start, queue.max_offset):
            try:
                yield offset, self.log.read(offset, size)
            except RecordUnavailableError:  # a blank unit
                continue

    def _store_time(self, physical_offset: int, size: int) -> int:
        try:
            return dispatch_fields(self.log.read(physical_offset, size), 0)[5]
        except (RecordUnavailableError, DiskReadError):  # statistics and times need not wait for a copy
            return -1
