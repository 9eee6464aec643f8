"""Batches of a log for its queues: makes the units of many records of a queue at once, in recovery and in copied logs.

    records of a batch --> by queue --> a run of units, one behind the other --> one store into the queue

Records with IPv6 hosts or magic V2, and tags that are not simple, are parsed one by one by `store.queues.dispatch`.
"""

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.frames import QUEUE_UNIT
from ledgermq.message.layout import BLANK_SIZE_MIN
from ledgermq.message.queue_unit import SCHEDULE_TOPIC
from store.errors import InvalidTopicError
from store.files.mapped_file import MappedFile
from store.files.mapped_file_queue import MappedFileQueue
from store.log.recovery import find_record
from store.queues.consume_queue import ConsumeQueue
from store.queues.dispatch import UnitFields, unit_fields
from store.queues.queue_table import TOPIC_LENGTH_MAX, QueueTable
from store.record_tails import Bools, Longs, Tails, slices, windows
from store.recovery.record_batches import RecordBatch, read_batch

Dispatch = tuple[int, bool, UnitFields]
"""Physical offset of a record, whether it is sound, and the fields that its queue needs."""

Part = tuple[MappedFile, RecordBatch]
"""A batch, and the file that has its records."""

_FEW = 4
"""So many records a queue are put at once; fewer are put record by record, for less than the slices of a run take."""

Find = Callable[[bytes, int, int], ConsumeQueue | None]
"""Returns the queue of a topic and queue id, for the record at an offset; None if there can be no such queue."""


@dataclass(slots=True)
class QueueRun:
    """Records of one batch that go to one queue, in the log's order.

    Attributes:
        units: their units, as the queue stores them.
        offsets: their queue offsets.
        sound: whether each is sound; others get a blank unit.
        is_even: all are sound, and their queue offsets follow one another.
    """

    queue: ConsumeQueue
    units: npt.NDArray[np.void]
    offsets: Longs
    sound: Bools
    is_even: bool


class RecordSource(abc.ABC):
    """Reads a log by the batch.

    Attributes:
        first_damaged: physical offset of the first damaged record that the log's own recovery found; None: none.
        window_bytes: so much is read at once.
    """

    first_damaged: int | None = None
    window_bytes: int = 4 << 20

    @abc.abstractmethod
    def batches(self, start: int, end: int) -> Iterator[Part]:
        """Yield the records in `[start, end)` with their file; see `ReplicatedLog.walk` for the bounds.

        Damaged records are not `sound`.

        Raises:
            CorruptRecordError: there is something that is neither a record nor what the log puts between records.
        """

    def goes_on_at(self, start: int) -> int | None:
        """Return where a recovery goes on that met something unreadable at `start`; None: nowhere.

        A log that will get an unreadable record from another node ends before it until then: its confirm offset falls.
        """
        return None

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

    def batches(self, start: int, end: int) -> Iterator[Part]:
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

    def goes_on_at(self, start: int) -> int | None:
        """Return the position of the next whole record."""
        return find_record(self._queue.files, start)

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


def runs_of(parts: Sequence[Part], find: Find) -> Iterator[QueueRun]:
    """Yield the records by queue, without prepared and rolled-back ones.

    Args:
        parts: batches, in the log's order.
        find: called once for each queue.

    Raises:
        CorruptRecordError: a record cannot be parsed.
        DiskReadError: the disk cannot read a page.
    """
    groups = _grouped(parts)
    if groups is None:
        return
    bounds = slices(groups.firsts, len(groups.units))
    for (start, end), is_even, key, offset in zip(bounds, groups.are_even, groups.keys, groups.heads, strict=True):
        queue = find(*key, offset)
        if queue is not None:
            yield groups.run(queue, start, end, is_even)


