"""Handlers: many messages in hand at once, in the order asked for, each done, sent back or tried again.

| order | side by side | a failure |
|---|---|---|
| none | any messages | is sent back, and comes again after a delay, among others |
| key | messages of different keys | is tried again in its place; its key waits, other keys go on |
| queue | messages of different queues, each queue under its broker's lock | is tried again in its place |

What has used up its tries becomes a dead letter. An offset is committed once everything before it is handled.
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
from ledgermq.client.core.checks import check_callable, check_count, check_seconds, check_wait
from ledgermq.client.core.message import Message
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError
from ledgermq.message.properties import SHARDING_KEY

_log: Final = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[None]]
"""Handles one message; it is handled when this returns, and not when it raises."""

Order = Literal["none", "key", "queue"]
"""Which messages are handled one after another: none, those of one key, those of one queue."""

KeyOf = Callable[[Message], Hashable]
"""The key of a message; those with the key None are in no order."""

CONCURRENCY: Final = 16
CONCURRENCY_MAX: Final = 65_536  # each is a task
TRIES_LIMIT: Final = (1 << 31) - 1
HANDLER: Final = "handler"
TIMEOUT_S: Final = 900.0  # RocketMQ's consumeTimeout
WINDOW_PER_HANDLER: Final = 64  # messages taken that wait for their key's turn, or for another try
AGAIN_AFTER_S: Final = 1.0  # RocketMQ's suspendCurrentQueueTimeMillis
AGAIN_AFTER_MAX_S: Final = 30.0
NOT_SENT_BACK_S: Final = 5.0


class Retry(Exception):
    """Raised by a handler: not now, let me have this message again.

    Args:
        after_s: when. Sent back, it comes after the shortest of RocketMQ's delays that is not less (1 s to 2 h);
            in order, it is tried again after that time, at most 30 s. None: as the broker decides, or after 1 s.

    Raises:
        InvalidArgumentError: a negative time.
    """

    def __init__(self, after_s: float | None = None) -> None:
        if after_s is not None:
            check_wait(after_s=after_s)
        super().__init__("again" if after_s is None else f"again after {after_s:g} s")
        self.after_s = after_s


class DeadLetter(Exception):
    """Raised by a handler: this message can never be handled; put it into the group's dead letters."""


