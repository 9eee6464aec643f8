"""POP_MESSAGE (200050): checks a request, takes messages, and answers or holds it.

    queues: the retry topic's first (one request in five) or last; the queue asked for, or all from a random one on

Source: apache/rocketmq `broker/.../processor/PopMessageProcessor.java`.
"""

import random
from collections.abc import Iterator
from itertools import count
from typing import Final

from broker.context import BrokerContext
from broker.groups.subscription import ALL, SQL, TAG, Subscription, asked_subscription
from broker.pop.alarms import OrderAlarms
from broker.pop.checks import PopChecks
from broker.pop.handles import retry_topics
from broker.pop.reading import PopBatch, PopReader
from broker.pop.waiting import HeldPop, HeldPops, Hold
from broker.state.settings import TopicConfig
from ledgermq.message.pop_handle import ORDER_REVIVE_QUEUE
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import Fields, boolean, integer, long, text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import DiskReadError
from store.log.refusals import refusal_of

COUNT_MAX: Final = 32

_LATE_MS: Final = 500
_INIT_MIN: Final = 0

_PERCENT: Final = 100


class TakeRequests:
    """Serves POP_MESSAGE.

    Attributes:
        messages_out, bytes_out: messages and bytes given since the start.
    """

    def __init__(
        self,
        context: BrokerContext,
        checks: PopChecks,
        reader: PopReader,
        held: HeldPops,
        alarms: OrderAlarms,
    ) -> None:
        self._config = context.config
        self._identity = context.identity
        self._metadata = context.metadata
        self._checks = checks
        self._role = context.role
        self._reader = reader
        self._held = held
        self._alarms = alarms
        self._turns = context.turns
        self._random = random.Random()
        self._numbers = count()
        self.messages_out = 0
        self.bytes_out = 0

    def pop(self, connection: Connection, command: Command) -> None:
        """Answer or hold one request."""
        born_ms, poll_ms = self._times(command.ext)
        deadline_ms = born_ms + poll_ms if poll_ms > 0 else 0
        if command.ext.get("expType") == SQL:
            self._turns.run(lambda: self._go_on(connection, command, deadline_ms))
        elif not self._serve(connection, command, deadline_ms):
            self._hold(connection, command, deadline_ms)

    def _hold(self, connection: Connection, command: Command, deadline_ms: int) -> None:
        fields = command.ext
        place = text(fields, "topic"), text(fields, "consumerGroup"), max(-1, integer(fields, "queueId", 0))
        pop = HeldPop(
            connection,
            command,
            place,
            deadline_ms,
            lambda: self._serve_again(connection, command, deadline_ms),
            lambda: self._answer_nothing(connection, command, ResponseCode.POLLING_TIMEOUT),
        )
        hold = self._held.hold(pop)
        if hold is Hold.FULL:
            self._answer_nothing(connection, command, ResponseCode.POLLING_FULL)
        elif hold is Hold.TOO_LATE:
            self._answer_nothing(connection, command, ResponseCode.POLLING_TIMEOUT)
        else:
            command.is_held = True

    def _serve_again(self, connection: Connection, command: Command, deadline_ms: int) -> bool:
        try:
            return self._serve(connection, command, deadline_ms)
        except Refusal as refusal:
            connection.refuse(command, refusal)
            return True

    def _go_on(self, connection: Connection, command: Command, deadline_ms: int) -> None:
        """Take for one more turn: the filter is costly, or matched nothing in the turns before."""
        try:
            if not connection.is_closed and not self._serve(connection, command, deadline_ms):
                self._hold(connection, command, deadline_ms)
        except Exception as error:  # called by the loop, which has no connection to answer
            connection.fail(command, error)

    def _serve(self, connection: Connection, command: Command, deadline_ms: int) -> bool:
        """Take and answer, or go on in another turn; return False without an answer when there is no message."""
        fields = command.ext
        self._checks.broker_is_readable("pop message")
        self._role.check_writable()
        if integer(fields, "maxMsgNums", 0) > COUNT_MAX:
            raise Refusal(
                Cause.INVALID_PARAMETER,
                self._identity.complaint(f"pop message's num is greater than {COUNT_MAX}"),
            )
        topic, group, queue_id = self._checks.readable_place(connection, fields)
        batch = self._new_batch(topic, group, fields)
        refusal = None  # of the first queue that refuses: the others are served
        for name, number in self._queues(topic, batch, queue_id):
            try:
                self._reader.take(batch, name, number)
            except DiskReadError as error:
                refusal = refusal or refusal_of(error)
            except Refusal as error:
                refusal = refusal or error
        if not batch.records:
            if refusal is not None:
                raise refusal
            if batch.is_unfinished and batch.pop_ms < deadline_ms:
                self._turns.run_later(lambda: self._go_on(connection, command, deadline_ms))
                return True
            if batch.free_ms is not None and self._config.pop_wakes_on_order_release:
                self._alarms.set(topic.name, group, batch.free_ms)
            return False
        self._answer(connection, command, batch)
        if batch.rest > 0:
            self._held.wake_next(topic.name, group, queue_id)
        return True

    def _times(self, fields: Fields) -> tuple[int, int]:
        """Return when the request was made (ms since the epoch), and how long it may be held (ms).

        Raises:
            Refusal: POLLING_TIMEOUT, the time to hold it ended more than 500 ms ago.
        """
        now_ms = self._reader.clock_ms()
        born_ms, poll_ms = long(fields, "bornTime", 0) or now_ms, long(fields, "pollTime", 0)
        if now_ms - born_ms - poll_ms > _LATE_MS:
            raise Refusal(Cause.POLLING_TIMEOUT, self._identity.complaint("pop message is timeout too much"))
        return born_ms, poll_ms

    def _new_batch(self, topic: TopicConfig, group: str, fields: Fields) -> PopBatch:
        is_ordered = boolean(fields, "order", False)
        revive_queue = ORDER_REVIVE_QUEUE if is_ordered else next(self._numbers) % self._config.pop_revive_queues
        return PopBatch(
            topic=topic.name,
            group=group,
            count_max=integer(fields, "maxMsgNums", 0),
            pop_ms=self._reader.clock_ms(),
            invisible_ms=long(fields, "invisibleTime", 0),
            revive_queue=revive_queue,
            wanted=self._wanted(topic.name, fields),
            starts_at_end=integer(fields, "initMode", 0) != _INIT_MIN,
            is_ordered=is_ordered,
            attempt_id=fields.get("attemptId") or "",
        )

    def _wanted(self, topic: str, fields: Fields) -> Subscription | None:
        expression, expression_type = fields.get("exp"), fields.get("expType") or TAG
        if not expression or (expression == ALL and expression_type == TAG):
            return None
        wanted = asked_subscription(topic, expression, expression_type)
        if wanted.fault is not None:
            raise Refusal(Cause.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {wanted.fault}")
        return wanted

    def _queues(self, topic: TopicConfig, batch: PopBatch, queue_id: int) -> Iterator[tuple[str, int]]:
        """Yield topics and queue ids to take from, in order."""
        chance = self._random.randrange(_PERCENT)
        retries = [] if batch.is_ordered else list(self._retry_queues(topic.name, batch.group, chance))
        if is_first := chance < self._config.pop_from_retry_percent:
            yield from retries
        if queue_id >= 0:
            yield topic.name, queue_id
        else:
            yield from ((topic.name, (chance + number) % topic.read_queues) for number in range(topic.read_queues))
        if not is_first:
            yield from retries

    def _retry_queues(self, topic: str, group: str, first: int) -> Iterator[tuple[str, int]]:
        newer, older = self._config.pop_retry_v2, self._config.pop_reads_retry_v1
        for name in retry_topics(topic, group, newer=newer, older=older):
            retries = self._metadata.topic(name)
            if retries is not None:
                yield from ((name, (first + number) % retries.read_queues) for number in range(retries.read_queues))

    def _answer(self, connection: Connection, command: Command, batch: PopBatch) -> None:
        size = sum(map(len, batch.records))
        self.messages_out += len(batch.records)
        self.bytes_out += size
        connection.respond(command, ResponseCode.SUCCESS, _header(batch), batch.records, remark="FOUND")

    def _answer_nothing(self, connection: Connection, command: Command, code: int) -> None:
        fields = command.ext
        header = {
            "popTime": str(self._reader.clock_ms()),
            "invisibleTime": fields.get("invisibleTime", "0"),
            "reviveQid": str(ORDER_REVIVE_QUEUE if boolean(fields, "order", False) else 0),
            "restNum": "0",
            "startOffsetInfo": "",
            "msgOffsetInfo": "",
        }
        connection.respond(command, code, header, remark="NO_MESSAGE_IN_QUEUE")


def _header(batch: PopBatch) -> dict[str, str]:
    header = {
        "popTime": str(batch.pop_ms),
        "invisibleTime": str(batch.invisible_ms),
        "reviveQid": str(batch.revive_queue),
        "restNum": str(batch.rest),
        "startOffsetInfo": ";".join(batch.starts),
        "msgOffsetInfo": ";".join(batch.offsets),
    }
    if batch.is_ordered:
        header["orderCountInfo"] = ";".join(batch.counts)
    return header
