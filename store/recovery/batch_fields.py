"""Batches of a log for its queues: makes the units of many records of a queue at once, in recovery and in copied logs.

    records of a batch --> by queue --> a run of units, one behind the other --> one store into the queue

Records with IPv6 hosts or magic V2, and tags that are not simple, are parsed one by one by `store.queues.dispatch`.
"""

import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.layout import BLANK_SIZE_MIN
from ledgermq.message.queue_unit import SCHEDULE_TOPIC
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.queues.consume_queue import ConsumeQueue
from store.queues.dispatch import UnitFields, unit_fields
from store.queues.queue_table import TOPIC_LENGTH_MAX
from store.record_tails import Bools, Longs, Tails, slices, windows
from store.recovery.record_batches import RecordBatch, read_batch

_UNIT = np.dtype([("physical", ">i8"), ("size", ">i4"), ("code", ">i8")])
_RUN_MIN = 4
"""Shorter runs are put one by one, which is faster for them."""

Dispatch = tuple[int, bool, UnitFields]
"""Physical offset of a record, whether it is sound, and the fields that its queue needs."""

Find = Callable[[bytes, int, int], ConsumeQueue | None]
"""Returns the queue of a topic and queue id, for the record at an offset; None if there can be no such queue."""


@dataclass(slots=True)
class QueueRun:
    """Records of one batch that go to one queue, in the log's order.

    Attributes:
        units: their units, as the queue stores them.
        offsets: their queue offsets.
        sound: whether each is sound; others get a blank unit.
    """

    queue: ConsumeQueue
    units: npt.NDArray[np.void]
    offsets: Longs
    sound: Bools


class RecordSource(abc.ABC):
    """Reads a log by the batch.

    Attributes:
        first_damaged: physical offset of the first damaged record that the log's own recovery found; None: none.
        window_bytes: so much is read at once.
    """

    first_damaged: int | None = None
    window_bytes: int = 4 << 20

    @abc.abstractmethod
    def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        """Yield the records in `[start, end)` with their file; see `ReplicatedLog.walk` for the bounds.

        Damaged records are not `sound`.

        Raises:
            CorruptRecordError: there is something that is neither a record nor what the log puts between records.
        """

    def dispatches(self, start: int, end: int) -> Iterator[Dispatch]:
        """Yield the same records one by one."""
        for file, batch in self.batches(start, end):
            rows = zip(batch.starts.tolist(), batch.ends.tolist(), batch.sound.tolist(), strict=True)
            for position, record_end, is_sound in rows:
                offset = file.start_offset + position
                yield offset, is_sound, unit_fields(offset, file.view[position:record_end])


class LogBatches(RecordSource):
    """A classic log.

    Args:
        queue: its files.
        damaged: physical offsets of damaged records.
        held: batches that the log's own recovery has read, by the physical offset of their first record.
    """

    def __init__(
        self, queue: MappedFileQueue, damaged: Collection[int], held: Mapping[int, RecordBatch] | None = None
    ) -> None:
        self._queue = queue
        self._damaged = frozenset(damaged)
        self.first_damaged = min(damaged, default=None)
        self._held = held or {}
        self._held_from = min(self._held, default=-1)

    def batches(self, start: int, end: int) -> Iterator[tuple[MappedFile, RecordBatch]]:
        while start < end and (file := self._queue.file_at(start)) is not None:
            base, limit = file.start_offset, min(file.write_position, end - file.start_offset)
            batch = self._batch(file, start - base, limit)
            start = base + batch.end
            for offset in self._damaged:
                batch.sound[batch.starts == offset - base] = False
            yield file, batch
            if batch.is_end and limit - batch.end >= BLANK_SIZE_MIN and not batch.is_blank:
                raise CorruptRecordError(start, f"expected a record in {file.path}")
            if batch.is_end:
                start = file.end_offset

    def _batch(self, file: MappedFile, position: int, limit: int) -> RecordBatch:
        held = self._held.get(file.start_offset + position)
        if held is not None and held.end <= limit:
            held.sound[:] = True  # damaged records are those of `_damaged`
            return held
        stop = self._held_from - file.start_offset
        if not position < stop < limit:
            return read_batch(file, position, limit, check=False, window_bytes=self.window_bytes)
        batch = read_batch(file, position, stop, check=False)
        if batch.end == stop:
            batch.is_end = False
            return batch
        return batch if not batch.is_end else read_batch(file, position, limit, check=False)


