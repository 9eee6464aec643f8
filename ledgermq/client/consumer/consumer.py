"""The consumer: a member of a group whose members share the queues of their topics.

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
from typing import Any, Final, NamedTuple, Self

from ledgermq.client.consumer.assigned import AssignedQueues
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
from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.consumer.sending_back import TO_DEAD_LETTERS, SendingBack, delay_level
from ledgermq.client.consumer.serving import Serving
from ledgermq.client.consumer.settings import ConsumerSettings, OnQueuesChanged
from ledgermq.client.consumer.signals import Signals, stopped_by
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.consumer.turns import Turns
from ledgermq.client.core.callbacks import Callback
from ledgermq.client.core.checks import (
    COUNT_MAX,
    check_callable,
    check_count,
    check_group,
    check_kind,
    check_queue,
    check_seconds,
    check_wait,
    given,
    unix_ms,
)
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import ClosedError, InvalidArgumentError, LedgerMQError, another
from ledgermq.client.group.local_offsets import DEFAULT_DIR, LocalOffsets
from ledgermq.client.group.membership import AllQueues, Membership
from ledgermq.client.group.queue_offsets import QueueOffsets
from ledgermq.client.group.start_position import Start, check_start
from ledgermq.client.group.subscription import Mode, Topics, consumer_heartbeat, subscribe
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue, TopicRoute
from ledgermq.remoting.signature import Credentials

_log: Final = logging.getLogger(__name__)

AUTO_COMMIT_S: Final = 5.0
PREFETCH_MESSAGES: Final = 1000
PREFETCH_BYTES: Final = 64 * 1024 * 1024
BROADCASTING_INSTANCE: Final = "DEFAULT"  # RocketMQ's instance name; with it a restarted program finds its offsets


class _Parts(NamedTuple):
    """The parts of an open consumer.

    Attributes:
        background: the tasks that share out the queues and commit periodically.
        closing: held during `close`.
    """

    commits: Commits
    queues: AssignedQueues
    turns: Turns
    membership: Membership | AllQueues
    serving: Serving
    background: list[asyncio.Task[None]]
    closing: asyncio.Lock


class Consumer:
    """Reads messages as a member of a group; Python and Java members share a group.

        async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:
            async for message in consumer:                    # one after another
                print(message.tags, message.body)

        async with Consumer("127.0.0.1:9876", "shop", "orders") as consumer:
            await consumer.run(handle, concurrency=16)        # 16 at a time, failures are tried again

    **At least once.** While iterating, a message counts as handled when the next one is asked for, when `commit` is
    called, or when the `async with` block ends without an exception; with a handler, when the handler returns. Handled
    offsets are committed every `auto_commit_s` seconds, by `commit`, when a queue goes to another member, and on
    closing. Messages that were not committed are delivered again to the queue's next member; within a queue the order
    is kept. Only one task may iterate over a consumer.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: consumer group; all its members subscribe to the same topics.
        topics: a topic, several, or a mapping from topic to tag expression or `Sql` condition:
            `{"orders": "fruit || nuts"}`.
        mode: `clustering`: the members share the messages; `broadcasting`: each member gets all of them.
        start: where to begin in a queue in which the group has never committed.
        auto_commit_s: seconds between commits of handled offsets; None: only `commit` commits.
        prefetch_messages: messages read ahead per queue.
        prefetch_bytes: bytes read ahead for all queues together.
        on_assigned: called with queues that were assigned to this member; a function or a coroutine function.
        on_revoked: called with queues that go to other members, before their handled offsets are committed.
        offsets_dir: folder for this member's offsets in broadcasting; default: that of RocketMQ's client.
        attempt_timeout_s: seconds for one try of a request.
        deadline_s: seconds for a request with its retries, such as `commit`.
        tls: False: plain connections; True: TLS with the system's authorities; or an `ssl.SSLContext`, which may hold
            a client certificate.
        credentials: sign every request, for brokers with access control.

    Raises:
        InvalidArgumentError: an argument is invalid; names it.
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
        check_seconds(**given(auto_commit_s=auto_commit_s))
        check_count(prefetch_messages=prefetch_messages, prefetch_bytes=prefetch_bytes)
        check_callable(on_assigned=on_assigned, on_revoked=on_revoked)
        check_kind((str, Path, type(None)), offsets_dir=offsets_dir)
        if mode not in ("clustering", "broadcasting"):
            raise InvalidArgumentError(f"mode is {mode!r}, not 'clustering' or 'broadcasting'")
        self._settings = ConsumerSettings(
            group,
            subscribe(group, topics, mode),
            mode,
            start,
            auto_commit_s,
            prefetch_messages,
            prefetch_bytes,
            on_assigned,
            on_revoked,
            Path(offsets_dir or DEFAULT_DIR).expanduser(),
        )
        self._group = group
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
        self._figures = TopicFigures(time.monotonic)
        self._parts: _Parts | None = None
        self._in_hand: dict[QueueReader, None] = {}  # readers of messages that the program iterates over
        self._stopping = False
        self._was_opened = False

    # -- opening and closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        if kind is None:
            self._finish()
        await self.close()

    async def start(self) -> None:
        """Open it, for programs that do not use `async with`: from now on it is a member, and reads ahead.

        With `start="last"` it returns when the positions of its queues are known, so that a message sent after that is
        read. When brokers do not return them within `deadline_s`, that is logged, and reading begins once they do.

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
        self._stopping = False
        self._was_opened = True
        for topic in self._settings.subscriptions:
            self._session.routes.route(topic)  # begins to follow the topic
        if self._settings.auto_commit_s is not None:
            commits = parts.commits.run(self._settings.auto_commit_s, parts.turns.readers)
            parts.background.append(parts.queues.spawn(commits, "commits"))
        if self._settings.start == "last":
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
                "group %s: brokers have not returned the ends of its queues within %.3g s; reading begins at the ends"
                " that they return later",
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
            parts.serving.handling.close_when_done = True
        else:
            await self._close(parts)

    def stop(self) -> None:
        """Deliver no further message: iteration ends, and `run` returns when its handlers have. It stays open."""
        self._stopping = True
        if self._parts is not None:
            if self._parts.serving.handling is not None:
                self._parts.serving.handling.stop()
            self._parts.turns.wake()

    # -- reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for the next message; iteration ends when the consumer is stopped or closed.

        Raises:
            ClosedError: a handler runs and gets the messages, or the consumer was never opened.
            LedgerMQError: a queue cannot be read, and retrying does not help (permission, unknown group).
        """
        self._finish()
        if not self._was_opened:
            self._opened()
        while (parts := self._parts) is not None and not self._stopping:
            _check_unhandled(parts)
            if parts.turns.has_message:
                return self._take(parts)
            await parts.turns.wait_more()
        raise StopAsyncIteration

    async def get_many(self, count_max: int, wait_s: float = 1.0) -> list[Message]:
        """Return up to `count_max` messages as soon as there are any; an empty list after `wait_s` seconds.

        Messages of one queue are in order.

        Raises:
            ClosedError: the consumer is closed, or a handler runs.
            NoRouteError: no nameserver could be asked where a topic is, and no message came.
            LedgerMQError: as in iteration.
        """
        check_count(count_max=count_max)
        check_wait(wait_s=wait_s)
        self._finish()
        parts = self._opened()
        _check_unhandled(parts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not parts.turns.has_message and not self._stopping:
                    await parts.turns.wait_more()
        messages: list[Message] = []
        while parts.turns.has_message and len(messages) < count_max and not self._stopping:
            messages.append(self._take(parts))
        if not messages:
            self._check_routes()
        return messages

    def _check_routes(self) -> None:
        for topic in self._settings.subscriptions:
            failure = self._session.routes.failure(topic)
            if failure is not None and not failure.is_topic_unknown:
                raise another(failure)  # a copy, since several calls may raise the kept error

    async def batches(self, count_max: int = 64, wait_s: float = 0.5) -> AsyncIterator[list[Message]]:
        """Yield lists of 1 to `count_max` messages; a list counts as handled when the next one is asked for.

        Messages gathered so far when it is cancelled are delivered again.

        Args:
            count_max: length of a full list.
            wait_s: seconds to wait for more after the first message.

        Raises:
            LedgerMQError: as in iteration.
        """
        check_count(count_max=count_max)
        check_wait(wait_s=wait_s)
        async for message in self:
            batch = [message]
            deadline = asyncio.get_running_loop().time() + wait_s
            while len(batch) < count_max and (parts := self._parts) is not None and not self._stopping:
                if parts.turns.has_message:
                    batch.append(self._take(parts))
                elif not await self._more_by(parts.turns, deadline):
                    break
            yield batch

    async def _more_by(self, turns: Turns, deadline: float) -> bool:
        """Return whether there may be more messages for a batch; a failure while waiting does not lose the batch."""
        try:
            async with asyncio.timeout_at(deadline):
                await turns.wait_more()
        except TimeoutError:
            return False
        except asyncio.CancelledError:
            self._in_hand.clear()
            turns.rewind()
            raise
        except Exception as failure:
            turns.on_failed(failure)  # the next batch raises it
            return False
        return True

    async def commit(self) -> None:
        """Commit every message delivered so far, the last one included; with a handler, those that it has handled.

        It ends within `deadline_s`, also when an earlier commit is still under way.

        Raises:
            LedgerMQError: a broker has not accepted an offset in time; it will be committed with the next commit.
        """
        parts = self._opened()
        self._finish()
        await parts.commits.commit(parts.turns.readers())

    # -- queues

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are assigned to this member now."""
        return frozenset(reader.queue for reader in (self._parts.turns.readers() if self._parts else ()))

    @property
    def positions(self) -> Mapping[MessageQueue, int]:
        """The smallest offset that is not handled, by assigned queue; queues whose start is unknown are left out."""
        readers = self._parts.turns.readers() if self._parts else []
        return {reader.queue: reader.handled for reader in readers if reader.handled is not None}

    def pause(self, *queues: MessageQueue) -> None:
        """Deliver no messages of these queues until `resume`; without arguments, of all assigned queues."""
        self._opened().turns.pause(_checked(queues) or self.assignment)

    def resume(self, *queues: MessageQueue) -> None:
        """Deliver messages of these queues again; without arguments, of all assigned queues."""
        self._opened().turns.resume(_checked(queues) or self.assignment)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this offset of an assigned queue. All messages before it count as handled and are committed.

        Raises:
            InvalidArgumentError: the queue is not assigned to this consumer, or the offset is negative.
        """
        check_queue(queue)
        check_count(least=-COUNT_MAX, offset=offset)
        if offset < 0:
            raise InvalidArgumentError(f"offset {offset} of {queue} is negative")
        self._opened().turns.reader(queue).move(offset)

    async def seek_to_time(self, when: datetime) -> None:
        """Continue, in every assigned queue, at the first message stored at or after a time.

        Raises:
            InvalidArgumentError: a time without a time zone.
            LedgerMQError: a broker did not return the offset of that time.
        """
        parts = self._opened()
        readers, timestamp_ms = parts.turns.readers(), unix_ms(when, "when")
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
        """Call a coroutine function with every message, until `stop` or `close` is called.

        A message whose handler raises is tried again: it is sent back to the broker, which delivers it after a delay,
        or with an order it is retried in its place. A handler raises `Retry` to choose the delay, and `DeadLetter` for
        a message that can never be handled. After its last try a message goes to `%DLQ%<group>`.

        Args:
            handler: called with one message.
            concurrency: most handlers that run at once.
            order: `none`; `key`: messages of one key one after another; `queue`: those of one queue, under its lock.
            key: returns the key of a message, for `order="key"`; default: its sharding key, else its first key.
            tries_max: tries before a message is a dead letter; None: the group's settings (16), with an order 16.
            timeout_s: seconds after which a handler is cancelled and counts as failed.
            stop_on: signals that call `stop`, such as `signal.SIGTERM`.

        Raises:
            InvalidArgumentError: an option is invalid, or the handler is not a coroutine function.
            ClosedError: the consumer is not open, or a handler runs already.
            LedgerMQError: a queue cannot be read, and retrying does not help.
            Exception: raised by `key`; handlers under way are cancelled, and their messages delivered again.
        """
        options = HandlingOptions(concurrency, order, key, tries_max, timeout_s)
        if not callable(handler):
            raise InvalidArgumentError(f"handler {handler!r} is not a coroutine function")
        parts = self._opened()
        if parts.serving.handling is not None:
            raise ClosedError("a handler is already running: only one is allowed at a time")
        self._finish()
        is_shared = self._settings.mode == "clustering"
        back = SendingBack(self._session, self._group) if is_shared else None
        handling = parts.serving.handling = Handling(parts.queues, handler, back, options, self._figures)
        try:
            if order == "queue" and is_shared:
                await parts.queues.lock_all()
            with stopped_by(stop_on, self.stop):
                if not self._stopping:
                    await handling.run()
        finally:
            parts.serving.handling = None
            parts.turns.rewind()
            if handling.close_when_done:
                await self.close()

    async def retry(self, message: Message, after_s: float | None = None) -> None:
        """Send a message back to the broker, which delivers it to the group again; this copy counts as handled.

        Args:
            message: a message of this consumer.
            after_s: seconds, rounded up to a level of RocketMQ's delays (1 s to 2 h); None: the broker decides.

        Raises:
            LedgerMQError: it could not be sent back, and is not handled: do not commit it.
        """
        check_wait(**given(after_s=after_s))
        await self._send_back(message, delay_level(after_s))

    async def dead_letter(self, message: Message) -> None:
        """Move a message to the group's dead letters; this copy counts as handled.

        Raises:
            LedgerMQError: it could not be moved, and is not handled: do not commit it.
        """
        await self._send_back(message, TO_DEAD_LETTERS)

    # -- internals

    async def _close(self, parts: _Parts) -> None:
        """Close the parts, and leave the group in any case, so that the others get the queues at once."""
        async with parts.closing:
            if self._parts is not parts:
                return  # another call of `close` has closed it
            try:
                await parts.queues.close(*parts.background)
            finally:
                self._parts = None
                await self._session.close({"clientID": self._session.client_id, "consumerGroup": self._group})

    def _make_parts(self) -> _Parts:
        session, settings, figures = self._session, self._settings, self._figures
        kind: type[Membership | AllQueues]
        if settings.mode == "clustering":
            kind, offsets = Membership, QueueOffsets(session.calls)
        else:
            folder = settings.offsets_dir / session.client_id / settings.group
            kind, offsets = AllQueues, LocalOffsets(folder, session.calls)
        commits = Commits(settings.group, offsets, session.calls.deadline_s)
        queues = AssignedQueues(session, settings, commits, figures)
        membership = kind(session, settings.group, settings.subscriptions, queues.take_over)
        serving = Serving(session, settings, queues, commits, figures, membership.rebalance_soon)
        following = queues.spawn(membership.run(), f"membership of {settings.group}")
        return _Parts(commits, queues, queues.turns, membership, serving, [following], asyncio.Lock())

    async def _send_back(self, message: Message, level: int) -> None:
        self._opened()
        check_kind(Message, message=message)
        if self._settings.mode == "broadcasting":
            raise InvalidArgumentError("mode is 'broadcasting', where messages cannot be sent back")
        await SendingBack(self._session, self._group).send_back(message, level, None)

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise ClosedError("the consumer is not open: use it inside `async with`")
        return self._parts

    def _take(self, parts: _Parts) -> Message:
        reader, message = parts.turns.take()
        self._in_hand[reader] = None
        return message

    def _finish(self) -> None:
        for reader in self._in_hand:
            if not reader.backlog.is_dropped:
                reader.finish()
        self._in_hand.clear()

    # -- requests and events

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
            self._parts.membership.rebalance_soon()

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        chosen = self._settings
        return consumer_heartbeat(client_id, chosen.group, chosen.start, chosen.subscriptions.values(), chosen.mode)


def _checked(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    for queue in queues:
        check_queue(queue, "of queues one")
    return queues


def _check_unhandled(parts: _Parts) -> None:
    if parts.serving.handling is not None:
        raise ClosedError("a handler runs, which gets the messages: stop it before iterating")
