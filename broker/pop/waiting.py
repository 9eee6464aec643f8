"""Held POP requests: they found no message, and wait for one until their deadline.

    POP finds nothing --hold--> (topic, group, queue or -1 for any) --message comes: the oldest tries again--> answered
                                                 '----- deadline -----> answered           '--nothing--> held on

A message wakes one request of every group, not all: the others would find nothing. A request that was answered and left
messages behind wakes the next (`wake_next`). A message in a group's retry topic wakes requests for the topic itself.
Where there is no room for one more, the connection that holds most gives some up: a client cannot keep out others.

Source: apache/rocketmq `broker/.../longpolling/PopLongPollingService.java`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto

from broker.giving_way import giving_way
from broker.pop.handles import ANY_QUEUE
from ledgermq.message.pop_handle import is_retry_topic, retry_topic
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from store.queues.consume_queue import ConsumeQueue


class Hold(Enum):
    """The result of `HeldPops.hold`."""

    HELD = auto()
    FULL = auto()
    TOO_LATE = auto()


class HeldPop:
    """One held request.

    Attributes:
        deadline_ms: ms since the epoch.
        retry: tries again; returns whether the request was answered.
        give_up: answers that the deadline has passed.
    """

    __slots__ = ("command", "connection", "deadline_ms", "give_up", "group", "queue_id", "retry", "timer", "topic")

    def __init__(
        self,
        connection: Connection,
        command: Command,
        place: tuple[str, str, int],
        deadline_ms: int,
        retry: Callable[[], bool],
        give_up: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.command = command
        self.topic, self.group, self.queue_id = place
        self.deadline_ms = deadline_ms
        self.retry = retry
        self.give_up = give_up
        self.timer: asyncio.TimerHandle | None = None


_Queues = dict[int, deque[HeldPop]]


class HeldPops:
    """All held requests of one kind.

    Args:
        clock_ms: wall clock, the one of the deadlines.
        count_max: held requests in all (maxPopPollingSize).
        queue_count_max: those of one group at one queue (popPollingSize).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], int], count_max: int, queue_count_max: int
    ) -> None:
        self._loop = loop
        self._clock_ms = clock_ms
        self._count_max = count_max
        self._queue_count_max = queue_count_max
        self._held: dict[str, dict[str, _Queues]] = {}
        self._retries: dict[str, tuple[str, str]] = {}
        self._of_connection: dict[Connection, dict[HeldPop, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of a group's requests that wait for a queue, or for any queue (-1)."""
        return len(self._held.get(topic, {}).get(group, {}).get(queue_id, ()))

    def hold(self, pop: HeldPop) -> Hold:
        """Keep a request until its deadline."""
        left_ms = pop.deadline_ms - self._clock_ms()
        if left_ms <= 0:
            return Hold.TOO_LATE
        if self.count(pop.topic, pop.group, pop.queue_id) >= self._queue_count_max:
            return Hold.FULL
        if self._count >= self._count_max and not self._give_way(pop.connection):
            return Hold.FULL
        pop.timer = self._loop.call_later(left_ms / 1000, self._time_over, pop)
        self._put(pop).append(pop)
        return Hold.HELD

    def _give_way(self, connection: Connection) -> bool:
        """Answer some of the oldest requests of the connection that holds most; False if this one holds as many."""
        chosen = giving_way(self._of_connection, connection)
        for pop in chosen:
            self._cancel(pop)
            self._time_over(pop)
        return bool(chosen)

    def wake(self, queues: Iterable[ConsumeQueue]) -> None:
        """Let requests that wait for these queues, which have new messages, try again."""
        if not self._held:
            return
        for queue in queues:
            topic = queue.topic
            for group in list(self._held.get(topic, ())):
                self.wake_next(topic, group, ANY_QUEUE)
                self.wake_next(topic, group, queue.queue_id)
            if is_retry_topic(topic) and topic in self._retries:
                self.wake_any(*self._retries[topic])

    def wake_any(self, topic: str, group: str) -> None:
        """Let the group's requests at any queue of the topic try again, until one is answered."""
        for queue_id in list(self._held.get(topic, {}).get(group, ())):
            if self.wake_next(topic, group, queue_id):
                return

    def wake_next(self, topic: str, group: str, queue_id: int) -> bool:
        """Let the oldest request that waits for the queue try again; returns whether one was answered."""
        pops = self._held.get(topic, {}).get(group, {}).get(queue_id, ())
        while pops:
            pop = pops[0]
            self._take(pop)
            if pop.connection.is_closed:
                self._cancel(pop)
                continue
            if pop.retry():
                self._cancel(pop)
                return True
            self._put(pop).appendleft(pop)
            return False
        return False

    def drop_gone(self) -> None:
        """Remove requests whose connection is closed; to be called periodically."""
        for pop in self._all():
            if pop.connection.is_closed:
                self._cancel(pop)
                self._take(pop)

    def release(self, topic: str | None = None) -> None:
        """Answer all requests now, or those of one topic: it is removed, or this node does not lead, or it stops."""
        for pop in self._all():
            if topic is None or pop.topic == topic:
                self._cancel(pop)
                self._time_over(pop)

    def _all(self) -> list[HeldPop]:
        groups = [queues for groups in self._held.values() for queues in groups.values()]
        return [pop for queues in groups for pops in queues.values() for pop in pops]

    def _time_over(self, pop: HeldPop) -> None:
        self._take(pop)
        if not pop.connection.is_closed:
            pop.give_up()

    def _put(self, pop: HeldPop) -> deque[HeldPop]:
        self._count += 1
        self._of_connection.setdefault(pop.connection, {})[pop] = None
        for is_v2 in (False, True):
            self._retries[retry_topic(pop.topic, pop.group, is_v2=is_v2)] = pop.topic, pop.group
        return self._held.setdefault(pop.topic, {}).setdefault(pop.group, {}).setdefault(pop.queue_id, deque())

    def _take(self, pop: HeldPop) -> None:
        groups = self._held[pop.topic]
        queues = groups[pop.group]
        pops = queues[pop.queue_id]
        pops.remove(pop)
        self._count -= 1
        own = self._of_connection[pop.connection]
        del own[pop]
        if not own:
            del self._of_connection[pop.connection]
        if not pops:
            del queues[pop.queue_id]
        if not queues:
            del groups[pop.group]
            for is_v2 in (False, True):
                self._retries.pop(retry_topic(pop.topic, pop.group, is_v2=is_v2), None)
        if not groups:
            del self._held[pop.topic]

    def _cancel(self, pop: HeldPop) -> None:
        if pop.timer is not None:
            pop.timer.cancel()
            pop.timer = None
