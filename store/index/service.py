"""Index service: a cursor of its own over the log's confirmed records, and queries by key.

    dispatched ---some ms later---> slice: drafts, or a walk of the log ---> builder's thread
    query: slices up to what is dispatched ---> builder's thread ---> physical offsets

It follows the store, not the log: what is dispatched can be read. Nothing of it runs inside `put`; a slice is short,
and the next one waits for the loop's turn. A query sees every message that was dispatched before it.

Source: apache/rocketmq `store/.../index/IndexService.java`, `DefaultFollowedStore.java` (queryMessage, 5.3.3).
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from itertools import islice

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import key_text
from store.directory.checkpoint import IndexProgress
from store.errors import DiskFailedError, StoreError
from store.index.batch import KeyBatch, drafts_batch, log_batch, records_batch
from store.index.builder import IndexBuilder, QueryResult
from store.index.index_file import QueryRange
from store.log.drafts import QueuedDraft
from store.queues.consume_queue import ConsumeQueue
from store.replicated_log import LogState
from store.store_listener import FollowedStore
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""Longest run of collecting keys before the loop gets its turn."""

_DELAY_S = 0.05
"""Seconds from a message's dispatch to the slice that reads its keys: a slice of many records costs less per record,
but the drafts of all messages that arrive in that time have to fit into `_DRAFT_BYTES_MAX`."""

_BETWEEN_S = 0.004
"""Seconds between two slices while the index is behind: two thirds of the loop's time are left to other work."""

_RETRY_S = 1.0
_QUERY_PATIENCE_S = 1.0
_SLICE_CHECK_RECORDS = 64
_UNDER_WAY_MAX = 4
_SLICE_DRAFTS = 2048
"""Drafts taken at once, about 2 ms of work. Their bytes do not count, since bodies are not read. A limit that is
reached under load would keep the index behind for good, since reading the log costs more than drafts."""

_BATCHED_A_DRAFT = 8
"""Number of messages of a batch that cost as much as a draft of one message."""

_SLICE_BYTES = 4 << 20
"""Most bytes of the log read at once where there are no drafts."""
_SLICE_RECORDS = 4096
"""About the most records read at once."""

_BATCH_BYTES = 64 << 10
"""Fewer bytes of a copied log are read record by record."""

_DRAFT_BYTES_MAX = 32 << 20
"""Bytes that kept drafts hold at most; beyond that the log is read again. Dispatched batches hold no bodies."""

_TEXT_BYTES = 100
"""Bytes that a text of a batch takes in addition to its length, with the numbers that belong to it."""


