"""The consumer: a member of a group, which shares the queues of its topics among its members.

Membership ── our queues ──> QueueReader per queue ── buffers ──> async for message in consumer
                                   ^ start, commit ── QueueOffsets at the leader
"""

import asyncio
import collections
import contextlib
import functools
import logging
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from ledgermq.client.commits import Commits
from ledgermq.client.errors import ClosedError, LedgerMQError
from ledgermq.client.membership import Membership
from ledgermq.client.message import Message
from ledgermq.client.outgoing import check_group
from ledgermq.client.prefetch import Prefetch
from ledgermq.client.queue_offsets import QueueOffsets
from ledgermq.client.queue_reader import QueueReader
from ledgermq.client.route import MessageQueue, TopicRoute
from ledgermq.client.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.start_position import Start, check_start, find_start
from ledgermq.client.subscribing import Topics, consumer_heartbeat, subscribe
from ledgermq.client.subscription import RETRY_TOPIC_PREFIX
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import Credentials

_log: Final = logging.getLogger(__name__)

AUTO_COMMIT_S: Final = 5.0
PREFETCH_MESSAGES: Final = 1000
PREFETCH_BYTES: Final = 64 * 1024 * 1024
TURN_COUNT: Final = 64  # messages of one queue before it is another's turn
LEAVING_DEADLINE_S: Final = 5.0
HANDOVER_S: Final = 0.5  # in which the member that had a queue before us hears of us, and commits what it has handled


