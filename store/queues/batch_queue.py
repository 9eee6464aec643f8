"""Batch consume queue: for topics with the attribute queue.type=BatchCQ, whose records hold one or more messages each.

    slot      0            1                  2
              | 0..0, 1 of |  1..2, 2 of them | 3..5, 3 of them | ...       units of 46 bytes, by record
    offsets     0             1  2               3  4  5

A queue offset is found by binary search over the first offsets of the slots. A queue that begins past 0 and is empty
has a blank slot (physical offset 0, size 0x7FFFFFFF) of one message before its beginning.

Source: apache/rocketmq `store/queue/BatchConsumeQueue.java` (5.3.3).
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from ledgermq.message.batch_unit import BATCH_UNIT, BATCH_UNIT_SIZE, NOT_COMPACTED
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, QueueEntry, Unit
from store.queues.queue_file import QueueFile
from store.queues.queue_mapping import MappedQueues

Slot = tuple[int, int, int, int, int, int, int, int]
"""The fields of `ledgermq.message.batch_unit`, in order."""

_BASE, _COUNT = 4, 5


class _Slots(ConsumeQueue):
    """The units by number, one for each record: their files, room and recovery."""

    __slots__ = ()

    unit_struct: ClassVar[struct.Struct] = BATCH_UNIT
    unit_size: ClassVar[int] = BATCH_UNIT_SIZE

    def put_slot(self, number: int, slot: Slot) -> None:
        """Set a unit: the next one or a stored one."""
        self._put_slowly(number, slot)  # type: ignore[arg-type]

    def slot(self, number: int) -> Slot:
        """Return a stored unit."""
        return BATCH_UNIT.unpack(self.units(number, 1))

    def _is_good(self, unit: Unit, end_offset: int) -> bool:
        return super()._is_good(unit, end_offset) and unit[_BASE] >= 0 and unit[_COUNT] > 0


class BatchQueue(ConsumeQueue):
    """One batch queue, with the interface of `ConsumeQueue`. Its offsets count messages, not units."""

    __slots__ = ("_slots",)

    def __init__(
        self, topic: str, queue_id: int, directory: Path | str, file_units: int, mapped: MappedQueues | None = None
    ) -> None:
        super().__init__(topic, queue_id, directory, file_units, mapped)
        self._slots = _Slots(topic, queue_id, directory, file_units, mapped)

    def load(self) -> None:
        """Open what the directory holds; errors as `ConsumeQueue.load`."""
        self._slots.load()
        self._take_bounds()
        self.next_offset = self.max_offset

    def put(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> None:
        """Set the unit of a record with one message and an unknown store time; see `put_entry`."""
        self.put_entry(QueueEntry(physical_offset, size, tags_code, queue_offset, 0))

    def put_entry(self, entry: QueueEntry) -> None:
        """Set one unit: the next one, or, when the log is dispatched again, one that may be there already.

        Raises:
            DiskFullError, DiskFailedError: nothing was stored.
        """
        slots, offset = self._slots, entry.queue_offset
        slot = (*entry[:3], entry.store_timestamp, offset, entry.messages, NOT_COMPACTED, 0)
        if offset == 0 < self.max_offset and self._begins_anew(entry.physical_offset):
            self.clear()
        if offset >= self.max_offset:
            self.is_gapped = self.is_gapped or (offset > self.max_offset > self.min_offset)
            slots.put_slot(slots.max_offset, slot)
            if slots.max_offset - slots.min_offset == 1:
                self.min_offset = offset
            self.max_offset = offset + entry.messages
        elif offset >= self.min_offset and slots.slot(number := self._slot_of(offset))[_BASE] == offset:
            slots.put_slot(number, slot)

    def reserve(self, end_offset: int) -> None:
        """Reserve room as `ConsumeQueue.reserve` does, for one unit a message."""
        self._slots.reserve(self._slots.max_offset + max(end_offset - self.max_offset, 0))
        self.room_end = max(self.room_end, end_offset)

    def units(self, offset: int, count: int) -> memoryview:
        """Return nothing, since these units have another format; see `records_from`."""
        return memoryview(b"")

    def records_from(self, offset: int, count: int) -> Iterator[tuple[int, int, Unit]]:
        """Yield `(first offset, offset behind, unit)` of up to `count` records, from the one on that holds `offset`."""
        if not self.min_offset <= offset < self.max_offset:
            return
        start = self._slot_of(offset)
        for _, slot in self._slots.iterate(start, start + count):
            base, messages = slot[_BASE], slot[_COUNT]
            yield base, base + messages, slot[:3]

    def unit(self, offset: int) -> Unit | None:
        """Return offset, size and tags code of the record of a message; None outside `[min_offset, max_offset)`."""
        return next((unit for _, _, unit in self.records_from(offset, 1)), None)

    def file_end(self, offset: int) -> int:
        """Return the next offset, since a batch queue has a unit at each offset."""
        return offset + 1

    def iterate(self, start: int, end: int) -> Iterator[tuple[int, Unit]]:
        """Yield `(first offset, unit)` of the records that hold dispatched messages of `[start, end)`."""
        for base, _, unit in self.records_from(max(start, self.min_offset), self._slots.max_offset):
            if base >= end:
                return
            yield base, unit

    def bisect(self, is_before: Callable[[Unit], bool]) -> int:
        """Search as `ConsumeQueue.bisect` does, by record: return the first offset of a record, or `max_offset`."""
        number = self._slots.bisect(lambda slot: is_before(slot[:3]))
        return self._slots.slot(number)[_BASE] if number < self._slots.max_offset else self.max_offset

    def recover(self, end_offset: int, *, scan: bool) -> None:
        """As `ConsumeQueue.recover`."""
        self._slots.recover(end_offset, scan=scan)
        self._take_bounds()
        self.next_offset = self.max_offset

    def keep_before(self, offset: int) -> None:
        """As `ConsumeQueue.keep_before`."""
        slots = self._slots
        slots.keep_before(self._slot_of(offset) if offset < self.max_offset else slots.max_offset)
        self._take_bounds()
        self.next_offset = self.max_offset

    def cut_at(self, end_offset: int) -> None:
        """As `ConsumeQueue.cut_at`."""
        first = self.min_offset
        self._slots.cut_at(end_offset)
        self._take_bounds()
        if self.min_offset == self.max_offset:
            self.min_offset = self.max_offset = first
        self.next_offset = self.room_end = self.max_offset

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Raise `min_offset` past leading blanks and units whose records the log has deleted."""
        self._slots.correct_min_offset(log_min_offset)
        first = self._slots.min_offset
        self.min_offset = self._slots.slot(first)[_BASE] if first < self._slots.max_offset else self.max_offset

    def take_expired(self) -> list[QueueFile]:
        """As `ConsumeQueue.take_expired`."""
        return self._slots.take_expired()

    def clear(self) -> None:
        """Drop all units; the queue is then filled from the log again."""
        self._slots.clear()
        self.min_offset = self.max_offset = self.next_offset = self.room_end = 0
        self.is_gapped = False

    def restart(self, offset: int) -> None:
        """As `ConsumeQueue.restart`."""
        self.clear()
        if offset > 0:
            self._slots.put_slot(0, (0, BLANK_SIZE, 0, 0, offset - 1, 1, NOT_COMPACTED, 0))
            self._slots.min_offset = 1
        self.min_offset = self.max_offset = self.next_offset = offset

    def take_unflushed(self) -> list[QueueFile]:
        """As `ConsumeQueue.take_unflushed`."""
        return self._slots.take_unflushed()

    @property
    def smallest_offset(self) -> int:
        """As `ConsumeQueue.smallest_offset`: -1 before the first message."""
        return self.min_offset if self.max_offset > 0 else -1

    def close(self) -> None:
        """Unmap; the next use maps again."""
        self._slots.close()

    def _take_bounds(self) -> None:
        slots = self._slots
        self.is_gapped = slots.is_gapped
        if slots.min_offset == slots.max_offset:
            self.min_offset = self.max_offset = 0
            return
        last = slots.slot(slots.max_offset - 1)
        self.min_offset = slots.slot(slots.min_offset)[_BASE]
        self.max_offset = last[_BASE] + last[_COUNT]

    def _slot_of(self, offset: int) -> int:
        """Return the number of the slot that holds `offset`, which must be in bounds."""
        number = self._slots.bisect(lambda slot: slot[_BASE] <= offset)
        return max(number - 1, self._slots.min_offset)
