"""One queue, read ahead of the program, in order: from the group's offset, across leaders, without a gap.

        handled                taken          next_offset
    ------|----------------------|-----------------|------------>  queue offsets
          | in the program's hand| in the buffer   | asked for next

What is handled may be committed. A pull goes to the leader; when another node leads, it is asked again there from the
same offset. A leader that calls our offset illegal because its queue ends before it is not believed at once: a node
that has just been deposed, or not yet caught up, would send us back over messages that were committed long ago.
"""

import asyncio
import collections
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ledgermq.client.back_off import back_off_s
from ledgermq.client.errors import (
    Action,
    BusyError,
    LedgerMQError,
    RefusedError,
    UndecodableError,
    refusal_from,
    unreachable_from,
)
from ledgermq.client.message import Message
from ledgermq.client.prefetch import Prefetch
from ledgermq.client.pulling import PULL_CODES, TIMEOUT_S, Pulled, pull_command, read_pulled
from ledgermq.client.route import MessageQueue
from ledgermq.client.routes import Routes
from ledgermq.client.subscription import Subscription
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.errors import RemotingError

_log: Final = logging.getLogger(__name__)

LEADERLESS_WAIT_S: Final = 0.05
EMPTY_PAUSE_S: Final = 0.02
GIVE_UP_PAUSE_S: Final = 1.0
PATIENCE_S: Final = 10.0
GOING_BACK_PAUSE_S: Final = 0.5
GOING_BACK_DOUBTS: Final = 3

FindStart = Callable[[], Awaitable[int]]


class Owner(Protocol):
    """The consumer, as its readers see it."""

    def on_ready(self, reader: "QueueReader") -> None:
        """The reader's buffer was empty and is not any more."""

    def on_failed(self, failure: LedgerMQError) -> None:
        """A queue cannot be read, and trying on has not helped."""


