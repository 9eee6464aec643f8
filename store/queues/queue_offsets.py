"""Queue offsets of a batch: given before it is placed in the log, taken back when it is not.

    next_offset of a queue ---> draft.queue_offset, and room on disk for its unit ---> the log
                   ^----------------------- take_back ------------------------------- refused

For plain queues; where there are others, `store.queues.queue_entries` does it.
"""

import time
from collections.abc import Iterable, Sequence

from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskFullError, StoreError
from store.log.batch_drafts import BatchDraft, MixedDrafts
from store.log.queued_draft import QueuedDraft


class NotYetError(Exception):
    """Messages wait for files of their queues, which are made a few at a time."""


def assign_plain(drafts: Sequence[QueuedDraft], deadline_s: float) -> None:
    """Give each draft its queue offset, and see that its unit has room on disk; or raise with none given.

    Prepared and rolled-back ones get 0 and no place in the queue.

    Args:
        drafts: one batch, in the order in which it will be placed.
        deadline_s: when to stop making files, of the monotonic clock; at least one is made.

    Raises:
        Refusal: DISK_FULL or DISK_FAILED.
        NotYetError: files are still to be made.
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
    """As `assign_plain`; a batch gets as many offsets as it has messages."""
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
    """See that units of a draft's queue below `end_offset` have room on disk; or raise with none taken.

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
    """Queue offsets that were assigned and not used; they were the last ones of their queues."""
    for draft in reversed(list(drafts)):
        if draft.queue_offset >= 0 and not draft.sys_flag & TRANSACTION_PREPARED:
            draft.queue.next_offset = draft.queue_offset
