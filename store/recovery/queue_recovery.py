"""Recovery of the consume queues: cut what cannot be trusted, then dispatch the log again from there.

    log     |======= every unit is there and durable =======|--- dispatched again ---| confirm offset
                                                 trusted offset

`queue_trust` decides which units can be trusted. Units that differ from the log are corrected, and units behind a
queue's last record are dropped; a queue that lacks units of records below the start is emptied and filled from the
whole log.

Where the log cannot be read, a classic log goes on at the next whole record. A Raft log gets the record from another
node: its confirm offset falls to it, and what follows is dispatched when the copy is there. The same holds for records
that the queues have already, but of which the broker's start needs the content.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.store_progress import Progress
from store.errors import DiskReadError, InvalidTopicError, RecordUnavailableError, StoreFormatError
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, QueueEntry
from store.queues.dispatch import unit_fields
from store.queues.queue_entries import entries_of
from store.queues.queue_kinds import LIGHT_PREFIX
from store.queues.queue_table import QueueTable
from store.recovery.batch_fields import Dispatch, Find, Part, RecordSource, one_by_one, put_run, runs_of
from store.recovery.queue_trust import cut_to_trusted
from store.recovery.record_batches import stored_at
from store.replicated_log import ReplicatedLog

log = logging.getLogger(__name__)

Needed = Callable[[QueueTable, int], Iterable[tuple[int, int]]]
"""From recovered queues and the end of the log: physical offset and size of records whose content is needed."""

_GATHERED_RECORDS = 1 << 18
"""Records that are sorted by queue at once; a batch more at most."""
_GATHERED_BYTES = 32 << 20
"""Topics and properties that are sorted at once, in bytes: fewer records are sorted where theirs are longer."""


@dataclass(slots=True)
class QueueRecovery:
    """Result of the recovery of the queues.

    Attributes:
        dispatched_offset: every confirmed record below has its unit.
        durable_offset: the units of all records below are durable, as the checkpoint or a clean stop says; 0 without.
        last_timestamp: store time (ms) of the last record that was dispatched again; 0 without one.
        record_count: number of records that were dispatched again.
        rebuilt: number of queues that were filled from the whole log.
        unreadable: physical offsets at which the log could not be parsed, and from which on something was left out.
        hidden: physical offsets of damaged records; their units are blank.
        ends: by plain queue, the queue offset behind its last record that was dispatched again; empty at the end.
    """

    dispatched_offset: int
    durable_offset: int = 0
    last_timestamp: int = 0
    record_count: int = 0
    rebuilt: int = 0
    unreadable: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    ends: dict[ConsumeQueue, int] = field(default_factory=dict)


def recover_queues(
    log_: ReplicatedLog,
    queues: QueueTable,
    progress: Progress | None,
    *,
    known_offset: int | None = None,
    untrusted_walk_bytes: int = 1 << 30,
    batches: RecordSource | None = None,
    needed: Needed = lambda _queues, _log_end: (),
) -> QueueRecovery:
    """Bring freshly loaded queues up to the log's confirm offset; blocks, and may run in a thread.

    With `known_offset` the queues are known to have exactly the units of the records below it. `batches` reads the log
    by the batch, faster than `log_.walk`; None if the log has no such reader. `needed` are records that will be read
    next: if one waits for a copy, the queues end before it.

    Raises:
        DiskFullError, DiskFailedError: the units cannot be stored.
    """
    end = log_.confirm_offset
    if log_.min_offset >= log_.max_offset == 0:
        for queue in list(queues):
            queue.clear()
        return QueueRecovery(end)
    recovery = QueueRecovery(end)
    start = known_offset
    if start is None:
        start = cut_to_trusted(log_, queues, progress, end, untrusted_walk_bytes)
    gapped = {queue for queue in queues.changed if queue.is_gapped}
    gapped |= _dispatch_range(log_, queues, batches, (start, end), None, recovery)
    if known_offset is None and not recovery.unreadable:
        _drop_unknown(queues, gapped, start, recovery.ends)
    recovery.ends.clear()
    if gapped and (start > log_.min_offset or any(type(queue) is not ConsumeQueue for queue in gapped)):
        log.warning("%d queues lack units below %d: they are filled again from the whole log", len(gapped), start)
        for queue in gapped:
            queue.clear()
        _dispatch_range(log_, queues, batches, (log_.min_offset, log_.confirm_offset), gapped, recovery)
    _examine(log_, batches, needed(queues, log_.max_offset))
    if log_.confirm_offset < end:
        recovery.dispatched_offset = log_.confirm_offset
        queues.cut_at(log_.confirm_offset)
    recovery.rebuilt = len(gapped)
    if progress is not None:
        durable = start if known_offset is None else min(start, progress.dispatched_offset)
        recovery.durable_offset = min(durable, log_.confirm_offset) if not gapped else log_.min_offset
    for queue in queues.changed:
        queue.correct_min_offset(log_.min_offset)
        queue.next_offset = queue.max_offset
    return recovery


def _examine(log_: ReplicatedLog, batches: RecordSource | None, places: Iterable[tuple[int, int]]) -> None:
    """Let the confirm offset fall to the first of these records that waits for a copy."""
    for offset, size in places:
        try:
            log_.read(offset, size)
        except RecordUnavailableError:  # a blank unit
            continue
        except DiskReadError as error:
            if batches is not None:
                batches.goes_on_at(offset)
            log.error("a record that the tables need cannot be read: %s", error)
            return


def _drop_unknown(queues: QueueTable, gapped: set[ConsumeQueue], start: int, ends: dict[ConsumeQueue, int]) -> None:
    """Drop the units at or behind physical `start` that follow the last record of their queue.

    A power cut may keep units of records that the log lost, or got back the units of records that were cut; where the
    log has grown past them since, their physical offsets alone do not tell.
    """
    for queue in queues:
        if type(queue) is not ConsumeQueue or queue in gapped or queue.topic.startswith(LIGHT_PREFIX):
            continue  # units of light queues come from records of other topics
        end = ends.get(queue)
        if end is None:
            end = queue.bisect(lambda unit: unit[0] < start or unit[:2] == (0, BLANK_SIZE))
        if end < queue.max_offset:
            log.warning("%r has %d units of records that the log does not have", queue, queue.max_offset - end)
            queue.keep_before(end)
            queues.changed[queue] = None


def _dispatch_range(
    log_: ReplicatedLog,
    queues: QueueTable,
    batches: RecordSource | None,
    bounds: tuple[int, int],
    only: set[ConsumeQueue] | None,
    recovery: QueueRecovery,
) -> set[ConsumeQueue]:
    """Dispatch the records within the bounds (into `only` these queues); return the queues that lack earlier units."""
    is_whole = bounds[0] == log_.min_offset
    get = _Finder(queues).get
    if batches is not None and not queues.has_kinds:
        find = partial(_find_plain, get)
        lacking = _dispatch_batches(log_, batches, find, bounds, only, recovery, is_whole=is_whole)
        passed_over = {queue for queue in queues if type(queue) is not ConsumeQueue}  # made just now
        return lacking | passed_over
    lacking = set()
    for offset, is_sound, fields in _walk_on(log_, batches, bounds, recovery):
        size, queue_id, sys_flag, queue_offset, timestamp, topic, code = fields
        recovery.last_timestamp = timestamp
        recovery.record_count += 1
        if sys_flag & TRANSACTION_PREPARED:
            continue
        queue = get(topic, queue_id, offset)
        if queue is None or (only is not None and queue not in only and not queues.has_kinds):
            continue
        if queues.has_kinds:
            entries = _entries_of_kind(queues, offset, log_.read(offset, size), is_sound=is_sound)
            queues.changed.update(dict.fromkeys(queue for queue, _ in entries))
            lacking |= _put_entries(entries, only, is_whole=is_whole)
            recovery.ends.update((queue, entry.queue_offset + 1) for queue, entry in entries)
            recovery.hidden += () if is_sound else (offset,)
        elif queue_offset > queue.max_offset and not is_whole:
            lacking.add(queue)
        else:
            _put(queue, offset, is_sound, size, code, queue_offset, recovery)
    return lacking


def _put(
    queue: ConsumeQueue, offset: int, is_sound: bool, size: int, code: int, queue_offset: int, recovery: QueueRecovery
) -> None:
    """Put the unit of one record; a blank unit for a damaged record."""
    recovery.ends[queue] = queue_offset + 1
    if is_sound:
        queue.put(offset, size, code, queue_offset)
        return
    log.error("the record at %d is damaged: unit %d of %r is never delivered", offset, queue_offset, queue)
    queue.put(offset, BLANK_SIZE, 0, queue_offset)
    recovery.hidden += (offset,)


def _dispatch_batches(
    log_: ReplicatedLog,
    batches: RecordSource,
    find: Find,
    bounds: tuple[int, int],
    only: set[ConsumeQueue] | None,
    recovery: QueueRecovery,
    *,
    is_whole: bool,
) -> set[ConsumeQueue]:
    """Do what `_dispatch_range` does, by the batch."""
    lacking: set[ConsumeQueue] = set()
    for parts in _gathered(log_, batches, bounds, recovery):
        for run in runs_of(parts, find):
            if only is not None and run.queue not in only:
                continue
            if put_run(run):
                recovery.ends[run.queue] = int(run.offsets[-1]) + 1
                continue
            for (offset, size, code), queue_offset, is_sound in one_by_one(run):
                if queue_offset > run.queue.max_offset and not is_whole:
                    lacking.add(run.queue)
                else:
                    _put(run.queue, offset, is_sound, size, code, queue_offset, recovery)
    return lacking


def _entries_of_kind(
    queues: QueueTable, offset: int, record: memoryview, *, is_sound: bool
) -> list[tuple[ConsumeQueue, QueueEntry]]:
    """Return the entries of a record; blank ones for a damaged record."""
    entries = entries_of(queues, offset, record)
    return entries if is_sound else [(queue, entry._replace(size=BLANK_SIZE, tags_code=0)) for queue, entry in entries]


def _put_entries(
    entries: list[tuple[ConsumeQueue, QueueEntry]], only: set[ConsumeQueue] | None, *, is_whole: bool
) -> set[ConsumeQueue]:
    """Put entries (into `only` these queues); return the queues that lack units before theirs."""
    lacking: set[ConsumeQueue] = set()
    for queue, entry in entries:
        if only is not None and queue not in only:
            continue
        if entry.queue_offset > queue.max_offset and not is_whole:
            lacking.add(queue)
        else:
            queue.put_entry(entry)
    return lacking


class _Finder:
    """Finds queues by the topic and queue id of records, and notes them as changed."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._find = queues.by_key.get

    def get(self, topic: bytes, queue_id: int, offset: int) -> ConsumeQueue | None:
        """Return the queue, which is made if it is missing; None for a topic that cannot have one."""
        queue = self._find((topic, queue_id))
        if queue is not None:
            self._queues.changed[queue] = None
            return queue
        try:
            return self._queues.get(topic, queue_id)
        except InvalidTopicError as error:
            log.warning("the record at %d is entered into no queue: %s", offset, error)
            return None