class QueueReader:
    """Reads one queue; `run` is its task.

    Attributes:
        queue: which.
        buffer: messages that wait for the program.
        handled: commit position: everything before it is handled; None until the start is known.
        committed: what was last committed; None until the start is known.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        group: str,
        remoting: RemotingClient,
        routes: Routes,
        prefetch: Prefetch,
        owner: Owner,
    ) -> None:
        self.queue = queue
        self.buffer: collections.deque[Message] = collections.deque()
        self.handled: int | None = None
        self.committed: int | None = None
        self._subscription = subscription
        self._group = group
        self._remoting = remoting
        self._routes = routes
        self._prefetch = prefetch
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._next_offset = 0
        self._taken = 0
        self._failures_count = 0
        self._failing_since: float | None = None
        self._doubts = 0
        self._pull: asyncio.Task[Command] | None = None
        self._pulled_from: str | None = None

    # -- for the consumer

    def take(self) -> Message:
        """The next message; there is one."""
        message = self.buffer.popleft()
        self._taken = message.queue_offset + 1
        self._prefetch.free(message.record.size, len(self.buffer))
        return message

    def finish(self) -> None:
        """What was taken is handled."""
        self.handled = self._taken if self.buffer else self._next_offset

    def drop(self) -> None:
        """Forget what waits: the queue is no longer ours."""
        while self.buffer:
            self._prefetch.free(self.buffer.popleft().record.size, len(self.buffer))

    def leader_changed(self, leader: str | None) -> None:
        """Do not wait for an answer of a node that does not lead any more."""
        if leader is not None and self._pull is not None and self._pulled_from != leader:
            self._pull.cancel("another node leads")

    # -- the task

    async def run(self, find_start: FindStart, pause_s: float) -> None:
        """Read until cancelled.

        Args:
            find_start: asks where the group is; called until it succeeds.
            pause_s: before that.
        """
        await asyncio.sleep(pause_s)
        await self._begin(find_start)
        while True:
            await self._prefetch.wait_room(self.buffer.__len__)
            address = self._routes.leader(self.queue.broker)
            if address is None:
                await self._routes.changed(LEADERLESS_WAIT_S)
                self._routes.refresh(self.queue.topic)
                continue
            began_at = self._loop.time()
            outcome = await self._pull_from(address)
            if isinstance(outcome, LedgerMQError):
                await self._after_failure(address, outcome)
            elif outcome is not None:
                self._failures_count, self._failing_since = 0, None
                await self._take_in(outcome, began_at)

    async def _begin(self, find_start: FindStart) -> None:
        while self.handled is None:
            try:
                start = await find_start()
            except LedgerMQError as failure:
                _log.warning("%s: where to begin is not known yet: %s", self.queue, failure)
                await self._pause_after_refusal(failure)
            else:
                self.handled = self.committed = self._taken = self._next_offset = start
        self._failing_since = None

    async def _pull_from(self, address: str) -> Pulled | LedgerMQError | None:
        """What a pull brings, how it failed, or None when it was broken off because another node leads."""
        offset = self._next_offset
        command = pull_command(self._group, self.queue, offset, self._subscription)
        self._pulled_from = address
        self._pull = pull = self._loop.create_task(self._remoting.request(address, command, TIMEOUT_S))
        try:
            await asyncio.wait((pull,))
        finally:
            self._pull = None
            pull.cancel()
        if pull.cancelled():
            return None
        failure = pull.exception()
        if failure is not None:
            if isinstance(failure, RemotingError):
                return unreachable_from(address, failure)
            raise failure
        answer = pull.result()
        if answer.code not in PULL_CODES:
            return refusal_from(address, answer.code, answer.remark, answer.ext)
        try:
            return read_pulled(address, self.queue, offset, self._subscription, answer)
        except UndecodableError as error:
            return error

    async def _take_in(self, pulled: Pulled, began_at: float) -> None:
        if pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(pulled.next_offset, pulled.is_reset)
            return
        self._doubts = 0
        advanced = pulled.next_offset > self._next_offset
        self._next_offset = max(self._next_offset, pulled.next_offset)
        was_empty = not self.buffer
        if pulled.messages:
            self.buffer.extend(pulled.messages)
            self._prefetch.add(sum(message.record.size for message in pulled.messages))
            if was_empty:
                self._owner.on_ready(self)
        elif was_empty and self.handled == self._taken:
            self.handled = self._taken = self._next_offset  # what was filtered out needs no handling
        if not advanced and self._loop.time() < began_at + EMPTY_PAUSE_S:
            await asyncio.sleep(EMPTY_PAUSE_S)  # a broker that does not hold requests

    async def _move(self, offset: int, is_reset: bool) -> None:
        """The leader says that our offset is not in the queue, or moved by an administrator, and where to go on."""
        if offset < self._next_offset and self._doubts < GOING_BACK_DOUBTS and not is_reset:
            self._doubts += 1
            self._routes.refresh(self.queue.topic)
            await asyncio.sleep(GOING_BACK_PAUSE_S)
            return
        why = "was reset" if is_reset else "is not in the queue"
        _log.warning("%s: offset %d %s, going on at %d", self.queue, self._next_offset, why, offset)
        self._doubts = 0
        self._next_offset = offset
        if not self.buffer and self.handled == self._taken:  # nothing that was read is still to be handled
            self._taken = self.handled = offset

    async def _after_failure(self, address: str, failure: LedgerMQError) -> None:
        if failure.action is Action.GIVE_UP:
            await self._pause_after_refusal(failure)
            return
        self._failures_count += 1
        if not isinstance(failure, BusyError):
            self._routes.report_failure(self.queue.topic, self.queue.broker, address, failure)
        pause_s = back_off_s(self._failures_count, random.random)
        if isinstance(failure, RefusedError) and failure.retry_after_s is not None:
            pause_s = max(pause_s, failure.retry_after_s)
        await self._routes.leader_other_than(self.queue.broker, address, pause_s)

    async def _pause_after_refusal(self, failure: LedgerMQError) -> None:
        """A refusal for good may pass (a topic being created, a leader that is behind); if not, the program is told."""
        now = self._loop.time()
        if self._failing_since is None:
            self._failing_since = now
        elif failure.action is Action.GIVE_UP and now - self._failing_since > PATIENCE_S:
            self._owner.on_failed(failure)
        await asyncio.sleep(GIVE_UP_PAUSE_S)
