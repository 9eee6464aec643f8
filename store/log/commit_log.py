"""Commit log: the replicated log of a broker that stands alone. A policy on `LocalLog`, which keeps the bytes.

    append ---> local log ---> [sync] ---> confirm: listeners, then `done` of each batch

SYNC_FLUSH: batches are confirmed and acknowledged by the sync that covers them, many batches a sync. ASYNC_FLUSH: at
the end of the turn of the loop that placed them; with a transient pool, by the commit that covers them. Nothing is
confirmed, read or acknowledged that is not in its file. The first failed write or sync ends writing for good.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ledgermq.message.draft import RecordDraft
from ledgermq.remoting.refusal import Cause, Refusal
from store.directory.checkpoint import StoreCheckpoint
from store.errors import DiskFailedError, RecordUnavailableError, StoreError
from store.files.log_span import LogSpan, Read
from store.log.commit_log_config import CommitLogConfig
from store.log.flusher import FlushMode
from store.log.local_log import LocalLog, wall_clock_ms
from store.log.refusals import refusal_of
from store.log.waiting_batches import WaitingBatches
from store.recovery.batch_fields import LogBatches
from store.replicated_log import (
    AppendReceipt,
    Backlog,
    Done,
    Generation,
    LogListener,
    LogRole,
    LogState,
    Readiness,
    Replica,
)
from telemetry.families import Family

__all__ = ["CommitLog", "CommitLogConfig"]

log = logging.getLogger(__name__)

_WRITTEN = AppendReceipt(generation=0, copies=1, durable_copies=0)
_DURABLE = AppendReceipt(generation=0, copies=1, durable_copies=1)
_BEFORE_ALL = -1


class CommitLog:
    """The policy. Open it in this order: construct, `recover`, `start`; a `ReplicatedLog` from then on.

    Invariant: `confirm_offset <= local.queue.committed_offset`, and with SYNC_FLUSH `<= flushed_offset`.

    Args:
        clock: store time in ms.
        on_flushed: flushed offset and seconds of each sync; for metrics.

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
    ) -> None:
        self.config = config
        self.local = LocalLog(config, loop, clock)
        self._queue = self.local.queue
        self._loop = loop
        self._on_flushed = on_flushed
        self._is_sync = config.flush_mode is FlushMode.SYNC
        self._syncs_at_once = self._is_sync and not self.local.has_pool
        self._listeners: list[LogListener] = []
        self._waiting = _FlushWaiters(loop, config.sync_flush_timeout_ms, has_deadlines=self._is_sync)
        self._is_turn_open = False
        self._confirm_offset = 0
        self._refusal: Refusal | None = Refusal(Cause.RECOVERING, "the commit log is not started yet")

    # -- opening and closing

    def recover(self, checkpoint: StoreCheckpoint, *, clean: bool) -> list[int]:
        """See `LocalLog.recover`; what is kept is confirmed."""
        damaged = self.local.recover(checkpoint, clean=clean)
        self._confirm_offset = self._queue.max_offset
        return damaged

    def start(self) -> None:
        """Begin to take records; on the loop's thread."""
        self.local.start(on_committed=self._on_committed, on_failed=self._fail, on_flushed=self._on_flushed)
        self._refusal = None

    async def close(self) -> None:
        """Flush, acknowledge what that makes durable, refuse the rest, stop the threads, close the files."""
        if self._refusal is None:
            self._refusal = Refusal(Cause.SHUTTING_DOWN, "the broker is shutting down")
        await self.local.flush_and_stop()
        self._settle()
        self._waiting.refuse_all(self._refusal)
        await self.local.close_files()

    # -- the replicated log

    @property
    def state(self) -> LogState:
        """Writable unless it is not open, or the disk failed."""
        return LogState(LogRole.ALONE, 0, None, self._refusal)

    @property
    def directory(self) -> Path:
        """Where the files lie."""
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
        """Everything below is in the files; what is above, up to `max_offset`, in the transient pool."""
        return self._queue.committed_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is durable."""
        return self._queue.flushed_offset

    def add_listener(self, listener: LogListener) -> None:
        """Listeners are called in the order in which they were added."""
        self._listeners.append(listener)

    def append(self, drafts: Sequence[RecordDraft], done: Done) -> None:
        """See `ReplicatedLog.append`. A draft that cannot be encoded raises `struct.error`, and nothing is placed."""
        if self._refusal is not None:
            raise self._refusal
        try:
            end = self.local.place(drafts)
        except StoreError as error:
            if isinstance(error, DiskFailedError):
                self._loop.call_soon(self._fail, error)
            raise refusal_of(error) from error
        self._waiting.add(end, done)
        if self._syncs_at_once:
            self.local.sync(end, self._on_synced)
        elif not self._is_turn_open:
            self._is_turn_open = True
            self._loop.call_soon(self._end_turn)

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
        """See `ReplicatedLog.walk`; frames are checked, bodies are not."""
        return self.local.walk(start_offset, end_offset)

    def batches(self) -> LogBatches:
        """See `ReplicatedLog.batches`."""
        return self.local.batches()

    def sealed_files(self) -> Sequence[tuple[Path, int]]:
        """See `ReplicatedLog.sealed_files`."""
        return self.local.sealed_files(self._confirm_offset)

    def trim(self, before: int) -> int:
        """See `ReplicatedLog.trim`; this log has no other members."""
        self.local.trim(min(before, self._confirm_offset, self.flushed_offset))
        return self.min_offset

    def transfer(self, target: str | None) -> str:
        """See `ReplicatedLog.transfer`; always refused."""
        raise Refusal(Cause.NOT_SUPPORTED, "leadership cannot be handed over: this broker has no replicas")

    def set_reads_ahead(self, reads_ahead: bool) -> None:
        """See `ReplicatedLog.set_reads_ahead` (dataReadAheadEnable)."""
        self._queue.set_reads_ahead(reads_ahead)

    def backlog(self) -> Backlog:
        """See `ReplicatedLog.backlog`; what is not in the files yet lies in the transient pool."""
        committed = self.committed_offset
        return Backlog(self.max_offset - committed, committed - self.flushed_offset, self.local.free_buffer_count)

    def readiness(self) -> Readiness:
        """See `ReplicatedLog.readiness`."""
        return Readiness(True, "standalone") if self._refusal is None else Readiness(False, self._refusal.remark)

    def generations(self) -> Sequence[Generation]:
        """See `ReplicatedLog.generations`."""
        return ()

    def replicas(self) -> Sequence[Replica]:
        """See `ReplicatedLog.replicas`."""
        return ()

    def metrics(self) -> Iterator[Family]:
        """See `ReplicatedLog.metrics`."""
        return iter(())

    # -- settling

    def _end_turn(self) -> None:
        """What was placed in this turn is to be committed, or is in the file already."""
        self._is_turn_open = False
        if not self.local.has_pool:
            self._settle()
        self.local.end_turn()

    def _on_committed(self, committed_offset: int) -> None:
        if self._is_sync:
            self.local.sync(committed_offset, self._on_synced)
            return
        self._settle()
        self.local.flush_if_worth()

    def _on_synced(self, _flushed_offset: int) -> None:
        self._settle()

    def _settle(self) -> None:
        """Confirm what may be confirmed, tell the listeners, then the senders."""
        flushed = self._queue.flushed_offset
        confirmed = flushed if self._is_sync else self._queue.committed_offset
        if confirmed > self._confirm_offset:
            self._confirm_offset = confirmed
            for listener in self._listeners:
                listener.on_confirmed(confirmed)
        self._waiting.settle(confirmed, flushed)

    def _fail(self, error: DiskFailedError) -> None:
        """The first failed write or sync: nothing is acknowledged any more."""
        if self._refusal is not None and self._refusal.cause is Cause.DISK_FAILED:
            return
        self._refusal = Refusal(Cause.DISK_FAILED, str(error))
        log.error("the commit log takes no more records: %s", error)
        self._waiting.refuse_all(self._refusal)
        for listener in self._listeners:
            listener.on_role_change(self.state)


class _FlushWaiters:
    """Batches of a log that has no other members. On the loop's thread.

    Args:
        limit_ms: how long a batch waits for its flush.
        has_deadlines: whether they are refused then; else they wait for ever.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_ms: int, *, has_deadlines: bool) -> None:
        self._loop = loop
        self._limit_ms = limit_ms
        self._has_deadlines = has_deadlines
        self._batches = WaitingBatches()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, end_offset: int, done: Done) -> None:
        """A batch that ends at `end_offset`, the last one so far."""
        self._batches.add(end_offset, self._loop.time() + self._limit_ms / 1000, done)
        if self._has_deadlines:
            self._arm()

    def settle(self, confirmed: int, flushed: int) -> None:
        """Answer what lies below `confirmed`; what lies below `flushed` is durable."""
        self._batches.complete(min(confirmed, flushed), lambda: _DURABLE)
        self._batches.complete(confirmed, lambda: _WRITTEN)

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing will be confirmed any more."""
        self._batches.refuse_after(_BEFORE_ALL, lambda: refusal)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        deadline_s = self._batches.next_deadline_s
        if self._timer is None and deadline_s is not None:
            self._timer = self._loop.call_at(deadline_s, self._refuse_late)

    def _refuse_late(self) -> None:
        """Senders hear that their records are in the log and not known to be durable."""
        self._timer = None
        late = Refusal(Cause.FLUSH_TIMEOUT, f"stored, but not flushed within {self._limit_ms} ms")
        self._batches.refuse_late(self._loop.time(), lambda _: late)
        self._arm()
