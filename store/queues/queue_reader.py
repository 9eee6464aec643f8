"""Reading a consume queue: the statuses of a pull, and the records it gets.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (getMessage, 5.3.3).
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ledgermq.message.frames import QUEUE_UNIT
from ledgermq.message.queue_unit import UNIT, UNIT_SIZE
from store.errors import DiskReadError, RecordUnavailableError
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import ConsumeQueue
from store.queues.hinted_filter import HintedFilter, HintedScan
from store.queues.property_rows import ROWS_MIN
from store.queues.tag_codes import TagCodes
from store.replicated_log import ReplicatedLog
from store.time_slice import TimeSlice

TagsFilter = Callable[[int], bool]
RecordFilter = Callable[[memoryview], bool]

FILTER_SLICE_S = 0.002
"""CPU seconds for which one `get` runs a record filter; then it returns what it has found."""

_CLOCK_RECORDS = 4


class GetStatus(enum.StrEnum):
    """Outcome of a `get`, as upstream names it in remarks."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_RESET = "OFFSET_RESET"
    """Never returned by the store; the broker answers a pull with it after a reset of the group."""
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


_FOUND: Final = GetStatus.FOUND  # a member of an enumeration is found slowly
_NO_MATCHED_MESSAGE: Final = GetStatus.NO_MATCHED_MESSAGE
_NEAR_BYTES: Final = 4 << 20
"""Of the log: the disk reads many records of a stretch as long as this in the time of eight that lie far apart."""


