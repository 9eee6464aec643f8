"""Compactor: makes fewer segments out of sealed ones, with only the last message of each key.

    1. keys of what is not compacted yet -> queue offset of each key's last message, as far as memory goes
    2. every record, old first: kept when it lies behind the last one looked at in step 1, or when it has a body and
       no later record in the map has its key

Runs in a thread; the interpreter's lock is given up every few dozen records, so that the loop waits a fraction of a
millisecond at most.

Source: apache/rocketmq `store/.../kv/CompactionLog.java` (getOffsetMap, shouldRetainMsg, compaction, 5.3.3). There a
full map is an error that ends each compaction of the queue; here the rest is left for the next one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.message.layout import HEAD_SIZES, INT, SYS_FLAG_AT
from ledgermq.message.properties import find_property
from ledgermq.message.record import dispatch_fields
from store.compaction.config import CompactionConfig
from store.compaction.segment import Segment
from store.compaction.segment_replacement import QueueFolders
from store.compaction.unit import Unit
from store.errors import RecordTooLargeError
from store.files.mapped_file import file_name

_YIELD_RECORDS: Final = 32
_ENTRY_BYTES: Final = 200
"""Bytes that an entry of the map takes besides its key: a place in the table and two objects."""


class CompactionStoppedError(Exception):
    """The store closes, or the topic was removed: the new segments made so far are dropped."""


@dataclass(slots=True)
class LastOffsets:
    """The queue offset of the last message of each key, among records up to `until` (inclusive; -1: none)."""

    by_key: dict[bytes, int]
    until: int

    def keeps(self, queue_offset: int, key: bytes, *, has_body: bool) -> bool:
        """Return whether compaction keeps a record."""
        if queue_offset > self.until:
            return True
        return bool(key) and has_body and queue_offset >= self.by_key.get(key, -1)


@dataclass(frozen=True, slots=True)
class Compacted:
    """New segments, in `QueueFolders.compacting`, durable; `until` as in `LastOffsets`."""

    segments: list[Segment]
    until: int
    kept: int
    dropped: int


def key_of(record: memoryview) -> bytes:
    """Return the property KEYS of a message as one key, blanks included; empty if it has none."""
    key = find_property(dispatch_fields(record, 0)[7], b"KEYS")
    return key if key is not None and key.strip() else b""


def last_offsets(segments: Sequence[Segment], position: int, bytes_max: int, stop: Callable[[], bool]) -> LastOffsets:
    """Return the last queue offset of each key in the records behind queue offset `position`.

    The records end early when their keys take more than `bytes_max`.

    Raises:
        CompactionStoppedError.
    """
    found = LastOffsets({}, -1)
    left = bytes_max
    fresh = [segment for segment in segments if segment.end_offset - 1 > position]
    for unit, record in _walk(fresh, position + 1, stop):
        key = key_of(record)
        if key not in found.by_key:
            left -= len(key) + _ENTRY_BYTES
            if left < 0 and found.by_key:
                break
        found.by_key[key] = found.until = unit[4]
    return found


def compact(
    segments: Sequence[Segment], place: QueueFolders, config: CompactionConfig, position: int, stop: Callable[[], bool]
) -> Compacted:
    """Write what stays of `segments` (sealed, in order) into new ones in `place`, which is empty.

    Args:
        segments: what is compacted.
        place: where the new files go.
        config: their sizes, and the memory for keys.
        position: queue offset up to which (inclusive) they are compacted already; -1 for none.
        stop: asked now and then.

    Raises:
        CompactionStoppedError.
        DiskFullError, DiskFailedError: nothing but `place` was touched.
    """
    offsets = last_offsets(segments, position, config.key_bytes_max, stop)
    made: list[Segment] = []
    kept = dropped = 0
    try:
        for unit, record in _walk(segments, 0, stop):
            has_body = body_length(record) > 0
            if offsets.keeps(unit[4], key_of(record), has_body=has_body):
                _append(made, place, config, unit, record)
                kept += 1
            else:
                dropped += 1
        if made:
            _finish(made[-1])
    finally:
        for segment in made:
            segment.close()
    return Compacted(made, offsets.until, kept, dropped)


def body_length(record: memoryview) -> int:
    """Return the length of the body in bytes."""
    (sys_flag,) = INT.unpack_from(record, SYS_FLAG_AT)
    length: int
    (length,) = INT.unpack_from(record, HEAD_SIZES[(sys_flag >> 4) & 3] - INT.size)
    return length


def _walk(
    segments: Sequence[Segment], first_offset: int, stop: Callable[[], bool]
) -> Iterator[tuple[Unit, memoryview]]:
    count = 0
    for segment in segments:
        for unit in segment.units(segment.index_of(first_offset)):
            count += 1
            if count % _YIELD_RECORDS == 0:
                time.sleep(0)  # gives the loop's thread its turn
                if stop():
                    raise CompactionStoppedError
            yield unit, segment.record(unit)


def _append(made: list[Segment], place: QueueFolders, config: CompactionConfig, unit: Unit, record: memoryview) -> None:
    _, size, code, timestamp, queue_offset = unit
    if made and made[-1].append(record, code, timestamp, queue_offset):
        return
    if made:
        _finish(made[-1])
    name = file_name(len(made) * config.log_file_bytes)
    made.append(Segment(place.log / name, place.units / name, config.log_file_bytes, config.unit_file_bytes))
    if not made[-1].append(record, code, timestamp, queue_offset):
        raise RecordTooLargeError(size, config.log_file_bytes)


def _finish(segment: Segment) -> None:
    segment.seal()
    segment.sync()
