"""The messages of one queue between broker and program: read ahead, in hand, handled. Without I/O.

        handled                                    next_offset
    ------|-------- - - -------|----------------------|------------>  queue offsets
          | in hand, some done | in the buffer        | asked for next

Messages may be done in any order. The offset that may be committed is the smallest that is not done: after a restart,
everything from there on is read again, done or not. Messages that the filter left out need no handling.
"""

import collections

from ledgermq.client.core.message import Message


class Backlog:
    """The backlog of one queue.

    Attributes:
        buffer: messages read ahead, in order.
        in_hand: messages taken and not done, by offset, in order.
        next_offset: offset to pull from next; None until the start is known.
        is_dropped: whether the queue is no longer assigned to this consumer.
    """

    __slots__ = ("_last_offset", "buffer", "in_hand", "is_dropped", "next_offset")

    def __init__(self) -> None:
        self.buffer: collections.deque[Message] = collections.deque()
        self.in_hand: dict[int, Message] = {}
        self.next_offset: int | None = None
        self.is_dropped = False
        self._last_offset = 0

    @property
    def handled(self) -> int | None:
        """The offset before which everything is handled; None until the start is known."""
        if self.in_hand:
            return next(iter(self.in_hand))
        return self.buffer[0].queue_offset if self.buffer else self.next_offset

    @property
    def span(self) -> int:
        """Number of offsets from the smallest that is not done to the last one read; 0 with no message here."""
        if not self.in_hand and not self.buffer:
            return 0
        return self._last_offset + 1 - (self.handled or 0)

    def add(self, messages: list[Message]) -> None:
        """Append messages that were pulled, in order."""
        self.buffer.extend(messages)
        self._last_offset = messages[-1].queue_offset

    def take(self) -> Message:
        """Move the next message from the buffer, which must not be empty, to those in hand; returns it."""
        message = self.buffer.popleft()
        self.in_hand[message.queue_offset] = message
        return message

    def done(self, message: Message) -> None:
        """Mark a message as handled; do nothing if it is not in hand any more."""
        if self.in_hand.get(message.queue_offset) is message:
            del self.in_hand[message.queue_offset]

    def is_unhandled(self, message: Message) -> bool:
        """Return whether the message is in hand and its queue is still assigned to this consumer."""
        return not self.is_dropped and self.in_hand.get(message.queue_offset) is message

    def all_done(self) -> None:
        """Mark everything in hand as handled."""
        self.in_hand.clear()

    def move(self, offset: int) -> None:
        """Continue at `offset`: forget what is buffered and in hand; marking the latter done has no effect."""
        self.buffer.clear()
        self.in_hand.clear()
        self.next_offset = offset

    def drop(self) -> None:
        """Forget the buffer: the queue is assigned to another member. Messages in hand may still be marked as done."""
        self.is_dropped = True
        if self.buffer:
            self.next_offset = self.buffer[0].queue_offset
            self.buffer.clear()
