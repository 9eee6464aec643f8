"""Consume queue: for one topic and queue id, where each message lies in the log; 20 bytes a message.

    unit     min_offset            max_offset          next_offset
             |==== dispatched =====|--- placed, not ---|
                                       yet confirmed

Unit n lies at byte `20 * n` of the queue, in files of a fixed number of units; the layout of a unit is in
`ledgermq.message.queue_unit`. The queue is derived from the log: recovery cuts what cannot be trusted, and the log
fills it again. A blank unit (size 0x7FFFFFFF) stands where no message is known: in front of a queue that does not
begin at 0 (with offset 0, as in RocketMQ), and in a gap (with the offset of the next known record).

The last units may be in memory only (`store.queues.held_units`).

Source: apache/rocketmq `store/.../ConsumeQueue.java` (5.3.3).
"""

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from ledgermq.message.queue_unit import UNIT, UNIT_SIZE
from store.errors import StoreError
from store.queues.held_units import HELD_MAX, ROOM_AHEAD, HeldUnits
from store.queues.queue_file import QueueFile
from store.queues.queue_files import QueueFiles
from store.queues.queue_mapping import MappedQueues

BLANK_SIZE = 0x7FFFFFFF
_UNMAPPED = bytearray()

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""


class QueueEntry(NamedTuple):
    """Fields of one record that a queue of any kind needs.

    Attributes:
        queue_offset: offset of the record's first message.
        store_timestamp: store time, ms.
        messages: number of messages in the record.
    """

    physical_offset: int
    size: int
    tags_code: int
    queue_offset: int
    store_timestamp: int
    messages: int = 1


class _OftenUsed:
    """What each message needs of its queue, side by side in memory: of 80,000 queues hardly one is in a cache."""

    __slots__ = (
        "_base",
        "_buffer",
        "_held",
        "_held_end",
        "_held_start",
        "_memory",
        "_window_end",
        "is_removed",
        "is_watched",
        "max_offset",
        "next_offset",
        "room_end",
        "topic_bytes",
    )