def runs_of(file: MappedFile, batch: RecordBatch, find: Find) -> Iterator[QueueRun]:
    """Yield the batch's records by queue, without prepared and rolled-back ones.

    Raises:
        CorruptRecordError: a record cannot be parsed.
    """
    rows = np.flatnonzero(batch.heads["sys_flag"] & TRANSACTION_PREPARED == 0)
    if not len(rows):
        return
    queue_ids = batch.heads["queue_id"][rows].astype(np.int64)
    tails, codes = _tails_of(file, batch, rows)
    order, firsts = tails.groups(queue_ids)
    rows, codes = rows[order], codes[order]
    units = np.empty(len(rows), _UNIT)
    units["physical"] = batch.starts[rows] + file.start_offset
    units["size"] = batch.heads["size"][rows]
    units["code"] = codes
    offsets, sound = batch.heads["queue_offset"][rows].astype(np.int64), batch.sound[rows]
    heads = order[firsts]
    places = tails.topics(heads), queue_ids[heads].tolist(), units["physical"][firsts].tolist()
    for (start, end), topic, queue_id, offset in zip(slices(firsts, len(rows)), *places, strict=True):
        queue = find(topic, queue_id, offset)
        if queue is None:
            continue
        if topic == SCHEDULE_TOPIC:  # the tags code of a delayed message is its due time
            units["code"][start:end] = [_fields(file, batch, row)[-1] for row in rows[start:end].tolist()]
        yield QueueRun(queue, units[start:end], offsets[start:end], sound[start:end])


def _tails_of(file: MappedFile, batch: RecordBatch, rows: Longs) -> tuple[Tails, Longs]:
    """Return the tails and the tags codes of some rows of a batch."""
    tails_at, ends = batch.tails[rows], batch.ends[rows]
    size = int(ends[0] - tails_at[0])
    rare = np.flatnonzero(~batch.common[rows]).tolist()
    if not rare and (ends - tails_at == size).all():
        joined = windows(np.frombuffer(file.view, np.uint8), size)[tails_at].tobytes()
        tails = Tails(joined, np.full(len(rows), size))
        rare_codes = []
    else:
        buffer = file.buffer
        parts = [buffer[start:end] for start, end in zip(tails_at.tolist(), ends.tolist(), strict=True)]
        rare_codes = [_take_rare(file, batch, int(rows[index]), parts, index) for index in rare]
        tails = Tails(b"".join(parts), np.fromiter(map(len, parts), np.int64, len(parts)))
    codes, known = tails.tags_codes()
    known[rare] = True
    for index in np.flatnonzero(~known).tolist():
        codes[index] = _fields(file, batch, int(rows[index]))[-1]
    codes[rare] = rare_codes
    return tails, codes


def _take_rare(file: MappedFile, batch: RecordBatch, row: int, parts: list[bytes], index: int) -> int:
    """Replace the tail of a record that is not common by its topic alone; return its tags code."""
    *_, topic, code = _fields(file, batch, row)
    if len(topic) > TOPIC_LENGTH_MAX:
        topic = b"/"  # as invalid for a queue as a topic that is too long
    parts[index] = bytes((len(topic),)) + topic + b"\0\0"
    return code


def _fields(file: MappedFile, batch: RecordBatch, row: int) -> UnitFields:
    start, end = int(batch.starts[row]), int(batch.ends[row])
    return unit_fields(file.start_offset + start, file.view[start:end])


def put_run(run: QueueRun) -> bool:
    """Put a run that begins at the end of its queue or is stored already; return False, unchanged, for other runs.

    Raises:
        DiskFullError, DiskFailedError: the units cannot be stored.
    """
    count, queue = len(run.offsets), run.queue
    if count < _RUN_MIN or not run.sound.all() or (run.offsets[1:] - run.offsets[:-1] != 1).any():
        return False
    first = int(run.offsets[0])
    if first == queue.max_offset:
        queue.extend(run.units.tobytes())
        return True
    return first + count <= queue.max_offset and _holds(queue, first, memoryview(run.units.tobytes()))


def put_plain(
    file: MappedFile, batch: RecordBatch, known: Mapping[tuple[str | bytes, int], ConsumeQueue]
) -> list[ConsumeQueue] | None:
    """Put the units of a batch whose queues are all known, plain and watched by nobody; no soundness is asked for.

    Returns:
        The queues; None: the batch is not such a one, and nothing is put.

    Raises:
        CorruptRecordError: a record cannot be parsed; nothing is put.
        DiskFullError, DiskFailedError: not all units can be stored; putting the batch again is harmless.
    """
    others: list[int] = []

    def find(topic: bytes, queue_id: int, offset: int) -> ConsumeQueue | None:
        queue = known.get((topic, queue_id))
        if type(queue) is not ConsumeQueue or queue.is_watched:
            others.append(offset)
        return queue

    runs = list(runs_of(file, batch, find))
    if others:
        return None
    for run in runs:
        if not put_run(run):
            for unit, queue_offset, _ in one_by_one(run):
                run.queue.put(*unit, queue_offset)
    return [run.queue for run in runs]


def _holds(queue: ConsumeQueue, first: int, units: memoryview) -> bool:
    """Return whether the queue holds these units from queue offset `first` on."""
    while units:
        held = queue.units(first, len(units) // _UNIT.itemsize)
        if not held or bytes(held) != bytes(units[: len(held)]):  # memoryviews compare item by item
            return False
        units = units[len(held) :]
        first += len(held) // _UNIT.itemsize
    return True


def one_by_one(run: QueueRun) -> Iterator[tuple[tuple[int, int, int], int, bool]]:
    """Yield unit, queue offset and soundness of each record of a run."""
    return zip(run.units.tolist(), run.offsets.tolist(), run.sound.tolist(), strict=True)
