"""Sends messages that could not be handled back to the broker, for another try or as dead letters.

    CONSUMER_SEND_MSG_BACK (36) to the leader of the message's queue; it stores a copy for %RETRY%group after a delay,
    or for %DLQ%group when the tries are used up or the level is -1
        fails ──> the message itself is sent to %RETRY%group, where the broker decides likewise

Levels of delay are RocketMQ's: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 and 30 min, 1 and 2 h. Level 0 leaves it to the
broker: 10 s after the first try, longer after each.

Source: apache/rocketmq `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (sendMessageBack).
"""

import bisect
import itertools
import logging
from typing import Final

from ledgermq.client.core.calls import LeaderPlan, Target
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError
from ledgermq.client.group.subscription import RETRY_TOPIC_PREFIX
from ledgermq.client.producer.send_request import send_ext
from ledgermq.message.flags import COMPRESSED, COMPRESSION_MASK
from ledgermq.message.properties import (
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    RECONSUME_TIME,
    RETRY_TOPIC,
    encode_properties,
)
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command

_log: Final = logging.getLogger(__name__)

LEVEL_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
BROKER_DECIDES: Final = 0
TO_DEAD_LETTERS: Final = -1
TRIES_MAX: Final = 16
DEADLINE_S: Final = 5.0
_FIRST_RETRY_LEVEL: Final = 3


def delay_level(after_s: float | None) -> int:
    """The lowest delay level of at least `after_s` seconds; the highest for more than 2 h, 0 for None.

    Raises:
        InvalidArgumentError: a negative time.
    """
    if after_s is None:
        return BROKER_DECIDES
    if after_s < 0:
        raise InvalidArgumentError(f"after_s is {after_s:g}: it must be a number of seconds, 0 or more")
    return min(bisect.bisect_left(LEVEL_SECONDS, after_s) + 1, len(LEVEL_SECONDS))


class SendingBack:
    """Sends messages of one group back."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._turn = itertools.count()

    async def send_back(self, message: Message, level: int, tries_max: int | None) -> None:
        """Send a message back; once this returns, the message is the broker's and counts as handled.

        Args:
            message: a message that was read.
            level: delay level; 0: the broker decides; -1: dead letter.
            tries_max: tries before it is a dead letter; None: the group's settings decide.

        Raises:
            LedgerMQError: neither the broker nor the retry topic accepted it; it is not handled.
        """
        try:
            await self._session.calls.run(self._back_plan(message, level, tries_max), deadline_s=DEADLINE_S)
        except LedgerMQError as failure:
            _log.warning(
                "group %s: %r cannot be sent back and is sent to the retry topic as a new message: %s",
                self._group,
                message,
                failure,
            )
            plan = _AnewPlan(self._session, self._group, message, level, tries_max, next(self._turn))
            await self._session.calls.run(plan, deadline_s=DEADLINE_S)

    def _back_plan(self, message: Message, level: int, tries_max: int | None) -> LeaderPlan:
        ext = {
            "offset": str(message.record.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            "originTopic": message.queue.topic,
            "unitMode": "false",
            "bname": message.queue.broker,
        }
        if tries_max is not None:
            ext["maxReconsumeTimes"] = str(tries_max)
        queue = message.queue
        return LeaderPlan(self._session.routes, queue.topic, queue.broker, RequestCode.CONSUMER_SEND_MSG_BACK, ext)


class _AnewPlan:
    """A plan that sends the message as a new one to the retry topic."""

    accepted = frozenset({0, 10, 11, 12})  # stored, see SendStatus

    def __init__(
        self, session: Session, group: str, message: Message, level: int, tries_max: int | None, turn: int
    ) -> None:
        self.topic = RETRY_TOPIC_PREFIX + group
        self._routes = session.routes
        self._message = message
        self._turn = turn
        tries = message.reconsume_times + 1
        limit = TRIES_MAX if tries_max is None else tries_max
        self._ext = send_ext(group, self.topic, message.born_timestamp_ms)
        self._ext |= {
            "f": str(message.record.sys_flag & (COMPRESSED | COMPRESSION_MASK)),
            "h": str(message.record.flag),
            "i": self._properties(level, tries, limit),
            "j": str(limit + 1 if level == TO_DEAD_LETTERS else tries),
            "l": str(limit),
        }

    def choose(self, failed_broker: str | None) -> Target | None:
        """A queue of the retry topic whose broker is led, another broker's first after a failure."""
        route = self._routes.route(self.topic)
        leaders = [(queue, self._routes.leader(queue.broker)) for queue in (route.write_queues if route else ())]
        led = [Target(queue.broker, queue.queue_id, leader) for queue, leader in leaders if leader is not None]
        other = [target for target in led if target.broker != failed_broker] or led
        return other[self._turn % len(other)] if other else None

    def command(self, target: Target) -> Command:
        ext = self._ext | {"e": str(target.queue_id), "n": target.broker}
        return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=self._message.record.body)

    def describe(self) -> str:
        return f"{self._message!r} to {self.topic}"

    def _properties(self, level: int, tries: int, limit: int) -> str:
        message = self._message
        properties = dict(message.properties)
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[RECONSUME_TIME] = str(limit + 1 if level == TO_DEAD_LETTERS else tries)
        properties[MAX_RECONSUME_TIMES] = str(limit)
        properties[DELAY] = str(level if level > 0 else _FIRST_RETRY_LEVEL + message.reconsume_times)
        return encode_properties(properties).decode()
