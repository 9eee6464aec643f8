"""Compaction log of one queue: segments that hold its messages in the order of their queue offsets, with gaps.

    queue     |0 1 2 3 4 5 6 7 8 9 10 11|12 13        units of the commit log
    segments  |  1   3|4 6 7|8 9 10 11|               12: `end_offset`, copied next
               compacted     ^ written

A segment is begun only when the ones before the last are durable: after a crash two segments at most are in doubt.

Source: apache/rocketmq `store/.../kv/CompactionLog.java` (asyncPutMessage, getMessage, 5.3.3).
"""

import enum
import logging
import secrets
import threading
from collections.abc import Callable
from typing import Protocol

from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import find_property
from ledgermq.message.record import dispatch_fields
from store.compaction.compactor import Compacted, CompactionStoppedError, compact, key_of
from store.compaction.config import CompactionConfig
from store.compaction.segment import Segment
from store.compaction.segment_replacement import QueueFolders, begin, recover, replace
from store.errors import RecordTooLargeError, RecordUnavailableError, StoreFormatError
from store.files.mapped_file import file_name
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue
from store.queues.queue_reader import GetResult, GetStatus, TagsFilter
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

_SCAN_UNITS = 800
"""Number of units that are looked at for one answer, at least, as in other queues."""


class RecordReader(Protocol):
    """Reads records of the commit log."""

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`."""


class Copied(enum.Enum):
    """How a run of copying ended."""

    ALL = enum.auto()
    OUT_OF_TIME = enum.auto()
    NOT_DURABLE = enum.auto()
    """The next message is not on disk yet, so a crash may remove it from the commit log: it must not be copied."""
    SEGMENT_NOT_DURABLE = enum.auto()
    """A full segment must be synced before the next one is begun: see `undurable`."""


class CompactionLog:
    """The compaction log of one queue. Owned by the loop's thread; `compact_into` runs in another.

    Attributes:
        end_offset: next queue offset to copy.
        durable_offset: the copies of all messages below this queue offset are on disk; at most `end_offset`.
        undurable: a full segment that has to be synced.
        is_dropped: its topic was removed.
        is_compacting: a compaction runs, or has failed for good; `load` finishes it.
        lacks_history: messages that other nodes have kept must be fetched first; until then nothing is copied or read
            here.
        edition: text that changes with each compaction, and differs between processes.
        fault: why copying has stopped; None while it runs.
    """

    def __init__(self, topic: str, queue_id: int, place: QueueFolders, config: CompactionConfig) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.end_offset = self.durable_offset = 0
        self.undurable: Segment | None = None
        self.is_dropped = False
        self.is_compacting = False
        self.lacks_history = False
        self.edition = secrets.token_hex(8)
        self.fault: Exception | None = None
        self._replacing = threading.Lock()
        self._place = place
        self._config = config
        self._segments: list[Segment] = []

    def __repr__(self) -> str:
        return f"<CompactionLog {self.topic}/{self.queue_id}: {len(self._segments)} segments to {self.end_offset}>"

    def load(self, *, clean: bool) -> None:
        """Open the files of the folders, after finishing a replacement that a crash interrupted.

        Raises:
            StoreFormatError: files that are none of a compaction log's, or overlap.
            OSError, StoreError: the disk refuses.
        """
        self._place.make()
        recover(self._place)
        names = self._place.names()
        for number, name in enumerate(names):
            segment = self._open(self._place, name)
            is_trusted = clean or number < len(names) - 2
            segment.recover(is_trusted=is_trusted)
            if not is_trusted:
                segment.sync()  # the process that wrote it may have been killed before it synced it
            if segment.count and segment.first_queue_offset < self.end_offset:
                raise StoreFormatError(
                    self._place.log / name, f"begins before {self.end_offset}, the end of the one before it"
                )
            if number < len(names) - 1:
                segment.is_sealed = True
                segment.close()
            self._segments.append(segment)
            self.end_offset = self.durable_offset = max(self.end_offset, segment.end_offset)

    # ---- copying

    def copy(self, queue: ConsumeQueue, source: RecordReader, durable_offset: int, time_slice: TimeSlice) -> Copied:
        """Copy messages that the queue has and this log does not have.

        Args:
            queue: whose messages these are.
            source: where the records are.
            durable_offset: physical offset in `source` up to which they are on disk.
            time_slice: when to stop; one message is copied at least.

        Raises:
            StoreError: the next message is not copied; a later try may succeed.
        """
        self.end_offset = max(self.end_offset, queue.min_offset)
        for queue_offset, (physical_offset, size, code) in queue.iterate(self.end_offset, queue.max_offset):
            if size != BLANK_SIZE:
                if physical_offset + size > durable_offset:
                    return Copied.NOT_DURABLE
                if not self._copy_one(source, physical_offset, size, code, queue_offset):
                    return Copied.SEGMENT_NOT_DURABLE
            self.end_offset = queue_offset + 1
            if time_slice.is_over():
                return Copied.OUT_OF_TIME
        return Copied.ALL

    def add_kept(self, record: memoryview) -> bool:
        """Add a record that another node has kept; return False, without adding it, while `undurable` has to be synced.

        Raises:
            StoreError: it is not added.
        """
        _, _, _, queue_offset, _, _, _, properties = dispatch_fields(record, 0)
        if queue_offset < self.end_offset:
            raise StoreFormatError(self._place.log, f"another node sent {queue_offset} behind {self.end_offset - 1}")
        tags = find_property(properties, b"TAGS")
        is_added = self._add(record, tags_code(tags) if tags is not None else 0, queue_offset)
        if is_added:
            self.end_offset = queue_offset + 1
        return is_added

    @property
    def unsynced(self) -> list[Segment]:
        """Return the segments that may not be durable, those included that a thread is syncing."""
        return [segment for segment in (self.undurable, *self._segments[-1:]) if segment is not None]

    # ---- reading

    @property
    def first_offset(self) -> int | None:
        """Queue offset of the first message; None without one."""
        return next((segment.first_queue_offset for segment in self._segments if segment.count), None)

    def read(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, accepts: TagsFilter | None
    ) -> GetResult | None:
        """Return messages from `offset`, or the next existing one, on; None if the queue itself has to be read.

        At most `max_count` and `max_bytes`, but the first in any case.
        """
        first = self.first_offset
        if first is None or not 0 <= offset < self.end_offset:
            return None
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, first, max(queue.max_offset, self.end_offset), [])
        result.next_offset = self._collect(result, max_count, max_bytes, accepts)
        return result

    def kept(self, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return joined records from queue offset `offset` on (one, or at most `max_bytes`), and the next offset.

        No records: there are none from `offset` on.
        """
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, 0, 0, [])
        next_offset = self._collect(result, _SCAN_UNITS, max_bytes, None)
        return b"".join(result.records), next_offset

    def _collect(self, result: GetResult, max_count: int, max_bytes: int, accepts: TagsFilter | None) -> int:
        records, left = result.records, max(_SCAN_UNITS, max_count)
        for segment in self._segments:
            if segment.end_offset <= result.next_offset:
                continue
            for unit in segment.units(segment.index_of(result.next_offset)):
                size, queue_offset = unit[1], unit[4]
                is_full = records and (len(records) >= max_count or result.size_bytes + size > max_bytes)
                if is_full or left == 0:
                    return queue_offset
                left -= 1
                if accepts is None or accepts(unit[2]):
                    records.append(segment.record(unit))
                    result.size_bytes += size
                    result.status = GetStatus.FOUND
        return self.end_offset

    # ---- compacting

    def due(self, position: int) -> list[Segment]:
        """Return the full segments if one of them has messages behind queue offset `position`; else none."""
        full = self._segments[:-1]
        return full if any(segment.end_offset - 1 > position for segment in full) else []

    def compact_into(self, segments: list[Segment], position: int, stop: Callable[[], bool]) -> Compacted:
        """Compact `segments`, the first ones of this log, and replace them on disk by the result; runs in a thread.

        Raises:
            CompactionStoppedError: nothing has changed.
            OSError, StoreError: `load` finishes what was begun.
        """
        made = compact(segments, begin(self._place), self._config, position, stop)
        kept_from = int(self._segments[len(segments)].name)
        with self._replacing:
            if stop():
                raise CompactionStoppedError
            replace(self._place, [segment.name for segment in made.segments], kept_from)
        for segment in made.segments:
            segment.move_to(self._place.log, self._place.units)
        return made

    def take_over(self, made: Compacted, count: int) -> None:
        """Use the result in place of the first `count` segments."""
        self._segments[:count] = made.segments
        self.edition = secrets.token_hex(8)

    def drop(self) -> None:
        """Note that the topic was removed; its folders will be, and the result of a running compaction is dropped."""
        with self._replacing:
            self.is_dropped = True
        self.close()

    def close(self) -> None:
        """Close the segments for writing."""
        for segment in self._segments:
            segment.close()

    # ---- internals

    def _copy_one(self, source: RecordReader, physical_offset: int, size: int, code: int, queue_offset: int) -> bool:
        try:
            record = source.read(physical_offset, size)
        except RecordUnavailableError:  # the log deleted it before it was copied
            return True
        if not key_of(record):
            log.warning("%s/%d: message %d has no key and is not kept", self.topic, self.queue_id, queue_offset)
            return True
        return self._add(record, code, queue_offset)

    def _add(self, record: memoryview, code: int, queue_offset: int) -> bool:
        size = len(record)
        timestamp = dispatch_fields(record, 0)[5]
        segment = self._segments[-1] if self._segments else self._begin()
        if not segment.append(record, code, timestamp, queue_offset):
            if self.undurable is not None:
                return False
            segment.seal()
            self.undurable = segment
            segment = self._begin()
            if not segment.append(record, code, timestamp, queue_offset):
                raise RecordTooLargeError(size, self._config.log_file_bytes)
        return True

    def _begin(self) -> Segment:
        if self._segments and self._segments[-1].count == 0:
            return self._segments[-1]
        start = int(self._segments[-1].name) + self._config.log_file_bytes if self._segments else 0
        self._segments.append(self._open(self._place, file_name(start)))
        return self._segments[-1]

    def _open(self, place: QueueFolders, name: str) -> Segment:
        config = self._config
        return Segment(place.log / name, place.units / name, config.log_file_bytes, config.unit_file_bytes)