class Consumer:
    """Reads messages as a member of a group; Python and Java members share a group.

        async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:
            async for message in consumer:
                print(message.tags, message.body)

    **At least once.** A message counts as handled when the next one is asked for, when `commit` is called, or when
    the `async with` block ends without an exception. What is handled is committed every `auto_commit_s`, by `commit`,
    when a queue goes to another member, and on closing. What was not committed is delivered again to whoever reads
    the queue next; within a queue the order is kept. One task iterates over a consumer.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: consumer group; all its members subscribe to the same topics.
        topics: a topic, several, or tag expressions by topic: `{"orders": "fruit || nuts", "returns": "*"}`.
        start: where to begin in a queue from which the group has never committed.
        auto_commit_s: how often what is handled is committed; None: only by `commit`, and never by itself.
        prefetch_messages: read ahead per queue.
        prefetch_bytes: read ahead in all.
        attempt_timeout_s: for one try of a request.
        deadline_s: for a request with its retries, such as `commit`.
        tls: True: TLS, with the system's authorities; or an `ssl.SSLContext` of your own, which may show a certificate.
        credentials: signs every request, for brokers that ask who sends it.

    Raises:
        InvalidArgumentError: an address, a name, an expression or the start is malformed.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        group: str,
        topics: Topics,
        *,
        start: Start = "first",
        auto_commit_s: float | None = AUTO_COMMIT_S,
        prefetch_messages: int = PREFETCH_MESSAGES,
        prefetch_bytes: int = PREFETCH_BYTES,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_group(group)
        check_start(start)
        self._group = group
        self._start = start
        self._auto_commit_s = auto_commit_s
        self._subscriptions = subscribe(group, topics)
        self._session = Session(
            namesrv,
            content=self._heartbeat,
            on_request=self._on_request,
            on_leader=self._on_leader,
            on_route=self._on_route,
            attempt_timeout_s=attempt_timeout_s,
            deadline_s=deadline_s,
            tls=tls,
            credentials=credentials,
        )
        self._prefetch = Prefetch(prefetch_messages, prefetch_bytes)
        self._readers: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        self._ready: collections.deque[QueueReader] = collections.deque()
        self._turn_left = TURN_COUNT
        self._in_hand: set[QueueReader] = set()
        self._more = asyncio.Event()
        self._failure: BaseException | None = None
        self._membership: Membership | None = None
        self._commits: Commits | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- opening and closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        await self.close()

    async def start(self) -> None:
        """Open it, for those who do not use `async with`: from now on a member, reading ahead."""
        await self._session.open()
        self._commits = Commits(self._group, QueueOffsets(self._session.calls, self._session.routes))
        self._membership = Membership(self._session, self._group, self._subscriptions, self._take_over)
        for topic in self._subscriptions:
            self._session.routes.route(topic)  # follows it
        self._tasks = [self._spawn(self._membership.run(), f"membership of {self._group}")]
        if self._auto_commit_s is not None:
            self._tasks.append(self._spawn(self._commits.run(self._auto_commit_s, self._all_readers), "commits"))

    async def close(self) -> None:
        """Stop reading, commit what is handled, leave the group. A second call does nothing."""
        if not self._session.is_open:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._give_up(list(self._readers))
        self._membership = None
        self._more.set()
        await self._session.close({"clientID": self._session.client_id, "consumerGroup": self._group})

    # -- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; waits for one. Ends when the consumer is closed.

        Raises:
            LedgerMQError: a queue cannot be read for a reason that does not pass (permission, unknown group).
        """
        self._finish()
        while not self._ready:
            if not self._session.is_open:
                raise StopAsyncIteration
            await self._wait_more()
        return self._take()

    async def get_many(self, count_max: int, wait_s: float = 1.0) -> list[Message]:
        """Up to `count_max` messages, those of one queue in order: as soon as there are any, else after `wait_s`.

        Raises:
            ClosedError: the consumer is closed.
            LedgerMQError: as in iteration.
        """
        self._finish()
        if not self._session.is_open:
            raise ClosedError("the consumer is closed")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self._ready:
                    await self._wait_more()
        messages: list[Message] = []
        while self._ready and len(messages) < count_max:
            messages.append(self._take())
        return messages

    async def commit(self) -> None:
        """Commit everything that was delivered, the message in hand included.

        Raises:
            LedgerMQError: a leader has not taken it in time; the offsets stay to be committed.
        """
        if self._commits is None:
            raise ClosedError("the consumer is not open: use it inside `async with`")
        self._finish()
        await self._commits.commit(self._all_readers())

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return frozenset(self._readers)

    # -- messages in, messages out

    def on_ready(self, reader: QueueReader) -> None:
        """A reader has messages again."""
        self._ready.append(reader)
        self._more.set()

    def on_failed(self, failure: BaseException) -> None:
        """Something cannot go on: the program is told when it asks for more."""
        self._failure = failure
        self._more.set()

    async def _wait_more(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._more.clear()
        await self._more.wait()

    def _take(self) -> Message:
        reader = self._ready[0]
        message = reader.take()
        self._in_hand.add(reader)
        self._turn_left -= 1
        if not reader.buffer:
            self._ready.popleft()
            self._turn_left = TURN_COUNT
        elif self._turn_left <= 0:
            self._ready.rotate(-1)
            self._turn_left = TURN_COUNT
        return message

    def _finish(self) -> None:
        if self._in_hand:
            for reader in self._in_hand:
                reader.finish()
            self._in_hand.clear()

    # -- queues come and go

    async def _take_over(self, topic: str, queues: Sequence[MessageQueue], alone: bool) -> None:
        ours = set(queues)
        lost = [queue for queue in self._readers if queue.topic == topic and queue not in ours]
        new = [queue for queue in queues if queue not in self._readers]
        if not lost and not new:
            return
        _log.info(
            "group %s: %d queues of %s are ours, %d new, %d lost", self._group, len(ours), topic, len(new), len(lost)
        )
        await self._give_up(lost)
        for queue in new:
            self._begin(queue, 0.0 if alone else HANDOVER_S)

    def _all_readers(self) -> list[QueueReader]:
        return [reader for reader, _ in self._readers.values()]

    def _begin(self, queue: MessageQueue, pause_s: float) -> None:
        assert self._commits is not None, "made at start"
        session, subscription = self._session, self._subscriptions[queue.topic]
        reader = QueueReader(queue, subscription, self._group, session.remoting, session.routes, self._prefetch, self)
        start: Start = "first" if queue.topic.startswith(RETRY_TOPIC_PREFIX) else self._start
        search = functools.partial(find_start, self._commits.offsets, self._group, queue, start)
        self._readers[queue] = reader, self._spawn(reader.run(search, pause_s), f"reader of {queue}")

    async def _give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop reading these queues, and commit what is handled of them."""
        given_up = [self._readers.pop(queue) for queue in queues]
        for reader, task in given_up:
            task.cancel()
            reader.drop()
            self._in_hand.discard(reader)
            with contextlib.suppress(ValueError):
                self._ready.remove(reader)
        await asyncio.gather(*(task for _, task in given_up), return_exceptions=True)
        if self._auto_commit_s is None:
            return
        assert self._commits is not None, "made at start"
        try:
            await self._commits.commit([reader for reader, _ in given_up], LEAVING_DEADLINE_S)
        except LedgerMQError as failure:
            _log.warning("group %s: offsets of queues given up are not committed: %s", self._group, failure)

    # -- tasks

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """None ends by itself; one that does has met what nobody thought of, and must not do so in silence."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            _log.error("%s ended: %r", task.get_name(), failure)
            self.on_failed(failure)

    # -- what others say

    def _on_request(self, connection: Connection, command: Command) -> None:
        if command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            raise Refusal(Cause.NOT_SUPPORTED, f" request type {command.code} not supported")
        if self._membership is not None and command.ext.get("consumerGroup") == self._group:
            self._membership.look()
        connection.respond(command, ResponseCode.SUCCESS)

    def _on_leader(self, broker: str, leader: str | None) -> None:
        if self._membership is not None:
            self._membership.leader_changed(broker, leader)
        for queue, (reader, _) in self._readers.items():
            if queue.broker == broker:
                reader.leader_changed(leader)

    def _on_route(self, route: TopicRoute) -> None:
        if self._membership is not None:
            self._membership.look()

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return consumer_heartbeat(client_id, self._group, self._start, self._subscriptions.values())
