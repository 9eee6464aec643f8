"""Reads one queue ahead of the program: in order, from the group's offset, through changes of leader, without gaps.

A pull goes to the leader, or to the replica that the leader suggests; when the leader changes, it is repeated at the
new one from the same offset. When a leader answers that its queue ends before our offset, the reader asks again some
times before it goes back: a node that was just deposed, or lags behind, would make it repeat messages.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ledgermq.client.consumer.backlog import Backlog
from ledgermq.client.consumer.pulling import PullCall, Pulled
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.calls import back_off_s
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import Action, BusyError, LedgerMQError, RefusedError
from ledgermq.client.group.subscription import SQL92, Subscription
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.route import LEADER_ID, MessageQueue
from ledgermq.wall_clock import wall_clock_ms

_log: Final = logging.getLogger(__name__)

LEADERLESS_PATIENCE_S: Final = 2.0  # time without a leader after which a replica is read from
EMPTY_PAUSE_S: Final = 0.02
GIVE_UP_PAUSE_S: Final = 1.0
PATIENCE_S: Final = 10.0
BACK_PAUSE_S: Final = 0.5
BACK_ANSWERS_IGNORED: Final = 3
SPAN_MAX: Final = 2000
UNKNOWN_SUBSCRIPTION_CODES: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)

FindStart = Callable[[], Awaitable[int]]


class Prefetch:
    """Bounds reading ahead for all readers of one consumer. A reader with an empty buffer may always read.

    Args:
        messages_max: messages in one queue's buffer, about (it is filled again when half of them are taken).
        bytes_max: bytes of records in all buffers together.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_low = messages_max // 2
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting_count = 0
        self._freed = asyncio.Event()

    def is_full(self, count: int) -> bool:
        """Return whether a reader with `count` messages in its buffer must wait."""
        return count > 0 and (count > self._messages_low or self._bytes >= self._bytes_max)

    async def wait_room(self, is_full: Callable[[], bool]) -> None:
        """Return when `is_full` returns False; it is called again when `free` has made room, and by `recheck`."""
        self._waiting_count += 1
        try:
            while is_full():
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._waiting_count -= 1

    def add(self, size: int) -> None:
        """Count bytes that were added to a buffer."""
        self._bytes += size

    def free(self, size: int, buffered_count: int) -> None:
        """Count bytes that left a buffer, which has `buffered_count` messages now."""
        before = self._bytes
        self._bytes = before - size
        if self._waiting_count and (
            buffered_count in (0, self._messages_low) or self._bytes < self._bytes_max <= before
        ):
            self._freed.set()

    def recheck(self) -> None:
        """Let waiting readers call their `is_full` again."""
        if self._waiting_count:
            self._freed.set()


class ReaderOwner(Protocol):
    """A reader's owner, as the reader sees it."""

    def on_ready(self, reader: "QueueReader") -> None:
        """Called when the reader's buffer was empty and has messages now."""

    def on_emptied(self, reader: "QueueReader") -> None:
        """Called when a move to another offset has emptied the reader's buffer."""

    def on_unknown_subscription(self, address: str) -> None:
        """Called when a broker does not know our subscription."""

    def on_failed(self, failure: LedgerMQError) -> None:
        """Called when a queue cannot be read, and retrying has not helped."""


