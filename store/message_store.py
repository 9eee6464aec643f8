"""Message store: messages by topic and queue, on a replicated log.

    put ---> assigns queue offsets ---> log.append                   kept drafts
                                           |                             |
             get, look_up <--- queues <--- dispatch <--- on_confirmed ---'   (else: walk of the log)

It is the log's first listener: what is confirmed is dispatched, then shown to the store's own listeners, and only
then acknowledged. A node that wrote a record still has its draft; a node that received it walks the log. Drafts are
let go with their dispatch.

Source: apache/rocketmq `store/.../DefaultMessageStore.java` (putMessage, ReputMessageService, 5.3.3).
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskReadError, InvalidTopicError, StoreError
from store.files.disk import no_room
from store.log.drafts import QueuedDraft
from store.message_reader import MessageReader
from store.queues.cold_limits import ColdLimits
from store.queues.consume_queue import ConsumeQueue, QueueEntry
from store.queues.dispatch import unit_fields
from store.queues.queue_entries import entries_of, entries_of_draft
from store.queues.queue_offsets import GivenOffsets
from store.queues.queue_table import QueueStarts, QueueTable
from store.recovery.batch_fields import put_plain
from store.recovery.record_batches import stored_at
from store.replicated_log import Done, LogState, ReplicatedLog
from store.store_listener import StoreListener
from store.time_slice import TimeSlice

if TYPE_CHECKING:
    from store.cleaning.cleaner import Cleaner
    from store.compaction.compaction_store import CompactionStore
    from store.index.service import IndexService

log = logging.getLogger(__name__)

SLICE_S = 0.005
"""Longest run of dispatching before the loop gets its turn."""

_SLICE_CHECK_RECORDS = 64
_BATCH_BYTES = 128 << 10
"""Fewer bytes of a copied log are dispatched record by record: a batch costs as much as a hundred records or more."""
_BATCH_RECORDS = 2048
"""Records whose units are put at once; if a queue among them is watched or not plain, they are put one by one."""
_GATHER_S = 0.05
"""How long a node that copies a log lets records gather before it dispatches them, where many arrive."""
_MANY_BYTES = 32 << 10
"""Bytes of the log dispatched at once from which on many arrive."""
_GATHERED_BYTES = 4 << 20
"""Bytes of the log that are dispatched without waiting for more, and the most that are read at once."""
_SMALL_WINDOW_BYTES = 64 << 10
"""Fewest bytes that are read at once. Each slice begins to read anew behind the last dispatched record."""


class MessageStore:
    """The store. Recover it (`store.opening`), then `start`; from then on it lives on the loop's thread.

    Args:
        log: this store becomes its first listener.
        queues: recovered up to `dispatched_offset`.
        dispatched_offset: a record's end; every record below has its unit.

    Attributes:
        reader: reads what is dispatched.
        compaction: serves compacted topics through `reader`; None where none are compacted.
        dispatched_offset: as above, moving.
        last_timestamp: store time (ms) of the last record dispatched by this process; 0 before the first.
        dispatch_error: why dispatching stands still, or None; it is tried again by itself.
        cleaner: drops what is old; None before the store is opened.
        index: answers queries by key; None where none is built.
        master_flushed_offset: flushed offset of this slave's master, as administrators set it; kept in the checkpoint,
            as in RocketMQ, and used for nothing.
        save_checkpoint: makes the checkpoint say where this store is now, durably; blocks. Set by `store.opening`.
        disk_full: why messages are refused although the log is writable, or None. State records (watched topics) are
            accepted nevertheless, so that consumers can commit offsets. Set by the cleaner.
    """

    def __init__(
        self,
        log: ReplicatedLog,
        queues: QueueTable,
        loop: asyncio.AbstractEventLoop,
        *,
        dispatched_offset: int = 0,
        cold_limits: ColdLimits | None = None,
    ) -> None:
        self.log = log
        self.reader = MessageReader(log, cold_limits if cold_limits is not None else ColdLimits())
        self.queues = queues
        self.dispatched_offset = dispatched_offset
        self.last_timestamp = 0
        self.dispatch_error: StoreError | CorruptRecordError | None = None
        self.cleaner: Cleaner | None = None
        self.compaction: CompactionStore | None = None
        self.index: IndexService | None = None
        self.master_flushed_offset = 0
        self.save_checkpoint: Callable[[], None] = lambda: None
        self.disk_full: str | None = None
        self._loop = loop
        self._listeners: list[StoreListener] = []
        self._kept: deque[tuple[int, Sequence[QueuedDraft]]] = deque()
        self._kept_start = 0  # where the log ended before the first kept batch
        self._touched: dict[ConsumeQueue, None] = {}
        self._cut_from = 0  # dispatched offset before a cut that failed half way; 0: none failed
        self._is_writable = False
        self._announced: LogState | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._resume_at = 0.0
        self._is_behind = False  # the last slice did not dispatch all that was confirmed
        self._gather_until = 0.0
        self._window_bytes = _SMALL_WINDOW_BYTES  # read at once; about what is dispatched at once
        self._is_closed = False
        log.add_listener(self)

    def start(self) -> None:
        """Dispatch what is confirmed, then take messages if the log does."""
        self.on_role_change(self.log.state)

    def add_listener(self, listener: StoreListener) -> None:
        """Add a listener; listeners are called in the order in which they were added."""
        self._listeners.append(listener)

    def watch_topic(self, topic: str) -> None:
        """Show records of this topic to the listeners as they are dispatched."""
        self.queues.watch(topic)

    @property
    def is_writable(self) -> bool:
        """Whether `put` would try to place messages."""
        return self._is_writable

    def why_full(self) -> str | None:
        """Return why messages are refused for lack of room; None while the disks of log and queues have room.

        A disk that cannot be asked counts as full.
        """
        if self.disk_full is not None:
            return self.disk_full
        try:
            error = no_room(self.log.directory) or no_room(self.queues.directory)
        except OSError as failure:
            return f"it is not known whether the disk has room: {failure}"
        return None if error is None else str(error)

    @property
    def durable_offset(self) -> int:
        """End of the records that are confirmed and durable on this node."""
        return min(self.log.flushed_offset, self.log.confirm_offset)

    # -- writing

    def put(self, drafts: Sequence[QueuedDraft], done: Done, deadline_s: float = math.inf) -> None:
        """Place messages in order, all or none; see `ReplicatedLog.append` for `done`.

        Their queue offsets are set; prepared and rolled-back ones get 0 and no place in the queue. The sequence must
        not be changed afterwards.

        Args:
            drafts: one batch.
            done: called once with the outcome.
            deadline_s: when to stop making files for queues, of the monotonic clock; at least one is made.

        Raises:
            Refusal: nothing was placed.
            NotYetError: neither; files are still to be made for some of the queues. Put them again soon.
        """
        if not self._is_writable:
            raise self._why_not_writable()
        if self.disk_full is not None and not all(draft.queue.is_watched for draft in drafts):
            raise Refusal(Cause.DISK_FULL, self.disk_full, retry_after_ms=1000)
        max_offset = self.log.max_offset
        if self.queues.has_kinds:
            drafts = [one for draft in drafts for one in draft.singles()]
        offsets = GivenOffsets(self.queues)
        offsets.give(drafts, deadline_s)
        try:
            self.log.append(drafts, done)
        except BaseException:
            offsets.take_back()
            raise
        if drafts:
            if not self._kept:
                self._kept_start = max_offset
            self._kept.append((self.log.max_offset, drafts))

    def _why_not_writable(self) -> Refusal:
        if self._is_closed:
            return Refusal(Cause.SHUTTING_DOWN, "the broker is shutting down")
        if (refusal := self.log.state.refusal) is not None:
            return refusal
        behind = self.log.confirm_offset - self.dispatched_offset
        return Refusal(Cause.RECOVERING, f"{behind} bytes of the log are not dispatched yet", retry_after_ms=100)

    # -- following the log

    def close(self) -> None:
        """Refuse further messages and stop following the log; `store.opening` closes log and queues."""
        self._is_closed = True
        self._is_writable = False

    def on_confirmed(self, confirm_offset: int) -> None:
        """Dispatch up to `confirm_offset`: kept drafts at once, copied records in slices, in batches under load."""
        if self._is_behind and self._resuming is not None and not self._is_writable:
            return  # the next slice is due: not one for each message of a leader
        delay_s = 0.0 if self._is_writable else self._gather_until - self._loop.time()
        if delay_s > 0.0 and confirm_offset - self.dispatched_offset < _GATHERED_BYTES:
            self._resume(delay_s=delay_s)
        else:
            self._pump(confirm_offset)

    def on_role_change(self, state: LogState) -> None:
        """Drafts are kept only while this node writes; a new writer catches up before it takes messages."""
        if state.writable:
            self._pump(self.log.confirm_offset)
            if self._is_writable and state != self._announced:
                self._tell_role(state)
            return
        self._is_writable = False
        self._kept.clear()
        self._tell_role(state)

    def on_truncated(self, max_offset: int) -> None:
        """Drop kept drafts; cut everything derived from records that were dispatched at or past `max_offset`.

        The order: queues, the store's listeners in theirs (index, compaction, tables and timers), the checkpoint.
        A crash in between leaves nothing that is ahead of the log, which is cut afterwards.
        """
        self._kept.clear()
        if max_offset < max(self.dispatched_offset, self._cut_from):
            self._cut(max_offset)

    def _cut(self, offset: int) -> None:
        assert not self._is_writable, "a log that is writable is not cut below its confirm offset"
        log.warning("the log is cut at %d; it was dispatched up to %d", offset, self.dispatched_offset)
        self._cut_from = max(self._cut_from, self.dispatched_offset)
        self.dispatched_offset = offset
        self.queues.cut_at(offset)
        self.last_timestamp = max([0, *(self.reader.store_time(queue, queue.max_offset - 1) for queue in self.queues)])
        for listener in self._listeners:
            listener.on_cut(offset)
        self.save_checkpoint()
        self._cut_from = 0

    def fill_again(self, topics: Mapping[str, int]) -> None:
        """Dispatch the records of some topics again, from the whole log; for queues that were dropped. Blocks.

        Args:
            topics: by name, the physical offset at or before which its records belong to an earlier topic of the name.

        Raises:
            DiskFullError, DiskFailedError: not all is dispatched.
        """
        wanted = {name.encode(): behind for name, behind in topics.items()}
        for physical_offset, record in self.log.walk(self.log.min_offset, self.dispatched_offset) if wanted else ():
            size, queue_id, sys_flag, queue_offset, _, topic, code = unit_fields(physical_offset, record)
            if sys_flag & TRANSACTION_PREPARED or physical_offset <= wanted.get(topic, self.log.max_offset):
                continue
            queue = self._new_queue(topic, queue_id, physical_offset)
            if queue is not None and self.queues.has_kinds:
                self._put_entries(entries_of(self.queues, physical_offset, record))
            elif queue is not None:
                queue.put(physical_offset, size, code, queue_offset)
                self._touched[queue] = None
        self._tell_dispatched()

    def queue_starts(self) -> QueueStarts:
        """Return the first offset of each queue for a node that copies this log from its `min_offset` on."""
        return self.queues.starts(self.log.min_offset)

    def restart(self, starts: QueueStarts) -> None:
        """Start the queues anew, as the log has at its `min_offset`, with records of another node.

        Args:
            starts: that node's `queue_starts`.

        Raises:
            InvalidTopicError, DiskFullError, DiskFailedError: try again; nothing is dispatched meanwhile.
        """
        self._kept.clear()
        self.queues.restart(starts)
        self.queues.cleaned(self.log.min_offset)
        self.dispatched_offset = self.log.min_offset

    def _pump(self, confirm_offset: int) -> None:
        """Dispatch for at most a slice; schedule another slice if that was not enough."""
        try:
            is_done = self._dispatch_to(confirm_offset)
            self.dispatch_error = None
        except (StoreError, CorruptRecordError) as error:
            if self.dispatch_error is None:
                log.error("dispatch stopped at %d and is tried again each second: %s", self.dispatched_offset, error)
            self.dispatch_error = error
            self._resume(delay_s=1.0)
            is_done = False
        else:
            self._is_behind = not is_done
            if not is_done:
                self._resume(delay_s=0.0)
        self._tell_dispatched()
        if is_done and not self._is_writable and not self._is_closed and self.log.state.writable:
            self._become_writable()

    def _dispatch_to(self, confirm_offset: int) -> bool:
        """Dispatch; return whether everything below `confirm_offset` is dispatched."""
        if self.dispatched_offset < self.log.min_offset:
            self.restart(self.queues.next_starts())
        kept = self._kept
        until = min(confirm_offset, self._kept_start) if kept else confirm_offset
        if self.dispatched_offset < until and not self._dispatch_walk(until):
            return False
        while kept and kept[0][0] <= confirm_offset:
            end, drafts = kept[0]
            self._dispatch_drafts(drafts)
            if self.index is not None:
                self.index.on_drafts(self.dispatched_offset, end, drafts)
            self.dispatched_offset = end
            kept.popleft()
        return True

    def _dispatch_drafts(self, drafts: Sequence[QueuedDraft]) -> None:
        touched = self._touched
        has_kinds = self.queues.has_kinds
        for draft in drafts:
            if draft.sys_flag & TRANSACTION_PREPARED:
                continue
            queue = draft.queue
            if queue.is_removed:
                queue = self._remade_queue(draft)
            if has_kinds and draft.messages == 1:  # no batch is put whole once some queue is not plain
                self._put_entries(entries_of_draft(self.queues, draft))
            else:
                draft.put_units()
                touched[queue] = None
            if queue.is_watched:
                for physical_offset, size in zip(draft.physical_offsets(), draft.sizes_of_records(), strict=True):
                    self._tell_state_record(physical_offset, self.log.read(physical_offset, size))
        self.last_timestamp = drafts[-1].store_timestamp

    def _remade_queue(self, draft: QueuedDraft) -> ConsumeQueue:
        """Set the queue of a draft that lies behind the removal of its topic to the one that the other nodes use."""
        draft.queue = queue = self.queues.get(draft.topic, draft.queue_id)
        if queue.max_offset == queue.min_offset < draft.queue_offset:
            queue.restart(draft.queue_offset)
        queue.next_offset = max(queue.next_offset, draft.queue_offset + draft.messages)
        return queue

    def _dispatch_walk(self, end_offset: int) -> bool:
        """Dispatch from the log itself for one slice; return whether `end_offset` was reached."""
        if end_offset - self.dispatched_offset >= _MANY_BYTES:
            self._gather_until = self._loop.time() + _GATHER_S
        if end_offset - self.dispatched_offset >= _BATCH_BYTES and not self.queues.has_kinds:
            with contextlib.suppress(CorruptRecordError, DiskReadError):  # which the walk meets where it is
                if not self._dispatch_batches(end_offset):
                    return False
        return self._dispatch_records(end_offset, TimeSlice(SLICE_S))

    def _dispatch_batches(self, end_offset: int) -> bool:
        """Dispatch many records at once, if the log has a batch reader; return whether the end was reached in time."""
        source = self.log.batches()
        if source is None:
            return True
        source.window_bytes, begin = self._window_bytes, self.dispatched_offset
        time_slice: TimeSlice | None = None
        for file, batch in source.batches(begin, end_offset):
            time_slice = time_slice or TimeSlice(SLICE_S)  # some records are dispatched, however long finding them took
            for piece in batch.pieces(_BATCH_RECORDS):
                start, end = self.dispatched_offset, file.start_offset + piece.end
                queues = put_plain(file, piece, self.queues)
                if queues is not None:
                    self._touched.update(dict.fromkeys(queues))
                    self.last_timestamp = stored_at(file, piece, -1)
                    self.dispatched_offset = end
                elif not self._dispatch_records(end, time_slice):
                    self._window_bytes = max(self.dispatched_offset - begin, _SMALL_WINDOW_BYTES)
                    return False
                fit_bytes = (end - start) // len(piece.starts) * _BATCH_RECORDS
                self._window_bytes = source.window_bytes = min(max(fit_bytes, _SMALL_WINDOW_BYTES), _GATHERED_BYTES)
                if time_slice.is_over():
                    return False
        return True

    def _dispatch_records(self, end_offset: int, time_slice: TimeSlice) -> bool:
        find = self.queues.by_key.get
        touched = self._touched
        until_check = _SLICE_CHECK_RECORDS
        for physical_offset, record in self.log.walk(self.dispatched_offset, end_offset):
            if until_check <= 0:
                if time_slice.is_over():
                    return False
                until_check = _SLICE_CHECK_RECORDS
            until_check -= 1
            size, queue_id, sys_flag, queue_offset, timestamp, topic, code = unit_fields(physical_offset, record)
            if not sys_flag & TRANSACTION_PREPARED:
                queue = find((topic, queue_id)) or self._new_queue(topic, queue_id, physical_offset)
                if queue is not None:
                    if self.queues.has_kinds:
                        self._put_entries(entries_of(self.queues, physical_offset, record))
                    else:
                        queue.put(physical_offset, size, code, queue_offset)
                        touched[queue] = None
                    if queue.is_watched:
                        self._tell_state_record(physical_offset, record)
                        until_check = 0  # one may change hundreds of entries
            self.last_timestamp = timestamp
            self.dispatched_offset = physical_offset + size
        self.dispatched_offset = end_offset
        return True

    def _put_entries(self, entries: Iterable[tuple[ConsumeQueue, QueueEntry]]) -> None:
        for queue, entry in entries:
            queue.put_entry(entry)
            self._touched[queue] = None

    def _new_queue(self, topic: bytes, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        try:
            return self.queues.get(topic, queue_id)
        except InvalidTopicError as error:  # no broker accepts such a message: another program wrote the log
            log.warning("the record at %d is entered into no queue: %s", physical_offset, error)
            return None

    def _resume(self, *, delay_s: float) -> None:
        at = self._loop.time() + delay_s
        if self._is_closed or (self._resuming is not None and self._resume_at <= at):
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self._resuming, self._resume_at = self._loop.call_later(delay_s, self._continue), at

    def _continue(self) -> None:
        self._resuming = None
        if not self._is_closed:
            self._pump(self.log.confirm_offset)

    def _become_writable(self) -> None:
        for queue in self.queues:
            queue.next_offset = queue.max_offset
        self._is_writable = True
        self._tell_role(self.log.state)

    def _tell_dispatched(self) -> None:
        if self._touched:
            touched, self._touched = self._touched, {}
            self.queues.changed.update(touched)
            for listener in self._listeners:
                listener.on_dispatched(touched.keys())

    def _tell_state_record(self, physical_offset: int, record: memoryview) -> None:
        for listener in self._listeners:
            listener.on_state_record(physical_offset, record)

    def _tell_role(self, state: LogState) -> None:
        self._announced = state
        for listener in self._listeners:
            listener.on_role_change(state)
