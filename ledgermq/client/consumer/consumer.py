"""The consumer: a member of a group, which shares the queues of its topics among its members.

Membership ── our queues ──> AssignedQueues: a QueueReader each ──> async for message in consumer
                                   ^ start, commit                └─> consumer.run(handler)
                                   └── QueueOffsets at the leaders, or LocalOffsets in broadcasting
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ledgermq.client.consumer.assigned import AssignedQueues, OnQueuesChanged
from ledgermq.client.consumer.commits import Commits
from ledgermq.client.consumer.handling import (
    CONCURRENCY,
    HANDLER,
    TIMEOUT_S,
    Handler,
    Handling,
    HandlingOptions,
    KeyOf,
    Order,
)
from ledgermq.client.consumer.queue_reader import Prefetch, QueueReader
from ledgermq.client.consumer.sending_back import TO_DEAD_LETTERS, SendingBack, delay_level
from ledgermq.client.consumer.serving import Serving
from ledgermq.client.consumer.signals import Signals, stopped_by
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.callbacks import Callback
from ledgermq.client.core.checks import (
    COUNT_MAX,
    check_callable,
    check_count,
    check_group,
    check_kind,
    check_seconds,
    check_wait,
    unix_ms,
)
from ledgermq.client.core.message import Message
from ledgermq.client.core.route import MessageQueue, TopicRoute, check_queue
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import ClosedError, InvalidArgumentError, LedgerMQError
from ledgermq.client.group.local_offsets import DEFAULT_DIR, LocalOffsets
from ledgermq.client.group.membership import Everything, Membership
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.client.group.start_position import Start, check_start, wire_name
from ledgermq.client.group.subscription import Mode, Topics, consumer_heartbeat, subscribe
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.signature import Credentials

_log: Final = logging.getLogger(__name__)

AUTO_COMMIT_S: Final = 5.0
PREFETCH_MESSAGES: Final = 1000
PREFETCH_BYTES: Final = 64 * 1024 * 1024
CLIENT_VERSION: Final = "V5_3_3"  # the protocol's that is spoken
BROADCASTING_INSTANCE: Final = "DEFAULT"  # RocketMQ's: the next life finds the offsets of this one


class _Parts(NamedTuple):
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


class Consumer:
    """Reads messages as a member of a group; Python and Java members share a group.

        async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:
            async for message in consumer:                    # one after another
                print(message.tags, message.body)

        async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:
            await consumer.run(handle, concurrency=16)        # side by side, failures are tried again

    **At least once.** Iterating, a message counts as handled when the next one is asked for, when `commit` is called,
    or when the `async with` block ends without an exception; with a handler, when that returns. What is handled is
    committed every `auto_commit_s`, by `commit`, when a queue goes to another member, and on closing. What was not
    committed is delivered again to whoever reads the queue next; within a queue the order is kept. One task iterates
    over a consumer.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: consumer group; all its members subscribe to the same topics.
        topics: a topic, several, or by topic a tag expression or an `Sql` condition: `{"orders": "fruit || nuts"}`.
        mode: `clustering`: the members share the messages; `broadcasting`: each gets all of them.
        start: where to begin in a queue from which the group has never committed.
        auto_commit_s: how often what is handled is committed; None: only by `commit`, and never by itself.
        prefetch_messages: read ahead per queue.
        prefetch_bytes: read ahead in all.
        on_assigned: told of queues that have become ours; a function or a coroutine function.
        on_revoked: told of queues that go to others, before what is handled of them is committed.
        offsets_dir: in broadcasting, where this member keeps its offsets; RocketMQ's own place by default.
        attempt_timeout_s: for one try of a request.
        deadline_s: for a request with its retries, such as `commit`.
        tls: True: TLS, with the system's authorities; or an `ssl.SSLContext` of your own, which may show a certificate.
        credentials: signs every request, for brokers that ask who sends it.

    Raises:
        InvalidArgumentError: an address, a name, an expression, the mode or the start is malformed.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        group: str,
        topics: Topics,
        *,
        mode: Mode = "clustering",
        start: Start = "first",
        auto_commit_s: float | None = AUTO_COMMIT_S,
        prefetch_messages: int = PREFETCH_MESSAGES,
        prefetch_bytes: int = PREFETCH_BYTES,
        on_assigned: OnQueuesChanged | None = None,
        on_revoked: OnQueuesChanged | None = None,
        offsets_dir: Path | str | None = None,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_group(group)
        check_start(start)
        if auto_commit_s is not None:
            check_seconds(auto_commit_s=auto_commit_s)
        check_count(prefetch_messages=prefetch_messages, prefetch_bytes=prefetch_bytes)
        check_callable(on_assigned=on_assigned, on_revoked=on_revoked)
        check_kind((str, Path, type(None)), offsets_dir=offsets_dir)
        if mode not in ("clustering", "broadcasting"):
            raise InvalidArgumentError(f"mode is {mode!r}, not 'clustering' or 'broadcasting'")
        self._group = group
        self._mode: Mode = mode
        self._start = start
        self._auto_commit_s = auto_commit_s
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._offsets_dir = Path(offsets_dir or DEFAULT_DIR).expanduser()
        self._subscriptions = subscribe(group, topics, mode)
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
            instance=BROADCASTING_INSTANCE if mode == "broadcasting" else None,
        )
        self._prefetch_limits = prefetch_messages, prefetch_bytes
        self._figures = TopicFigures(time.monotonic)
        self._started_ms = 0
        self._parts: _Parts | None = None
        self._in_hand: set[QueueReader] = set()  # readers of messages that the program iterates over
        self._stopping = False
        self._was_opened = False

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
        """Open it, for programs that do not use `async with`: from now on it is a member, and reads ahead.

        With `start="last"` it returns when the positions of its queues are known, so that a message sent after that is
        read. When brokers do not tell them within `deadline_s`, that is logged, and reading begins once they do.

        Raises:
            ClosedError: it is open already.
            UndecodableError: in broadcasting, the file of offsets cannot be read.
        """
        await self._session.open()
        try:
            parts = self._parts = self._make_parts()
        except LedgerMQError:
            await self._session.close()
            raise
        self._started_ms = time.time_ns() // 1_000_000
        self._stopping = False
        self._was_opened = True
        for topic in self._subscriptions:
            self._session.routes.route(topic)  # follows it
        if self._auto_commit_s is not None:
            commits = parts.commits.run(self._auto_commit_s, parts.queues.turns.readers)
            parts.background.append(parts.queues.spawn(commits, "commits"))
        if self._start == "last":
            try:
                await self._know_positions(parts)
            except BaseException:
                await self.close()
                raise

    async def _know_positions(self, parts: _Parts) -> None:
        limit_s = self._session.calls.deadline_s
        try:
            async with asyncio.timeout(limit_s):
                await parts.membership.first_share.wait()
                await parts.queues.positions_known()
        except TimeoutError:
            _log.warning(
                "group %s: after %.3g s the ends of its queues are not known yet; it reads from where they end once"
                " brokers tell",
                self._group,
                limit_s,
            )

    async def close(self) -> None:
        """Stop reading, commit what is handled, leave the group. A second call waits for the first.

        It waits 0.4 s for handlers under way (30 s with `order="queue"`), then up to 5 s (`deadline_s` if that is
        less) for the commit, and 1 s for each of unlocking, leaving the group and closing connections. Called by a
        handler, which it cannot wait for, it does what `stop` does, and `run` closes when its handlers have ended.

        Raises:
            ClosedError: called by `on_assigned` or `on_revoked`.
        """
        parts = self._parts
        if parts is None:
            return
        inside = Callback.around(parts.queues)
        if inside is not None and inside.name != HANDLER:
            raise ClosedError(f"close() in {inside.name} would wait for itself: call stop(), and close it outside")
        self.stop()
        if inside is not None and parts.serving.handling is not None:
            parts.serving.handling.then_close = True
        else:
            await self._close(parts)

    def stop(self) -> None:
        """Give no further message: iteration ends, and `run` returns when its handlers have. Still open after that."""
        self._stopping = True
        if self._parts is not None:
            if self._parts.serving.handling is not None:
                self._parts.serving.handling.stop()
            self._parts.queues.turns.wake()

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
            if parts.queues.turns.has_message:
                return self._take(parts)
            await parts.queues.turns.wait_more()
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
                while not parts.queues.turns.has_message and not self._stopping:
                    await parts.queues.turns.wait_more()
        messages: list[Message] = []
        while parts.queues.turns.has_message and len(messages) < count_max and not self._stopping:
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
                if parts.queues.turns.has_message:
                    batch.append(self._take(parts))
                elif not await self._more_by(parts.queues, deadline):
                    break
            yield batch

    async def _more_by(self, queues: AssignedQueues, deadline: float) -> bool:
        """Whether to look again, while a batch is gathered: it must not be lost with what ends the waiting."""
        try:
            async with asyncio.timeout_at(deadline):
                await queues.turns.wait_more()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            self._in_hand.clear()
            queues.turns.rewind()
            raise
        except Exception as failure:
            queues.turns.on_failed(failure)  # told when the next batch is asked for
            return False
        return True

    async def commit(self) -> None:
        """Commit everything that was delivered, the message in hand included; with a handler, what it has handled.

        Raises:
            LedgerMQError: a leader has not taken it in time; the offsets stay to be committed.
        """
        parts = self._opened()
        self._finish()
        await parts.commits.commit(parts.queues.turns.readers())

    # -- queues

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return frozenset(reader.queue for reader in (self._parts.queues.turns.readers() if self._parts else ()))

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """Of each queue that is ours, the smallest offset that is not handled, as far as known."""
        readers = self._parts.queues.turns.readers() if self._parts else []
        return {reader.queue: reader.handled for reader in readers if reader.handled is not None}

    def pause(self, *queues: MessageQueue) -> None:
        """Give no messages of these queues (of all that are ours, without any) until `resume`."""
        self._opened().queues.turns.pause(_checked(queues) or self.assignment)

    def resume(self, *queues: MessageQueue) -> None:
        """Give messages of these queues (of all that are ours, without any) again."""
        self._opened().queues.turns.resume(_checked(queues) or self.assignment)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at this offset of a queue of ours. It counts as handled up to there, and is committed so.

        Raises:
            InvalidArgumentError: the queue is not ours, or the offset is negative.
        """
        check_queue(queue)
        check_count(least=-COUNT_MAX, offset=offset)
        if offset < 0:
            raise InvalidArgumentError(f"offset {offset} of {queue} is negative")
        self._opened().queues.turns.reader(queue).move(offset)

    async def seek_to_time(self, when: datetime) -> None:
        """Go on, in every queue that is ours, at the first message stored at or after a time.

        Raises:
            InvalidArgumentError: a time without a time zone.
            LedgerMQError: a leader does not tell where that is.
        """
        parts = self._opened()
        readers, timestamp_ms = parts.queues.turns.readers(), unix_ms(when, "when")
        offsets = await asyncio.gather(*(parts.commits.offsets.at_time(r.queue, timestamp_ms) for r in readers))
        for reader, offset in zip(readers, offsets):
            reader.move(offset)

    # -- handling

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = CONCURRENCY,
        order: Order = "none",
        key: KeyOf | None = None,
        tries_max: int | None = None,
        timeout_s: float = TIMEOUT_S,
        stop_on: Signals = (),
    ) -> None:
        """Let a coroutine function handle every message, until `stop` or `close` is called.

        A message whose handler raises is tried again: after a delay, sent back to the broker, or in its place where an
        order is asked for. `Retry` says when, `DeadLetter` that it is hopeless. What has used up its tries goes to
        `%DLQ%<group>`.

        Args:
            handler: is given one message.
            concurrency: how many may be in hand at once.
            order: `none`; `key`: those of one key one after another; `queue`: those of one queue, under its lock.
            key: of a message, for `order="key"`; by default its sharding key, else its first business key.
            tries_max: None: as the group's settings say (16), with an order 16.
            timeout_s: a handler that takes longer is cancelled, and has failed.
            stop_on: signals at which to `stop`, such as `signal.SIGTERM`.

        Raises:
            InvalidArgumentError: an option makes no sense, or the handler is not a coroutine function.
            ClosedError: not open, or it runs already.
            LedgerMQError: a queue cannot be read for a reason that does not pass.
            Exception: what `key` has raised; handlers under way are cancelled, and their messages come again.
        """
        options = HandlingOptions(concurrency, order, key, tries_max, timeout_s)
        options.check()
        if not callable(handler):
            raise InvalidArgumentError(f"handler {handler!r} is not a coroutine function")
        parts = self._opened()
        if parts.serving.handling is not None:
            raise ClosedError("a handler runs already: one at a time")
        self._finish()
        back = SendingBack(self._session, self._group) if self._mode == "clustering" else None
        handling = parts.serving.handling = Handling(parts.queues, handler, back, options, self._figures)
        try:
            if order == "queue" and self._mode == "clustering":
                await parts.queues.lock_all()
            with stopped_by(stop_on, self.stop):
                if not self._stopping:
                    await handling.run()
        finally:
            parts.serving.handling = None
            parts.queues.turns.rewind()
            if handling.then_close:
                await self.close()

    async def retry(self, message: Message, after_s: float | None = None) -> None:
        """Send a message back: the group gets it again after about that time, at most 2 h; this copy is handled.

        Raises:
            LedgerMQError: it could not be sent back: leave it unhandled.
        """
        if after_s is not None:
            check_wait(after_s=after_s)
        await self._send_back(message, delay_level(after_s))

    async def dead_letter(self, message: Message) -> None:
        """Put a message among the group's dead letters; this copy is handled.

        Raises:
            LedgerMQError: it could not be sent there: leave it unhandled.
        """
        await self._send_back(message, TO_DEAD_LETTERS)

    # -- inside

    async def _close(self, parts: _Parts) -> None:
        """Whatever happens on the way, a cancellation too: who is not there must not be taken for a member."""
        async with parts.closing:
            if self._parts is not parts:
                return  # somebody else's call has done it
            try:
                await parts.queues.close(*parts.background)
            finally:
                self._parts = None
                await self._session.close({"clientID": self._session.client_id, "consumerGroup": self._group})

    def _make_parts(self) -> _Parts:
        session, group = self._session, self._group
        commits = Commits(group, self._offsets(), session.calls.deadline_s)
        queues = AssignedQueues(
            session,
            group,
            self._subscriptions,
            self._start,
            Prefetch(*self._prefetch_limits),  # of this event loop
            commits,
            commits_on_leaving=self._auto_commit_s is not None,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            figures=self._figures,
        )
        kind = Membership if self._mode == "clustering" else Everything
        membership = kind(session, group, self._subscriptions, queues.take_over)
        subscriptions = self._subscriptions.values()
        serving = Serving(group, queues, commits, self._figures, subscriptions, self._settings, membership.look)
        following = queues.spawn(membership.run(), f"membership of {group}")
        return _Parts(commits, queues, membership, serving, [following], asyncio.Lock())

    def _offsets(self) -> QueueOffsets:
        session = self._session
        if self._mode == "clustering":
            return QueueOffsets(session.calls, session.routes)
        return LocalOffsets(self._offsets_dir / session.client_id / self._group, session.calls, session.routes)

    async def _send_back(self, message: Message, level: int) -> None:
        self._opened()
        check_kind(Message, message=message)
        if self._mode == "broadcasting":
            raise InvalidArgumentError("nothing is sent back in broadcasting")
        await SendingBack(self._session, self._group).send_back(message, level, None)

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise ClosedError("the consumer is not open: use it inside `async with`")
        return self._parts

    def _take(self, parts: _Parts) -> Message:
        reader, message = parts.queues.turns.take()
        self._in_hand.add(reader)
        return message

    def _finish(self) -> None:
        for reader in self._in_hand:
            if not reader.backlog.is_dropped:
                reader.finish()
        self._in_hand.clear()

    # -- what others say

    def _on_request(self, connection: Connection, command: Command) -> None:
        if self._parts is None:
            raise Refusal(Cause.SHUTTING_DOWN, "the consumer is not open")
        self._parts.serving.serve(connection, command)

    def _on_leader(self, broker: str, leader: str | None) -> None:
        if self._parts is None:
            return
        self._parts.membership.leader_changed(broker, leader)
        self._parts.queues.leader_changed(broker, leader)

    def _on_route(self, route: TopicRoute) -> None:
        if self._parts is not None:
            self._parts.membership.look()

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return consumer_heartbeat(client_id, self._group, self._start, self._subscriptions.values(), self._mode)

    def _settings(self) -> dict[str, str]:
        """RocketMQ's names of what administrators read."""
        is_ordered = self._parts is not None and self._parts.queues.locks is not None
        return {
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": str(is_ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self._session.nameservers.addresses) + ";",
            "PROP_THREADPOOL_CORE_SIZE": "1",
            "consumeFromWhere": wire_name(self._start),
            "consumerGroup": self._group,
            "messageModel": self._mode.upper(),
        }


def _checked(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    for queue in queues:
        check_queue(queue, "of queues one")
    return queues


def _check_unhandled(parts: _Parts) -> None:
    if parts.serving.handling is not None:
        raise ClosedError("a handler runs, which gets the messages: stop it before iterating")
