"""Revives messages: those not acknowledged within their invisible time are stored again in the group's retry topic.

    due checkpoint -> its open messages into %RETRY%group_topic, reconsume times + 1  ] one batch of the log
                   -> the checkpoint closed                                           ]

Only the leader revives. If the batch is refused, the checkpoint stays open and is tried again later. If a leader dies
when only the front of the batch is committed, the next one finds the copies behind the mark of `delay.deliveries`: each
names its origin, and was stored when its checkpoint was due.

Source: apache/rocketmq `broker/.../processor/PopReviveService.java` (reviveRetry). LedgerMQ revives to the millisecond.
"""

import asyncio
import logging
import time
from typing import Final

from broker.context import BrokerContext
from broker.delay.deliveries import WAIT_SECONDS, Deliveries, DeliveryKind
from broker.pop.progress import PopProgress
from broker.state.pop_core import Checkpoint
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.pop_handle import is_retry_topic, retry_topic
from ledgermq.message.properties import decode_properties
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError
from store.log.drafts import QueuedDraft

log = logging.getLogger(__name__)

FIRST_POP_TIME: Final = "1ST_POP_TIME"

_BATCH: Final = 64
_RETRY_MS: Final = 1000
_LOOK_MS: Final = 1000  # longest wait, since the wall clock may be set meanwhile


class ReviveService:
    """Stores the open messages of due checkpoints again.

    Attributes:
        revived: messages stored again.
        dropped: messages that could not be, since they or their topic were removed.
    """

    def __init__(self, context: BrokerContext, progress: PopProgress, deliveries: Deliveries) -> None:
        self._config = context.config
        self._metadata = context.metadata
        self._role = context.role
        self._store = context.store
        self._targets = context.targets
        self._drafts = context.drafts
        self._deliveries = deliveries
        self._progress = progress
        self._is_resumed = False
        self._loop = context.loop
        self._clock_ms = progress.now_ms
        self._events = context.counting.events
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.revived = 0
        self.dropped = 0

    def resume(self) -> None:
        """Begin to revive: this node leads, and `deliveries` knows what earlier leaders revived."""
        self._is_resumed = True
        self.schedule()

    def schedule(self) -> None:
        """Set the timer to the earliest checkpoint; to be called when that may have changed."""
        due_ms = self._progress.checkpoints.next_due_ms
        if not self._is_resumed or due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        self._cancel()
        self._timer_ms = due_ms
        wait_ms = min(max(0, due_ms - self._clock_ms()), _LOOK_MS)
        self._timer = self._loop.call_later(wait_ms / 1000, self._revive_due)

    def stop(self) -> None:
        """Revive no more: this node does not lead any more, or it stops."""
        self._is_resumed = False
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _revive_due(self) -> None:
        self._timer = None
        if not self._role.delivers:
            return
        due_ms = self._progress.checkpoints.next_due_ms
        if due_ms is None or due_ms > self._clock_ms():
            self.schedule()
            return
        if self._deliveries.is_crowded:
            self._timer = self._loop.call_later(WAIT_SECONDS, self._revive_due)
            return
        since = time.monotonic()
        for checkpoint in self._progress.checkpoints.take_due(self._clock_ms(), _BATCH):
            self._events.revive_out.add((checkpoint.group, checkpoint.topic, "0", "CK"))
            try:
                checkpoint = self._without_revived(checkpoint)
                self._revive(checkpoint)
            except (Refusal, StoreError) as error:
                self._put_back(checkpoint, error)
        self._progress.send()
        self._events.scan_ms.observe(int(1000 * (time.monotonic() - since)))
        self.schedule()

    def _without_revived(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return `checkpoint` with messages acknowledged that an earlier leader revived without a committed closing.

        Raises:
            StoreError: the queue cannot be read now.
        """
        revived = self._deliveries.revived
        queue = self._store.queues.find(checkpoint.topic, checkpoint.queue_id) if revived else None
        if queue is None:
            return checkpoint
        acked, topics = checkpoint.acked, _retry_topics(checkpoint)
        for index, offset in enumerate(checkpoint.offsets):
            unit = queue.unit(offset)
            if unit is not None and any(revived.get((topic, unit[0]), -1) >= checkpoint.due_ms for topic in topics):
                acked |= 1 << index
        return checkpoint._replace(acked=acked)

    def _revive(self, checkpoint: Checkpoint) -> None:
        topic, group = checkpoint.topic, checkpoint.group
        if self._metadata.is_undecided(topic, group):
            raise Refusal(Cause.BUSY, f"topic {topic} or group {group} is being removed")
        if self._metadata.topic(topic) is None or self._metadata.group(group) is None:
            self.dropped += len(checkpoint.open_offsets)
            return
        records = [record for offset in checkpoint.open_offsets if (record := self._record(checkpoint, offset))]
        if not records:
            return
        is_v2 = self._config.pop_retry_v2 and self._role.writable  # no other broker takes sends to the newer names
        name = topic if is_retry_topic(topic) else retry_topic(topic, group, is_v2=is_v2)
        if self._role.writable:
            self._metadata.topic_for_group(name, 1)
        drafts = [self._draft(name, record, checkpoint.pop_ms) for record in records]

        def done(is_placed: bool) -> None:
            # the record that closes it is in the log before any later mark
            self._deliveries.end(DeliveryKind.REVIVE, checkpoint.key)
            if is_placed:
                self.revived += len(drafts)
                self._events.revive_retries.add((group, topic, "PUT_OK"), len(drafts))
            else:
                self._put_back(checkpoint, "the log refused its messages")

        self._deliveries.deliver(DeliveryKind.REVIVE, checkpoint.key, drafts, done)

    def _put_back(self, checkpoint: Checkpoint, error: Exception | str) -> None:
        log.warning(
            "messages of %s that group %s did not acknowledge cannot be delivered again yet: %s",
            checkpoint.topic,
            checkpoint.group,
            error,
        )
        if self._role.delivers:
            self._progress.checkpoints.put_back(checkpoint, self._clock_ms() + _RETRY_MS)
            self._progress.changed()
            self.schedule()

    def _record(self, checkpoint: Checkpoint, offset: int) -> Record | None:
        """Return the message at a queue offset; None when it is deleted or damaged."""
        queue = self._store.queues.find(checkpoint.topic, checkpoint.queue_id)
        unit = queue.unit(offset) if queue is not None else None
        found = self._store.reader.look_up(unit[0]) if unit is not None else None
        try:
            if found is not None:
                return decode_record(found)
        except CorruptRecordError as error:
            log.error("the message at queue offset %d of %s cannot be delivered again: %s", offset, queue, error)
        self.dropped += 1
        return None

    def _draft(self, topic: str, record: Record, pop_ms: int) -> QueuedDraft:
        properties = decode_properties(record.properties)
        if record.reconsume_times == 0 or FIRST_POP_TIME not in properties:
            properties = {**properties, FIRST_POP_TIME: str(pop_ms)}
        target = self._targets.target(topic, 0)
        times = record.reconsume_times + 1
        try:
            draft = self._drafts.again(record, target, properties, reconsume_times=times)
        except Refusal:  # the properties are too long with one more
            properties = decode_properties(record.properties)
            draft = self._drafts.again(record, target, properties, reconsume_times=times)
        draft.prepared_transaction_offset = record.physical_offset
        return draft


def _retry_topics(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the topics in which an earlier leader may have revived the messages, which may have either name."""
    topic, group = checkpoint.topic, checkpoint.group
    if is_retry_topic(topic):
        return (topic,)
    return retry_topic(topic, group, is_v2=False), retry_topic(topic, group, is_v2=True)
