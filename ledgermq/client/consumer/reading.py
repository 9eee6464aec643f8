"""Reading: messages one after another or in batches, and the queues they come from; half of a `Consumer`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import NamedTuple, Self

from ledgermq.client.consumer.message import Message
from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.consumer.serving import Serving
from ledgermq.client.core.checks import COUNT_MAX, check_count, check_wait, unix_ms
from ledgermq.client.core.route import MessageQueue, check_queue
from ledgermq.client.errors import ClosedError, InvalidArgumentError
from ledgermq.client.group.assigned import AssignedQueues
from ledgermq.client.group.commits import Commits
from ledgermq.client.group.membership import Everything, Membership


class Parts(NamedTuple):
    """What an open consumer is made of.

    Attributes:
        background: the tasks that share out the queues and commit now and then.
        closing: held while it is closed.
    """

    commits: Commits
    queues: AssignedQueues
    membership: Membership | Everything
    serving: Serving
    background: list[asyncio.Task[None]]
    closing: asyncio.Lock


class Reading:
    """What a program that iterates over a consumer needs; whoever is this opens and closes it."""

    def __init__(self) -> None:
        self._parts: Parts | None = None
        self._in_hand: set[QueueReader] = set()
        self._stopping = False
        self._was_opened = False

    # -- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; waits for one. Ends when the consumer is stopped or closed.

        Raises:
            ClosedError: a handler runs, which gets the messages; or it was never opened.
            LedgerMQError: a queue cannot be read for a reason that does not pass (permission, unknown group).
        """
        self._finish()
        if not self._was_opened:
            self._opened()
        while (parts := self._parts) is not None and not self._stopping:
            _check_unhandled(parts)
            if parts.queues.has_message:
                return self._take(parts)
            await parts.queues.wait_more()
        raise StopAsyncIteration

    async def get_many(self, count_max: int, wait_s: float = 1.0) -> list[Message]:
        """Up to `count_max` messages, those of one queue in order: as soon as there are any, else after `wait_s`.

        Raises:
            ClosedError: the consumer is closed, or a handler runs.
            LedgerMQError: as in iteration.
        """
        check_count(count_max=count_max)
        check_wait(wait_s=wait_s)
        self._finish()
        parts = self._opened()
        _check_unhandled(parts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not parts.queues.has_message and not self._stopping:
                    await parts.queues.wait_more()
        messages: list[Message] = []
        while parts.queues.has_message and len(messages) < count_max and not self._stopping:
            messages.append(self._take(parts))
        return messages

    async def batches(self, count_max: int = 64, wait_s: float = 0.5) -> AsyncIterator[list[Message]]:
        """Lists of 1 to `count_max` messages; a list counts as handled when the next one is asked for.

        What was gathered when it is cancelled is given again.

        Args:
            count_max: at which a list is full.
            wait_s: how long to wait for more once there is one.

        Raises:
            LedgerMQError: as in iteration.
        """
        check_count(count_max=count_max)
        check_wait(wait_s=wait_s)
        async for message in self:
            batch = [message]
            deadline = asyncio.get_running_loop().time() + wait_s
            while len(batch) < count_max and (parts := self._parts) is not None and not self._stopping:
                if parts.queues.has_message:
                    batch.append(self._take(parts))
                elif not await self._more_by(parts.queues, deadline):
                    break
            yield batch

    async def _more_by(self, queues: AssignedQueues, deadline: float) -> bool:
        """Whether to look again, while a batch is gathered: it must not be lost with what ends the waiting."""
        try:
            async with asyncio.timeout_at(deadline):
                await queues.wait_more()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            self._in_hand.clear()
            queues.rewind()
            raise
        except Exception as failure:
            queues.on_failed(failure)  # told when the next batch is asked for
            return False
        return True

    async def commit(self) -> None:
        """Commit everything that was delivered, the message in hand included; with a handler, what it has handled.

        Raises:
            LedgerMQError: a leader has not taken it in time; the offsets stay to be committed.
        """
        parts = self._opened()
        self._finish()
        await parts.commits.commit(parts.queues.readers())

    # -- queues

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return frozenset(reader.queue for reader in (self._parts.queues.readers() if self._parts else ()))

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Of each queue that is ours, the smallest offset that is not handled, as far as known."""
        readers = self._parts.queues.readers() if self._parts else []
        return {reader.queue: reader.handled for reader in readers if reader.handled is not None}

    def pause(self, *queues: MessageQueue) -> None:
        """Give no messages of these queues (of all that are ours, without any) until `resume`."""
        self._opened().queues.pause(_checked(queues) or self.assignment)

    def resume(self, *queues: MessageQueue) -> None:
        """Give messages of these queues (of all that are ours, without any) again."""
        self._opened().queues.resume(_checked(queues) or self.assignment)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at this offset of a queue of ours. It counts as handled up to there, and is committed so.

        Raises:
            InvalidArgumentError: the queue is not ours, or the offset is negative.
        """
        check_queue(queue)
        check_count(least=-COUNT_MAX, offset=offset)
        if offset < 0:
            raise InvalidArgumentError(f"offset {offset} of {queue} is negative")
        self._opened().queues.reader(queue).move(offset)

    async def seek_to_time(self, when: datetime) -> None:
        """Go on, in every queue that is ours, at the first message stored at or after a time.

        Raises:
            InvalidArgumentError: a time without a time zone.
            LedgerMQError: a leader does not tell where that is.
        """
        parts = self._opened()
        readers, timestamp_ms = parts.queues.readers(), unix_ms(when, "when")
        offsets = await asyncio.gather(*(parts.commits.offsets.at_time(r.queue, timestamp_ms) for r in readers))
        for reader, offset in zip(readers, offsets):
            reader.move(offset)

    # -- inside

    def _opened(self) -> Parts:
        if self._parts is None:
            raise ClosedError("the consumer is not open: use it inside `async with`")
        return self._parts

    def _take(self, parts: Parts) -> Message:
        reader, message = parts.queues.take()
        self._in_hand.add(reader)
        return message

    def _finish(self) -> None:
        for reader in self._in_hand:
            if not reader.backlog.is_dropped:
                reader.finish()
        self._in_hand.clear()


def _checked(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    for queue in queues:
        check_queue(queue, "of queues one")
    return queues


def _check_unhandled(parts: Parts) -> None:
    if parts.serving.handling is not None:
        raise ClosedError("a handler runs, which gets the messages: stop it before iterating")
