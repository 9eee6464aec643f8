"""Delayed messages: 18 levels, one queue each, in the order of their arrival, so that only the head can be due.

    send with DELAY=n ---> SCHEDULE_TOPIC_XXXX, queue n-1, REAL_TOPIC and REAL_QID kept
    leader: head due? ---> the same message into its real topic and queue; the queue's progress is a consumer offset
                           in the log, from which a new leader continues; messages delivered behind the last progress
                           are found by `delay.deliveries`

Source: apache/rocketmq `broker/.../schedule/ScheduleMessageService.java` (5.x).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from typing import Final

from broker.context import BrokerContext
from broker.delay.deliveries import Deliveries, DeliveryKind
from broker.state import names
from broker.state.tables import offset_key
from broker.subsystem import Steps
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, decode_properties
from ledgermq.message.queue_unit import DELAY_LEVELS_MS
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.data_version import DataVersion
from ledgermq.remoting.codec.java_json import dumps, number_map
from ledgermq.remoting.connection import Connection
from ledgermq.wall_clock import wall_clock_ms
from store.errors import StoreError
from store.log.drafts import QueuedDraft
from store.queues.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

LEVEL_MAX: Final = len(DELAY_LEVELS_MS)


PROGRESS_KEY = offset_key(names.SCHEDULE_TOPIC, names.DELAY_PROGRESS_GROUP)
_BATCH = 256
_UNREAD_MAX = 10_000  # of one level
_RETRY_SECONDS = 0.5
_GATHER_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # longest wait, since the wall clock may be set meanwhile


def delayed_properties(properties: Mapping[str, str], topic: str, queue_id: int, level: int) -> dict[str, str]:
    """Return the properties of a message that waits at `level` (1 to 18) for its real topic and queue."""
    return {**properties, DELAY: str(level), REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}


def due_ms(level: int) -> int:
    """Return the due time (ms since the epoch) of a message sent now; it becomes the tags code of its queue unit."""
    return wall_clock_ms() + DELAY_LEVELS_MS[level - 1]


class DelayService:
    """Delivers delayed messages that are due, while this node leads.

    Attributes:
        delivered: messages stored in their real topic.
        dropped: messages whose topic was removed.
    """

    def __init__(self, context: BrokerContext, deliveries: Deliveries) -> None:
        self._metadata = context.metadata
        self._state = context.state
        self._deliveries = deliveries
        self._role = context.role
        self._store = context.store
        self._targets = context.targets
        self._drafts = context.drafts
        self._loop = context.loop
        self._clock_ms = context.clock_ms
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._busy: set[int] = set()
        self._next: dict[int, int] = {}  # by level: next queue offset, ahead of the replicated state
        self._unsent_progress: dict[int, int] = {}  # by level: next queue offset that is delivered and not recorded
        self._unsent_batches: list[tuple[int, int, int]] = []  # level, first queue offset, end
        self._unread: dict[int, set[int]] = {}  # by level: queue offsets of due messages that cannot be read now
        self._read_again_s: dict[int, float] = {}
        self._limits: dict[
            int, deque[tuple[int, float]]
        ] = {}  # by level: messages before this queue offset wait at most until that loop time
        self._recording: asyncio.TimerHandle | None = None
        self._is_leading = False
        self.delivered = 0
        self.dropped = 0

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Look into those of these queues, which have new messages, that hold delayed messages."""
        for queue in queues:
            if queue.topic == names.SCHEDULE_TOPIC and queue.queue_id < LEVEL_MAX:
                self._schedule(queue.queue_id, 0)

    def figures(self) -> dict[str, str]:
        """Return the rows of GET_BROKER_RUNTIME_INFO about delay levels: next queue offset and end of each queue."""
        table: dict[str, str] = {}
        for index, offset in sorted(self._offsets().items()):
            queue = self._store.queues.find(names.SCHEDULE_TOPIC, index)
            table[f"scheduleMessageOffset_{index + 1}"] = f"{offset},{queue.max_offset if queue else 0}"
        return table

    def _offsets(self) -> dict[int, int]:
        recorded = self._state.offsets.get(PROGRESS_KEY, {})
        return recorded | (self._next if self._is_leading and not self._role.is_slave else {})

    def _behind_elsewhere(self, recorded: Mapping[int, int]) -> Generator[None, None, dict[int, int]]:
        """Find, by level, the next queue offset behind messages that this slave delivered elsewhere without a gap."""
        noted = yield from self._deliveries.noted_elsewhere(DeliveryKind.DELAY)
        ahead = {}
        for index in range(LEVEL_MAX) if noted else ():
            queue = self._store.queues.find(names.SCHEDULE_TOPIC, index)
            start = offset = max(recorded.get(index, 0), queue.min_offset) if queue is not None else 0
            while queue is not None and (unit := queue.unit(offset)) is not None and unit[0] in noted:
                offset += 1
                yield
            if offset > start:
                ahead[index] = offset
        return ahead

    def all_offsets(self, connection: Connection, command: Command) -> Steps:
        """45: answer the next queue offset of each level, as the file `config/delayOffset.json` has it.

        A returning master of RocketMQ's takes over a slave's offsets whose version is not lower than its own.
        """
        ahead = {}
        if self._role.is_slave:
            ahead = yield from self._behind_elsewhere(self._offsets())
        offsets = self._offsets()
        offsets |= {index: offset for index, offset in ahead.items() if offset > offsets.get(index, 0)}
        levels = number_map({index + 1: offset for index, offset in sorted(offsets.items())})
        counter = self._clock_ms() if ahead else 0  # RocketMQ's counts once per 200 deliveries: the time is higher
        version = dumps(DataVersion(counter, state_version=self._role.generation).to_json())
        body = b'{"dataVersion":' + version + b',"offsetTable":' + levels + b"}"
        connection.respond(command, ResponseCode.SUCCESS, body=body)

    def resume(self) -> None:
        """Continue every level: this node leads, and the deliveries of earlier leaders are known."""
        self._is_leading = True
        self._busy.clear()
        self._unsent_progress.clear()
        self._unsent_batches.clear()
        self._limits.clear()
        self._unread.clear()
        self._next = dict(self._state.offsets.get(PROGRESS_KEY, {}))
        for index, offset in self._next.items():  # the file of a Java broker may be ahead of the log
            queue = self._store.queues.find(names.SCHEDULE_TOPIC, index)
            self._next[index] = min(offset, queue.max_offset if queue is not None else 0)
        for index in range(LEVEL_MAX):
            self._schedule(index, 0)

    def stop(self) -> None:
        """Stop delivering, and record the progress if this node may still write."""
        self._record()
        self._is_leading = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _schedule(self, index: int, seconds: float) -> None:
        if self._is_leading and index not in self._timers and index not in self._busy:
            self._timers[index] = self._loop.call_later(seconds, self._deliver_due, index)

    def _deliver_due(self, index: int) -> None:
        """Append the due messages of a level; look again when they are confirmed or the next one is due."""
        del self._timers[index]
        try:
            self._deliver_some(index)
        except StoreError as error:
            log.error("delay level %d cannot be read yet: %s", index + 1, error)
            self._schedule(index, _RETRY_SECONDS)

    def _deliver_some(self, index: int) -> None:
        queue = self._store.queues.find(names.SCHEDULE_TOPIC, index)
        if queue is None or not self._role.delivers:
            return
        end = start = max(self._next.get(index, 0), queue.min_offset)
        drafts, read = self._read_again(index, queue)
        while end < queue.max_offset and end - start < _BATCH:
            try:
                record = self._waiting(queue, end)
            except StoreError as error:
                if not self._pass_over(index, queue, end, error):
                    break
                end += 1
                continue
            if record is not None:
                wait_s = self._wait_s(index, queue, end, record)
                if wait_s > 0:
                    self._schedule(index, min(wait_s, _LOOK_SECONDS))
                    break
                if self._is_undecided(record):
                    self._schedule(index, _RETRY_SECONDS)
                    break
                draft = self._draft(record)
                drafts += [draft] if draft is not None else []
            end += 1
        if end > start or read:
            self._cancel_timer(index)
            self._busy.add(index)
            self._append(index, drafts, start, end, read)
        elif self._unread.get(index):
            self._schedule(index, _RETRY_SECONDS)

    def _cancel_timer(self, index: int) -> None:
        """Cancel the timer of the level: `_append` looks again when its messages are confirmed."""
        timer = self._timers.pop(index, None)
        if timer is not None:
            timer.cancel()

    def _is_undecided(self, record: Record) -> bool:
        return self._metadata.is_undecided(record.property_map.get(REAL_TOPIC, ""))

    def _pass_over(self, index: int, queue: ConsumeQueue, queue_offset: int, error: StoreError) -> bool:
        """Skip a due message that the disk cannot read now; return False when it is not due yet."""
        unit, unread = queue.unit(queue_offset), self._unread.setdefault(index, set())
        due = queue.tags_code(unit) if unit is not None else None
        if (due is not None and due > self._clock_ms()) or len(unread) >= _UNREAD_MAX:
            self._schedule(index, _RETRY_SECONDS)
            return False
        log.error(
            "the delayed message at queue offset %d of level %d cannot be delivered yet: %s",
            queue_offset,
            index + 1,
            error,
        )
        unread.add(queue_offset)
        self._read_again_s[index] = self._loop.time() + _RETRY_SECONDS
        return True

    def _read_again(self, index: int, queue: ConsumeQueue) -> tuple[list[QueuedDraft], set[int]]:
        """Return drafts of the skipped messages that can be read now, and the queue offsets that this settles."""
        drafts: list[QueuedDraft] = []
        read: set[int] = set()
        if not self._unread.get(index) or self._loop.time() < self._read_again_s[index]:
            return drafts, read
        self._read_again_s[index] = self._loop.time() + _RETRY_SECONDS
        for queue_offset in sorted(self._unread[index])[:_BATCH]:
            try:
                record = self._waiting(queue, queue_offset)
            except StoreError:
                break  # it is logged already, and the next may be in the same bad sector
            if record is not None and self._is_undecided(record):
                break
            draft = self._draft(record) if record is not None else None
            drafts += [draft] if draft is not None else []
            read.add(queue_offset)
        return drafts, read

    def _wait_s(self, index: int, queue: ConsumeQueue, queue_offset: int, record: Record) -> float:
        """Return the seconds until a message is due.

        If its store time is ahead of this node's clock (another leader's clock, or this one before it was set back), it
        waits for its level from when it was first seen; RocketMQ delivers it at once.
        """
        level_ms = DELAY_LEVELS_MS[index]
        wait_ms = record.store_timestamp + level_ms - self._clock_ms()
        limits, now = self._limits.setdefault(index, deque()), self._loop.time()
        if wait_ms > level_ms and (not limits or limits[-1][0] < queue.max_offset):
            limits.append((queue.max_offset, now + level_ms / 1000))
        while limits and limits[0][0] <= queue_offset:
            limits.popleft()
        return min(wait_ms / 1000, limits[0][1] - now) if limits else wait_ms / 1000

    def _append(self, index: int, drafts: list[QueuedDraft], start: int, end: int, read: set[int]) -> None:
        """Append the drafts of the queue offsets `[start, end)` and of the skipped offsets `read` before them."""
        token = (index, start, end)

        def done(is_delivered: bool) -> None:
            self._busy.discard(index)
            if not is_delivered:
                self._deliveries.end(DeliveryKind.DELAY, token)
                self._schedule(index, _RETRY_SECONDS)
                return
            self.delivered += len(drafts)
            self._next[index] = end
            unread = self._unread.setdefault(index, set())
            unread -= read
            self._unsent_progress[index] = min(unread, default=end)
            self._unsent_batches.append(token)
            if not self._is_leading:
                self._record()
            elif self._recording is None:
                self._recording = self._loop.call_later(_GATHER_SECONDS, self._record)
            self._schedule(index, 0)

        if drafts:
            self._deliveries.deliver(DeliveryKind.DELAY, token, drafts, done)
        else:
            self._loop.call_soon(done, True)

    def _record(self) -> None:
        """Append the progress to the log.

        Progress stops before a message that cannot be read. Deliveries behind it stay open, so that the next leader
        scans for them.
        """
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None
        if not self._unsent_progress or not self._role.writable:
            self._unsent_progress, self._unsent_batches = {}, []
            return
        progress, self._unsent_progress = self._unsent_progress, {}
        batches = [token for token in self._unsent_batches if token[2] <= progress.get(token[0], token[1])]
        self._unsent_batches = [token for token in self._unsent_batches if token not in batches]

        def refused() -> None:
            self._unsent_progress = progress | self._unsent_progress
            self._unsent_batches += batches
            if self._is_leading and self._recording is None:
                self._recording = self._loop.call_later(_RETRY_SECONDS, self._record)

        self._deliveries.record(DeliveryKind.DELAY, {PROGRESS_KEY: progress}, batches, refused)

    def _waiting(self, queue: ConsumeQueue, queue_offset: int) -> Record | None:
        """Return the message at a queue offset; None when it is deleted or an earlier leader has delivered it."""
        unit = queue.unit(queue_offset)
        if unit is not None and unit[0] in self._deliveries.origins:
            return None
        found = self._store.reader.look_up(unit[0]) if unit is not None else None
        try:
            return decode_record(found) if found is not None else None
        except CorruptRecordError as error:
            self.dropped += 1
            log.error("the delayed message at queue offset %d of %s is dropped: %s", queue_offset, queue, error)
            return None

    def _draft(self, record: Record) -> QueuedDraft | None:
        properties = decode_properties(record.properties)
        name, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        topic = self._metadata.topic(name)
        if topic is None or not queue_id.isascii() or not queue_id.isdigit():
            self.dropped += 1
            log.warning(
                "the delayed message at %d is dropped: topic %s does not exist, or its queue is not a number",
                record.physical_offset,
                name,
            )
            return None
        del properties[DELAY]
        target = self._targets.target_after_waiting(topic, int(queue_id))
        draft = self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)
        draft.prepared_transaction_offset = record.physical_offset
        return draft
