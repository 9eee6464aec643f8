"""The order in which messages of several queues are delivered: up to 64 of one queue, then the next queue."""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.core.message import Message
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.remoting.route import MessageQueue

TURN_COUNT: Final = 64  # most messages of one queue before the next queue's turn


class Turns:
    """The readers of one consumer, and which of them gives the next message; the `ReaderOwner` of the readers.

    Args:
        on_unknown_subscription: called with the address of a broker that does not know our subscription.
    """

    def __init__(self, on_unknown_subscription: Callable[[str], None]) -> None:
        self.on_unknown_subscription = on_unknown_subscription
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._ready: collections.deque[QueueReader] = collections.deque()
        self._turn_left = TURN_COUNT
        self._held: set[QueueReader] = set()
        self._paused: set[MessageQueue] = set()
        self._more = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that have a reader."""
        return list(self._readers)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._readers

    def readers(self) -> list[QueueReader]:
        """Return the readers of all queues."""
        return list(self._readers.values())

    def reader(self, queue: MessageQueue) -> QueueReader:
        """Return the reader of one queue.

        Raises:
            InvalidArgumentError: the queue has no reader: it is not ours.
        """
        if queue not in self._readers:
            raise InvalidArgumentError(f"queue {queue} is not assigned to this consumer now")
        return self._readers[queue]

    def add(self, reader: QueueReader) -> None:
        """Deliver messages of this reader's queue from now on."""
        self._readers[reader.queue] = reader

    def remove(self, queue: MessageQueue) -> QueueReader:
        """Deliver no more messages of this queue; return its reader, which has dropped what it read ahead."""
        reader = self._readers.pop(queue)
        reader.drop()
        self._withdraw(reader)
        self._held.discard(reader)
        return reader

    # -- messages out

    @property
    def has_message(self) -> bool:
        """Whether there is a message for `take`."""
        return bool(self._ready)

    def take(self) -> tuple[QueueReader, Message]:
        """Return the next message and its reader; only if `has_message`."""
        reader = self._ready[0]
        message = reader.take()
        self._turn_left -= 1
        if not reader.backlog.buffer:
            self._ready.popleft()
            self._turn_left = TURN_COUNT
        elif self._turn_left <= 0:
            self._ready.rotate(-1)
            self._turn_left = TURN_COUNT
        return reader, message

    async def wait_more(self) -> None:
        """Return when there may be messages, or the consumer was stopped.

        Raises:
            LedgerMQError: a queue cannot be read, or a background task has failed; each failure is raised once.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._more.clear()
        await self._more.wait()

    def wake(self) -> None:
        """Let `wait_more` return."""
        self._more.set()

    def hold(self, reader: QueueReader) -> None:
        """Deliver no message of this queue until `release`."""
        self._held.add(reader)
        self._withdraw(reader)

    def release(self, reader: QueueReader) -> None:
        """Deliver messages of this queue again."""
        self._held.discard(reader)
        self._offer(reader)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Deliver no messages of these queues until `resume`; they stay assigned to us."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self._readers:
                self._withdraw(self._readers[queue])

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Deliver messages of these queues again."""
        for queue in queues:
            self._paused.discard(queue)
            if queue in self._readers:
                self._offer(self._readers[queue])

    def rewind(self) -> None:
        """Read again every message that was taken and is not done; called when no handler has them any more."""
        for reader in self.readers():
            handled = reader.handled
            if reader.backlog.in_hand and handled is not None:
                reader.move(handled)
            self.release(reader)

    def _offer(self, reader: QueueReader) -> None:
        may = reader.queue not in self._paused and reader not in self._held
        if may and reader.backlog.buffer and reader not in self._ready:
            self._ready.append(reader)
            self._more.set()

    def _withdraw(self, reader: QueueReader) -> None:
        with contextlib.suppress(ValueError):
            self._ready.remove(reader)

    # -- called by readers

    def on_ready(self, reader: QueueReader) -> None:
        """Deliver from the reader's buffer, which has messages now."""
        self._offer(reader)

    def on_emptied(self, reader: QueueReader) -> None:
        """Skip the reader, whose buffer is empty now."""
        self._withdraw(reader)

    def on_failed(self, failure: BaseException) -> None:
        """Keep a failure: `wait_more` raises it."""
        self._failure = failure
        self._more.set()
