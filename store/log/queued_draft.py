"""Drafts with their queue."""

from typing import Any

from ledgermq.message.draft import RecordDraft
from store.queues.consume_queue import ConsumeQueue


class QueuedDraft(RecordDraft):
    """A draft with the queue to which its record goes.

    Attributes:
        queue: queue of the draft's topic and queue id; gives the queue offset.
        tally: the counter for the message once it is committed, set by the code that made the draft.
    """

    __slots__ = ("queue", "tally")

    queue: ConsumeQueue
    tally: Any
