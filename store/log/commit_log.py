"""Commit log: the replicated log of a broker that has the classic log of records. A policy on `LocalLog`.

    append ---> local log ---> [sync] ---> part: enough copies? ---> confirm: listeners, then `done` of each batch

SYNC_FLUSH: batches are confirmed and acknowledged by the sync that covers them, many batches a sync. ASYNC_FLUSH: at
the end of the turn of the loop that placed them; with a transient pool, by the commit that covers them. Nothing is
confirmed, read or acknowledged that is not in its file. The log's part (`store.log.part`) decides everything that
depends on other nodes. The first failed write or sync ends writing for good.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.wall_clock import wall_clock_ms
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError, RecordUnavailableError, StoreError
from store.files.log_span import LogSpan, Read
from store.log.commit_log_config import CommitLogConfig
from store.log.local_log import LocalLog
from store.log.part import Alone, Part
from store.log.refusals import refusal_of
from store.log.waiting_batches import WaitingBatches
from store.recovery.batch_fields import LogBatches
from store.replicated_log import (
    AppendReceipt,
    DiskBacklog,
    Done,
    Generation,
    LogListener,
    LogState,
    Readiness,
    Replica,
)
from telemetry.families import Family

__all__ = ["CommitLog", "CommitLogConfig"]

log = logging.getLogger(__name__)

_BEFORE_ALL = -1
_MUCH_BYTES = 32 << 10


class CommitLog:
    """The policy. Open it in this order: construct, `recover`, `start`; a `ReplicatedLog` from then on.

    Invariant: `confirm_offset <= local.queue.committed_offset`, and with SYNC_FLUSH `<= flushed_offset`.

    Args:
        clock: store time in ms.
        on_flushed: flushed offset and seconds of each sync; for metrics.
        part: this node's part among others; None: there are no others.

    Attributes:
        local: the bytes.
    """

    def __init__(
        self,
        config: CommitLogConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], int] = wall_clock_ms,
        on_flushed: Callable[[int, float], None] | None = None,
        part: Part | None = None,
    ) -> None:
        self.config = config
        self.local = LocalLog(config, loop, clock)
        self._queue = self.local.queue
        self._loop = loop
        self._on_flushed = on_flushed
        self._is_sync = self.local.is_sync
        self._syncs_at_once = self._is_sync and not self.local.has_pool
        self._listeners: list[LogListener] = []
        self._part: Part = part or Alone(config.sync_flush_timeout_ms if self._is_sync else None)
        self._waiting = _Waiters(loop, self._part)
        self._is_turn_open = False
        self._confirm_offset = 0
        self._refusal: Refusal | None = Refusal(Cause.RECOVERING, "the commit log is not started yet")

    # -- opening and closing

    def recover(self, checkpoint: StoreCheckpoint, *, clean: bool) -> list[int]:
        """See `LocalLog.recover`. Everything that is kept is confirmed, unless the log's part confirms less."""
        damaged = self.local.recover(checkpoint, clean=clean)
        self._confirm_offset = self._part.recovered(self._queue.max_offset, checkpoint, damaged)
        return damaged

    def start(self) -> None:
        """Accept records from now on; on the loop's thread."""
        self.local.start(on_committed=self._on_committed, on_failed=self._fail, on_flushed=self._on_flushed)
        self._refusal = None

    async def close(self) -> None:
        """Flush, acknowledge what is durable then, refuse the rest as stored, stop the threads, close the files."""
        if self._refusal is None:
            self._refusal = Refusal(Cause.SHUTTING_DOWN, "the broker is shutting down")
        await self._part.drain()
        await self.local.flush_and_stop()
        self.settle()
        await self._part.close()
        text = "stored here; the broker shut down before the promise held"
        self._waiting.refuse_all(lambda: Refusal(self._part.late().cause, text))
        await self.local.close_files()

    # -- the replicated log

    @property
    def state(self) -> LogState:
        """Writable unless it is not open, the disk failed, or another node writes."""
        return self._part.state(self._refusal)

    @property
    def has_failed(self) -> bool:
        """Whether the disk has failed: nothing is written any more, whatever other nodes decide."""
        return self._refusal is not None and self._refusal.cause is Cause.DISK_FAILED

    @property
    def directory(self) -> Path:
        """The folder of the files."""
        return self.config.directory

    @property
    def min_offset(self) -> int:
        """Start of the oldest kept file."""
        return self._queue.min_offset

    @property
    def max_offset(self) -> int:
        """End of the last record placed."""
        return self._queue.max_offset

    @property
    def confirm_offset(self) -> int:
        """ASYNC_FLUSH: end of the last record of a finished turn, in its file; SYNC_FLUSH: of the last one flushed."""
        return self._confirm_offset

    @property
    def committed_offset(self) -> int:
        """Everything below is in the files; the rest, up to `max_offset`, in the transient pool."""
        return self._queue.committed_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        return self._queue.flushed_offset

    def add_listener(self, listener: LogListener) -> None:
        """Add a listener; listeners are called in the order in which they were added."""
        self._listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. `struct.error` for a draft that cannot be encoded; nothing is placed then."""
        if self._refusal is not None:
            raise self._refusal
        self._part.check()
        start = self.max_offset
        try:
            end = self.local.place(drafts)
        except StoreError as error:
            if isinstance(error, DiskFailedError):
                self._loop.call_soon(self._fail, error)
            raise refusal_of(error) from error
        self._waiting.add(end, done)
        self._has_grown(end)
        if end - start >= _MUCH_BYTES and not self.local.has_pool:
            self._part.on_placed()  # other nodes need not wait for the end of this turn

    def receive(self, data: memoryview) -> int:
        """Write bytes of the master's log, see `LocalLog.append_bytes`; the new end of the log.

        Raises:
            Refusal: the disk refused them, now or before; nothing was written.
        """
        if self._refusal is not None:
            raise self._refusal
        try:
            end = self.local.append_bytes(data)
        except StoreError as error:
            if isinstance(error, DiskFailedError):
                self._loop.call_soon(self._fail, error)
            raise refusal_of(error) from error
        self._has_grown(end)
        return end

    def cut(self, offset: int) -> None:
        """Drop what lies at or past `offset`, which is not below the confirm offset. Durable on return.

        Raises:
            StoreError: the disk refused; after a `DiskFailedError` the log takes nothing more.
        """
        assert offset >= self._confirm_offset, f"a cut at {offset}, below the confirm offset {self._confirm_offset}"
        try:
            for listener in self._listeners:
                listener.on_truncated(offset)
            self.local.cut(offset)
        except DiskFailedError as error:
            self._fail(error)
            raise

    def cut_back(self, offset: int) -> None:
        """Cut as `cut` does, also below the confirm offset, where another node's log continues. Not while writable.

        Raises:
            StateUnknownError: see `LogListener.on_truncated`; the log is not cut.
            StoreError: as `cut`.
        """
        self._confirm_offset = min(self._confirm_offset, offset)
        self.cut(offset)

    def stop_writing(self, refusal: Refusal) -> None:
        """Refuse the batches that wait, since another node writes from now on and decides whether they are kept."""
        self._waiting.refuse_all(lambda: refusal)

    def restart(self, start_offset: int) -> None:
        """Drop everything; the log goes on at `start_offset`, the start of a file, which is confirmed."""
        self.local.queue.reset_to(start_offset)
        self._confirm_offset = start_offset

    def read(self, physical_offset: int, size_bytes: int) -> memoryview:
        """See `ReplicatedLog.read`."""
        if physical_offset + size_bytes > self._confirm_offset:
            raise RecordUnavailableError(physical_offset, size_bytes, self.min_offset, self._confirm_offset)
        return self._queue.slice(physical_offset, size_bytes)

    def reader(self) -> Read:
        """See `ReplicatedLog.reader`."""
        return self._queue.reader(0, self._confirm_offset, self.read)

    def span(self, physical_offset: int) -> LogSpan | None:
        """See `ReplicatedLog.span`."""
        return self._queue.span(physical_offset, 0, self._confirm_offset)

    def walk(self, start_offset: int, end_offset: int) -> Iterator[tuple[int, memoryview]]:
        """See `ReplicatedLog.walk`; headers are checked, bodies are not."""
        return self.local.walk(start_offset, end_offset)

    def batches(self) -> LogBatches:
        """See `ReplicatedLog.batches`."""
        return self.local.batches()

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """See `ReplicatedLog.sealed_files`."""
        return self.local.sealed_files(self._confirm_offset)

    def trim(self, before: int) -> int:
        """See `ReplicatedLog.trim`."""
        limit, needed = min(before, self._confirm_offset, self.flushed_offset), self._part.needed_offset()
        self.local.trim(limit if needed is None else min(limit, needed))
        return self.min_offset

    def transfer(self, target: str | None) -> str:
        """See `ReplicatedLog.transfer`."""
        return self._part.transfer(target)

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """See `ReplicatedLog.set_reads_ahead` (dataReadAheadEnable)."""
        self._queue.set_reads_ahead(reads_ahead)

    def backlog(self) -> DiskBacklog:
        """See `ReplicatedLog.backlog`; bytes that are not in the files yet are in the transient pool."""
        committed = self.committed_offset
        return DiskBacklog(self.max_offset - committed, committed - self.flushed_offset, self.local.free_buffer_count)

    def readiness(self) -> Readiness:
        """See `ReplicatedLog.readiness`."""
        return self._part.readiness() if self._refusal is None else Readiness(False, self._refusal.remark)

    def generations(self) -> Sequence[Generation]:
        """See `ReplicatedLog.generations`."""
        return self._part.generations()

    def replicas(self) -> Sequence[Replica]:
        """See `ReplicatedLog.replicas`."""
        return self._part.replicas()

    def metrics(self) -> Iterator[Family]:
        """See `ReplicatedLog.metrics`."""
        return self._part.metrics()

    # -- settling

    def _has_grown(self, end: int) -> None:
        if self._syncs_at_once:
            self.local.sync(end, self._on_synced)
        if not self._is_turn_open:
            self._is_turn_open = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Commit what was placed in this turn, or confirm it if it is in the file already."""
        self._is_turn_open = False
        if not self.local.has_pool:
            self._part.on_placed()
            if not self._is_sync:
                self.settle()
        self.local.end_turn()

    def _on_committed(self, committed_offset: int) -> None:
        self._part.on_placed()
        if self._is_sync:
            self.local.sync(committed_offset, self._on_synced)
            return
        self.settle()
        self.local.flush_if_worth()

    def _on_synced(self, _flushed_offset: int) -> None:
        self.settle()

    def settle(self) -> None:
        """Raise the confirm offset as far as the part allows, call the listeners, then `done` of complete batches."""
        flushed = self._queue.flushed_offset
        local = flushed if self._is_sync else self._queue.committed_offset
        confirmed, acknowledged, receipt = self._part.settle(local, flushed)
        if confirmed > self._confirm_offset:
            self._confirm_offset = confirmed
            for listener in self._listeners:
                listener.on_confirmed(confirmed)
        self._waiting.complete(acknowledged, receipt)

    def tell_role(self) -> None:
        """Tell the listeners the present state."""
        for listener in self._listeners:
            listener.on_role_change(self.state)

    def _fail(self, error: DiskFailedError) -> None:
        """End writing after the first failed write or sync: nothing is acknowledged any more."""
        if self.has_failed:
            return
        self._refusal = refusal = Refusal(Cause.DISK_FAILED, str(error))
        log.error("the commit log takes no more records: %s", error)
        self._waiting.refuse_all(lambda: refusal)
        self.tell_role()


class _Waiters:
    """Batches that wait for the promise, or until their part's limit is over. On the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, part: Part) -> None:
        self._loop = loop
        self._part = part
        self._batches = WaitingBatches()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, end_offset: int, done: Done) -> None:
        """Add a batch that ends at `end_offset`, behind all others."""
        limit_s = self._part.limit_s
        self._batches.add(end_offset, math.inf if limit_s is None else self._loop.time() + limit_s, done)
        if limit_s is not None:
            self._arm()

    def complete(self, end: int, receipt: AppendReceipt) -> None:
        """Acknowledge the batches up to `end`."""
        self._batches.complete(end, lambda: receipt)

    def refuse_all(self, refusal: Callable[[], Refusal]) -> None:
        """Refuse all batches, since nothing will be confirmed any more."""
        self._batches.refuse_after(_BEFORE_ALL, refusal)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        deadline_s = self._batches.next_deadline_s
        if self._timer is None and deadline_s is not None:
            self._timer = self._loop.call_at(deadline_s, self._refuse_late)

    def _refuse_late(self) -> None:
        self._timer = None
        self._batches.refuse_late(self._loop.time(), lambda _: self._part.late())
        self._arm()
