"""The simple consumer (POP): it receives single messages instead of owning queues, and acknowledges each.

receive ──> a broker delivers messages, and hides them for a time ──> ack: they are done
                                   not acknowledged in that time ──> delivered again, to any consumer of the group
"""

import asyncio
import collections
import itertools
import uuid
from collections.abc import Awaitable, Iterable
from typing import Any, Final, Literal, NamedTuple, Self

from ledgermq.client.consumer.popping import (
    COUNT_MAX,
    POP_CODES,
    PoppedMessage,
    batch_ack_body,
    changed_handle,
    fits_batch,
    message_ext,
    notification_command,
    pop_command,
    read_popped,
)
from ledgermq.client.core.answers import ask
from ledgermq.client.core.checks import check_count, check_flag, check_group, check_kind, check_seconds, check_wait
from ledgermq.client.core.session import ATTEMPT_TIMEOUT_S, DEADLINE_S, Session, Tls
from ledgermq.client.errors import Action, InvalidArgumentError, LedgerMQError, another
from ledgermq.client.group.subscription import RETRY_TOPIC_PREFIX, Subscription, Topics, consumer_heartbeat, subscribe
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.signature import Credentials

PAUSE_S: Final = 0.05
ANSWER_S: Final = 5.0  # seconds beyond the time for which a broker may hold the request
INVISIBLE_S: Final = 60.0  # RocketMQ's popInvisibleTime
WAIT_S: Final = 15.0


class _Place(NamedTuple):
    """A topic at one broker name, and who leads it."""

    subscription: Subscription
    broker: str
    address: str


