"""Drafts that know the queue they go to."""

from typing import Any

from ledgermq.message.draft import RecordDraft
from store.queues.consume_queue import ConsumeQueue


class QueuedDraft(RecordDraft):
    """A draft with the queue it goes to.

    Attributes:
        queue: of the draft's topic and queue id; gives the queue offset.
        tally: who made it may keep here where it is counted when it is committed.
    """

    __slots__ = ("queue", "tally")

    queue: ConsumeQueue
    tally: Any