@dataclass(frozen=True, slots=True)
class HandlingOptions:
    """How handlers run; see `Consumer.run`."""

    concurrency: int = CONCURRENCY
    order: Order = "none"
    key: KeyOf | None = None
    tries_max: int | None = None
    timeout_s: float = TIMEOUT_S

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            InvalidArgumentError: names it.
        """
        check_count(most=CONCURRENCY_MAX, concurrency=self.concurrency)
        check_seconds(timeout_s=self.timeout_s)
        if self.tries_max is not None:
            check_count(least=0, most=TRIES_LIMIT, tries_max=self.tries_max)
        check_callable(key=self.key)
        if self.order not in ("none", "key", "queue"):
            raise InvalidArgumentError(f"order is {self.order!r}, not 'none', 'key' or 'queue'")
        if self.key is not None and self.order != "key":
            raise InvalidArgumentError(f"a key is given, and the order is {self.order!r}")


def key_of(message: Message) -> Hashable:
    """The sharding key, else the first business key; None without both."""
    sharding_key = message.properties.get(SHARDING_KEY)
    if sharding_key is not None:
        return sharding_key
    return message.keys[0] if message.keys else None


class _Taken(NamedTuple):
    """A message that is in hand.

    Attributes:
        key: None without an order by keys.
        tries: that have failed so far, elsewhere too.
    """

    reader: QueueReader
    message: Message
    key: Hashable
    tries: int


class Handling:
    """Runs one handler over a consumer's messages.

    Args:
        queues: where messages come from.
        handler: whose they are.
        back: sends back what failed; None where nothing is retried (broadcasting).
        options: order, concurrency and the like.
        figures: what became of them, by topic.

    Attributes:
        then_close: a handler has closed the consumer: to be done when handlers have ended.
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
        self._handler = handler
        self._back = back
        self._options = options
        self._figures = figures
        self._key = options.key or key_of
        self._lanes: dict[Hashable, collections.deque[_Taken]] = {}
        self._runnable: collections.deque[_Taken] = collections.deque()
        self._timers: set[asyncio.TimerHandle] = set()
        self._taken_count = 0
        self._window = options.concurrency * (1 if options.order == "none" else WINDOW_PER_HANDLER)
        self._stopping = asyncio.Event()
        self.then_close = False

    async def run(self) -> None:
        """Handle messages until `stop`, or until cancelled; handlers under way are cancelled with it.

        Raises:
            LedgerMQError: a queue cannot be read for a reason that does not pass.
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
        """Begin with no further message; `run` returns when those in hand are through."""
        self._stopping.set()
        self._queues.turns.wake()

    async def handle_once(self, message: Message) -> BaseException | None:
        """Let the handler have a message; what it raised.

        Raises:
            InvalidArgumentError: the handler cannot be awaited.
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
            return error  # of something that the handler has awaited: nobody has cancelled us
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
                    self._pass_on(taken)
                else:
                    self._later(taken._replace(tries=taken.tries + 1), again_s)

    async def _next(self) -> _Taken | None:
        while not self._stopping.is_set():
            while self._runnable:
                taken = self._runnable.popleft()
                if taken.reader.backlog.is_wanted(taken.message):
                    return taken
                self._pass_on(taken)
            if self._taken_count < self._window and self._queues.turns.has_message:
                taken = self._take()
                if self._may_begin(taken):
                    return taken
                continue
            await self._queues.turns.wait_more()
        return None

    def _take(self) -> _Taken:
        reader, message = self._queues.turns.take()
        key = self._key(message) if self._options.order == "key" else None
        self._taken_count += 1
        return _Taken(reader, message, key, message.reconsume_times)

    def _may_begin(self, taken: _Taken) -> bool:
        """Whether it is its turn; if not, it will be."""
        if self._options.order == "queue":
            self._queues.turns.hold(taken.reader)
        elif taken.key is not None:
            lane = self._lanes.get(taken.key)
            if lane is not None:
                lane.append(taken)
                return False
            self._lanes[taken.key] = collections.deque()
        return True

    def _pass_on(self, taken: _Taken) -> None:
        """Whoever has waited for this message to be through may begin."""
        self._taken_count -= 1
        if self._options.order == "queue":
            if not taken.reader.backlog.is_dropped:
                self._queues.turns.release(taken.reader)
        elif taken.key is not None:
            lane = self._lanes[taken.key]
            if lane:
                self._runnable.append(lane.popleft())
            else:
                del self._lanes[taken.key]
        self._queues.turns.wake()

    # -- one message

    async def _try(self, taken: _Taken) -> float | None:
        """Handle it; seconds after which to try again here, or None when it is handled, or somebody else's now."""
        message = taken.message
        began_at = time.perf_counter()
        failure = await self.handle_once(message)
        self._figures.handled(message.topic, time.perf_counter() - began_at, failure is None)
        return None if failure is None else await self._after_failure(message, failure, taken.tries + 1)

    def _later(self, taken: _Taken, seconds: float) -> None:
        """Let it be tried again; until then it stays in hand, and whoever must wait for it waits."""

        def again() -> None:
            self._timers.discard(timer)
            self._runnable.append(taken)
            self._queues.turns.wake()

        timer = asyncio.get_running_loop().call_later(seconds, again)
        self._timers.add(timer)

    async def _after_failure(self, message: Message, failure: BaseException, tries: int) -> float | None:
        """What helps: seconds after which to try again here, or None when it is somebody else's now."""
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
            _log.warning("%r is given up: nothing is retried in broadcasting", message)
            return None
        try:
            await self._back.send_back(message, level, self._options.tries_max)
        except LedgerMQError as error:
            _log.warning("%r is tried again here, since it cannot be sent back: %s", message, error)
            return NOT_SENT_BACK_S
        return None
