"""Segment: one file of the compaction log and the file of its units, which has the same name.

    log    | record | record | record | blank .....|       sealed: a blank fills the file
    units  | unit   | unit   | unit   | end  ......|       sealed: a unit with offset -1

A segment is full when either file is. Units are derived: recovery makes them again from the records.

Source: apache/rocketmq `store/.../kv/CompactionLog.java` (CompactionAppendMessageCallback, TopicPartitionLog, 5.3.3).
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.hashing import tags_code
from ledgermq.message.properties import find_property
from ledgermq.message.record import BLANK, BLANK_MAGIC, BLANK_SIZE_MIN, check_record, dispatch_fields
from store.compaction.sparse_file import SparseFile
from store.compaction.unit import END_UNIT, QUEUE_OFFSET_AT, UNIT_SIZE, Unit, pack_unit, unpack_unit

_LONG = struct.Struct(">q")
_SIZE = struct.Struct(">i")
_UNITS_READ_AT_ONCE = 1000
_BLANK = struct.Struct(">ii")
_PHYSICAL_OFFSET_AT = 28


class Segment:
    """One segment. A sealed one is only read, by any thread; one that is written has one owner.

    Attributes:
        start_offset: offset in the compaction log of the first byte.
        count: units, and records.
        position: bytes of records.
        end_offset: queue offset behind the last record; -1 without one.
        is_sealed: takes no more records.
    """

    __slots__ = ("_log", "_units", "count", "end_offset", "is_sealed", "position", "start_offset")

    def __init__(self, log_path: Path, unit_path: Path, log_bytes: int, unit_bytes: int) -> None:
        self.start_offset = int(log_path.name)
        self.count = 0
        self.position = 0
        self.end_offset = -1
        self.is_sealed = False
        self._log = SparseFile(log_path, log_bytes)
        try:
            self._units = SparseFile(unit_path, unit_bytes)
        except BaseException:
            self._log.close()
            raise

    def __repr__(self) -> str:
        return f"<Segment {self._log.path}: {self.count} records to queue offset {self.end_offset}>"

    @property
    def name(self) -> str:
        """Name of both files."""
        return self._log.path.name

    # ---- writing

    def append(self, record: memoryview, code: int, store_timestamp: int, queue_offset: int) -> bool:
        """Copy a record, its physical offset changed to the one in here; false, and nothing done, when it is full.

        Raises:
            DiskFullError, DiskFailedError: not copied.
        """
        size = len(record)
        if self.is_sealed or not self._has_room(size):
            return False
        copy = bytearray(record)
        _LONG.pack_into(copy, _PHYSICAL_OFFSET_AT, self.start_offset + self.position)
        self._log.write(self.position, copy)
        unit = pack_unit(self.start_offset + self.position, size, code, store_timestamp, queue_offset)
        self._units.write(self.count * UNIT_SIZE, unit)
        self._count_in(size, queue_offset)
        return True

    def seal(self) -> None:
        """Write the end marks of both files, so that the segment takes no more records; errors as `append`."""
        if not self.is_sealed:
            self._units.write(self.count * UNIT_SIZE, END_UNIT)
            self._log.write(self.position, _BLANK.pack(self._log.size_bytes - self.position, BLANK_MAGIC))
            self.is_sealed = True

    def sync(self) -> None:
        """Make it durable.

        Raises:
            DiskFailedError: final for this process.
        """
        self._log.sync()
        self._units.sync()

    # ---- reading

    def index_of(self, queue_offset: int) -> int:
        """Return the number of the first unit at or past a queue offset; `count` when all are before it.

        Raises:
            DiskReadError: a unit cannot be read.
        """
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            self._units.ensure_readable(middle * UNIT_SIZE, (middle + 1) * UNIT_SIZE)
            (found,) = _LONG.unpack_from(self._units.view, middle * UNIT_SIZE + QUEUE_OFFSET_AT)
            if found < queue_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def units(self, index: int = 0) -> Iterator[Unit]:
        """Yield the units from number `index` on.

        Raises:
            DiskReadError: the next one cannot be read.
        """
        view, readable = self._units.view, index
        for number in range(index, self.count):
            if number == readable:
                readable += _UNITS_READ_AT_ONCE
                self._units.ensure_readable(number * UNIT_SIZE, readable * UNIT_SIZE)
            unit = unpack_unit(view, number * UNIT_SIZE)
            if unit is not None:
                yield unit

    def record(self, unit: Unit) -> memoryview:
        """Return the record of a unit of this segment, without a copy.

        Raises:
            DiskReadError: it cannot be read.
        """
        position = unit[0] - self.start_offset
        self._log.ensure_readable(position, position + unit[1])
        return self._log.view[position : position + unit[1]]

    @property
    def first_queue_offset(self) -> int:
        """Queue offset of the first record; -1 without one."""
        return next((unit[4] for unit in self.units()), -1)

    # ---- opening and closing

    def recover(self, *, is_trusted: bool) -> None:
        """Find the end: by the units when they can be trusted and their last one is right, else by the records.

        Raises:
            DiskReadError: a unit or a record cannot be read.
            DiskFullError, DiskFailedError: what does not belong there cannot be cleared.
        """
        if not (is_trusted and self._recover_by_units()):
            self._recover_by_records()

    def move_to(self, log_directory: Path, unit_directory: Path) -> None:
        """Note that the files were moved to these folders."""
        self._log.path = log_directory / self.name
        self._units.path = unit_directory / self._units.path.name

    def close(self) -> None:
        """Close the files for writing; they can still be read."""
        self._log.close()
        self._units.close()

    def _has_room(self, size: int) -> bool:
        is_last_unit = (self.count + 1) * UNIT_SIZE >= self._units.size_bytes  # that place is the end unit's
        return not is_last_unit and self.position + size + BLANK_SIZE_MIN <= self._log.size_bytes

    def _count_in(self, size: int, queue_offset: int) -> None:
        self.position += size
        self.count += 1
        self.end_offset = queue_offset + 1

    def _recover_by_units(self) -> bool:
        count = self._count_units()
        last = self._unit(count - 1) if count else None
        if last is None:
            return False
        start = last[0] - self.start_offset
        if self._record_at(start, last[4] - 1) != last:
            return False
        self.count, self.position, self.end_offset = count, start + last[1], last[4] + 1
        self.is_sealed = self._is_blank_at(self.position)
        return True

    def _unit(self, number: int) -> Unit | None:
        self._units.ensure_readable(number * UNIT_SIZE, (number + 1) * UNIT_SIZE)
        return unpack_unit(self._units.view, number * UNIT_SIZE)

    def _count_units(self) -> int:
        low, high = 0, self._units.size_bytes // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            if self._unit(middle) is not None:
                low = middle + 1
            else:
                high = middle
        return low

    def _recover_by_records(self) -> None:
        self.count = self.position = 0
        self.end_offset = -1
        while (unit := self._record_at(self.position, self.end_offset - 1)) is not None:
            expected = pack_unit(*unit)
            at = self.count * UNIT_SIZE
            self._units.ensure_readable(at, at + UNIT_SIZE)
            if self._units.view[at : at + UNIT_SIZE] != expected:
                self._units.write(at, expected)
            self._count_in(unit[1], unit[4])
        self.is_sealed = self._is_blank_at(self.position)
        if self.is_sealed:
            self._units.write(self.count * UNIT_SIZE, END_UNIT)
        else:
            self._log.clear_from(self.position)
        self._units.clear_from((self.count + self.is_sealed) * UNIT_SIZE)

    def _record_at(self, position: int, behind: int) -> Unit | None:
        """Return the unit of the valid record at a position, with a queue offset above `behind`; None without one."""
        view, limit = self._log.view, self._log.size_bytes
        if 0 <= position <= limit - BLANK_SIZE_MIN:
            self._log.ensure_readable(position, position + BLANK_SIZE_MIN)
            self._log.ensure_readable(position, position + max(_SIZE.unpack_from(view, position)[0], 0))
        try:
            size = check_record(view, position, limit, check_crc=True) if 0 <= position < limit else BLANK
        except CorruptRecordError:
            return None
        if size == BLANK:
            return None
        _, _, _, queue_offset, physical_offset, timestamp, _, properties = dispatch_fields(view, position)
        if physical_offset != self.start_offset + position or queue_offset <= behind:
            return None
        tags = find_property(properties, b"TAGS")
        return physical_offset, size, tags_code(tags) if tags is not None else 0, timestamp, queue_offset

    def _is_blank_at(self, position: int) -> bool:
        room = self._log.size_bytes - position
        self._log.ensure_readable(position, position + BLANK_SIZE_MIN)
        return room >= BLANK_SIZE_MIN and _BLANK.unpack_from(self._log.view, position) == (room, BLANK_MAGIC)
