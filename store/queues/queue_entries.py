"""Which queues a record enters and what each is told, where not all of them are plain: otherwise none of this runs.

A record's properties say how many messages it holds (INNER_NUM) and into which further queues it goes
(INNER_MULTI_DISPATCH); its places in them are added to it when it is appended (INNER_BASE, INNER_MULTI_QUEUE_OFFSET).

    placed:      assign_of_kinds --> offsets of all its queues, noted in its properties (`Taken` can give them back)
    dispatched:  entries_of -------> (queue, entry) of each

Source: apache/rocketmq `store/.../queue/BatchConsumeQueue.java`, `MultiDispatchUtils.java`, `LmqDispatch.java` (5.3.3).
"""

from collections.abc import Sequence

from ledgermq.message.batch_unit import BATCH_MESSAGES_MAX
from ledgermq.message.flags import INNER_BATCH, TRANSACTION_PREPARED
from ledgermq.message.properties import INNER_BASE, INNER_NUM, PROPERTIES_LENGTH_MAX, find_property
from ledgermq.message.record import dispatch_fields
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import InvalidTopicError, StoreError
from store.log.queued_draft import QueuedDraft
from store.log.refusals import refusal_of
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue, QueueEntry
from store.queues.dispatch import SCHEDULE_TOPIC, unit_fields
from store.queues.queue_kinds import LIGHT_PREFIX
from store.queues.queue_table import QueueTable

MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
MULTI_OFFSETS = b"INNER_MULTI_QUEUE_OFFSET"
_EXCLUDED_PREFIXES = (b"%RETRY%", b"rmq_sys_", SCHEDULE_TOPIC)


class Taken:
    """What drafts were given and have to give back, should their batch not be placed."""

    __slots__ = ("_drafts", "_queues")

    def __init__(self) -> None:
        self._queues: list[tuple[ConsumeQueue, int]] = []
        self._drafts: list[tuple[QueuedDraft, bytes, int]] = []

    def offsets(self, queue: ConsumeQueue, count: int) -> int:
        """The next `count` offsets of a queue; the first of them.

        Raises:
            DiskFullError, DiskFailedError: there is no room for their units.
        """
        offset = queue.next_offset
        if offset + count > queue.room_end:
            queue.reserve(offset + count)
        self._queues.append((queue, offset))
        queue.next_offset = offset + count
        return offset

    def note(self, draft: QueuedDraft, added: bytes) -> None:
        """Add to a draft's properties.

        Raises:
            Refusal: they get too long.
        """
        self._drafts.append((draft, draft.properties, draft.size))
        draft.properties = _terminated(draft.properties) + added
        draft.size += len(draft.properties) - len(self._drafts[-1][1])
        if len(draft.properties) > PROPERTIES_LENGTH_MAX:
            size = f"{len(draft.properties)} bytes, the limit is {PROPERTIES_LENGTH_MAX}"
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"the places of a message in its queues make its properties {size}")

    def give_back(self) -> None:
        """All of it, the last first."""
        for queue, offset in reversed(self._queues):
            queue.next_offset = offset
        for draft, properties, size in reversed(self._drafts):
            draft.properties, draft.size = properties, size


def assign_of_kinds(queues: QueueTable, drafts: Sequence[QueuedDraft]) -> Taken:
    """Give each draft its places in its queues; or raise with none taken.

    Raises:
        Refusal: no room on the disk, a message that its topic does not take, or too many light queues.
    """
    taken = Taken()
    try:
        for draft in drafts:
            draft.queue_offset = 0
            if not draft.sys_flag & TRANSACTION_PREPARED:
                _assign_one(queues, draft, taken)
    except InvalidTopicError as error:
        taken.give_back()
        raise Refusal(Cause.MESSAGE_ILLEGAL, str(error)) from error
    except StoreError as error:
        taken.give_back()
        raise refusal_of(error) from error
    except Refusal:
        taken.give_back()
        raise
    return taken


def _assign_one(queues: QueueTable, draft: QueuedDraft, taken: Taken) -> None:
    draft.queue_offset = taken.offsets(draft.queue, messages_of(draft.queue, draft.sys_flag, draft.properties))
    if draft.sys_flag & INNER_BATCH and isinstance(draft.queue, BatchQueue):
        taken.note(draft, b"%b\x01%d\x02" % (INNER_BASE.encode(), draft.queue_offset))
    targets = light_queues(queues, draft.topic, draft.queue_id, draft.properties)
    if targets:
        offsets = [str(taken.offsets(queue, 1)) for queue in targets]
        taken.note(draft, b"%b\x01%b\x02" % (MULTI_OFFSETS, ",".join(offsets).encode()))


def messages_of(queue: ConsumeQueue, sys_flag: int, properties: bytes) -> int:
    """How many offsets of its queue a record takes, by what it says of itself; 1 where it says nothing of use."""
    if not sys_flag & INNER_BATCH or not isinstance(queue, BatchQueue):
        return 1
    return inner_count(find_property(properties, INNER_NUM.encode()) or b"")


def inner_count(text: bytes) -> int:
    """How many messages a record has inside by its INNER_NUM; 1 where that is no number that a batch can have."""
    count = int(text) if text.isdigit() and len(text) < 6 else 1
    return count if 0 < count <= BATCH_MESSAGES_MAX else 1


def light_queues(queues: QueueTable, topic: bytes, queue_id: int, properties: bytes) -> list[ConsumeQueue]:
    """The further queues that a record asks for, made where they are missing.

    Raises:
        InvalidTopicError: a name that no queue can have.
        Refusal: there would be more light queues than allowed.
    """
    kinds = queues.kinds
    if not kinds.multi_dispatch or MULTI_DISPATCH not in properties or topic.startswith(_EXCLUDED_PREFIXES):
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
    """The queues that a record of the log enters, its own first, and what each is told; none for prepared ones.

    Raises:
        CorruptRecordError: it cannot be taken apart.
        InvalidTopicError: its topic can name no queue.
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
    """As `entries_of`, of a record that this node placed."""
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
    """Nothing where names and offsets do not fit each other: a foreign hand wrote them."""
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


def _terminated(properties: bytes) -> bytes:
    return properties if not properties or properties[-1] == 2 else properties + b"\x02"