@dataclass(slots=True)
class _Groups:
    """Records sorted by queue, and of each queue where its records begin, and for the first one topic and place.

    Attributes:
        units, offsets, sound: as in `QueueRun`, of all records.
        keys: topic and id of each queue.
        heads: physical offset of the first record of each queue.
        are_even: of each queue; see `QueueRun`.
    """

    units: npt.NDArray[np.void]
    offsets: Longs
    sound: Bools
    firsts: Longs
    keys: list[tuple[bytes, int]]
    heads: list[int]
    are_even: list[bool]

    def run(self, queue: ConsumeQueue, start: int, end: int, is_even: bool) -> QueueRun:
        """Return the records of one queue, which are those of `[start, end)`."""
        return QueueRun(queue, self.units[start:end], self.offsets[start:end], self.sound[start:end], is_even)


def _grouped(parts: Sequence[Part]) -> _Groups | None:
    kept = [_Kept(file, batch) for file, batch in parts if len(batch.starts)]
    if not kept:
        return None
    columns = [part.columns() for part in kept]
    queue_ids, physical, sizes, offsets, sound = (np.concatenate(column) for column in zip(*columns, strict=True))
    if not len(offsets):
        return None
    tails, codes = _tails_of(kept)
    order, firsts = tails.groups(queue_ids)
    units = np.empty(len(order), QUEUE_UNIT)
    units["physical"], units["size"], units["code"] = physical[order], sizes[order], codes[order]
    heads, offsets, sound = order[firsts], offsets[order], sound[order]
    follows = sound.copy()
    follows[1:] &= offsets[1:] - offsets[:-1] == 1
    follows[firsts] = sound[firsts]
    are_even = np.logical_and.reduceat(follows, firsts).tolist()
    keys = list(zip(tails.topics(heads), queue_ids[heads].tolist(), strict=True))
    return _Groups(units, offsets, sound, firsts, keys, physical[heads].tolist(), are_even)


class _Kept:
    """The records of a batch that go to queues."""

    def __init__(self, file: MappedFile, batch: RecordBatch) -> None:
        self._file = file
        self._batch = batch
        self.rows = np.flatnonzero(batch.heads["sys_flag"] & TRANSACTION_PREPARED == 0)

    def columns(self) -> tuple[Longs, Longs, Longs, Longs, Bools]:
        """Return queue ids, physical offsets, sizes, queue offsets, and whether each record is sound."""
        batch, rows = self._batch, self.rows
        heads = batch.heads[rows]
        ids, sizes, offsets = (heads[name].astype(np.int64) for name in ("queue_id", "size", "queue_offset"))
        return ids, batch.starts[rows] + self._file.start_offset, sizes, offsets, batch.sound[rows]

    def tails(self) -> tuple[bytes, Longs, dict[int, int]]:
        """Return the tails, their sizes, and of each record that is not common its number and tags code."""
        file, batch, rows = self._file, self._batch, self.rows
        if not len(rows):
            return b"", rows, {}
        file.ensure_readable(int(batch.starts[rows[0]]), int(batch.ends[rows[-1]]))
        tails_at, ends = batch.tails[rows], batch.ends[rows]
        size = int(ends[0] - tails_at[0])
        rare = np.flatnonzero(~batch.common[rows]).tolist()
        if not rare and (ends - tails_at == size).all():
            joined = windows(np.frombuffer(file.view, np.uint8), size)[tails_at].tobytes()
            return joined, np.full(len(rows), size), {}
        buffer = file.buffer
        parts = [buffer[start:end] for start, end in zip(tails_at.tolist(), ends.tolist(), strict=True)]
        codes = {}
        for index in rare:
            *_, topic, codes[index] = self.fields(index)
            if len(topic) > TOPIC_LENGTH_MAX:
                topic = b"/"  # as invalid for a queue as a topic that is too long
            parts[index] = bytes((len(topic),)) + topic + b"\0\0"
        return b"".join(parts), np.fromiter(map(len, parts), np.int64, len(parts)), codes

    def fields(self, index: int) -> UnitFields:
        """Return the fields of one record.

        Raises:
            CorruptRecordError: it cannot be parsed.
        """
        row = self.rows[index]
        start, end = int(self._batch.starts[row]), int(self._batch.ends[row])
        return unit_fields(self._file.start_offset + start, self._file.view[start:end])


