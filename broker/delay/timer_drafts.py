"""The drafts of due timers: the message for its real topic, or the timer itself for the timer topic once more.

Source: apache/rocketmq `store/.../timer/TimerMessageStore.java` (convert, convertMessage), 5.3.3.
"""

import logging

from broker.append.drafts import DraftMaker
from broker.append.target import SendTarget, SendTargets
from broker.delay.due import DueTimer
from broker.state.metadata import Metadata
from ledgermq.message.errors import CorruptRecordError, InvalidPropertyError
from ledgermq.message.properties import REAL_QUEUE_ID, REAL_TOPIC
from ledgermq.message.record import Record, decode_record
from ledgermq.remoting.refusal import Refusal
from store.log.drafts import QueuedDraft
from store.message_store import MessageStore
from store.timer.timer_message import (
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    whole_number,
)

log = logging.getLogger(__name__)


class TimerDrafts:
    """Makes the drafts of due timers."""

    def __init__(self, metadata: Metadata, store: MessageStore, targets: SendTargets, drafts: DraftMaker) -> None:
        self._metadata = metadata
        self._store = store
        self._targets = targets
        self._drafts = drafts

    def is_current(self, draft: QueuedDraft) -> bool:
        """Return whether the topic of a draft made earlier still exists, with no removal undecided."""
        if self.is_undecided(draft.topic.decode()):
            return False
        return self._store.queues.by_key.get((draft.topic, draft.queue_id)) is draft.queue

    def is_undecided(self, topic: str) -> bool:
        """Return whether the removal of the topic is undecided: its timers wait until then."""
        return self._metadata.is_undecided(topic)

    def make(self, due: DueTimer, now_ms: int, found: memoryview | None = None) -> QueuedDraft | None:
        """Return the message to append; None (which is logged) when its topic does not exist or its record is deleted.

        Args:
            due: the timer.
            now_ms: the time of delivery, ms since the epoch.
            found: its record, if the caller has it.

        Raises:
            StoreError: the record cannot be read now.
        """
        found = self._store.reader.look_up(due.timer.physical_offset) if found is None else found
        if found is None:
            return None
        try:
            record = decode_record(found)
            properties = dict(record.property_map)
            if due.write_ms >= 0:
                properties[TIMER_ENQUEUE_MS] = str(due.write_ms)
            properties[TIMER_DEQUEUE_MS] = str(now_ms)
            draft = self._rolled(due, record, properties) if due.is_roll else self._final(record, properties)
        except (CorruptRecordError, InvalidPropertyError, Refusal, ValueError) as error:
            log.warning("the timer message at %d is dropped: %s", due.timer.physical_offset, error)
            return None
        draft.prepared_transaction_offset = record.physical_offset
        return draft

    def _final(self, record: Record, properties: dict[str, str]) -> QueuedDraft:
        name, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        topic = self._metadata.topic(name)
        if topic is None:
            raise ValueError(f"topic {name} does not exist any more")
        if not queue_id.isascii() or not queue_id.isdigit():
            raise ValueError(f"property {REAL_QUEUE_ID} is {queue_id!r}, not a queue id")
        target = self._targets.target_after_waiting(topic, int(queue_id))
        return self._again(record, target, properties)

    def _rolled(self, due: DueTimer, record: Record, properties: dict[str, str]) -> QueuedDraft:
        times = max(0, whole_number(properties.get(TIMER_ROLL_TIMES, "")) or 0)
        properties[TIMER_ROLL_TIMES] = str(times + 1)
        properties[TIMER_DELIVER_MS] = str(due.timer.due_ms)
        return self._again(record, self._targets.target(TIMER_TOPIC, 0), properties)

    def _again(self, record: Record, target: SendTarget, properties: dict[str, str]) -> QueuedDraft:
        """Return the draft with `properties`, or, if these are too long, with the record's own."""
        try:
            return self._drafts.again(record, target, properties, reconsume_times=record.reconsume_times)
        except Refusal:
            own = dict(record.property_map)
            return self._drafts.again(record, target, own, reconsume_times=record.reconsume_times)