class QueueReader:
    """Reads one queue; `run` is its task.

    Attributes:
        queue: the queue.
        backlog: its messages between broker and program.
        committed: offset that was committed last; None until the start is known.
        pulled_ms: time of the last answer of a broker, Unix milliseconds; 0 for never.
        consumed_ms: when the last handler ended, Unix milliseconds; 0 for never.
        begun: set once its position is known, or the queue was given up before that.
        idle: set while no handler runs on one of its messages.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        session: Session,
        group: str,
        prefetch: Prefetch,
        owner: ReaderOwner,
        figures: TopicFigures,
    ) -> None:
        self.queue = queue
        self.backlog = Backlog()
        self.committed: int | None = None
        self.pulled_ms = 0
        self.consumed_ms = 0
        self.begun = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._running = 0
        self._subscription = subscription
        self._routes = session.routes
        self._prefetch = prefetch
        self._owner = owner
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._failures_count = 0
        self._failing_since: float | None = None
        self._leaderless_since: float | None = None
        self._back_answers = 0
        self._suggested_id = LEADER_ID
        self._pull = PullCall(session.remoting, group, queue, subscription)

    # -- for the owner

    @property
    def handled(self) -> int | None:
        """The offset that may be committed; None until the start is known."""
        return self.backlog.handled

    def take(self) -> Message:
        """Return the next message; the buffer must not be empty."""
        message = self.backlog.take()
        self._prefetch.free(message.record.size, len(self.backlog.buffer))
        return message

    def done(self, message: Message) -> None:
        """Mark a message that was taken as handled."""
        self.backlog.done(message)
        self._prefetch.recheck()

    def handler_began(self) -> None:
        """Note that a handler begins with one of its messages."""
        self._running += 1
        self.idle.clear()

    def handler_ended(self) -> None:
        """Note that a handler of one of its messages has ended."""
        self._running -= 1
        self.consumed_ms = wall_clock_ms()
        if not self._running:
            self.idle.set()

    def finish(self) -> None:
        """Mark every message that was taken as handled."""
        self.backlog.all_done()
        self._prefetch.recheck()

    def drop(self) -> None:
        """Forget the buffer: the queue is no longer assigned to this consumer."""
        self._free_buffer()
        self.backlog.drop()
        self.begun.set()

    def move(self, offset: int) -> None:
        """Continue at `offset`."""
        self._free_buffer()
        self.backlog.move(offset)
        self._owner.on_emptied(self)
        self._prefetch.recheck()
        self._pull.break_off()

    def leader_changed(self, leader: str | None) -> None:
        """Stop waiting for the old leader's answer; readers that read from a replica go on."""
        if leader is not None and self._pull.address != self._source():
            self._pull.break_off()

    def _free_buffer(self) -> None:
        for count, message in enumerate(reversed(self.backlog.buffer), 1):
            self._prefetch.free(message.record.size, len(self.backlog.buffer) - count)

    # -- the task

    async def run(self, find_start: FindStart, pause_s: float) -> None:
        """Read until cancelled.

        Args:
            find_start: returns the offset to begin at; called until it succeeds.
            pause_s: seconds to wait before that.
        """
        await asyncio.sleep(pause_s)
        await self._begin(find_start)
        while True:
            await self._prefetch.wait_room(self._is_full)
            address = self._source()
            if address is None:
                await self._leader_or_patience()
                continue
            began_at = self._loop.time()
            offset = self.backlog.next_offset
            assert offset is not None, "it has begun"
            outcome = await self._pull.run(address, offset)
            if self.backlog.next_offset != offset:
                continue  # `move` was called meanwhile
            if outcome is not None:
                self.pulled_ms = wall_clock_ms()
            if isinstance(outcome, LedgerMQError):
                await self._after_failure(address, outcome)
            elif outcome is not None:
                self._failures_count, self._failing_since = 0, None
                await self._take_in(outcome, began_at)

    def _is_full(self) -> bool:
        return self._prefetch.is_full(len(self.backlog.buffer)) or self.backlog.span > SPAN_MAX

    def _source(self) -> str | None:
        """Return address of the suggested replica, else of the leader; of any replica after 2 s without a leader."""
        route = self._routes.route(self.queue.topic)
        addresses = route.brokers[self.queue.broker].addresses if route and self.queue.broker in route.brokers else {}
        if self._suggested_id != LEADER_ID and self._suggested_id in addresses:
            return addresses[self._suggested_id]
        leader = self._routes.leader(self.queue.broker)
        if leader is not None:
            self._leaderless_since = None
            return leader
        now = self._loop.time()
        self._leaderless_since = self._leaderless_since or now
        if now < self._leaderless_since + LEADERLESS_PATIENCE_S:
            return None
        return next(iter(addresses.values()), None)

    async def _leader_or_patience(self) -> None:
        """Return when routes change, or when a replica may be read from; the nameservers are asked meanwhile."""
        now = self._loop.time()
        left_s = (self._leaderless_since or now) + LEADERLESS_PATIENCE_S - now
        await self._routes.changed(left_s if left_s > 0 else LEADERLESS_PATIENCE_S, self.queue.topic)

    async def _begin(self, find_start: FindStart) -> None:
        while self.backlog.next_offset is None:
            try:
                start = await find_start()
            except LedgerMQError as failure:
                _log.warning("%s: the start offset is not known yet: %s", self.queue, failure)
                await self._pause_after_refusal(failure)
            else:
                self.committed = start
                if self.backlog.next_offset is None:  # `move` was not called meanwhile
                    self.backlog.next_offset = start
        self._failing_since = None
        self.begun.set()

    async def _take_in(self, pulled: Pulled, began_at: float) -> None:
        self._suggested_id = pulled.suggested_id
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._correct(pulled.next_offset, pulled.is_reset)
            return
        self._back_answers = 0
        self._figures.pulled(self.queue.topic, self._loop.time() - began_at, len(pulled.messages))
        before = self.backlog.next_offset or 0
        self.backlog.next_offset = max(before, pulled.next_offset)
        if pulled.messages:
            was_empty = not self.backlog.buffer
            self.backlog.add(pulled.messages)
            self._prefetch.add(sum(message.record.size for message in pulled.messages))
            if was_empty:
                self._owner.on_ready(self)
        if self.backlog.next_offset == before and self._loop.time() < began_at + EMPTY_PAUSE_S:
            await asyncio.sleep(EMPTY_PAUSE_S)  # the broker does not hold requests

    async def _correct(self, offset: int, is_reset: bool) -> None:
        """Handle an answer that our offset is not in the queue, or was reset: continue at the offset in the answer."""
        before = self.backlog.next_offset or 0
        if is_reset:
            _log.warning("%s: offset %d was reset, continuing at %d", self.queue, before, offset)
            self.move(offset)
            return
        if offset < before and self._back_answers < BACK_ANSWERS_IGNORED:
            self._back_answers += 1
            self._routes.refresh(self.queue.topic)
            await asyncio.sleep(BACK_PAUSE_S)
            return
        _log.warning("%s: offset %d is not in the queue, continuing at %d", self.queue, before, offset)
        self._back_answers = 0
        self.backlog.next_offset = offset

    async def _after_failure(self, address: str, failure: LedgerMQError) -> None:
        self._suggested_id = LEADER_ID
        if failure.code in UNKNOWN_SUBSCRIPTION_CODES:
            self._owner.on_unknown_subscription(address)
        if failure.action is Action.GIVE_UP or self._is_unfilterable(failure):
            await self._pause_after_refusal(failure)
            return
        self._failures_count += 1
        if not isinstance(failure, BusyError):
            self._routes.report_failure(self.queue.topic, self.queue.broker, address, failure)
        pause_s = back_off_s(self._failures_count, random.random)
        if isinstance(failure, RefusedError) and failure.retry_after_s is not None:
            pause_s = max(pause_s, failure.retry_after_s)
        await self._routes.leader_other_than(self.queue.broker, address, pause_s)

    def _is_unfilterable(self, failure: LedgerMQError) -> bool:
        """Return whether a Java broker may have refused the condition, as it does without `enablePropertyFilter`."""
        return self._subscription.kind == SQL92 and failure.code == ResponseCode.SYSTEM_ERROR

    async def _pause_after_refusal(self, failure: LedgerMQError) -> None:
        """Wait after a refusal whose cause may pass (a new topic, a lagging leader); raise it after 10 s."""
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > PATIENCE_S and (
            failure.action is Action.GIVE_UP or self._is_unfilterable(failure)
        ):
            self._owner.on_failed(failure)
        await asyncio.sleep(GIVE_UP_PAUSE_S)
