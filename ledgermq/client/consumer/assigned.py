"""The queues that are assigned to one consumer now: reads each of them, takes over new ones and gives up lost ones.

Membership ── take_over ──> a reader per queue ──> Turns: messages of the queues in turn
                            given up: reading stops, handlers end, handled offsets are committed, locks released
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ledgermq.client.consumer.commits import Commits
from ledgermq.client.consumer.queue_reader import Prefetch, QueueReader
from ledgermq.client.consumer.settings import ConsumerSettings, OnQueuesChanged
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.consumer.turns import Turns
from ledgermq.client.core.callbacks import Callback
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.group.queue_locks import LOG_EVERY_S, RENEWAL_S, QueueLocks
from ledgermq.client.group.start_position import Start, find_start
from ledgermq.client.group.subscription import RETRY_TOPIC_PREFIX
from ledgermq.remoting.route import MessageQueue

_log: Final = logging.getLogger(__name__)

LEAVING_DEADLINE_S: Final = 5.0
HANDOVER_S: Final = 0.5  # time for the queue's former member to notice the change and to commit
HANDLERS_WAIT_S: Final = 0.4  # time for the handlers of a lost queue before its offset is committed
FIRST_LOG_S: Final = 1.0  # time until running handlers of a lost queue are logged; then every `LOG_EVERY_S`
ORDERED_WAIT_S: Final = 30.0  # time for the handlers if the next member must not begin before they have ended


class AssignedQueues:
    """The queues that are assigned to one consumer; starts and ends the reading of each.

    Attributes:
        turns: the readers of the queues, and the messages in turn.
        locks: the locks of queues that are handled in order; None while they are not.
    """

    def __init__(self, session: Session, settings: ConsumerSettings, commits: Commits, figures: TopicFigures) -> None:
        self.turns = Turns(self._on_unknown_subscription)
        self.locks: QueueLocks | None = None
        self._session = session
        self._settings = settings
        self._group = settings.group
        self._prefetch = Prefetch(settings.prefetch_messages, settings.prefetch_bytes)
        self._commits = commits
        self._figures = figures
        self._reading: dict[MessageQueue, asyncio.Task[None]] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._renewal_due = asyncio.Event()
        self._changing = asyncio.Lock()  # serializes changes of the queues: two at once would begin a queue twice
        self._tasks: dict[asyncio.Task[None], None] = {}  # an ordered set

    def _on_unknown_subscription(self, address: str) -> None:
        """Send a heartbeat to a broker that does not know our subscription."""
        self.spawn(self._send_heartbeat(address), f"heartbeat to {address}")

    async def _send_heartbeat(self, address: str) -> None:
        await self._session.heartbeats.send(address)

    # -- changes of the queues

    async def take_over(self, topic: str, queues: Sequence[MessageQueue], alone: bool) -> None:
        """Assign exactly these queues of the topic to us; returns when the others are given up."""
        async with self._changing:
            await self._take_over(topic, queues, alone)

    async def _take_over(self, topic: str, queues: Sequence[MessageQueue], alone: bool) -> None:
        ours = set(queues)
        lost = tuple(queue for queue in self.turns.queues if queue.topic == topic and queue not in ours)
        new = tuple(queue for queue in queues if queue not in self.turns)
        if not lost and not new:
            return
        _log.info(
            "group %s: %d queues of %s are ours, %d new, %d lost", self._group, len(ours), topic, len(new), len(lost)
        )
        await self.give_up(lost)
        for queue in new:
            self._begin(queue, 0.0 if alone else HANDOVER_S)
        await self._notify("on_assigned", self._settings.on_assigned, new)

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop reading these queues, and commit what is handled of them.

        With locks, each goes on in a task of its own: the lock is released when the queue's handlers have ended.
        """
        await self._notify("on_revoked", self._settings.on_revoked, tuple(queues))
        readers = [self.turns.remove(queue) for queue in queues if queue in self.turns]
        await self.cancel(*(self._reading.pop(reader.queue) for reader in readers))
        if self.locks is None:
            await self._leave(readers, HANDLERS_WAIT_S)
        else:
            for reader in readers:
                leaving = self.spawn(self._leave([reader], ORDERED_WAIT_S), f"leaving {reader.queue}")
                self._leaving[reader.queue] = leaving
                leaving.add_done_callback(functools.partial(self._left, reader.queue))

    async def lock_all(self) -> None:
        """Read queues only under their locks from now on; the present ones are given up and begun again."""
        async with self._changing:
            if self.locks is not None:
                return
            queues = self.turns.queues
            await self.give_up(queues)
            self.locks = QueueLocks(self._session, self._group)
            self.spawn(self._renew_locks(self.locks), f"locks of {self._group}")
            for queue in queues:
                self._begin(queue, 0.0)

    async def positions_known(self) -> None:
        """Return once the position of every assigned queue is known, except queues of retry topics."""
        for reader in self.turns.readers():
            if not reader.queue.topic.startswith(RETRY_TOPIC_PREFIX):
                await reader.begun.wait()

    def leader_changed(self, broker: str, leader: str | None) -> None:
        """Pull from a new leader at once, and renew the locks."""
        self._renewal_due.set()
        for reader in self.turns.readers():
            if reader.queue.broker == broker:
                reader.leader_changed(leader)

    async def close(self, *background: asyncio.Task[None]) -> None:
        """End the background tasks (sharing out, commits), then give up every queue.

        Offsets are committed within `LEAVING_DEADLINE_S`. When it is cancelled, the rest is left out.
        """
        try:
            await self.cancel(*background)
            async with self._changing:
                await self.give_up(self.turns.queues)
            await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        finally:
            self.turns.wake()
            await self.cancel(*self._tasks)

    def _begin(self, queue: MessageQueue, pause_s: float) -> None:
        subscription = self._settings.subscriptions[queue.topic]
        reader = QueueReader(queue, subscription, self._session, self._group, self._prefetch, self.turns, self._figures)
        work = reader.run(functools.partial(self._find_start, queue), pause_s)
        self.turns.add(reader)
        self._reading[queue] = self.spawn(work, f"reader of {queue}")

    async def _find_start(self, queue: MessageQueue) -> int:
        if self.locks is not None:
            await self._former_handlers_ended(queue)
            await self.locks.acquire(queue)
        start: Start = "first" if queue.topic.startswith(RETRY_TOPIC_PREFIX) else self._settings.start
        return await find_start(self._commits.offsets, self._group, queue, start)

    async def _former_handlers_ended(self, queue: MessageQueue) -> None:
        """Return when no handler of our former reading of a queue runs; log every 10 s that it waits."""
        loop = asyncio.get_running_loop()
        began_at, log_at = loop.time(), loop.time() + FIRST_LOG_S
        while (leaving := self._leaving.get(queue)) is not None:
            if (now := loop.time()) >= log_at:
                _log.warning(
                    "group %s: %s has waited for its former handlers for %.0f s", self._group, queue, now - began_at
                )
                log_at = now + LOG_EVERY_S
            await asyncio.wait((leaving,), timeout=log_at - now)

    async def _leave(self, readers: Sequence[QueueReader], patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                for reader in readers:
                    await reader.idle.wait()
        except TimeoutError:
            busy = ", ".join(str(reader.queue) for reader in readers if not reader.idle.is_set())
            _log.warning("group %s: handlers still run on %s, which is given up", self._group, busy)
        if self._settings.auto_commit_s is not None:
            try:
                limit_s = min(LEAVING_DEADLINE_S, self._session.calls.deadline_s)
                await self._commits.commit(readers, limit_s)
            except LedgerMQError as failure:
                _log.warning("group %s: offsets of queues given up are not committed: %s", self._group, failure)
        if self.locks is not None:
            await self.locks.release(reader.queue for reader in readers)

    def _left(self, queue: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._leaving.get(queue) is task:
            del self._leaving[queue]

    async def _renew_locks(self, locks: QueueLocks) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL_S):
                    await self._renewal_due.wait()
            self._renewal_due.clear()
            refused = await locks.renew()
            if not refused:
                continue
            async with self._changing:
                lost = [queue for queue in refused if queue in self.turns]
                _log.warning("group %s: other members have the locks of %s", self._group, ", ".join(map(str, refused)))
                await self.give_up(lost)
                for queue in lost:
                    self._begin(queue, 0.0)

    async def _notify(self, name: str, listener: OnQueuesChanged | None, queues: tuple[MessageQueue, ...]) -> None:
        """Call a listener; an exception of it is raised where the program waits for messages."""
        if listener is None or not queues:
            return
        try:
            with Callback(self, name):
                answer = listener(queues)
                if answer is not None:
                    await answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            failure = LedgerMQError(f"{name} was cancelled by something that it awaited")
            failure.__cause__ = error
            self.turns.on_failed(failure)
        except Exception as error:
            self.turns.on_failed(error)

    # -- tasks

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a background task until `close`; its failure is raised where the program waits for messages."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def cancel(self, *tasks: asyncio.Task[None]) -> None:
        """Cancel tasks; returns when they have ended."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a background task; a failure is a bug, and is logged and raised to the program."""
        self._tasks.pop(task, None)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _log.error("%s ended with an error: %r", task.get_name(), failure)
            self.turns.on_failed(failure)
