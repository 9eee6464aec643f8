"""Messages of one queue on their way: read ahead, in hand, handled. Pure.

        handled                                    next_offset
    ------|-------- - - -------|----------------------|------------>  queue offsets
          | in hand, some done | in the buffer        | asked for next

Messages may be done in any order. What may be committed is the smallest offset that is not done: what lies behind it
comes again after a restart, if it was done or not. What was filtered out needs no handling.
"""

import collections

from ledgermq.client.core.message import Message


class Backlog:
    """One queue's.

    Attributes:
        buffer: read ahead, in order.
        in_hand: taken and not done, by offset, in order.
        next_offset: what the broker is to be asked for next; None until it is known where to begin.
        is_dropped: the queue is not ours any more.
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
        """Everything before this offset is handled; None until it is known where to begin."""
        if self.in_hand:
            return next(iter(self.in_hand))
        return self.buffer[0].queue_offset if self.buffer else self.next_offset

    @property
    def span(self) -> int:
        """Offsets from the smallest that is not done to the last one read; 0 with nothing on its way."""
        if not self.in_hand and not self.buffer:
            return 0
        return self._last_offset + 1 - (self.handled or 0)

    def add(self, messages: list[Message]) -> None:
        """They were read, in order."""
        self.buffer.extend(messages)
        self._last_offset = messages[-1].queue_offset

    def take(self) -> Message:
        """The next message, in hand from now on; there is one."""
        message = self.buffer.popleft()
        self.in_hand[message.queue_offset] = message
        return message

    def done(self, message: Message) -> None:
        """This one is handled; nothing happens when it is not in hand any more."""
        if self.in_hand.get(message.queue_offset) is message:
            del self.in_hand[message.queue_offset]

    def is_wanted(self, message: Message) -> bool:
        """Whether this one is still to be handled: in hand, not moved away from, of a queue that is ours."""
        return not self.is_dropped and self.in_hand.get(message.queue_offset) is message

    def all_done(self) -> None:
        """Everything in hand is handled."""
        self.in_hand.clear()

    def move(self, offset: int) -> None:
        """Go on at `offset`, whatever is on its way; what is in hand does not count when it is done."""
        self.buffer.clear()
        self.in_hand.clear()
        self.next_offset = offset

    def drop(self) -> None:
        """Forget what is in the buffer: the queue is no longer ours. What is in hand may still be done."""
        self.is_dropped = True
        if self.buffer:
            self.next_offset = self.buffer[0].queue_offset
            self.buffer.clear()