class ConsumeQueue(_OftenUsed):
    """One queue. Owned by the loop's thread.

    Args:
        topic: UTF-8 text; `topic_bytes` is what records hold.
        queue_id: 0 or more.
        directory: made with the first unit.
        file_units: units of each file.
        mapped: bounds the number of queues with mapped files; None for a queue that stands alone.
        memory: of the queues that may hold units; None: this one must not, since no checkpoint writes them.

    Attributes:
        min_offset: first unit that a reader may ask for.
        max_offset: next unit to dispatch.
        next_offset: next one to assign to a message; at least `max_offset` while this node may write.
        room_end: units below have room, in blocks on disk or in memory; see `reserve`.
        is_removed: the table has dropped the queue with its files.
        is_watched: the store's listeners are told of each dispatched record of this topic.
        is_uncompacted: nothing compacts the queue, as far as is known; kept by the compaction store.
        is_gapped: units were missing when the queue was loaded or filled; it must be filled from the whole log.
        counted_units: units of this queue in `QueueTable.unit_count`; kept by the table.
    """

    __slots__ = (
        "_blocks_end",
        "_files",
        "_flushed_offset",
        "_mapped",
        "counted_units",
        "is_gapped",
        "is_uncompacted",
        "min_offset",
        "queue_id",
        "topic",
    )

    unit_struct: ClassVar[struct.Struct] = UNIT
    unit_size: ClassVar[int] = UNIT_SIZE

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path | str,
        file_units: int,
        mapped: MappedQueues | None = None,
        memory: HeldUnits | None = None,
    ) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.room_end = 0
        self.is_watched = False
        self.is_removed = False
        self.is_uncompacted = False
        self.is_gapped = False
        self.counted_units = 0
        self._files = QueueFiles(directory, file_units, self.unit_size)
        self._flushed_offset = 0
        self._mapped = mapped if mapped is not None else MappedQueues(1)
        self._memory = memory
        self._held: bytearray | None = None  # units as they lie on disk, all of one file, and room for further ones
        self._held_start = 0
        self._held_end = 0  # units below have room there; 0 while none is held
        self._blocks_end = 0  # units below have blocks on disk
        self._buffer: mmap.mmap | bytearray = _UNMAPPED  # the file that holds `[_base, _window_end)`
        self._base = 0
        self._window_end = 0

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    def load(self) -> None:
        """Open what the directory holds; every unit of the files counts until `recover` cuts the tail.

        Raises:
            StoreFormatError: a file with another name or length.
        """
        self.is_gapped = self._files.load()  # derived data: what is behind a hole is made again from the log
        self.min_offset = self._files.start
        self._flushed_offset = self.next_offset = self.max_offset = self._files.end

    def load_known(self, min_offset: int, max_offset: int, changed: int, held: bytes = b"") -> None:
        """As `load` and `recover`, for a queue whose bounds are known; its files are looked at when they are needed.

        `changed` is the time stamp (ns) of its folder, -1 where it is not known; `held` are its last units, which its
        files may not have.
        """
        self._files.load_later(changed)
        self.min_offset = min_offset
        self._flushed_offset = self.max_offset = max_offset - len(held) // self.unit_size
        if held:
            self._hold(held)
        self.next_offset = max_offset

    def held_below(self, end_offset: int) -> bytes:
        """Return the units below `end_offset` that are held in memory."""
        return self._held_units(min(end_offset, self.max_offset))

    def _held_units(self, end: int) -> bytes:
        return b"" if self._held is None else bytes(self._held[: max(end - self._held_start, 0) * self.unit_size])

    @property
    def folder_changed(self) -> int:
        """Return the time stamp (ns) of the queue's folder; 0 while it has no file. May be called in any thread."""
        return self._files.changed

    def put(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> None:
        """Set one unit: the next one, or, when the log is dispatched again, one that may be there already.

        Number 0 behind the queue's last record begins a new life of the topic: what the queue has is dropped.
        An empty queue takes any offset as its first. A unit that leaves a gap shorter than a file is preceded by
        blanks; a longer gap is not filled and the unit not stored. Both set `is_gapped`.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored.
        """
        if queue_offset != self.max_offset or queue_offset >= self._window_end:
            held, memory = self._held, self._memory
            if held is None or memory is None or not queue_offset == self.max_offset < self._held_end:
                self._put_slowly(queue_offset, (physical_offset, size, tags_code))
                return
            UNIT.pack_into(held, (queue_offset - self._held_start) * UNIT_SIZE, physical_offset, size, tags_code)
            memory.count += 1
        else:
            UNIT.pack_into(self._buffer, (queue_offset - self._base) * UNIT_SIZE, physical_offset, size, tags_code)
        self.max_offset = queue_offset + 1

    def extend(self, units: bytes) -> None:
        """Set whole units behind the last one, as they lie on disk: `put` for many, in recovery.

        Raises:
            DiskFullError, DiskFailedError: only the first of them, perhaps, were stored.
        """
        if self._room_to_hold(self.max_offset + len(units) // self.unit_size):
            self._hold(units)
            return
        view = memoryview(units)
        while view:
            self._reserve_blocks(self.max_offset + 1)
            self._open_window(self.max_offset)
            count = min(len(view) // self.unit_size, self._window_end - self.max_offset)
            position, size = (self.max_offset - self._base) * self.unit_size, count * self.unit_size
            self._buffer[position : position + size] = view[:size]
            self.max_offset += count
            view = view[size:]

    def put_entry(self, entry: QueueEntry) -> None:
        """As `put`, for a queue of any kind.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored.
        """
        self.put(*entry[:4])

    def tags_code(self, unit: Unit) -> int | None:
        """Return the tags code of a unit; None when it is not known."""
        return unit[2]

    def reserve(self, end_offset: int) -> None:
        """Make sure that units below `end_offset` can be stored: room is asked for before a message is placed.

        Raises:
            DiskFullError, DiskFailedError: no; what was reserved stays.
        """
        if self.room_end >= end_offset:
            return
        if room_end := self._room_to_hold(end_offset):
            self.room_end = room_end
            self._extend_held()
        else:
            self._reserve_blocks(end_offset)

    def write_held(self) -> None:
        """Write held units, if there are any, to their file, which is made if it is missing.

        Raises:
            DiskFullError, DiskFailedError: the units are still held.
        """
        if self._held is not None:
            if units := self._held_units(self.max_offset):
                file = self._files.find_or_add(self._held_start)
                file.write(self._held_start * self.unit_size - file.start_bytes, units)
            self._drop_held()

    def units(self, offset: int, count: int) -> memoryview:
        """Return up to `count` dispatched units from `offset` on that lie in one file; none outside `[min, max)`."""
        if not self.min_offset <= offset < self.max_offset:
            return memoryview(b"")
        end = self.max_offset
        if self._held is not None:
            end = self._held_start
            if offset >= end:
                return memoryview(self.held_below(offset + count)[(offset - end) * self.unit_size :])
        file = self._files.find(offset)
        if file is None:
            return memoryview(b"")
        if not self._files.is_last(file):
            self._keep_mapped(file)
        if not file.is_mapped:
            self._mapped.add(self)
        base = file.start_bytes // self.unit_size
        end = min(offset + count, end, base + self._files.file_units)
        return file.view[(offset - base) * self.unit_size : (end - base) * self.unit_size]

    def unit(self, offset: int) -> Unit | None:
        """Return one dispatched unit, or None outside `[min_offset, max_offset)`."""
        units = self.units(offset, 1)
        return self.unit_struct.unpack(units) if units else None

    def file_end(self, offset: int) -> int:
        """Return the first unit of the file behind the one that holds unit `offset`."""
        return offset - offset % self._files.file_units + self._files.file_units

    def iterate(self, start: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Yield `(queue_offset, unit)` of the dispatched units of `[start, end)`, across files."""
        while units := self.units(start, max(end - start, 0)):
            for unit in self.unit_struct.iter_unpack(units):
                yield start, unit
                start += 1

    def records_from(self, offset: int, count: int) -> Iterator[tuple[int, int, Unit]]:
        """Yield `(first offset, offset behind, unit)` of up to `count` records, from the one that holds `offset`."""
        for start, unit in self.iterate(offset, min(offset + count, self.max_offset)):
            yield start, start + 1, unit

    def bisect(self, is_before: Callable[[Unit], bool]) -> int:
        """Return the first queue offset whose unit is not before; `max_offset` if all are.

        `is_before` must be true for a prefix of the units, and only for it.
        """
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit is not None and is_before(unit):
                low = middle + 1
            else:
                high = middle
        return low

    def recover(self, end_offset: int, *, scan: bool) -> None:
        """Keep the leading units whose records end at or before physical `end_offset`; clear the rest.

        With `scan` every unit of the last file is checked, since it is not known that the valid units are a prefix.
        """
        self._mapped.add(self)
        self.max_offset = min(self.max_offset, self._files.data_end)  # nothing but zeros behind
        self._skip_zeros()
        last = self.unit(self.max_offset - 1)
        is_whole = last is not None and self._is_good(last, end_offset)
        end = self.max_offset if is_whole else self.bisect(lambda unit: self._is_good(unit, end_offset))
        if scan:
            end = self._scan(end_offset, end)
            self._flushed_offset = self.min_offset
        self._cut(end)

    def _skip_zeros(self) -> None:
        """Lower `max_offset` past the zeros of the last page; a unit has a size, so none ends within them."""
        last = max(self.max_offset - 1, 0)
        file_start = last - last % self._files.file_units
        start = max(last - mmap.PAGESIZE // self.unit_size, file_start, self.min_offset)
        units = bytes(self.units(start, self.max_offset - start)).rstrip(b"\0")
        if units:
            self.max_offset = start + -(-len(units) // self.unit_size)

    def keep_before(self, offset: int) -> None:
        """Drop the units from `offset` on, where a record begins; the next message gets this offset."""
        self._cut(offset)

    def cut_at(self, end_offset: int) -> None:
        """Drop units of records ending behind physical `end_offset`; the next message gets the first of their offsets.

        Durable on return: a crash must not bring back dropped units, whose physical offsets may be used again.

        Raises:
            DiskFailedError: the disk refused.
        """
        end = self.bisect(lambda unit: self._is_good(unit, end_offset))
        self.next_offset = self.max_offset
        if end < self.max_offset:
            self._cut(end)
            self._sync_end()

    def _sync_end(self) -> None:
        self._files.sync_end()

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Raise `min_offset` past leading blanks and units whose records the log has deleted."""
        first = self.unit(self.min_offset)
        if first is not None and first[0] >= log_min_offset and first[:2] != (0, BLANK_SIZE):
            return
        self.min_offset = self.bisect(lambda unit: unit[0] < log_min_offset or unit[:2] == (0, BLANK_SIZE))

    def take_expired(self) -> list[QueueFile]:
        """Remove and return the files below `min_offset`, except the last; the caller deletes them."""
        return self._files.take_before(self.min_offset)

    def clear(self) -> None:
        """Drop all units; the queue is then filled from the log again."""
        self.close()
        self._drop_held()
        self._files.clear()
        self.min_offset = self.max_offset = self.next_offset = self._flushed_offset = 0
        self.room_end = self._blocks_end = 0
        self.is_gapped = False

    def restart(self, offset: int) -> None:
        """Drop all units and continue with `offset`; records below it are not in this node's log.

        Raises:
            DiskFullError, DiskFailedError: the queue is empty and begins at 0.
        """
        self.clear()
        if offset == 0:
            return
        start = offset - offset % self._files.file_units
        self.room_end = self._blocks_end = self.max_offset = self.min_offset = start
        try:
            self._reserve_blocks(offset + 1)
        except StoreError:
            self.clear()
            raise
        self._fill_blanks(offset, 0)
        self.min_offset = self.next_offset = offset
        self._flushed_offset = start

    def take_unflushed(self) -> list[QueueFile]:
        """Return the files with units dispatched since the last call, without held ones; the caller syncs them.

        Without such units it may return the file of the next unit, since after `restart` its name says where the queue
        continues.
        """
        written = self.max_offset if self._held is None else self._held_start
        start, self._flushed_offset = self._flushed_offset, written
        end = max(written, min(self._blocks_end, start + 1))
        return self._files.overlapping(start, end) if start < end else []

    @property
    def smallest_offset(self) -> int:
        """Return the min offset that clients are told, also for an empty queue."""
        return self.min_offset

    def close(self) -> None:
        """Unmap; the next use maps again."""
        self._files.close()
        self._mapped.discard(self)
        self._buffer = _UNMAPPED
        self._window_end = 0

    def _put_slowly(self, queue_offset: int, unit: Unit) -> None:
        """Set a unit beyond the open window, past 0 in an empty queue, behind a gap, or one that is stored already."""
        if queue_offset == self.max_offset and (room_end := self._room_to_hold(queue_offset + 1)):
            self.room_end = max(self.room_end, room_end)
            self._hold(self.unit_struct.pack(*unit))
            return
        if queue_offset < self.max_offset:
            if queue_offset > 0 or not self._begins_anew(unit[0]):
                self._put_again(queue_offset, unit)
                return
            self.clear()
        if queue_offset > self.max_offset == self.min_offset:
            self.restart(queue_offset)
        elif queue_offset > self.max_offset:
            self.is_gapped = True
            if queue_offset - self.max_offset >= self._files.file_units:
                return
        self._reserve_blocks(queue_offset + 1)
        self._fill_blanks(queue_offset, unit[0])
        self._open_window(queue_offset)
        self.unit_struct.pack_into(self._buffer, (queue_offset - self._base) * self.unit_size, *unit)
        self.max_offset = queue_offset + 1

    def _room_to_hold(self, end_offset: int) -> int:
        """Return up to where the queue is given room in memory for units below `end_offset`; 0 if they have none.

        That is some units ahead, as many as are held, while there is plenty: so few messages have to ask for room.
        """
        memory = self._memory
        if memory is None or self._buffer is not _UNMAPPED:
            return 0
        start = self.max_offset if self._held is None else self._held_start
        limit = min(start + HELD_MAX, self.file_end(start))
        if end_offset > limit or (end_offset > self._end_of_given() and not memory.may_take()):
            return 0
        return end_offset if memory.is_half_full else min(end_offset + max(ROOM_AHEAD, end_offset - start), limit)

    def _end_of_given(self) -> int:
        """Return the end of the room in memory that the queue was given; 0 if it has no more than on disk."""
        return self.room_end if self._blocks_end < self.room_end else 0

    def _hold(self, units: bytes) -> None:
        """Hold whole units behind the last one."""
        held, memory = self._extend_held(), self._memory
        assert memory is not None, f"{self} must not hold units"
        count, position = len(units) // self.unit_size, (self.max_offset - self._held_start) * self.unit_size
        held[position : position + len(units)] = units
        memory.count += count
        self.max_offset += count

    def _extend_held(self) -> bytearray:
        """Make all the room in memory that the queue was given."""
        held, memory = self._held, self._memory
        if held is None:
            assert memory is not None, f"{self} must not hold units"
            held = self._held = bytearray()
            self._held_start = self.max_offset
            memory.queues[self] = None
        self._held_end = self._end_of_given()
        held.extend(bytes(max((self._held_end - self._held_start) * self.unit_size - len(held), 0)))
        return held

    def _drop_held(self, keep: int = 0) -> None:
        """Hold only the first `keep` units."""
        if self._held is None or self._memory is None:
            return
        self._held_end = 0
        self._memory.count -= max(self.max_offset - self._held_start - keep, 0)
        del self._held[keep * self.unit_size :]
        if not self._held:
            self._held = None
            del self._memory.queues[self]

    def _reserve_blocks(self, end_offset: int) -> None:
        """Give units below `end_offset`, and those that have room in memory, blocks on disk; move held ones there.

        Raises:
            DiskFullError, DiskFailedError: no; what was reserved and what was held stays.
        """
        held, end_offset = self._held_units(self.max_offset), max(end_offset, self.room_end)
        written = self.max_offset - len(held) // self.unit_size
        while self._blocks_end < end_offset:
            self._window_end = 0  # another file, or more of the present one, comes into it
            file = self._files.find_or_add(max(self._blocks_end, written))
            base = file.start_bytes // self.unit_size
            file.reserve(min(end_offset - base, self._files.file_units) * self.unit_size)
            self._mapped.add(self)
            file.map()  # or fail now, too
            self._blocks_end = base + file.allocated_bytes // self.unit_size
        self.room_end = max(self.room_end, self._blocks_end)
        if self._blocks_end > written:
            self._open_window(written)  # from now on units are stored there
        if held and self._memory is not None:
            position = (written - self._base) * self.unit_size
            self._buffer[position : position + len(held)] = held
            self._memory.note_moved(self)
        self._drop_held()

    def _begins_anew(self, physical_offset: int) -> bool:
        """Return whether unit 0 at this physical offset is of a later topic of the same name than the stored units."""
        last = self.unit(self.max_offset - 1)
        return last is None or last[0] < physical_offset

    def _put_again(self, queue_offset: int, unit: Unit) -> None:
        """Replace a stored unit that differs, when the log is dispatched again."""
        if queue_offset >= self.min_offset and self.unit(queue_offset) != unit:
            if self._held is not None:
                self._reserve_blocks(self.max_offset)
            self._open_window(queue_offset)
            self.unit_struct.pack_into(self._buffer, (queue_offset - self._base) * self.unit_size, *unit)
            self._flushed_offset = min(self._flushed_offset, queue_offset)

    def _fill_blanks(self, end: int, physical_offset: int) -> None:
        blank = UNIT.pack(physical_offset, BLANK_SIZE, 0)
        while self.max_offset < end:
            self._open_window(self.max_offset)
            stop = min(end, self._window_end)
            position = (self.max_offset - self._base) * self.unit_size
            count = stop - self.max_offset
            self._buffer[position : position + count * self.unit_size] = blank * count
            self.max_offset = stop

    def _open_window(self, offset: int) -> None:
        """Point the fast path at the file of a reserved unit."""
        if self._base <= offset < self._window_end:
            return
        file = self._files.find(offset)
        assert file is not None, f"unit {offset} of {self} was not reserved"
        self._keep_mapped(file)
        self._mapped.add(self)
        self._buffer = file.buffer
        self._base = file.start_bytes // self.unit_size
        self._window_end = min(self._blocks_end, self._base + self._files.file_units)

    def _keep_mapped(self, file: QueueFile) -> None:
        if self._files.keep_mapped(file):
            self._window_end = 0  # the fast path may have stood in the one that is unmapped

    def _scan(self, end_offset: int, limit: int) -> int:
        """Return the first invalid unit in the file that holds unit `limit - 1`, or `limit`."""
        start = max(limit - 1 - (limit - 1) % self._files.file_units, self.min_offset)
        for index, unit in enumerate(self.unit_struct.iter_unpack(self.units(start, limit - start))):
            if not self._is_good(unit, end_offset):
                return start + index
        return limit

    def _cut(self, end: int) -> None:
        """Keep `[min_offset, end)` and zero the rest."""
        self._window_end = 0
        if self._held is not None:
            self._drop_held(max(end - self._held_start, 0))
        self._blocks_end = end if self._held is None else self._held_start
        self._files.cut(self._blocks_end)
        self.max_offset = self.next_offset = self.room_end = end
        self.min_offset = min(self.min_offset, end)
        self._flushed_offset = min(self._flushed_offset, end)

    def _is_good(self, unit: Unit, end_offset: int) -> bool:
        physical_offset, size = unit[:2]
        if size == BLANK_SIZE:  # in front of the queue, or in a gap before the record at that offset
            return physical_offset == 0 or physical_offset < end_offset
        return size > 0 and 0 <= physical_offset <= end_offset - size
