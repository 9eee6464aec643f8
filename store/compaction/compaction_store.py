"""Compaction store: follows the message store, keeps a compaction log for each queue of a compacted topic.

    on_dispatched -> copy, in slices of the loop's time -> full segment? sync it in a thread, go on
    every interval, queue by queue: compact and replace in a thread -> serve the new segments
    pull -> `read`: what is copied, compacted or not; None -> the queue itself

What is copied is known from the logs themselves: after any stop copying goes on behind their last record. Each node
of a Raft group copies what is confirmed, and compacts on its own.

A node that was given another one's state (`begin_anew`) lacks what compaction has kept of parts that left the log. It
serves none of these queues until somebody has fetched that from a node that has it (`take_kept`, `complete`).

Source: apache/rocketmq `store/.../kv/CompactionStore.java`, `CompactionService.java` (5.3.3).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import BLANK, check_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.compaction.compaction_log import CompactionLog
from store.compaction.compactor import Compacted, CompactionStoppedError
from store.compaction.config import CompactionConfig
from store.compaction.copier import Copier
from store.compaction.missing_history import MissingHistory, QueueKey
from store.compaction.position_checkpoint import PositionCheckpoint
from store.compaction.segment import Segment
from store.compaction.segment_replacement import QueueFolders
from store.errors import DiskFullError, StoreError
from store.files.disk import sync_directory
from store.files.folders import open_folder
from store.files.trash import Trash
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_kinds import TopicAttributes
from store.queues.queue_reader import GetResult, TagsFilter
from store.queues.queue_table import QueueStarts
from store.replicated_log import LogState
from store.store_listener import FollowedStore

log = logging.getLogger(__name__)

_FOLDERS: Final = ("compactionLog", "compactionCq")
_I64_MAX: Final = (1 << 63) - 1
_READ_BY_MEMBER_S: Final = 30.0
"""Seconds for which a queue is not compacted after another node has fetched a part of it."""
_READ_BY_MEMBERS_MAX_S: Final = 600.0
"""Longest time in seconds for which fetches can delay a queue's compaction, even if they never reach its end."""
_FAULTS: Final = (StoreError, OSError, CorruptRecordError)


def is_compacted(attributes: Mapping[str, str]) -> bool:
    """Return whether a topic with these attributes keeps only the last message of each key."""
    return attributes.get("cleanup.policy") == "COMPACTION"


class KeptPart(NamedTuple):
    """A part of the messages of a queue that compaction has kept.

    Attributes:
        records: joined, by rising queue offset.
        next_offset: queue offset of the next part; in a part without records, the end of what the sending node has
            copied.
        edition: see `CompactionLog.edition`; parts belong together only if their editions are equal.
    """

    records: bytes
    next_offset: int
    edition: str


