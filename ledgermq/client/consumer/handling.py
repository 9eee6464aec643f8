"""Runs a handler over messages: several at once, in the order asked for; failures are sent back or tried again.

| order | handled at the same time | a message whose handler raises |
|---|---|---|
| none | any messages | is sent back, and delivered again after a delay, among others |
| key | messages of different keys | is tried again in its place; its key waits, other keys go on |
| queue | messages of different queues, each queue under its broker's lock | is tried again in its place |

After its last try a message becomes a dead letter. A message that can neither be handled nor sent back stays in hand,
and is tried again here. An offset is committed once everything before it is handled.
"""

import asyncio
import collections
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ledgermq.client.consumer.assigned import AssignedQueues
from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.consumer.sending_back import BROKER_DECIDES, TO_DEAD_LETTERS, TRIES_MAX, SendingBack, delay_level
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.callbacks import Callback
from ledgermq.client.core.checks import check_callable, check_count, check_seconds, check_wait, given
from ledgermq.client.core.message import Message
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError
from ledgermq.message.properties import SHARDING_KEY

_log: Final = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[None]]
"""Handles one message: the message is handled when this returns, and is tried again when it raises."""

Order = Literal["none", "key", "queue"]
"""Which messages are handled one after another: none, those of the same key, those of the same queue."""

KeyOf = Callable[[Message], Hashable]
"""Returns the key of a message; messages with the key None have no order."""

CONCURRENCY: Final = 16
CONCURRENCY_MAX: Final = 65_536  # each is a task
TRIES_LIMIT: Final = (1 << 31) - 1
HANDLER: Final = "handler"
TIMEOUT_S: Final = 900.0  # RocketMQ's consumeTimeout
WINDOW_PER_HANDLER: Final = 64  # most messages taken that wait for their key, or for another try
AGAIN_AFTER_S: Final = 1.0  # RocketMQ's suspendCurrentQueueTimeMillis
AGAIN_AFTER_MAX_S: Final = 30.0
NOT_SENT_BACK_S: Final = 5.0


class Retry(Exception):
    """Raised by a handler that wants the message again later.

    Args:
        after_s: seconds until then. Without an order, rounded up to a level of RocketMQ's delays (1 s to 2 h); with
            one, at most 30 s. None: the broker decides, or with an order 1 s.

    Raises:
        InvalidArgumentError: a negative time.
    """

    def __init__(self, after_s: float | None = None) -> None:
        check_wait(**given(after_s=after_s))
        super().__init__("again" if after_s is None else f"again after {after_s:g} s")
        self.after_s = after_s


class DeadLetter(Exception):
    """Raised by a handler for a message that can never be handled: it is moved to the group's dead letters."""


@dataclass(frozen=True, slots=True)
class HandlingOptions:
    """How handlers run; see `Consumer.run`.

    Raises:
        InvalidArgumentError: an option is invalid; names it.
    """

    concurrency: int
    order: Order
    key: KeyOf | None
    tries_max: int | None
    timeout_s: float

    def __post_init__(self) -> None:
        check_count(most=CONCURRENCY_MAX, concurrency=self.concurrency)
        check_seconds(timeout_s=self.timeout_s)
        check_count(least=0, most=TRIES_LIMIT, **given(tries_max=self.tries_max))
        check_callable(key=self.key)
        if self.order not in ("none", "key", "queue"):
            raise InvalidArgumentError(f"order is {self.order!r}, not 'none', 'key' or 'queue'")
        if self.key is not None and self.order != "key":
            raise InvalidArgumentError(f"a key is given, but order is {self.order!r}: it needs order='key'")


def key_of(message: Message) -> Hashable:
    """Return the default key: the sharding key, else the first business key, else None."""
    sharding_key = message.properties.get(SHARDING_KEY)
    if sharding_key is not None:
        return sharding_key
    return message.keys[0] if message.keys else None


class _InHand(NamedTuple):
    """A message that is in hand.

    Attributes:
        reader: of the message's queue.
        key: its key; None without `order="key"`.
        tries: failed tries so far, those of other members included.
    """

    reader: QueueReader
    message: Message
    key: Hashable
    tries: int


