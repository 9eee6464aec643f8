"""Queue offsets of a batch of drafts: assigned before the log places it, taken back if the log refuses it.

    next_offset of a queue ---> draft.queue_offset, and room on disk for its unit ---> the log
                   ^----------------------- take_back ------------------------------- refused

This serves stores with plain queues only; `store.queues.queue_entries` serves stores with other kinds.
"""

import time
from collections.abc import Iterable, Sequence

from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFullError, StoreError
from store.log.batch_drafts import BatchDraft, MixedDrafts
from store.log.queued_draft import QueuedDraft


class NotYetError(Exception):
    """The deadline passed before all files of the queues were made; the same messages are to be put again soon."""


def assign_plain(drafts: Sequence[QueuedDraft], deadline_s: float) -> None:
    """Assign each draft its queue offset and reserve disk room for its unit; on an error no offset stays assigned.

    Prepared and rolled-back drafts get offset 0 and no unit.

    Args:
        drafts: one batch, in the order in which it will be placed.
        deadline_s: time of the monotonic clock after which no more files are made; at least one is made.

    Raises:
        Refusal: DISK_FULL or DISK_FAILED.
        NotYetError: the deadline passed and files are still missing.
    """
    is_late = False
    for draft in drafts:
        if draft.sys_flag & TRANSACTION_PREPARED:  # prepared, or rolled back: this bit is in both
            draft.queue_offset = 0
            continue
        queue = draft.queue
        offset = queue.next_offset
        if offset >= queue.room_end:
            if is_late:
                take_back(drafts[: drafts.index(draft)])
                raise NotYetError
            _make_room(drafts, draft, offset + 1)
            is_late = time.monotonic() > deadline_s
        draft.queue_offset = offset
        queue.next_offset = offset + 1


def assign_mixed(drafts: MixedDrafts, deadline_s: float) -> None:
    """Assign offsets as `assign_plain` does; a batch gets as many as it has messages."""
    is_late = False
    for draft in drafts:
        if draft.sys_flag & TRANSACTION_PREPARED:
            draft.queue_offset = 0
            continue
        queue = draft.queue
        offset = queue.next_offset
        end = offset + (len(draft.sizes) if type(draft) is BatchDraft else 1)
        if end > queue.room_end:
            if is_late:
                take_back(drafts[: drafts.index(draft)])
                raise NotYetError
            _make_room(drafts, draft, end)
            is_late = time.monotonic() > deadline_s
        draft.queue_offset = offset
        queue.next_offset = end


def _make_room(drafts: Sequence[QueuedDraft], draft: QueuedDraft, end_offset: int) -> None:
    """Reserve disk room for the units of a draft's queue below `end_offset`; on an error take all offsets back.

    Raises:
        Refusal: DISK_FULL or DISK_FAILED.
    """
    try:
        draft.queue.reserve(end_offset)
    except StoreError as error:
        take_back(drafts[: drafts.index(draft)])
        cause = Cause.DISK_FULL if isinstance(error, DiskFullError) else Cause.DISK_FAILED
        raise Refusal(cause, str(error), retry_after_ms=1000) from error


def take_back(drafts: Iterable[QueuedDraft]) -> None:
    """Give unused queue offsets back to their queues; they must be the last ones assigned."""
    for draft in reversed(list(drafts)):
        if draft.queue_offset >= 0 and not draft.sys_flag & TRANSACTION_PREPARED:
            draft.queue.next_offset = draft.queue_offset