def _find_plain(get: Find, topic: bytes, queue_id: int, offset: int) -> ConsumeQueue | None:
    """Return the queue; None if it is not a plain one, since only plain units are made by the batch."""
    queue = get(topic, queue_id, offset)
    return queue if type(queue) is ConsumeQueue else None


def remake_misfits(log_: ReplicatedLog, queues: QueueTable) -> int:
    """Replace plain queues that should be batch queues; return how many there were. Blocks.

    The attributes of a topic that was made just before a crash are known only when the state records are replayed.

    Raises:
        DiskFullError, DiskFailedError: the units cannot be stored.
        CorruptRecordError: the log cannot be parsed.
    """
    batch_topics = filter(queues.kinds.is_batch, dict.fromkeys(queue.topic for queue in queues))
    misfits = [queue for topic in batch_topics for queue in queues.of_topic(topic) if type(queue) is not BatchQueue]
    for queue in misfits:
        queues.delete(queue)
    made = {queues.get(queue.topic, queue.queue_id) for queue in misfits}
    if made:
        for offset, record in log_.walk(log_.min_offset, log_.confirm_offset):
            with contextlib.suppress(InvalidTopicError):
                _put_entries(entries_of(queues, offset, record), made, is_whole=True)
    for queue in made:
        queue.next_offset = queue.max_offset
    return len(made)


