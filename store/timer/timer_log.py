"""Timer log: one unit of 52 bytes for each message that waits; the units of a slot are chained backwards.

| field | type | at |
|---|---|---|
| size, always 52 | i32 | 0 |
| position of the slot's unit before this one, -1 for none | i64 | 4 |
| magic: bit 0 always, 1 to be rolled on, 2 a deletion | i32 | 12 |
| write time, ms: when it was taken, floored to the precision | i64 | 16 |
| delay, ms: slot time minus write time | i32 | 24 |
| physical offset and size of the record | i64, i32 | 28 |
| Java's hash of the real topic | i32 | 40 |
| reserved, 0 | i64 | 44 |

Big-endian. A file ends with a blank of at least 16 bytes: its size i32, 0 i64, 0xCBD43194 i32.

Source: apache/rocketmq `store/.../timer/TimerLog.java`, `TimerMessageStore.java` (recoverAndRevise), 5.3.3.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import RecordUnavailableError
from store.files.mapped_file_queue import MappedFileQueue

MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
UNIT_SIZE: Final = 52
NO_POSITION: Final = -1

_UNIT = struct.Struct(">iqiqiqiiq")
_BLANK = struct.Struct(">iqI")
_BLANK_MAGIC: Final = 0xCBD43194
_HEAD = struct.Struct(">iqI")
_MAGIC_MAX: Final = 0xF


class TimerUnit(NamedTuple):
    """One unit; see the table above. `slot_ms` is when it is due, floored to the precision."""

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    record_size: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        return self.write_ms + self.delay_ms

    def encode(self) -> bytes:
        """Return the unit's bytes."""
        return _UNIT.pack(UNIT_SIZE, *self, 0)


class TimerLog:
    """The files `timerlog/`.

    Args:
        directory: made when missing.
        file_size: bytes of each file; at least one unit and a blank.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self._queue = MappedFileQueue(directory, file_size)

    def load(self) -> None:
        """Open what is there; `truncate_to` the end that `units_from` has found before anything is appended.

        Raises:
            StoreFormatError: a file with another name or length.
        """
        self._queue.load()

    @property
    def min_position(self) -> int:
        """First byte kept."""
        return self._queue.min_offset

    @property
    def end(self) -> int:
        """Position of the next unit, unless the file is full."""
        return self._queue.max_offset

    @property
    def queue(self) -> MappedFileQueue:
        """The files, for who syncs them."""
        return self._queue

    def append(self, unit: TimerUnit) -> int:
        """Append one unit; return its position.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored.
        """
        file = self._queue.last()
        if file is None or file.size_bytes - file.write_position < UNIT_SIZE + _BLANK.size:
            self._queue.prepare(1)
            if file is not None and file.write_position < file.size_bytes:
                file.write(memoryview(_BLANK.pack(file.size_bytes - file.write_position, 0, _BLANK_MAGIC)))
            file = self._queue.roll()
        file.ensure_allocated()
        position = file.write_position
        file.write(memoryview(unit.encode()))
        return file.start_offset + position

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at `position`, or None when there is none.

        Raises:
            DiskReadError: the disk cannot read it.
        """
        try:
            return _decode(self._queue.slice(position, UNIT_SIZE))
        except RecordUnavailableError:
            return None

    def units_from(self, position: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield `(position, unit)` of every good unit from the one at `position` on, up to the first bad one.

        Raises:
            DiskReadError: the disk cannot read the file behind the last unit that came.
        """
        file = self._queue.file_at(position)
        while file is not None:
            at, readable_end = position - file.start_offset, 0
            while at + UNIT_SIZE <= file.write_position:
                if at + UNIT_SIZE > readable_end:
                    readable_end = file.ensure_window(at, file.write_position, at + UNIT_SIZE)
                unit = _decode(file.view[at : at + UNIT_SIZE])
                if unit is None:
                    if not _is_blank(file.view, at):
                        return
                    break
                yield file.start_offset + at, unit
                at += UNIT_SIZE
            position = file.end_offset
            file = self._queue.file_at(position)

    def newest_first(self) -> Iterator[tuple[int, TimerUnit]]:
        """Yield `(position, unit)` of every unit from the last one back to the first, or to a bad one.

        Raises:
            DiskReadError: the disk cannot read the unit before the last one that came.
        """
        for file in reversed(self._queue.files):
            end = min(file.write_position, file.size_bytes - _BLANK.size) // UNIT_SIZE * UNIT_SIZE
            for at in range(end - UNIT_SIZE, -1, -UNIT_SIZE):
                unit = self.unit(file.start_offset + at)
                if unit is None:
                    return
                yield file.start_offset + at, unit

    def truncate_to(self, end: int) -> None:
        """Drop everything at or past `end`."""
        self._queue.truncate_to(end)

    def delete_before(self, physical_offset: int) -> int:
        """Delete leading files whose last unit's record is before a physical offset; return their number."""
        limit = self.min_position
        for file in self._queue.files[:-1]:
            size = file.size_bytes
            last = self.unit(file.start_offset + (size - _BLANK.size) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE)
            if last is None or last.physical_offset >= physical_offset:
                break
            limit = file.end_offset
        return len(self._queue.delete_before(limit))

    def close(self) -> None:
        """Close the files; syncing them is the owner's."""
        self._queue.close()


def _decode(data: memoryview) -> TimerUnit | None:
    size, *fields, _ = _UNIT.unpack(data)
    if size != UNIT_SIZE or not 0 < fields[1] <= _MAGIC_MAX:
        return None
    return TimerUnit(*fields)


def _is_blank(view: memoryview, at: int) -> bool:
    return at + _HEAD.size <= len(view) and _HEAD.unpack_from(view, at)[2] == _BLANK_MAGIC
