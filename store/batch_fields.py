"""Batches of a log for its queues: what they need of each record, and units by the run instead of one by one.

    records of a batch --> by queue --> a run of units, one behind the other --> one store into the queue

Where a record is not of the common kind, or its tag is not plainly there, `store.dispatch` decides.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.hashing import tags_code
from ledgermq.message.layout import BLANK_SIZE_MIN
from store.consume_queue import ConsumeQueue
from store.dispatch import SCHEDULE_TOPIC, UnitFields, unit_fields
from store.mapped_file import MappedFile
from store.mapped_file_queue import MappedFileQueue
from store.record_batches import RecordBatch, read_batch

_TAGS = b"\x02TAGS\x01"
_UNIT = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])

Dispatch = tuple[int, bool, UnitFields]
"""Physical offset of a record, whether it may be shown, and what its queue needs of it."""

Find = Callable[[bytes, int, int], ConsumeQueue | None]
"""The queue of a topic and queue id, for the record at an offset; None where there can be none."""


@dataclass(slots=True)
class Run:
    """Records of one batch that go to one queue, in the log's order.

    Attributes:
        rows: which records of the batch.
        codes: their tags codes.
    """

    queue: ConsumeQueue
    rows: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)


class LogBatches:
    """A classic log as recovery dispatches it.

    Args:
        queue: its files.
        damaged: physical offsets of records that nobody is to be shown.
    """

    def __init__(self, queue: MappedFileQueue, damaged: Collection[int]) -> None:
        self._queue = queue
        self._damaged = frozenset(damaged)

    def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        """The records in `[start, end)`; see `ReplicatedLog.walk` for the bounds. Damaged ones are not `sound`.

        Raises:
            CorruptRecordError: something that is neither a record nor a blank.
        """
        while start < end and (file := self._queue.file_at(start)) is not None:
            base, limit = file.start_offset, min(file.write_position, end - file.start_offset)
            batch = read_batch(file, start - base, limit, check=False)
            start = base + batch.end
            for offset in self._damaged:
                batch.sound[batch.starts == offset - base] = False
            yield file, batch
            if batch.is_end and limit - batch.end >= BLANK_SIZE_MIN and not batch.is_blank:
                raise CorruptRecordError(start, f"no record in {file.path}")
            if batch.is_end:
                start = file.end_offset

    def dispatches(self, start: int, end: int) -> Iterator[Dispatch]:
        """The same, one by one."""
        for file, batch in self.batches(start, end):
            rows = zip(batch.starts.tolist(), batch.ends.tolist(), batch.sound.tolist(), strict=True)
            for position, record_end, is_sound in rows:
                offset = file.start_offset + position
                yield offset, is_sound, unit_fields(offset, file.view[position:record_end])


def runs_of(file: MappedFile, batch: RecordBatch, find: Find) -> Collection[Run]:
    """The batch's records by queue, prepared and rolled-back ones left out.

    Raises:
        CorruptRecordError: one cannot be taken apart.
    """
    buffer, view, base = file.buffer, file.view, file.start_offset
    codes: dict[bytes, int] = {}
    runs: dict[tuple[bytes, int], Run] = {}
    find_run, find_code = runs.get, codes.get
    heads = batch.heads
    wanted = ~(batch.common & (heads["sys_flag"] & TRANSACTION_PREPARED != 0))
    rows = np.flatnonzero(wanted)
    columns = (rows, batch.tails[rows], batch.ends[rows], batch.common[rows], heads["queue_id"][rows])
    for row, tail_at, end, is_common, queue_id in zip(*(column.tolist() for column in columns), strict=True):
        tail = buffer[tail_at:end] if is_common else b"\0"
        topic_end = 1 + tail[0]
        found = tail.rfind(_TAGS, topic_end + 1) + 6
        stop = tail.find(2, found)
        run = find_run((tail[1:topic_end], queue_id))
        if run is not None and stop > found > 5:
            tag = tail[found:stop]
            code = find_code(tag)
            if code is None:
                code = codes[tag] = tags_code(tag)
        else:
            offset = base + int(batch.starts[row])
            _, queue_id, sys_flag, _, _, topic, code = unit_fields(offset, view[offset - base : end])
            if sys_flag & TRANSACTION_PREPARED:
                continue
            run = _run(runs, topic, queue_id, find, offset)
            if run is None:
                continue
        run.rows.append(row)
        run.codes.append(code)
    return runs.values()


def _run(runs: dict[tuple[bytes, int], Run], topic: bytes, queue_id: int, find: Find, offset: int) -> Run | None:
    """The run of a queue. Delayed messages, whose code is no tag's, are found under a name that no record has."""
    key = (b"\0" + topic if topic == SCHEDULE_TOPIC else topic, queue_id)
    run = runs.get(key)
    if run is None and (queue := find(topic, queue_id, offset)) is not None:
        run = runs[key] = Run(queue)
    return run


def _units_of(file: MappedFile, batch: RecordBatch, run: Run) -> bytes:
    """The units of a run, side by side."""
    units = np.empty(len(run.rows), _UNIT)
    units["physical"] = batch.starts[run.rows] + file.start_offset
    units["size"] = batch.ends[run.rows] - batch.starts[run.rows]
    units["code"] = run.codes
    return units.tobytes()


def put_run(file: MappedFile, batch: RecordBatch, run: Run) -> bool:
    """Put a run that goes on where its queue ends, or is there already; False, with nothing done, for any other.

    Raises:
        DiskFullError, DiskFailedError: no room for the units.
    """
    offsets = batch.heads["queue_offset"][run.rows]
    if not batch.sound[run.rows].all() or (np.diff(offsets) != 1).any():
        return False
    queue, first = run.queue, int(offsets[0])
    if first == queue.max_offset:
        queue.extend(_units_of(file, batch, run))
        return True
    return first + len(offsets) <= queue.max_offset and _holds(queue, first, memoryview(_units_of(file, batch, run)))


def _holds(queue: ConsumeQueue, first: int, units: memoryview) -> bool:
    """Whether these units are in the queue, from number `first` on."""
    while units:
        held = queue.units(first, len(units) // _UNIT.itemsize)
        if not held or held != units[: len(held)]:
            return False
        units = units[len(held) :]
        first += len(held) // _UNIT.itemsize
    return True


def one_by_one(file: MappedFile, batch: RecordBatch, run: Run) -> Iterator[tuple[int, bool, int, int, int]]:
    """Of each record of a run: physical offset, whether it may be shown, size, tags code, queue offset."""
    starts, ends = batch.starts[run.rows], batch.ends[run.rows]
    columns = (starts + file.start_offset, batch.sound[run.rows], ends - starts)
    offsets = batch.heads["queue_offset"][run.rows]
    return zip(*(column.tolist() for column in columns), run.codes, offsets.tolist(), strict=True)