class IndexService:
    """The index of one store; a `StoreListener`. Owned by the loop's thread.

    Args:
        builder: as `prepare_index` made it; this service's from now on.

    Attributes:
        config: the builder's.
    """

    def __init__(self, builder: IndexBuilder, store: FollowedStore, loop: asyncio.AbstractEventLoop) -> None:
        self.config = builder.config
        self._store = store
        self._loop = loop
        self._builder = builder
        self._cursor = builder.applied_offset
        self._drafts: deque[tuple[int, int, int, int, Sequence[QueuedDraft]]] = deque()  # start, end, bytes, cost
        self._draft_bytes = 0
        self._under_way = 0
        self._settled = asyncio.Event()  # no batch is under way
        self._settled.set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_blocked = False  # by batches under way
        self._slice_bytes = _BATCH_BYTES  # of the log, for the next slice
        self._is_eager = False
        self._is_closed = False

    def start(self) -> None:
        """Follow the store from where the index ends."""
        self._store.add_listener(self)
        self._send(self._builder.go_on())
        self._schedule(_DELAY_S)

    def on_drafts(self, start: int, end: int, drafts: Sequence[QueuedDraft]) -> None:
        """Keep drafts from which `[start, end)` of the log was dispatched: their keys need not be read from it."""
        messages = sum([draft.messages for draft in drafts])
        held = end - start if messages == len(drafts) else sum(map(_held_bytes, drafts))
        if self._draft_bytes + held > _DRAFT_BYTES_MAX:  # the index is behind
            self._forget_drafts()
        self._drafts.append((start, end, held, len(drafts) + messages // _BATCHED_A_DRAFT, drafts))
        self._draft_bytes += held

    def _forget_drafts(self) -> None:
        self._drafts.clear()
        self._draft_bytes = 0

    # -- the store's listener

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Collect the keys of new records soon."""
        if self._is_eager:
            while self._cursor < self._store.dispatched_offset and not self._is_closed:
                self._slice(slice_s=None)
        elif self._timer is None:
            self._schedule(_DELAY_S)

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """Do nothing: state records have no keys."""

    def on_cut(self, offset: int) -> None:
        """Drop the keys of records that were cut, in the builder's thread; the next checkpoint waits for that."""
        self._forget_drafts()
        if self._cursor > offset:
            self._cursor = offset
            self._send(self._builder.cut_at(offset))

    def on_role_change(self, state: LogState) -> None:
        """Do nothing: leaders and followers index alike."""

    # -- for operators, cleaning and the checkpoint

    @property
    def error(self) -> StoreError | None:
        """Why the index stands still, or None; a full disk is tried again by itself."""
        return self._builder.error

    @property
    def entries(self) -> int:
        """Number of entries made since the start."""
        return self._builder.entries

    @property
    def lag_bytes(self) -> int:
        """Bytes of the log that are dispatched and not in the index yet."""
        return max(self._store.dispatched_offset - self._builder.applied_offset, 0)

    @property
    def size_bytes(self) -> int:
        """Length of the index files; their blocks are fewer."""
        return self._builder.size_bytes

    def delete_before(self, physical_offset: int) -> None:
        """Drop index files whose records are all before `physical_offset`, the log's start now, in the thread."""
        self._builder.delete_before(physical_offset)

    def sync(self) -> IndexProgress | None:
        """Sync the index and return how far it reaches; blocks the checkpointer's thread, which calls it."""
        return self._builder.sync()

    # -- queries

    async def query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        index_type: str | None = None,
    ) -> QueryResult:
        """Find records that may carry a key, newest first: at most `max_num`, and at most `config.query_max`.

        Entries know their store time to the second, so records up to a second outside of `[begin_ms, end_ms]` are among
        them, and keys with equal hashes are not told apart. The index may be behind while it is made again from the
        log: the result says how far it is. `index_type` is `K` (key) or `U` (unique key), which both mean what None
        means, or `T` (tag), which only newer releases' files know.

        Raises:
            DiskReadError, DiskFailedError: an index file cannot be read; the index is closed.
        """
        with contextlib.suppress(TimeoutError):
            await self.catch_up(_QUERY_PATIENCE_S)
        window = QueryRange(index_hash(key_text(topic, key, index_type)), begin_ms, end_ms)
        count_max = max(min(max_num, self.config.query_max), 0)
        try:
            future = self._builder.query(window, count_max)
        except RuntimeError as error:  # closed between request and answer
            raise DiskFailedError(self.config.directory, "the key index is closed") from error
        return await asyncio.wrap_future(future)

    async def catch_up(self, patience_s: float | None = None) -> None:
        """Return when the keys of all records dispatched so far are with the builder.

        Raises:
            TimeoutError: not within `patience_s`.
        """
        end = self._store.dispatched_offset
        async with asyncio.timeout(patience_s):
            while self._cursor < end and not self._is_closed and self.error is None:
                self._slice()
                if self._under_way >= _UNDER_WAY_MAX:
                    await self._settled.wait()
                await asyncio.sleep(0)

    # -- closing

    async def finish(self, patience_s: float = 1.0) -> None:
        """Catch up, since the log closes soon, and from now on take keys as soon as records are dispatched."""
        with contextlib.suppress(TimeoutError):
            await self.catch_up(patience_s)
        self._is_eager = True
        self._stop_timer()

    async def drain(self) -> None:
        """Return when what was collected of the closed log is in the files."""
        self._is_closed = True
        self._stop_timer()
        await self._settled.wait()

    async def close(self) -> None:
        """Close the files; the checkpointer has synced them."""
        await self.drain()
        await self._loop.run_in_executor(None, self._builder.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- slices

    def _schedule(self, delay_s: float) -> None:
        if self._timer is None and not (self._is_closed or self._is_eager):
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._slice()
        if self._cursor < self._store.dispatched_offset and not self._is_blocked:
            self._schedule(_BETWEEN_S)

    def _slice(self, slice_s: float | None = SLICE_S) -> None:
        """Collect keys for at most a slice (None: all), and give them to the builder."""
        self._is_blocked = self.error is not None or self._under_way >= _UNDER_WAY_MAX
        if self._is_closed or (self._is_blocked and slice_s is not None):
            return
        store, end = self._store, self._store.dispatched_offset
        if self._cursor > end:  # the log began anew, with records of another node
            self._forget_drafts()
            self._cursor = end
            self._send(self._builder.cut_at(end))
        self._cursor = max(self._cursor, store.log.min_offset)
        if self._cursor >= end:
            return
        batch, self._cursor = self._from_drafts() or self._from_log(end, slice_s)
        self._send(self._builder.apply(batch, self._cursor))

    def _from_drafts(self) -> tuple[KeyBatch, int] | None:
        """Return the keys of the drafts at the cursor, and the next cursor; None if the drafts there are not kept."""
        kept, end = self._drafts, self._cursor
        drafts: list[QueuedDraft] = []
        cost = 0
        while kept and kept[0][0] <= end and cost < _SLICE_DRAFTS:
            start, behind, held, more, some = kept.popleft()
            self._draft_bytes -= held
            if start == end:
                drafts += some
                cost += more
                end = behind
        return (drafts_batch(drafts), end) if drafts else None

    def _from_log(self, end: int, slice_s: float | None) -> tuple[KeyBatch | None, int]:
        """Return keys of records from the cursor on, to kept drafts, `end` or the slice's end; and the next cursor."""
        if self._drafts:
            end = min(end, self._drafts[0][0])
        if end - self._cursor >= _BATCH_BYTES and (source := self._store.log.batches()) is not None:
            source.window_bytes = self._slice_bytes
            with contextlib.suppress(CorruptRecordError, StoreError):  # which the walk meets where it is
                for file, batch in source.batches(self._cursor, end):
                    if count := len(batch.starts):
                        record_bytes = (batch.end - int(batch.starts[0])) // count
                        self._slice_bytes = min(record_bytes * _SLICE_RECORDS, _SLICE_BYTES)
                        return log_batch(file, batch), file.start_offset + batch.end
        records, behind = self._collect(end, slice_s)
        return (records_batch(records) if records else None), behind

    def _collect(self, end: int, slice_s: float | None) -> tuple[list[tuple[int, memoryview]], int]:
        time_slice = None if slice_s is None else TimeSlice(slice_s)
        records: list[tuple[int, memoryview]] = []
        walk = self._store.log.walk(self._cursor, end)
        try:
            count = -1
            while count < len(records):
                count = len(records)
                records.extend(islice(walk, _SLICE_CHECK_RECORDS))  # keeps what came before an error
                if records and time_slice is not None and time_slice.is_over():
                    return records, _end_of(records)
        except (CorruptRecordError, StoreError) as error:
            damaged = _end_of(records) if records else self._cursor
            behind = self._next_known(damaged, end)
            log.error("the key index leaves out the records of [%d, %d): %s", damaged, behind, error)
            return records, behind
        return records, end

    def _next_known(self, offset: int, end: int) -> int:
        """Return the first record behind `offset` that some queue knows; `end` without one."""
        units = (queue.unit(queue.bisect(lambda unit: unit[0] <= offset)) for queue in self._store.queues)
        return min((unit[0] for unit in units if unit is not None and unit[0] < end), default=end)

    def _send(self, future: "Future[bool]") -> None:
        self._under_way += 1
        self._settled.clear()
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._on_sent, done))

    def _on_sent(self, done: "Future[bool]") -> None:
        self._under_way -= 1
        if self._under_way == 0:
            self._settled.set()
        if (error := done.exception()) is not None:
            log.error("the key index stops at %d: %r", self._builder.applied_offset, error)
        elif done.result():
            if self._is_blocked:
                self._schedule(0.0)
            return
        if self._under_way == 0 and not isinstance(self.error, DiskFailedError):
            self._loop.call_later(_RETRY_S, self._go_on)

    def _go_on(self) -> None:
        if not self._is_closed and self._under_way == 0:
            self._is_blocked = True
            self._send(self._builder.go_on())


def _held_bytes(draft: QueuedDraft) -> int:
    """Return about how much memory a dispatched draft holds."""
    if draft.messages == 1:
        return draft.size
    return sum(map(len, draft.texts_of_records())) + _TEXT_BYTES * draft.messages


def _end_of(records: list[tuple[int, memoryview]]) -> int:
    physical_offset, record = records[-1]
    return physical_offset + len(record)
