"""Queue entries of a record, in a store in which not all queues are plain.

The properties of a record hold the number of its messages (INNER_NUM) and the further queues that it enters
(INNER_MULTI_DISPATCH). Its offsets in them are added to the properties when it is placed (INNER_BASE,
INNER_MULTI_QUEUE_OFFSET).

    placing:      `store.queues.queue_offsets` gives the offsets and adds them to the properties
    dispatching:  entries_of -------> (queue, entry) for each queue of the record

Source: apache/rocketmq `store/.../queue/BatchConsumeQueue.java`, `MultiDispatchUtils.java`, `LmqDispatch.java` (5.3.3).
"""

from ledgermq.message.batch_unit import BATCH_MESSAGES_MAX
from ledgermq.message.flags import INNER_BATCH, TRANSACTION_PREPARED
from ledgermq.message.properties import INNER_NUM, find_property
from ledgermq.message.queue_unit import SCHEDULE_TOPIC
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import InvalidTopicError
from store.log.drafts import QueuedDraft
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue, QueueEntry
from store.queues.dispatch import unit_fields
from store.queues.queue_kinds import LIGHT_PREFIX
from store.queues.queue_table import QueueTable

MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
MULTI_OFFSETS = b"INNER_MULTI_QUEUE_OFFSET"
NOT_DISPATCHED = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC)
"""Beginnings of topics whose records enter no further queues, whatever they name."""

NO_OFFSETS = (*NOT_DISPATCHED, b"RMQ_SYS_TRANS_HALF_TOPIC", b"TRANS_CHECK_MAX_TIME_TOPIC", b"%DLQ%")
"""Beginnings of topics whose records are given no offsets in further queues, and so enter none: undecided messages, and
copies of delivered ones. RocketMQ gives the last three some: its records enter the queues in which they have offsets.
"""


def messages_of(queue: ConsumeQueue, sys_flag: int, properties: bytes) -> int:
    """Return how many offsets of its queue a record takes: its INNER_NUM in a batch queue, else 1."""
    if not sys_flag & INNER_BATCH or not isinstance(queue, BatchQueue):
        return 1
    return inner_count(find_property(properties, INNER_NUM.encode()) or b"")


def inner_count(text: bytes) -> int:
    """Return the number of messages that an INNER_NUM says; 1 if it is not between 1 and BATCH_MESSAGES_MAX."""
    count = int(text) if text.isdigit() and len(text) < 6 else 1
    return count if 0 < count <= BATCH_MESSAGES_MAX else 1


def light_queues(queues: QueueTable, topic: bytes, queue_id: int, properties: bytes) -> list[ConsumeQueue]:
    """Return the further queues that a record names; missing ones are made.

    Raises:
        InvalidTopicError: a name is not valid for a queue.
        Refusal: there would be more light queues than allowed.
    """
    kinds = queues.kinds
    if not kinds.multi_dispatch or MULTI_DISPATCH not in properties or topic.startswith(NOT_DISPATCHED):
        return []
    value = find_property(properties, MULTI_DISPATCH) or b""
    return [_light_queue(queues, name, queue_id) for name in value.decode(errors="replace").split(",") if name]


def _light_queue(queues: QueueTable, name: str, queue_id: int) -> ConsumeQueue:
    if name.startswith(LIGHT_PREFIX) and queues.kinds.light:
        queue_id = 0
        if queues.find(name, 0) is None and queues.light_count >= queues.kinds.light_max:
            limit = f"{queues.kinds.light_max} (maxLmqConsumeQueueNum)"
            raise Refusal(Cause.SYSTEM_ERROR, f"there are {queues.light_count} light queues, the limit is {limit}")
    return queues.get(name, queue_id)


def entries_of(queues: QueueTable, physical_offset: int, record: memoryview) -> list[tuple[ConsumeQueue, QueueEntry]]:
    """Return each queue that a record enters with its entry, the queue of its topic first; none for a prepared record.

    Raises:
        CorruptRecordError: the record cannot be parsed.
        InvalidTopicError: its topic is not valid for a queue.
    """
    size, queue_id, sys_flag, queue_offset, timestamp, topic, code = unit_fields(physical_offset, record)
    if sys_flag & TRANSACTION_PREPARED:
        return []
    queue = queues.get(topic, queue_id)
    properties = dispatch_fields(record, 0)[7]
    messages = messages_of(queue, sys_flag, properties)
    entry = QueueEntry(physical_offset, size, code, queue_offset, timestamp, messages)
    return [(queue, entry), *_light_entries(queues, topic, queue_id, properties, entry)]


def entries_of_draft(queues: QueueTable, draft: QueuedDraft) -> list[tuple[ConsumeQueue, QueueEntry]]:
    """Return what `entries_of` returns, for a record that this node placed from a draft."""
    if draft.sys_flag & TRANSACTION_PREPARED:
        return []
    entry = QueueEntry(
        draft.physical_offset,
        draft.size,
        draft.tags_code,
        draft.queue_offset,
        draft.store_timestamp,
        messages_of(draft.queue, draft.sys_flag, draft.properties),
    )
    return [(draft.queue, entry), *_light_entries(queues, draft.topic, draft.queue_id, draft.properties, entry)]


def _light_entries(
    queues: QueueTable, topic: bytes, queue_id: int, properties: bytes, entry: QueueEntry
) -> list[tuple[ConsumeQueue, QueueEntry]]:
    """Return the entries of the further queues; none if names and offsets do not agree (not written by a broker)."""
    if not queues.kinds.multi_dispatch or MULTI_OFFSETS not in properties:
        return []
    try:
        targets = light_queues(queues, topic, queue_id, properties)
    except (InvalidTopicError, Refusal):
        return []
    texts = (find_property(properties, MULTI_OFFSETS) or b"").split(b",")
    if len(texts) != len(targets) or not all(text.isdigit() and len(text) < 19 for text in texts):
        return []
    return [
        (queue, entry._replace(queue_offset=int(text), messages=1)) for queue, text in zip(targets, texts, strict=True)
    ]