class CompactionStore:
    """All compaction logs of a store. Load it in any thread; from `start` on it lives on the loop's.

    Args:
        root: the store's.
        topic_attributes: returns the attributes of a topic; empty if none are known.
    """

    def __init__(self, root: Path, config: CompactionConfig, topic_attributes: TopicAttributes) -> None:
        self.config = config
        self._directory = root / "compaction"
        self._topic_attributes = topic_attributes
        self._positions = PositionCheckpoint(self._directory)
        self._trash = Trash(self._directory)
        self._missing = MissingHistory(self._directory)
        self._read_by_member: dict[CompactionLog, tuple[float, float]] = {}
        # the time (s) before which a queue is not compacted, and the last time to which fetches can move that
        self._logs: dict[QueueKey, CompactionLog] = {}
        self._by_queue: dict[ConsumeQueue, CompactionLog] = {}
        self._timers: dict[object, asyncio.TimerHandle] = {}
        self._executor = ThreadPoolExecutor(config.workers, thread_name_prefix="ledgermq-compaction")
        self._running: set[asyncio.Future[None]] = set()
        self._is_served = False
        self._is_closing = False

    def load(self, *, clean: bool) -> None:
        """Open every log on disk. If one cannot be opened, that is logged, and its queue is served without compaction.

        `clean`: the store was closed in order.

        Raises:
            StoreFormatError: the file of queues without history is damaged.
            DiskFailedError: the folder cannot be made or read.
        """
        open_folder(self._directory)
        self._positions.load()
        self._trash.empty()
        self._missing.load()
        for topic, queue_id in self._missing.queues:
            self._remove_files(topic, queue_id)
        for path in sorted(self._directory.glob(f"{_FOLDERS[0]}/*/*")):
            if path.is_dir() and path.name.isascii() and path.name.isdigit():
                self._open(path.parent.name, int(path.name), clean=clean)

    # ---- following the store

    def serve(self, store: FollowedStore) -> None:
        """Serve pulls of a store that is recovered."""
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._copier = Copier(store.log, lambda: store.durable_offset, self._loop, self._executor)
        self._is_served = True
        store.queues.on_deleted.append(self.drop)

    def start(self) -> None:
        """Follow the store, which is about to start and whose topics are known."""
        self._store.add_listener(self)
        for compaction_log in self._logs.values():
            self._compact_in(compaction_log, self._interval_s())
        self._call_later("flush", self.config.flush_interval_ms / 1000, self._flush)
        self.on_dispatched(list(self._store.queues))

    def hold(self) -> int:
        """Return the physical offset of the first message without a durable copy, which the log must keep.

        While copying is stopped, nothing is kept: if the disk is full, deleting these files is what makes room.
        """
        waiting = [
            (queue, kept) for queue, kept in self._by_queue.items() if kept.fault is None and not kept.lacks_history
        ]
        units = [queue.unit(kept.durable_offset) for queue, kept in waiting]
        return min((unit[0] for unit in units if unit is not None), default=_I64_MAX)

    def on_dispatched(self, queues: Collection[ConsumeQueue]) -> None:
        """Copy the new messages of these queues."""
        for queue in queues:
            if not queue.is_uncompacted and (found := self._of(queue)) is not None and not found.lacks_history:
                self._copier.add(found, queue)

    def on_state_record(self, physical_offset: int, record: memoryview) -> None:
        """Do nothing: state records are not compacted."""

    def on_cut(self, offset: int) -> None:
        """Copy the compaction logs of cut queues again that have messages behind the cut.

        No part of such a log can be kept, since a message may have been dropped for a later one of its key that is
        behind the cut. Messages that are not in the commit log any more are fetched again from the node whose log this
        node copies.

        Raises:
            DiskFullError, DiskFailedError: nothing is dropped yet; call again.
        """
        cut = {queue.topic for queue, kept in self._by_queue.items() if kept.end_offset > queue.max_offset}
        lost = {
            (queue.topic, queue.queue_id) for queue in self._store.queues if queue.topic in cut and queue.min_offset > 0
        }
        if lost:
            self._missing.replace(self._missing.queues | lost)
        for topic in sorted(cut):
            log.warning(
                "%s is copied again from its queues: the log was cut at %d, below some of its messages", topic, offset
            )
            self._drop_logs(topic)
        for name in _FOLDERS if cut else ():
            sync_directory(self._directory / name)
        self.on_dispatched([queue for queue in self._store.queues if queue.topic in cut])

    def on_role_change(self, state: LogState) -> None:
        """Do nothing: leaders and followers compact in the same way."""

    # ---- reading

    def read(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, accepts: TagsFilter | None
    ) -> GetResult | None:
        """See `CompactionLog.read`; None for a queue that is not compacted.

        Raises:
            Refusal: RECOVERING, this node lacks the kept messages of the queue.
        """
        found = self._of(queue)
        if found is not None and found.lacks_history:
            raise _lacks_history(queue.topic, queue.queue_id)
        return None if found is None else found.read(queue, offset, max_count, max_bytes, accepts)

    def first_offset(self, queue: ConsumeQueue) -> int | None:
        """Return the first queue offset that can be read, where that is before the queue's own; else None.

        0 while the kept messages are missing, so that no group begins behind them.
        """
        found = self._of(queue)
        if found is not None and found.lacks_history:
            return 0
        return None if found is None else found.first_offset

    def log_of(self, topic: str, queue_id: int) -> CompactionLog | None:
        """Return the open log of a queue; None without one."""
        return self._logs.get((topic, queue_id))

    # ---- the kept messages of another node

    @property
    def missing(self) -> list[QueueKey]:
        """The queues whose kept messages this node lacks."""
        return sorted(self._missing.queues)

    def why_incomplete(self) -> str | None:
        """Return why some queues are not served; None when all are."""
        queues = self.missing
        if not queues:
            return None
        topic, queue_id = queues[0]
        return f"lacks the kept messages of {len(queues)} compacted queues ({topic}/{queue_id} first); fetches them"

    def begin_anew(self, starts: QueueStarts) -> None:
        """Drop all logs: the queues have been emptied and begin at `starts`, as those of another node do.

        Queues that do not begin at 0 lack what that node has kept. This is durable on return.

        Raises:
            DiskFullError, DiskFailedError: try again.
        """
        self._missing.replace(
            [
                (topic, queue_id)
                for topic, queues in starts.items()
                if is_compacted(self._topic_attributes(topic))
                for queue_id, start in queues.items()
                if start > 0
            ]
        )
        for key in list(self._logs):
            self._drop_log(key)
            self._remove_files(*key)
        self._by_queue.clear()
        for queue in self._store.queues:
            queue.is_uncompacted = False
        if self._missing.queues:
            log.warning("%s", self.why_incomplete())

    def begin_fetch(self, topic: str, queue_id: int) -> CompactionLog | None:
        """Return an empty log for the kept messages of a queue; None when the queue cannot be opened or is gone."""
        key = topic, queue_id
        if key in self._logs:
            self._drop_log(key)
            self._remove_files(topic, queue_id)
        queue = self._store.queues.find(topic, queue_id)
        if queue is None:
            return None
        self._by_queue.pop(queue, None)
        queue.is_uncompacted = False
        return self._of(queue)

    async def take_kept(self, compaction_log: CompactionLog, records: bytes) -> None:
        """Add a part that another node has sent.

        Raises:
            CorruptRecordError, StoreError: it is damaged or out of order, or the disk refuses: begin again.
        """
        view, position = memoryview(records), 0
        while position < len(records) and not compaction_log.is_dropped:
            size = check_record(view, position, len(records), check_crc=True)
            if size == BLANK:
                raise CorruptRecordError(position, "a blank among kept messages")
            if compaction_log.add_kept(view[position : position + size]):
                position += size
            elif (segment := compaction_log.undurable) is not None:
                await self._loop.run_in_executor(self._executor, segment.sync)
                segment.close()
                compaction_log.undurable = None

    def has_reached_log(self, compaction_log: CompactionLog, offset: int) -> bool:
        """Return whether all messages of the queue at or past queue offset `offset` are in this node's commit log."""
        queue = self._store.queues.find(compaction_log.topic, compaction_log.queue_id)
        min_offset = self._store.log.min_offset
        return queue is None or offset >= queue.bisect(lambda unit: unit[0] < min_offset)

    def is_in_log(self, compaction_log: CompactionLog) -> bool:
        """Return whether this node's log has reached the last of the kept messages.

        If the source's log is ahead, its last messages may never be committed here.
        """
        queue = self._store.queues.find(compaction_log.topic, compaction_log.queue_id)
        return queue is None or compaction_log.end_offset <= queue.max_offset

    async def complete(self, compaction_log: CompactionLog, offset: int) -> None:
        """Serve the queue, and copy later messages: all kept messages up to queue offset `offset` have arrived.

        Raises:
            OSError, StoreError: the disk refuses; after a restart they are fetched again.
        """
        topic, queue_id = compaction_log.topic, compaction_log.queue_id
        compaction_log.end_offset = max(compaction_log.end_offset, offset)
        compaction_log.lacks_history = False
        unsynced = compaction_log.unsynced  # before more is copied
        if (queue := self._store.queues.find(topic, queue_id)) is not None:
            self.on_dispatched([queue])
        await self._loop.run_in_executor(self._executor, _sync_all, unsynced)
        compaction_log.durable_offset = max(compaction_log.durable_offset, offset)
        if not compaction_log.is_dropped:
            self._missing.queues -= {(topic, queue_id)}
            await self._loop.run_in_executor(self._executor, self._missing.save)
            log.info("%s: has the kept messages up to %d", compaction_log, offset)

    def kept(self, topic: str, queue_id: int, offset: int, max_bytes: int) -> KeptPart:
        """Return a part of the kept messages of a queue from queue offset `offset` on, for another node.

        Raises:
            Refusal: RECOVERING, this node lacks them itself; QUERY_NOT_FOUND, it has no such queue.
        """
        found = self.log_of(topic, queue_id)
        if found is None:
            raise Refusal(Cause.QUERY_NOT_FOUND, f"queue {topic[:80]}/{queue_id} is not compacted here")
        if found.lacks_history:
            raise _lacks_history(topic, queue_id)
        now = time.monotonic()
        _, latest = self._read_by_member.get(found, (now, now + _READ_BY_MEMBERS_MAX_S))
        self._read_by_member[found] = min(now + _READ_BY_MEMBER_S, latest), latest
        records, next_offset = found.kept(offset, max_bytes)
        return KeptPart(records, next_offset, found.edition)

    # ---- compacting

    async def compact(self) -> None:
        """Compact every queue that has something to compact, now; returns when all of it is done or refused."""
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.gather(*(self._compact(compaction_log) for compaction_log in list(self._logs.values())))

    def drop(self, topic: str) -> None:
        """Remove the compaction logs of a topic that was removed.

        Raises:
            DiskFailedError: its folders could not be removed.
        """
        self._drop_logs(topic)
        if any(key[0] == topic for key in self._missing.queues):
            self._missing.replace({key for key in self._missing.queues if key[0] != topic})

    def finish(self) -> None:
        """Keep the records that are not copied yet in memory: the log is closed next, then `drain` copies them."""
        self._copier.finish()

    async def drain(self) -> None:
        """Copy the last records of the log, which is closed and durable; see `Copier.drain`."""
        await self._copier.drain()

    async def close(self) -> bool:
        """Stop compacting, sync what was copied, close all files; return whether everything copied is durable."""
        self._is_closing = True
        for timer in self._timers.values():
            timer.cancel()
        if self._is_served:
            await self._copier.stop()
        while self._running:
            await asyncio.wait(self._running)
        is_durable = await asyncio.to_thread(self._close_files)
        self._executor.shutdown()
        return is_durable

    # ---- internals

    def _drop_logs(self, topic: str) -> None:
        for key in [key for key in self._logs if key[0] == topic]:
            self._drop_log(key)
        self._by_queue = {queue: kept for queue, kept in self._by_queue.items() if queue.topic != topic}
        for queue in self._store.queues.of_topic(topic):
            queue.is_uncompacted = False
        for name in _FOLDERS:
            self._trash.take(self._directory / name / topic)

    def _drop_log(self, key: QueueKey) -> None:
        compaction_log = self._logs.pop(key)
        compaction_log.drop()
        self._copier.forget(compaction_log)
        self._positions.forget(*key)
        self._read_by_member.pop(compaction_log, None)
        if (timer := self._timers.pop(compaction_log, None)) is not None:
            timer.cancel()

    def _remove_files(self, topic: str, queue_id: int) -> None:
        for name in _FOLDERS:
            self._trash.take(self._directory / name / topic / str(queue_id))

    def _of(self, queue: ConsumeQueue) -> CompactionLog | None:
        """Return the log of a queue; it is opened or made at the first call, if the queue is compacted.

        The cleanup policy of a topic never changes.
        """
        found = self._by_queue.get(queue)
        if found is not None or queue.is_uncompacted:
            return found
        if is_compacted(self._topic_attributes(queue.topic)):
            key = queue.topic, queue.queue_id
            found = self._logs.get(key)
            if found is None:
                found = self._open(*key, clean=True)
                if found is not None:
                    self._compact_in(found, self._interval_s())
            if found is not None and key in self._missing.queues:
                found.lacks_history = True
        if found is None:
            queue.is_uncompacted = True
        else:
            self._by_queue[queue] = found
        return found

    def _open(self, topic: str, queue_id: int, *, clean: bool) -> CompactionLog | None:
        place = QueueFolders(
            self._directory / _FOLDERS[0] / topic / str(queue_id), self._directory / _FOLDERS[1] / topic / str(queue_id)
        )
        opened = CompactionLog(topic, queue_id, place, self.config)
        try:
            opened.load(clean=clean)
        except _FAULTS as error:
            opened.close()
            log.error("queue %s/%d is served without compaction: %s", topic, queue_id, error)
            return None
        self._logs[topic, queue_id] = opened
        return opened

    def _flush(self) -> None:
        behind = [kept for kept in self._logs.values() if kept.durable_offset < kept.end_offset and kept.fault is None]
        if behind:
            self._spawn(self._sync(behind))
        self._call_later("flush", self.config.flush_interval_ms / 1000, self._flush)

    async def _sync(self, behind: list[CompactionLog]) -> None:
        for kept in behind:
            end_offset, segments = kept.end_offset, kept.unsynced
            try:
                await self._loop.run_in_executor(self._executor, _sync_all, segments)
                kept.durable_offset = end_offset
            except _FAULTS as error:
                kept.fault = error
                log.error("%s cannot be synced; after a crash it is copied again: %s", kept, error)

    def _interval_s(self) -> float:
        """Return the interval plus a random part of it, so that queues do not all compact at once."""
        return self.config.interval_ms / 1000 * (1 + random.random())

    def _compact_in(self, compaction_log: CompactionLog, delay_s: float) -> None:
        def run() -> None:
            self._spawn(self._compact(compaction_log))
            self._compact_in(compaction_log, self._interval_s())

        self._call_later(compaction_log, delay_s, run)

    async def _compact(self, compaction_log: CompactionLog) -> None:
        key = compaction_log.topic, compaction_log.queue_id
        position = self._positions.get(*key)
        segments = compaction_log.due(position)
        if compaction_log.lacks_history or self._read_by_member.get(compaction_log, (0.0, 0.0))[0] > time.monotonic():
            return
        if not segments or compaction_log.is_compacting or compaction_log.is_dropped or self._is_closing:
            return
        compaction_log.is_compacting = True
        self._read_by_member.pop(compaction_log, None)

        def stop() -> bool:
            return self._is_closing or compaction_log.is_dropped

        run = partial(compaction_log.compact_into, segments, position, stop)
        try:
            made = await self._loop.run_in_executor(self._executor, run)
        except (CompactionStoppedError, DiskFullError) as error:
            compaction_log.is_compacting = False
            log.warning(
                "the compaction of %s was given up for now: %s", compaction_log, str(error) or "it is being closed"
            )
            return
        except _FAULTS as error:
            if not compaction_log.is_dropped:
                log.error("%s is not compacted until the store is opened again: %s", compaction_log, error)
            return
        compaction_log.is_compacting = False
        if not compaction_log.is_dropped:
            compaction_log.take_over(made, len(segments))
            await self._note(compaction_log, made)

    async def _note(self, compaction_log: CompactionLog, made: Compacted) -> None:
        self._positions.set(compaction_log.topic, compaction_log.queue_id, made.until)
        log.info("%s: %d messages kept, %d dropped", compaction_log, made.kept, made.dropped)
        try:
            await self._loop.run_in_executor(self._executor, self._positions.save)
        except _FAULTS as error:
            log.error("the positions of compaction cannot be saved: %s", error)

    def _close_files(self) -> bool:
        is_durable = True
        for compaction_log in self._logs.values():
            try:
                if compaction_log.durable_offset < compaction_log.end_offset:
                    _sync_all(compaction_log.unsynced)
            except StoreError as error:
                log.error("%s cannot be synced: %s", compaction_log, error)
                is_durable = False
            compaction_log.close()
        try:
            self._positions.save()
        except _FAULTS as error:
            log.error("the positions of compaction cannot be saved: %s", error)
        return is_durable

    def _call_later(self, owner: object, delay_s: float, run: Callable[[], None]) -> None:
        self._timers[owner] = self._loop.call_later(delay_s, run)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _lacks_history(topic: str, queue_id: int) -> Refusal:
    remark = f"this node lacks the kept messages of {topic}/{queue_id}, and fetches them from another one"
    return Refusal(Cause.RECOVERING, remark, retry_after_ms=1000)


def _sync_all(segments: list[Segment]) -> None:
    for segment in segments:
        segment.sync()