@dataclass(slots=True)
class GetResult:
    """Records of one queue, encoded as in the log.

    Attributes:
        next_offset: queue offset to ask for next.
        min_offset, max_offset: bounds of the queue, units.
        records: views of the mapping, one for each of `count` records; in a joined result fewer.
        size_bytes: of all records.
        joined: records that share a view with the one before them.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview]
    size_bytes: int = 0
    joined: int = 0

    @property
    def count(self) -> int:
        """Return the number of records."""
        return len(self.records) + self.joined

    def only(self, matches: RecordFilter) -> "GetResult":
        """Return the result with only those records that match."""
        if self.status is not _FOUND:
            return self
        kept = [record for record in self.records if matches(record)]
        status = _FOUND if kept else _NO_MATCHED_MESSAGE
        return GetResult(status, self.next_offset, self.min_offset, self.max_offset, kept, sum(map(len, kept)))


def read_queue(
    log: ReplicatedLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_count: int,
    max_bytes: int,
    accepts: TagsFilter | None,
    cold: ColdLimits,
    matches: RecordFilter | None = None,
    *,
    joins: bool = False,
) -> GetResult:
    """Return records of `queue` from `offset` on: at most `max_count` and `max_bytes`, but always one if there is one.

    `accepts` filters by a unit's tags code, `matches` by the record; with `matches` the read ends after about
    `FILTER_SLICE_S`, but looks at some records in any case. With `joins`, the read is for a bulk pull: records
    that follow each other in the log may share a view, and from the disk come all that fit into its limit of bytes and
    lie near the first one, if there is no filter.

    Raises:
        DiskReadError: the disk cannot read the first record.
    """
    if queue is None:
        return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
    status, next_offset = _status_of(queue, offset)
    result = GetResult(status, next_offset, queue.smallest_offset, queue.max_offset, [])
    if status is not _FOUND:
        return result
    scan_count = max(cold.scan_units, max_count)
    if type(queue) is not ConsumeQueue:
        near_bytes = _NEAR_BYTES if joins and accepts is None and matches is None else 0
        _collect_of_kind(log, queue, offset, scan_count, (max_count, max_bytes), accepts, cold, near_bytes, result)
        return result.only(matches) if matches is not None else result
    units = queue.units(offset, scan_count)
    if not units:
        result.status = GetStatus.OFFSET_FOUND_NULL
        result.next_offset = queue.file_end(offset)
        return result
    if UNIT.unpack_from(units)[0] < log.max_offset - cold.memory_bytes:
        near = _count_near(units) if joins and accepts is None and matches is None else 0
        max_count = min(max_count, max(cold.count_max, near))
        max_bytes = min(max_bytes, cold.bytes_max)
    if accepts is None and matches is None:
        if not (joins and _collect_joined(log, units, max_count, max_bytes, result)):
            _collect(log, units, max_count, max_bytes, result)
    else:
        _collect_wanted(log, units, max_count, max_bytes, accepts, matches, result)
    return result


def _count_near(units: memoryview) -> int:
    """Return how many records lie near the first one."""
    places = np.frombuffer(units, QUEUE_UNIT)["physical"]
    return int(np.searchsorted(places, places[0] + _NEAR_BYTES))


def _status_of(queue: ConsumeQueue, offset: int) -> tuple[GetStatus, int]:
    """Return FOUND if the queue has units at `offset`, else why not; and the next offset to ask for."""
    max_offset = queue.max_offset
    if queue.min_offset <= offset < max_offset:
        return _FOUND, offset
    if max_offset == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < queue.min_offset:
        return GetStatus.OFFSET_TOO_SMALL, queue.min_offset
    if offset == max_offset:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset
    return GetStatus.OFFSET_OVERFLOW_BADLY, max_offset


def _collect(log: ReplicatedLog, units: memoryview, max_count: int, max_bytes: int, result: GetResult) -> None:
    """Collect records without a filter."""
    read = log.reader()
    records = result.records
    status = _NO_MATCHED_MESSAGE
    total = 0
    offset = result.next_offset
    for physical_offset, size, _ in UNIT.iter_unpack(units):
        if records and (len(records) >= max_count or total + size > max_bytes):
            break
        offset += 1
        try:
            records.append(read(physical_offset, size))
        except RecordUnavailableError:
            status = GetStatus.MESSAGE_WAS_REMOVING
        except DiskReadError:
            if not records:
                raise
            offset -= 1  # the next answer says what it is about
            break
        else:
            total += size
    result.status = _FOUND if records else status
    result.next_offset = offset
    result.size_bytes = total


def _collect_joined(log: ReplicatedLog, units: memoryview, max_count: int, max_bytes: int, result: GetResult) -> bool:
    """Collect records without a filter, in one view where they follow each other; False if one cannot be read."""
    table = np.frombuffer(units, QUEUE_UNIT)
    ends = np.cumsum(table["size"], dtype=np.int64)
    count = max(min(int(np.searchsorted(ends, max_bytes, "right")), max_count), 1)
    at, begins, end = table["physical"][:count], np.append(0, ends[: count - 1]), int(ends[count - 1])
    firsts = np.append(0, np.flatnonzero(np.diff(at - begins)) + 1)
    try:
        records = list(map(log.reader(), at[firsts].tolist(), np.diff(begins[firsts], append=end).tolist()))
    except (RecordUnavailableError, DiskReadError):
        return False
    result.status, result.records, result.joined = _FOUND, records, count - len(records)
    result.next_offset += count
    result.size_bytes = end
    return True


def _collect_wanted(
    log: ReplicatedLog,
    units: memoryview,
    max_count: int,
    max_bytes: int,
    accepts: TagsFilter | None,
    matches: RecordFilter | None,
    result: GetResult,
) -> None:
    """Collect the records that pass the filters."""
    read, unpack = log.reader(), UNIT.unpack_from
    records = result.records
    start, total, status = result.next_offset, 0, _NO_MATCHED_MESSAGE
    count = len(units) // UNIT_SIZE
    end = count  # units looked at
    time_slice = None if matches is None else TimeSlice(FILTER_SLICE_S)
    scan, asked = None, 0
    numbers: Iterable[int] = range(count)
    if type(accepts) is TagCodes:
        numbers = accepts.candidates(units)
    elif type(matches) is HintedFilter and time_slice is not None and count >= ROWS_MIN:
        numbers = scan = HintedScan(log.span, units, matches, time_slice, lambda: max_count - len(records))
    for number in numbers:
        physical_offset, size, tags_code = unpack(units, number * UNIT_SIZE)
        if records and (len(records) >= max_count or total + size > max_bytes):
            end = number
            break
        if accepts is not None and not accepts(tags_code):
            continue
        try:
            record = read(physical_offset, size)
        except RecordUnavailableError:
            status = GetStatus.MESSAGE_WAS_REMOVING
            continue
        except DiskReadError:
            if not records:
                raise
            end = number
            break
        if matches is None or matches(record):
            records.append(record)
            total += size
        asked += 1
        if time_slice is not None and asked % _CLOCK_RECORDS == 0 and time_slice.is_over():
            end = number + 1
            break
    else:
        end = count if scan is None else scan.end
    result.status = _FOUND if records else status
    result.next_offset = start + end
    result.size_bytes = total


def _collect_of_kind(
    log: ReplicatedLog,
    queue: ConsumeQueue,
    offset: int,
    scan_count: int,
    limits: tuple[int, int],
    accepts: TagsFilter | None,
    cold: ColdLimits,
    near_bytes: int,
    result: GetResult,
) -> None:
    """Collect records of a batch queue or a queue with an extension; of those on the disk all that are near."""
    max_count, max_bytes = limits
    status, messages, near_end = _NO_MATCHED_MESSAGE, 0, -1
    for start, end, unit in queue.records_from(offset, scan_count):
        if near_end < 0:
            is_cold = unit[0] < log.max_offset - cold.memory_bytes
            max_bytes = min(max_bytes, cold.bytes_max) if is_cold else max_bytes
            near_end = unit[0] + near_bytes if is_cold else log.max_offset
        if unit[0] >= near_end:
            max_count = min(max_count, cold.count_max)
        if result.records and (messages + end - start > max_count or result.size_bytes + unit[1] > max_bytes):
            break
        result.next_offset = end
        code = queue.tags_code(unit)
        if accepts is not None and code is not None and not accepts(code):
            continue
        try:
            result.records.append(log.read(*unit[:2]))
        except RecordUnavailableError:
            status = GetStatus.MESSAGE_WAS_REMOVING
        except DiskReadError:
            if not result.records:
                raise
            result.next_offset = start
            break
        else:
            result.size_bytes += unit[1]
            messages += end - start
    result.status = _FOUND if result.records else status
