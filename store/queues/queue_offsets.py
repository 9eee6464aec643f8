"""Queue offsets of a batch of drafts: given before the log places it, taken back if the log refuses it.

    next_offset of a queue ---> draft.queue_offset, and room on disk for its unit ---> the log
                   ^----------------------- take_back ------------------------------- refused

Where not all queues are plain, a record may take several offsets of its queue, and offsets of further queues, which its
properties then tell (`store.queues.queue_entries`).
"""

import logging
import time
from collections.abc import Sequence

from ledgermq.message.flags import INNER_BATCH, TRANSACTION_PREPARED
from ledgermq.message.properties import INNER_BASE, PROPERTIES_LENGTH_MAX
from ledgermq.remoting.rate_limited_log import RateLimitedLog
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import InvalidTopicError, StoreError
from store.log.drafts import QueuedDraft
from store.log.refusals import refusal_of
from store.queues.batch_queue import BatchQueue
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_entries import MULTI_OFFSETS, NO_OFFSETS, light_queues, messages_of
from store.queues.queue_table import QueueTable

_seldom = RateLimitedLog(logging.getLogger(__name__))


class NotYetError(Exception):
    """The deadline passed before all files of the queues were made; the same messages are to be put again soon."""


class GivenOffsets:
    """The offsets given to the drafts of one batch.

    Args:
        queues: where further queues of a record are found.
    """

    __slots__ = ("_changed", "_further", "_given", "_queues")

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self._given: Sequence[QueuedDraft] = ()
        self._further: list[tuple[ConsumeQueue, int]] = []
        self._changed: list[tuple[QueuedDraft, bytes, int]] = []

    def give(self, drafts: Sequence[QueuedDraft], deadline_s: float) -> None:
        """Give each draft its queue offset and reserve disk room for its units; on an error no offset stays given.

        Prepared and rolled-back drafts get offset 0 and no unit.

        Args:
            drafts: one batch, in the order in which it will be placed; of single messages if some queues are not plain.
            deadline_s: time of the monotonic clock after which no more files are made; at least one is made.

        Raises:
            Refusal: the disk is full or failed, a queue name is invalid, there are too many light queues, or a record's
                properties become too long.
            NotYetError: the deadline passed and files are still missing.
        """
        has_kinds = self._queues.has_kinds
        is_late = False
        for draft in drafts:
            if draft.sys_flag & TRANSACTION_PREPARED:  # prepared, or rolled back: this bit is in both
                draft.queue_offset = 0
                continue
            queue = draft.queue
            offset = queue.next_offset
            end = offset + (messages_of(queue, draft.sys_flag, draft.properties) if has_kinds else draft.messages)
            try:
                if end > queue.room_end:
                    if is_late:
                        raise NotYetError
                    queue.reserve(end)
                    is_late = time.monotonic() > deadline_s
                draft.queue_offset = offset
                queue.next_offset = end
                if has_kinds:
                    self._give_further(draft)
            except BaseException as error:
                self._given = drafts[: drafts.index(draft)]
                self.take_back()
                if isinstance(error, StoreError):
                    raise refusal_of(error) from error
                raise
        self._given = drafts

    def take_back(self) -> None:
        """Give the offsets, which must be the last ones given, back to their queues; restore changed drafts."""
        for draft in self._given:
            if not draft.sys_flag & TRANSACTION_PREPARED:
                draft.queue.next_offset = min(draft.queue.next_offset, draft.queue_offset)
        self._take_back_further(0, 0)

    def _take_back_further(self, given: int, changed: int) -> None:
        """Take back what was given in further queues after the first `given` offsets and `changed` drafts."""
        for queue, offset in self._further[given:]:
            queue.next_offset = min(queue.next_offset, offset)
        for draft, properties, size in reversed(self._changed[changed:]):
            draft.properties, draft.size = properties, size
        del self._further[given:], self._changed[changed:]

    def _give_further(self, draft: QueuedDraft) -> None:
        """Give a draft offsets in its further queues, and note its places in its properties."""
        self._further.append((draft.queue, draft.queue_offset))
        if draft.sys_flag & INNER_BATCH and isinstance(draft.queue, BatchQueue):
            self._note(draft, b"%b\x01%d\x02" % (INNER_BASE.encode(), draft.queue_offset))
        if draft.topic.startswith(NO_OFFSETS):
            return
        given, changed = len(self._further), len(self._changed)
        try:
            self._give_light(draft)
        except (InvalidTopicError, Refusal) as error:
            if not draft.prepared_transaction_offset:
                raise
            # accepted before; if it were refused now, all behind it in its delay level would wait for ever
            origin = draft.prepared_transaction_offset
            _seldom.warning("the message at %d is delivered, but enters no light queue: %s", origin, error)
            self._take_back_further(given, changed)

    def _give_light(self, draft: QueuedDraft) -> None:
        offsets = []
        for queue in light_queues(self._queues, draft.topic, draft.queue_id, draft.properties):
            offset = queue.next_offset
            queue.reserve(offset + 1)
            self._further.append((queue, offset))
            queue.next_offset = offset + 1
            offsets.append(str(offset))
        if offsets:
            self._note(draft, b"%b\x01%b\x02" % (MULTI_OFFSETS, ",".join(offsets).encode()))

    def _note(self, draft: QueuedDraft, added: bytes) -> None:
        properties = draft.properties
        self._changed.append((draft, properties, draft.size))
        draft.properties = properties + (b"" if not properties or properties[-1] == 2 else b"\x02") + added
        draft.size += len(draft.properties) - len(properties)
        if len(draft.properties) > PROPERTIES_LENGTH_MAX:
            size = f"{len(draft.properties)} bytes, the limit is {PROPERTIES_LENGTH_MAX}"
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"with the offsets in its light queues the properties have {size}")
