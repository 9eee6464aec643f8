"""RocketMQ's log of POP: what its broker gave to consumers before this node led comes again here.

    timers of RocketMQ's broker --due--> rmq_sys_REVIVE_LOG_<cluster> --read by the leader--> checkpoints
        ck: messages that were taken       bAck, ack: those of them that were acknowledged, about a second later

The position is RocketMQ's, too: the offset of its group. LedgerMQ writes nothing into this topic.

Source: apache/rocketmq `store/.../pop/PopCheckPoint.java`, `AckMsg.java`, `BatchAckMsg.java`,
`broker/.../processor/PopReviveService.java` (5.3.3).
"""

import logging
from collections.abc import Collection
from typing import Any, Final

import orjson

from broker.context import BrokerContext
from broker.pop.progress import PopProgress
from broker.state.pop_core import Checkpoint, checkpoint_key
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import Record, decode_record
from store.errors import StoreError
from store.queues.consume_queue import ConsumeQueue
from store.time_slice import TimeSlice

log = logging.getLogger(__name__)

_TOPIC: Final = "rmq_sys_REVIVE_LOG_"
_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
_ACKS_MS: Final = 5000
"""How long acknowledgements are waited for: they are timers that are due one second after their checkpoint's."""
_TAKEN_MAX: Final = 1024
"""Most messages of a checkpoint; RocketMQ gives 32 at once."""
_SLICE_S: Final = 0.005
_RETRY_SECONDS: Final = 1.0


class JavaPopLog:
    """Reads that topic while this node leads.

    Attributes:
        is_there: this node leads, and a broker of RocketMQ's has made the topic.
    """

    def __init__(self, context: BrokerContext, progress: PopProgress) -> None:
        self._topic = _TOPIC + context.identity.cluster
        self._broker_name = context.identity.name
        self._metadata = context.metadata
        self._store = context.store
        self._offsets = context.offsets
        self._progress = progress
        self._loop = context.loop
        self._clock_ms = context.clock_ms
        self._run = 0
        self._is_reading = False
        self.is_there = False

    def resume(self) -> None:
        """Begin to read: this node leads."""
        self._run += 1
        self._is_reading = False
        self.is_there = self._metadata.topic(self._topic) is not None
        self._read_later(0)

    def stop(self) -> None:
        """Read no more."""
        self._run += 1
        self.is_there = False

    def wake(self, queues: Collection[ConsumeQueue]) -> None:
        """Read on if this topic is among these queues, which have new messages."""
        if any(queue.topic == self._topic for queue in queues):
            self._read_later(0)

    def _read_later(self, seconds: float) -> None:
        if self.is_there and not self._is_reading:
            self._is_reading = True
            self._loop.call_later(seconds, self._read, self._run)

    def _read(self, run: int) -> None:
        if run != self._run:
            return
        self._is_reading = False
        time_slice = TimeSlice(_SLICE_S)
        try:
            for queue in self._store.queues.of_topic(self._topic):
                if not self._read_queue(queue, time_slice):
                    self._read_later(0)
                    return
        except StoreError as error:
            log.error("RocketMQ's log of POP cannot be read yet: %s", error)
            self._read_later(_RETRY_SECONDS)

    def _read_queue(self, queue: ConsumeQueue, time_slice: TimeSlice) -> bool:
        """Read a queue to its end; return False when the slice of time was over first."""
        last = self._offsets.get(self._topic, _GROUP, queue.queue_id)
        offset = start = max(0 if last is None else last + 1, queue.min_offset)
        try:
            while offset < queue.max_offset and not time_slice.is_over():
                self._take(queue, offset)
                offset += 1
        finally:
            if offset > start:
                self._offsets.commit(self._topic, _GROUP, queue.queue_id, offset - 1)
                self._progress.changed()
        return offset >= queue.max_offset

    def _take(self, queue: ConsumeQueue, offset: int) -> None:
        unit = queue.unit(offset)
        found = self._store.reader.look_up(unit[0]) if unit is not None else None
        try:
            if found is not None:
                self._take_record(decode_record(found))
        except (CorruptRecordError, ValueError, LookupError, TypeError) as error:
            log.error("the record at offset %d of %s is ignored: %s", offset, queue, error)

    def _take_record(self, record: Record) -> None:
        tags, body = record.property_map.get("TAGS"), orjson.loads(record.body)
        if not isinstance(body, dict):
            raise ValueError("its body is no JSON object")
        if body.get("bn", self._broker_name) != self._broker_name:
            raise ValueError(f"it is about messages of broker {body['bn']}")
        if tags == "ck":
            taken = self._checkpoint(body)
            if taken.open_count:
                self._progress.take(taken)
        elif tags in ("ack", "bAck"):
            key = checkpoint_key(body["t"], body["c"], int(body["q"]), int(body["so"]), int(body["pt"]))
            for offset in body["aol"] if tags == "bAck" else (body["ao"],):
                self._progress.checkpoints.ack(key, int(offset))

    def _checkpoint(self, body: dict[str, Any]) -> Checkpoint:
        start, pop_ms = int(body["so"]), int(body["pt"])
        distances = body.get("d") or range(int(body["n"]))
        if not 0 < len(distances) <= _TAKEN_MAX:
            raise ValueError(f"it names {len(distances)} messages")
        due_ms = max(pop_ms + int(body["it"]), self._clock_ms()) + _ACKS_MS
        offsets = tuple(start + int(distance) for distance in distances)
        acked = int(body.get("bm", 0)) & ((1 << len(offsets)) - 1)
        topic, group = str(body["t"]), str(body["c"])
        return Checkpoint(topic, group, int(body["q"]), start, pop_ms, due_ms - pop_ms, offsets, acked)