class Handling:
    """Runs one handler over a consumer's messages.

    Args:
        back: sends failed messages back; None in broadcasting, where nothing is retried.

    Attributes:
        close_when_done: a handler has called `Consumer.close`, which is to be done when the handlers have ended.
    """

    def __init__(
        self,
        queues: AssignedQueues,
        handler: Handler,
        back: SendingBack | None,
        options: HandlingOptions,
        figures: TopicFigures,
    ) -> None:
        self._queues = queues
        self._turns = queues.turns
        self._handler = handler
        self._back = back
        self._options = options
        self._figures = figures
        self._key = options.key or key_of
        self._lanes: dict[Hashable, collections.deque[_InHand]] = {}
        self._runnable: collections.deque[_InHand] = collections.deque()
        self._timers: set[asyncio.TimerHandle] = set()
        self._in_hand_count = 0
        self._window = options.concurrency * (1 if options.order == "none" else WINDOW_PER_HANDLER)
        self._stopping = asyncio.Event()
        self.close_when_done = False

    async def run(self) -> None:
        """Handle messages until `stop`; when it is cancelled, the handlers under way are cancelled, too.

        Raises:
            LedgerMQError: a queue cannot be read, and retrying does not help.
        """
        workers = [asyncio.ensure_future(self._work()) for _ in range(self._options.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            self.stop()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            for timer in self._timers:
                timer.cancel()

    def stop(self) -> None:
        """Begin no further message; `run` returns when the handlers under way have ended."""
        self._stopping.set()
        self._turns.wake()

    async def handle_once(self, message: Message) -> BaseException | None:
        """Call the handler with a message; returns the exception that it raised, None if it did not.

        Raises:
            InvalidArgumentError: the handler is not a coroutine function.
        """
        try:
            async with asyncio.timeout(self._options.timeout_s):
                with Callback(self._queues, HANDLER):
                    answer = self._handler(message)
                    if inspect.isawaitable(answer):
                        await answer
                        return None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # something that the handler awaited was cancelled, not this task
        except Exception as error:
            return error
        raise InvalidArgumentError(f"handler {self._handler!r} is not a coroutine function: use `async def`")

    # -- messages in turn

    async def _work(self) -> None:
        while (taken := await self._next()) is not None:
            again_s: float | None = None
            taken.reader.handler_began()
            try:
                again_s = await self._try(taken)
                if again_s is None:
                    taken.reader.done(taken.message)
            finally:
                taken.reader.handler_ended()
                if again_s is None:
                    self._end_turn(taken)
                else:
                    self._later(taken._replace(tries=taken.tries + 1), again_s)

    async def _next(self) -> _InHand | None:
        while not self._stopping.is_set():
            while self._runnable:
                taken = self._runnable.popleft()
                if taken.reader.backlog.is_unhandled(taken.message):
                    return taken
                self._end_turn(taken)
            if self._in_hand_count < self._window and self._turns.has_message:
                taken = self._take()
                if self._may_begin(taken):
                    return taken
                continue
            await self._turns.wait_more()
        return None

    def _take(self) -> _InHand:
        reader, message = self._turns.take()
        key = self._key(message) if self._options.order == "key" else None
        self._in_hand_count += 1
        return _InHand(reader, message, key, message.reconsume_times)

    def _may_begin(self, taken: _InHand) -> bool:
        """Return whether the message's handler may begin now; if not, it waits behind others with its key."""
        if self._options.order == "queue":
            self._turns.hold(taken.reader)
        elif taken.key is not None:
            lane = self._lanes.get(taken.key)
            if lane is not None:
                lane.append(taken)
                return False
            self._lanes[taken.key] = collections.deque()
        return True

    def _end_turn(self, taken: _InHand) -> None:
        """End this message's turn: the next message of its key or queue may begin."""
        self._in_hand_count -= 1
        if self._options.order == "queue":
            if not taken.reader.backlog.is_dropped:
                self._turns.release(taken.reader)
        elif taken.key is not None:
            lane = self._lanes[taken.key]
            if lane:
                self._runnable.append(lane.popleft())
            else:
                del self._lanes[taken.key]
        self._turns.wake()

    # -- one message

    async def _try(self, taken: _InHand) -> float | None:
        """Handle a message; returns seconds after which to try again here, None when it is handled or sent back."""
        message = taken.message
        began_at = time.perf_counter()
        failure = await self.handle_once(message)
        self._figures.handled(message.topic, time.perf_counter() - began_at, failure is None)
        return None if failure is None else await self._after_failure(message, failure, taken.tries + 1)

    def _later(self, taken: _InHand, seconds: float) -> None:
        """Try again after `seconds`; until then the message stays in hand, and its key or queue waits."""

        def again() -> None:
            self._timers.discard(timer)
            self._runnable.append(taken)
            self._turns.wake()

        timer = asyncio.get_running_loop().call_later(seconds, again)
        self._timers.add(timer)

    async def _after_failure(self, message: Message, failure: BaseException, tries: int) -> float | None:
        """Handle a failure. Returns the seconds after which to try again here, None when the message is sent back."""
        if not isinstance(failure, Retry | DeadLetter):
            _log.error("handling %r failed: %r", message, failure, exc_info=failure)
        after_s = failure.after_s if isinstance(failure, Retry) else None
        is_in_order = self._options.order != "none"
        tries_max = self._options.tries_max
        if isinstance(failure, DeadLetter):
            level = TO_DEAD_LETTERS
        elif not is_in_order:
            level = BROKER_DECIDES if after_s is None else delay_level(after_s)
        elif tries > (TRIES_MAX if tries_max is None else tries_max):
            level = TO_DEAD_LETTERS
        else:
            return min(AGAIN_AFTER_S if after_s is None else after_s, AGAIN_AFTER_MAX_S)
        return await self._give_back(message, level)

    async def _give_back(self, message: Message, level: int) -> float | None:
        if self._back is None:
            _log.warning("%r is given up: failed messages are not retried in broadcasting mode", message)
            return None
        try:
            await self._back.send_back(message, level, self._options.tries_max)
        except LedgerMQError as error:
            _log.warning("%r is handled again by this consumer, since it cannot be sent back: %s", message, error)
            return NOT_SENT_BACK_S
        return None