def _gathered(
    log_: ReplicatedLog, batches: RecordSource, bounds: tuple[int, int], recovery: QueueRecovery
) -> Iterator[list[Part]]:
    """Do what `_walk_on` does, by many records at once: where there are many queues, each then gets several."""
    start, end = bounds
    while start < end:
        parts: list[Part] = []
        left_records, left_bytes = _GATHERED_RECORDS, _GATHERED_BYTES
        try:
            for file, batch in batches.batches(start, end):
                start = file.start_offset + batch.end
                if not len(batch.starts):
                    continue
                recovery.record_count += len(batch.starts)
                recovery.last_timestamp = stored_at(file, batch, -1)
                parts.append((file, batch))
                left_records -= len(batch.starts)
                left_bytes -= int((batch.ends - np.where(batch.common, batch.tails, batch.starts)).sum())
                if left_records <= 0 or left_bytes <= 0:
                    yield parts
                    parts = []
                    left_records, left_bytes = _GATHERED_RECORDS, _GATHERED_BYTES
        except CorruptRecordError as error:
            yield parts
            start, end = _next_bounds(log_, batches, (start, end), error, recovery)
        else:
            yield parts
            return


def _next_bounds(
    log_: ReplicatedLog,
    batches: RecordSource | None,
    bounds: tuple[int, int],
    error: CorruptRecordError,
    recovery: QueueRecovery,
) -> tuple[int, int]:
    """Return between which bounds to go on where something at or behind the first one cannot be read."""
    start, end = bounds
    found = None if batches is None else batches.goes_on_at(error.position)
    following = (end if found is None else min(found, end)), min(end, log_.confirm_offset)
    log.error("the log cannot be read: %s; its queues are recovered from %d to %d", error, *following)
    if following[0] <= start and following[1] == end:
        raise StoreFormatError(log_.directory, f"the queues cannot be recovered: {error}") from error
    if following[0] > start:
        recovery.unreadable += (start,)
    return following


def _walk_on(
    log_: ReplicatedLog, batches: RecordSource | None, bounds: tuple[int, int], recovery: QueueRecovery
) -> Iterator[Dispatch]:
    """Yield the records within the bounds that can be read."""
    source = partial(_dispatches, log_) if batches is None else batches.dispatches
    start, end = bounds
    while start < end:
        try:
            for dispatch in source(start, end):
                yield dispatch
                start = dispatch[0] + dispatch[2][0]
            return
        except CorruptRecordError as error:
            start, end = _next_bounds(log_, batches, (start, end), error, recovery)


def _dispatches(log_: ReplicatedLog, start: int, end: int) -> Iterator[Dispatch]:
    """Yield the records of a log that cannot be read by the batch."""
    for offset, record in log_.walk(start, end):
        yield offset, True, unit_fields(offset, record)