def _tails_of(kept: Sequence[_Kept]) -> tuple[Tails, Longs]:
    """Return the tails and the tags codes of all records."""
    parts = [part.tails() for part in kept]
    tails = Tails(b"".join(joined for joined, _, _ in parts), np.concatenate([sizes for _, sizes, _ in parts]))
    codes, known = tails.tags_codes()
    known &= ~tails.are_of(SCHEDULE_TOPIC)  # the tags code of a delayed message is its due time
    first = 0
    for part, (_, sizes, rare) in zip(kept, parts, strict=True):
        for index, code in rare.items():
            codes[first + index], known[first + index] = code, True
        for index in np.flatnonzero(~known[first : first + len(sizes)]).tolist():
            codes[first + index] = part.fields(index)[-1]
        first += len(sizes)
    return tails, codes


def put_run(run: QueueRun) -> bool:
    """Put a run that begins at the end of its queue or is stored already; return False, unchanged, for other runs.

    Raises:
        DiskFullError, DiskFailedError: the units cannot be stored.
    """
    count, queue = len(run.offsets), run.queue
    if not run.is_even:
        return False
    first = int(run.offsets[0])
    if first == queue.max_offset:
        queue.extend(run.units.tobytes())
        return True
    return first + count <= queue.max_offset and _holds(queue, first, memoryview(run.units.tobytes()))


def put_plain(file: MappedFile, batch: RecordBatch, table: QueueTable) -> list[ConsumeQueue] | None:
    """Put the units of a batch whose queues are all plain and watched by nobody; no soundness is asked for.

    Returns:
        The queues, of which missing ones are made; None: the batch is not such a one, and nothing is put.

    Raises:
        CorruptRecordError: a record cannot be parsed; nothing is put.
        DiskFullError, DiskFailedError: not all units can be stored; putting the batch again is harmless.
    """
    groups = _grouped([(file, batch)])
    if groups is None:
        return []
    known = [table.by_key.get(key) for key in groups.keys]
    if any(queue is not None and not _is_plain(queue) for queue in known):
        return None
    try:
        plain = [queue or table.get(*key) for queue, key in zip(known, groups.keys, strict=True)]
    except InvalidTopicError:
        return None
    if None in known and not all(map(_is_plain, plain)):
        return None
    if len(plain) * _FEW > len(groups.units):
        by_record = np.repeat(np.arange(len(plain)), np.diff(groups.firsts, append=len(groups.units)))
        rows = zip(by_record.tolist(), groups.units.tolist(), groups.offsets.tolist(), strict=True)
        for number, (physical, size, code), queue_offset in rows:
            plain[number].put(physical, size, code, queue_offset)
        return plain
    for queue, (start, end), is_even in zip(
        plain, slices(groups.firsts, len(groups.units)), groups.are_even, strict=True
    ):
        if not put_run(run := groups.run(queue, start, end, is_even)):
            for unit, queue_offset, _ in one_by_one(run):
                queue.put(*unit, queue_offset)
    return plain


def _is_plain(queue: ConsumeQueue) -> bool:
    return type(queue) is ConsumeQueue and not queue.is_watched


def _holds(queue: ConsumeQueue, first: int, units: memoryview) -> bool:
    """Return whether the queue holds these units from queue offset `first` on."""
    while units:
        held = queue.units(first, len(units) // QUEUE_UNIT.itemsize)
        if not held or bytes(held) != bytes(units[: len(held)]):  # memoryviews compare item by item
            return False
        units = units[len(held) :]
        first += len(held) // QUEUE_UNIT.itemsize
    return True


def one_by_one(run: QueueRun) -> Iterator[tuple[tuple[int, int, int], int, bool]]:
    """Yield unit, queue offset and soundness of each record of a run."""
    return zip(run.units.tolist(), run.offsets.tolist(), run.sound.tolist(), strict=True)
