"""Sends messages that could not be handled back to the broker, for another try or as dead letters.

    CONSUMER_SEND_MSG_BACK (36) to the leader of the message's queue; it stores a copy for %RETRY%group after a delay,
    or for %DLQ%group when the tries are used up or the level is -1
        fails ──> the message itself is sent to %RETRY%group, where the broker decides likewise

Levels of delay are RocketMQ's: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 and 30 min, 1 and 2 h. Level 0 leaves it to the
broker: 10 s after the first try, longer after each.

Source: apache/rocketmq `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (sendMessageBack).
"""

import bisect
import logging
from typing import Final

from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import InvalidArgumentError, LedgerMQError
from ledgermq.client.group.subscription import RETRY_TOPIC_PREFIX
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.send_request import SendPlan, copy_plan
from ledgermq.message.properties import DELAY, MAX_RECONSUME_TIMES, ORIGIN_MESSAGE_ID, RECONSUME_TIME, RETRY_TOPIC
from ledgermq.remoting.codec.codes import RequestCode

_log: Final = logging.getLogger(__name__)

LEVEL_SECONDS: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
BROKER_DECIDES: Final = 0
TO_DEAD_LETTERS: Final = -1
TRIES_MAX: Final = 16
DEADLINE_S: Final = 5.0
_FIRST_RETRY_LEVEL: Final = 3


def delay_level(after_s: float | None) -> int:
    """Return the lowest delay level of at least `after_s` seconds; the highest for more than 2 h, 0 for None.

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
        self._calls = session.calls
        self._group = group
        self._choice = QueueChoice(session.routes, may_create=False)

    async def send_back(self, message: Message, level: int, tries_max: int | None) -> None:
        """Send a message back; once this returns, the message is the broker's and counts as handled.

        Args:
            message: a message that was read.
            level: delay level; 0: the broker decides; -1: dead letter.
            tries_max: tries before it is a dead letter; None: the group's settings decide.

        Raises:
            LedgerMQError: neither the broker nor the retry topic accepted it; it is not handled.
        """
        queue = message.queue
        ext = {
            "offset": str(message.record.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.message_id,
            "originTopic": queue.topic,
            "unitMode": "false",
            "bname": queue.broker,
        }
        if tries_max is not None:
            ext["maxReconsumeTimes"] = str(tries_max)
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        try:
            await self._calls.at_leader(queue.topic, queue.broker, code, ext, deadline_s=DEADLINE_S)
        except LedgerMQError as failure:
            _log.warning(
                "group %s: %r cannot be sent back and is sent to the retry topic as a new message: %s",
                self._group,
                message,
                failure,
            )
            plan = self._new_message(message, level, TRIES_MAX if tries_max is None else tries_max)
            await self._calls.run(plan, deadline_s=DEADLINE_S)

    def _new_message(self, message: Message, level: int, tries_max: int) -> SendPlan:
        """Return the send of the message to the retry topic, with the properties that a broker's copy would have."""
        tries = tries_max + 1 if level == TO_DEAD_LETTERS else message.reconsume_times + 1
        properties = {
            RETRY_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: message.offset_message_id,
            **message.properties,  # if it has these two, they stay
            RECONSUME_TIME: str(tries),
            MAX_RECONSUME_TIMES: str(tries_max),
            DELAY: str(level if level > 0 else _FIRST_RETRY_LEVEL + message.reconsume_times),
        }
        tries_ext = {"j": str(tries), "l": str(tries_max)}
        return copy_plan(self._choice, self._group, RETRY_TOPIC_PREFIX + self._group, message, properties, tries_ext)