class SimpleConsumer:
    """Receives messages, a few at a time; several consumers of a group may receive from the same queue.

        async with SimpleConsumer("127.0.0.1:9876", "shop", "orders") as consumer:
            for message in await consumer.receive(16, invisible_s=30):
                print(message.body)
                await consumer.ack(message)

    **At least once.** A message that is not acknowledged while it is invisible is delivered again; after the number of
    tries in the group's settings it is a dead letter. Use either this or `Consumer` in a group, not both.

    Args:
        namesrv: nameservers, `host:port`, several separated by `;` or as a list.
        group: consumer group.
        topics: a topic, several, or a mapping from topic to tag expression or `Sql` condition.
        start: where a group that is new to a topic begins.
        ordered: deliver messages of a queue only when all earlier ones are acknowledged.
        attempt_timeout_s: seconds for one try of a request.
        deadline_s: seconds for a request with its retries, such as `ack`.
        tls: see `Consumer`.
        credentials: see `Consumer`.

    Raises:
        InvalidArgumentError: an address, a name or an expression is malformed.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str],
        group: str,
        topics: Topics,
        *,
        start: Literal["first", "last"] = "first",
        ordered: bool = False,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_group(group)
        if start not in ("first", "last"):
            raise InvalidArgumentError(f"start is {start!r}, not 'first' or 'last'")
        check_flag(ordered=ordered)
        self._group = group
        self._start: Literal["first", "last"] = start
        self._ordered = ordered
        subscriptions = subscribe(group, topics)
        self._all_subscriptions = list(subscriptions.values())
        self._subscriptions = [one for one in self._all_subscriptions if not one.topic.startswith(RETRY_TOPIC_PREFIX)]
        self._turn = itertools.count()
        self._session = Session(
            namesrv,
            content=self._heartbeat,
            attempt_timeout_s=attempt_timeout_s,
            deadline_s=deadline_s,
            tls=tls,
            credentials=credentials,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, *raised: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open it, for programs that do not use `async with`."""
        await self._session.open()
        for subscription in self._subscriptions:
            self._session.routes.route(subscription.topic)  # begins to follow the topic

    async def close(self) -> None:
        """Close it; messages that were not acknowledged are delivered to others when their time is over."""
        await self._session.close({"clientID": self._session.client_id, "consumerGroup": self._group})

    async def receive(
        self, count_max: int = 16, *, invisible_s: float = INVISIBLE_S, wait_s: float = WAIT_S
    ) -> list[PoppedMessage]:
        """Return up to `count_max` messages as soon as there are any; an empty list after `wait_s` seconds.

        Args:
            count_max: 1 to 32, for all topics together.
            invisible_s: seconds for which no other consumer gets them.
            wait_s: seconds to wait for a message.

        Raises:
            InvalidArgumentError: a number out of range.
            LedgerMQError: refused for good, or no broker could be asked until `wait_s` was over.
        """
        check_count(most=COUNT_MAX, count_max=count_max)
        check_seconds(invisible_s=invisible_s)
        check_wait(wait_s=wait_s)
        loop = asyncio.get_running_loop()
        deadline, attempt_id = loop.time() + wait_s, uuid.uuid4().hex
        failure: LedgerMQError | None = None
        asked_count = 0
        while True:
            left_s = max(0.0, deadline - loop.time())
            places = self._places()
            poll_s = left_s if len(places) == 1 else 0.0
            failure = None if places else await self._no_place(left_s)
            for place in places:
                try:
                    messages = await self._pop(place, count_max, invisible_s, poll_s, attempt_id)
                except LedgerMQError as error:
                    failure = self._failed(place, error)
                    continue
                if messages:
                    return messages
            if loop.time() >= deadline:
                if failure is not None:
                    raise failure
                return []
            if failure is not None or len(places) < 2:
                await asyncio.sleep(min(PAUSE_S, deadline - loop.time()))
            else:
                if asked_count:  # a broker may announce messages that it then does not deliver
                    await asyncio.sleep(min(PAUSE_S, deadline - loop.time()))
                asked_count += 1
                await self._wait_for_any(places, max(0.0, deadline - loop.time()))

    async def ack(self, *messages: PoppedMessage) -> None:
        """Acknowledge messages: they are not delivered again. Several of one broker share a request.

        Raises:
            LedgerMQError: a broker has not accepted it in time, or a message was not hidden any more; all were tried.
        """
        by_broker = collections.defaultdict(list)
        rounds: list[Awaitable[object]] = []
        for message in messages:
            if not isinstance(message, PoppedMessage):
                raise InvalidArgumentError(f"ack(*messages) is given a {type(message).__name__}: {message!r}")
            if len(messages) == 1 or self._ordered or not fits_batch(message.handle):
                rounds.append(self._call(RequestCode.ACK_MESSAGE, message))
            else:
                by_broker[message.queue.broker].append(message)
        rounds += [self._ack_batch(broker, some) for broker, some in by_broker.items()]
        for outcome in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Hide a message for `invisible_s` seconds from now on; 0 makes it available at once. Replaces its handle.

        Raises:
            LedgerMQError: the broker has not accepted it in time, or the message was not hidden any more.
        """
        check_kind(PoppedMessage, message=message)
        check_wait(invisible_s=invisible_s)
        ext = {"invisibleTime": str(int(invisible_s * 1000))}
        answer = await self._call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message, ext)
        message.handle = changed_handle(message.queue.broker, message, answer.ext)

    # -- internals

    def _places(self) -> list[_Place]:
        """Return the topics at brokers that may have messages, beginning with another one each time."""
        routes = self._session.routes
        places = []
        for subscription in self._subscriptions:
            route = routes.route(subscription.topic)
            for broker in dict.fromkeys(queue.broker for queue in (route.read_queues if route else ())):
                address = routes.leader(broker)
                if address is not None:
                    places.append(_Place(subscription, broker, address))
        turn = next(self._turn) % max(1, len(places))
        return places[turn:] + places[:turn]

    async def _no_place(self, left_s: float) -> LedgerMQError | None:
        """Wait for a route, 1 s at most; return why there is none."""
        routes = self._session.routes
        await routes.changed(min(left_s, 1.0))
        for subscription in self._subscriptions:
            failure = routes.failure(subscription.topic)
            if failure is not None:
                return another(failure)  # a copy, since several calls may raise the kept error
        return None

    def _failed(self, place: _Place, failure: LedgerMQError) -> LedgerMQError:
        if failure.action is Action.GIVE_UP:
            raise failure
        self._session.routes.report_failure(place.subscription.topic, place.broker, place.address, failure)
        return failure

    async def _pop(
        self, place: _Place, count_max: int, invisible_s: float, poll_s: float, attempt_id: str
    ) -> list[PoppedMessage]:
        command = pop_command(
            self._group,
            place.subscription,
            count_max,
            invisible_s,
            poll_s,
            from_end=self._start == "last",
            is_ordered=self._ordered,
            attempt_id=attempt_id,
        )
        answer = await ask(self._session.remoting, place.address, command, poll_s + ANSWER_S, POP_CODES)
        if answer.code == ResponseCode.POLLING_FULL:
            await asyncio.sleep(PAUSE_S)
        return read_popped(place.address, place.broker, place.subscription, answer)

    async def _wait_for_any(self, places: list[_Place], left_s: float) -> None:
        """Return when one of them has messages, or after `left_s` seconds."""
        questions = []
        for place in places:
            topic = place.subscription.topic
            command = notification_command(self._group, topic, left_s, is_ordered=self._ordered)
            asking = ask(self._session.remoting, place.address, command, left_s + ANSWER_S, POP_CODES)
            questions.append(asyncio.ensure_future(asking))
        try:
            done, _ = await asyncio.wait(questions, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if all(question.exception() is not None for question in done):
                await asyncio.sleep(min(PAUSE_S, left_s))
        finally:
            for question in questions:
                question.cancel()
            await asyncio.gather(*questions, return_exceptions=True)

    async def _call(self, code: int, message: PoppedMessage, ext: dict[str, str] | None = None) -> Command:
        fields = message_ext(self._group, message) | (ext or {})
        return (await self._session.calls.at_leader(*message.queue[:2], code, fields)).response

    async def _ack_batch(self, broker: str, messages: list[PoppedMessage]) -> None:
        body = batch_ack_body(self._group, broker, messages)
        code = RequestCode.BATCH_ACK_MESSAGE
        await self._session.calls.at_leader(messages[0].queue.topic, broker, code, {}, body=body)

    def _heartbeat(self, client_id: str) -> dict[str, Any]:
        return consumer_heartbeat(client_id, self._group, self._start, self._all_subscriptions)
