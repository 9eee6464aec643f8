"""Takes messages out of queues for one POP request.

    offset of the group --> store.get --> records, checkpoint (or order), offset moved behind the records
                                            '-- records of a retry topic are given under the topic that was asked for

Source: apache/rocketmq `broker/.../processor/PopMessageProcessor.java` (popMsgFromQueue, getInitOffset).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from broker.context import BrokerContext
from broker.groups.subscription import Subscription
from broker.pop.handles import count_info, handle_text, offsets_info, start_info
from broker.pop.progress import PopProgress
from broker.state.pop_core import Checkpoint
from broker.state.pop_order import OrderedBatch, order_key
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.pop_handle import POP_CK, PopHandle, is_retry_topic
from ledgermq.message.properties import decode_properties, encode_properties
from ledgermq.message.record import MAGIC_V1, MAGIC_V2, decode_record, encode_record, needs_v2, record_size
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_reader import FILTER_SLICE_S, GetResult, GetStatus
from store.time_slice import TimeSlice

_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = 20
_MOVED: Final = frozenset({GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL})
_SKIPPED: Final = frozenset({GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_FOUND_NULL, GetStatus.MESSAGE_WAS_REMOVING})


@dataclass(slots=True)
class PopBatch:
    """The state of one POP request while it takes messages.

    Attributes:
        topic: the topic that the consumer asked for.
        wanted: the subscription; None: all messages.
        starts_at_end: a group without an offset begins with the last message, not with the first.
        rest: number of messages that are available and were not taken.
        free_ms: when the first of the blocked queues (orderly POP) becomes free, ms since the epoch; None: unknown.
        is_unfinished: there are messages that the filter has not seen yet.
        time_slice: limits the time that filters take in this turn of the loop; None: not begun.
    """

    topic: str
    group: str
    count_max: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    wanted: Subscription | None
    starts_at_end: bool
    is_ordered: bool
    attempt_id: str
    rest: int = 0
    free_ms: int | None = None
    is_unfinished: bool = False
    time_slice: TimeSlice | None = None
    records: list[memoryview | bytes] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.count_max - len(self.records)


class PopReader:
    """Reads queues for POP.

    Args:
        is_start_at_hand: whether a queue's offset 0 is still stored and probably in memory.

    Attributes:
        clock_ms: wall clock.
    """

    def __init__(
        self, context: BrokerContext, progress: PopProgress, is_start_at_hand: Callable[[ConsumeQueue], bool]
    ) -> None:
        self._config = context.config
        self._identity = context.identity
        self._store = context.store
        self._offsets = context.offsets
        self._progress = progress
        self._is_start_at_hand = is_start_at_hand
        self.clock_ms = progress.now_ms
        self._counting = context.counting

    def next_offset(self, topic: str, group: str, queue: ConsumeQueue, *, at_end: bool = False) -> int:
        """Return the next queue offset of the group in a queue; without a stored offset, where it begins."""
        offset = self._offsets.get(topic, group, queue.queue_id)
        if offset is not None and offset >= 0:
            return offset
        if not at_end or is_retry_topic(topic):
            return self._store.reader.min_offset(queue)
        return (
            0 if self._config.pop_start_from_memory and self._is_start_at_hand(queue) else max(0, queue.max_offset - 1)
        )

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt_id: str) -> bool:
        """Return whether messages that were given in order block the queue for the group."""
        return self._progress.orders.is_blocked(order_key(topic, group, queue_id), attempt_id, self.clock_ms())

    def take(self, batch: PopBatch, topic: str, queue_id: int) -> None:
        """Take messages of one queue of `topic`, which may be a retry topic, until `batch` has its count.

        Raises:
            DiskReadError: the disk cannot read it.
        """
        queue = self._store.queues.find(topic, queue_id)
        if queue is None:
            return
        start = self._begin(batch, topic, queue)
        if batch.is_ordered and self._note_block(batch, topic, queue_id):
            return  # messages behind a block do not count as rest, so that they wake no other request
        if batch.room <= 0 or self._has_too_many(topic, batch.group, queue_id):
            batch.rest += max(0, queue.max_offset - start)
            return
        if self._is_over(batch):
            batch.rest += max(0, queue.max_offset - start)
            batch.is_unfinished = True
            return
        result = self._read(batch, queue, start)
        if result.status in _MOVED:
            start = result.next_offset
            self._offsets.commit(topic, batch.group, queue_id, start)
            result = self._read(batch, queue, start)
        if result.records:
            self._give(batch, queue, start, result)
        elif result.status in _SKIPPED:
            self._offsets.commit(topic, batch.group, queue_id, result.next_offset)
            batch.is_unfinished |= result.next_offset < result.max_offset
        batch.rest += max(0, result.max_offset - result.next_offset)

    def _is_over(self, batch: PopBatch) -> bool:
        """Return whether this turn's time for costly filters is used up."""
        if batch.wanted is None or batch.wanted.record_filter is None:
            return False
        if batch.time_slice is None:
            batch.time_slice = TimeSlice(FILTER_SLICE_S)
        return batch.time_slice.is_over()

    def look(self, topic: str, group: str, queue: ConsumeQueue, count_max: int) -> list[memoryview]:
        """Return the next messages of a queue for the group, which are not taken; raises as `take`."""
        start = self.next_offset(topic, group, queue)
        result = self._store.reader.get(queue, start, count_max, self._config.max_pull_bytes)
        if result.status in _MOVED:
            result = self._store.reader.get(queue, result.next_offset, count_max, self._config.max_pull_bytes)
        return result.records

    def _begin(self, batch: PopBatch, topic: str, queue: ConsumeQueue) -> int:
        group, queue_id = batch.group, queue.queue_id
        moved_to = self._offsets.take_reset(topic, group, queue_id) if self._offsets.has_resets else None
        if moved_to is not None:
            self._progress.orders.remove(order_key(topic, group, queue_id))
            self._progress.changed()
            return moved_to
        start = self.next_offset(topic, group, queue, at_end=batch.starts_at_end)
        if self._offsets.get(topic, group, queue_id) is None:
            self._offsets.commit(topic, group, queue_id, start)
        return start

    def _has_too_many(self, topic: str, group: str, queue_id: int) -> bool:
        if not self._config.pop_limits_open:
            return False
        return self._progress.checkpoints.open_count(topic, group, queue_id) > self._config.pop_open_limit

    def _note_block(self, batch: PopBatch, topic: str, queue_id: int) -> bool:
        if not self.is_blocked(topic, batch.group, queue_id, batch.attempt_id):
            return False
        given = self._progress.orders.get(order_key(topic, batch.group, queue_id))
        free_ms = given.free_ms(self.clock_ms()) if given is not None else None
        if free_ms is not None and (batch.free_ms is None or free_ms < batch.free_ms):
            batch.free_ms = free_ms
        return True

    def _read(self, batch: PopBatch, queue: ConsumeQueue, start: int) -> GetResult:
        wanted = batch.wanted
        filters = (wanted.tag_filter, wanted.record_filter) if wanted is not None else (None, None)
        return self._store.reader.get(queue, start, batch.room, self._config.max_pull_bytes, *filters)

    def _give(self, batch: PopBatch, queue: ConsumeQueue, start: int, result: GetResult) -> None:
        topic, group, queue_id = queue.topic, batch.group, queue.queue_id
        offsets = [_QUEUE_OFFSET.unpack_from(record, _QUEUE_OFFSET_AT)[0] for record in result.records]
        pop_ms, invisible_ms = batch.pop_ms, batch.invisible_ms
        if batch.is_ordered:
            key = order_key(topic, group, queue_id)
            given = self._progress.orders.give(key, batch.attempt_id, pop_ms, invisible_ms, offsets)
            self._progress.changed()
            batch.counts.append(_counts(topic, queue_id, given))
            self._offsets.commit(topic, group, queue_id, start)
        else:
            self._progress.take(Checkpoint(topic, group, queue_id, start, pop_ms, invisible_ms, tuple(offsets)))
            self._offsets.commit(topic, group, queue_id, result.next_offset)
        size = sum(map(len, result.records))
        self._counting.departures.add_popped(batch.topic, group, len(offsets), size, is_retry=topic != batch.topic)
        batch.starts.append(start_info(topic, queue_id, start))
        batch.offsets.append(offsets_info(topic, queue_id, offsets))
        if topic == batch.topic or self._config.pop_shows_retry_topic:
            batch.records += result.records
        else:
            batch.records += [self._shown(batch, queue, start, record) for record in result.records]

    def _shown(self, batch: PopBatch, queue: ConsumeQueue, start: int, record: memoryview) -> bytes:
        """Return a record of a retry topic with the topic that was asked for and the property `POP_CK`."""
        handle = PopHandle(
            start,
            batch.pop_ms,
            batch.invisible_ms,
            batch.revive_queue,
            "",
            self._identity.name,
            queue.queue_id,
        )
        found = decode_record(record, check_crc=False)
        properties = decode_properties(found.properties)
        properties[POP_CK] = handle_text(handle, queue.topic, found.queue_offset)
        encoded, topic = encode_properties(properties), batch.topic.encode()
        is_v2 = needs_v2(topic)
        size = record_size(len(found.body), len(topic), len(encoded), found.sys_flag, is_v2)
        magic = MAGIC_V2 if is_v2 else MAGIC_V1
        try:
            return encode_record(replace(found, topic=batch.topic, properties=encoded, size=size, magic=magic))
        except CorruptRecordError:  # no room for `POP_CK`: clients then build the handle from the retry topic's name
            return bytes(record)


def _counts(topic: str, queue_id: int, given: OrderedBatch) -> str:
    counts = given.counts
    least = min(counts.values(), default=0) if len(counts) == len(given.offsets) else 0
    return count_info(topic, queue_id, sorted(counts.items()), least)
