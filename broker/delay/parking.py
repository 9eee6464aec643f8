"""Parking: the system topic in which a message waits that is not to be delivered yet.

    TRAN_MSG=true                  half topic, until its transaction ends
    DELAY > 0                      SCHEDULE_TOPIC_XXXX, queue level - 1
    TIMER_DELAY_SEC, _MS, TIMER_DELIVER_MS    rmq_sys_wheel_timer, until its time; a time in the past is ignored

The first row that applies counts. The properties REAL_TOPIC and REAL_QID keep the message's own topic and queue. Sends
ask here only when the properties contain one of these names.

Source: apache/rocketmq `broker/.../util/HookUtils.java`, `broker/.../transaction/queue/TransactionalMessageBridge.java`
(parseHalfMessageInner), `common/.../producer/RecallMessageHandle.java` (5.3.3).
"""

import base64
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.append.target import SendTarget, SendTargets
from broker.config import BrokerConfig
from broker.delay.levels import LEVEL_MAX, due_ms
from broker.identity import BrokerIdentity
from broker.state import names
from ledgermq.message.properties import decode_properties, encode_properties, find_property
from ledgermq.remoting.refusal import Cause, Refusal
from store.timer.timer_index import TimerIndex
from store.timer.timer_message import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETE_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    asked_time,
)

RECALL_VERSION: Final = "v1"
_ASKED: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


class Parked(NamedTuple):
    """The system topic, queue and time of a waiting message.

    Attributes:
        properties: the encoded properties with those that parking adds; end with 0x02.
        tags_code: the tags code of its queue unit; None: the hash of its tags.
        recall_handle: with which a producer can recall a timer; empty for other messages.
    """

    target: SendTarget
    properties: bytes
    tags_code: int | None = None
    recall_handle: str = ""


class Parking:
    """Decides where messages wait.

    Args:
        index: counts the timers of a slot.
        clock_ms: wall clock.
    """

    def __init__(
        self, config: BrokerConfig, targets: SendTargets, index: TimerIndex, clock_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._identity = BrokerIdentity(config)
        self._targets = targets
        self._index = index
        self._clock_ms = clock_ms
        self._random = random.Random()

    def park(self, target: SendTarget, properties: bytes, reconsume_times: int = 0) -> Parked | None:
        """Return where a message for `target` waits; None if it does not wait. `properties` end with 0x02.

        Raises:
            Refusal: MESSAGE_ILLEGAL, NO_PERMISSION, BUSY or SYSTEM_ERROR, naming the property.
        """
        level = _level(properties)
        if find_property(properties, b"TRAN_MSG") == b"true" and not (reconsume_times > 0 and level > 0):
            return self._half_message(target, properties)
        return self.delay(target, properties, level)

    def delay(self, target: SendTarget, properties: bytes, level: int | None = None) -> Parked | None:
        """Do what `park` does, for a message that is not (or no longer) a half message; raises as `park`."""
        level = _level(properties) if level is None else level
        if level > 0:
            waiting = self._targets.target(names.SCHEDULE_TOPIC, level - 1)
            return Parked(waiting, _with_origin(_without_times(properties), target), due_ms(level))
        if find_property(properties, TIMER_OUT_MS.encode()) is not None:
            return None  # a timer that was delivered already, sent again for a retry
        return self._timer(target, properties)

    def _half_message(self, target: SendTarget, properties: bytes) -> Parked:
        if self._config.reject_transactions:
            remark = "sending transaction message is forbidden (rejectTransactionMessage)"
            raise Refusal(Cause.NO_PERMISSION, self._identity.complaint(remark))
        key = find_property(properties, b"UNIQ_KEY")
        if key is not None:
            properties += b"__transactionId__\x01%b\x02" % key
        return Parked(self._targets.target(names.HALF_TOPIC, 0), _with_origin(properties, target))

    def _timer(self, target: SendTarget, properties: bytes) -> Parked | None:
        now_ms = self._clock_ms()
        try:
            deliver_ms = asked_time(decode_properties(properties), now_ms)
        except ValueError as error:
            raise self._illegal(str(error)) from error
        if deliver_ms is None:
            return None
        if not self._config.timer_wheel_enable:
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            raise Refusal(Cause.SYSTEM_ERROR, remark)
        if deliver_ms <= now_ms:
            if find_property(properties, TIMER_DELETE_KEY.encode()) is not None:
                raise self._illegal(f"the deletion's time {deliver_ms} is past")
            return None
        if deliver_ms - now_ms > self._config.timer_max_delay_s * 1000:
            raise self._illegal(f"its delay is {deliver_ms - now_ms} ms")
        precision = self._config.timer_precision_ms
        out_ms = (deliver_ms - 1) // precision * precision
        self._check_room(out_ms)
        properties = _with_origin(properties, target) + b"TIMER_OUT_MS\x01%d\x02" % out_ms
        key = find_property(properties, b"UNIQ_KEY") or b""
        handle = self._handle(target.topic.decode(), out_ms, key.decode(errors="replace"))
        return Parked(self._targets.target(TIMER_TOPIC, 0), properties, None, handle)

    def _check_room(self, out_ms: int) -> None:
        """Refuse at random in a slot above the limit, the more often the fuller it is; always above twice the limit."""
        limit, count = self._config.timer_slot_count_max, self._index.count_at(out_ms)
        if count > limit and self._random.random() < (count - limit) / limit:
            raise Refusal(
                Cause.SYSTEM_ERROR,
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater "
                f"than {limit} and less than {2 * limit}, trigger random flow control: {count} timers are due in "
                f"that slot (timerCongestNumEachSlot)",
            )

    def _handle(self, topic: str, out_ms: int, key: str) -> str:
        if topic.startswith(names.RETRY_PREFIX):
            return ""
        text = " ".join((RECALL_VERSION, topic, self._identity.name, str(out_ms + 1), key))
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _illegal(self, detail: str) -> Refusal:
        return Refusal(
            Cause.MESSAGE_ILLEGAL,
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._config.timer_max_delay_s * 1000}ms; or if set del msg, the delay time should be bigger than the "
            f"current time: {detail}",
        )


def refuse_in_batch(properties: bytes) -> None:
    """Check that a message of a batch does not ask to wait.

    Raises:
        Refusal: MESSAGE_ILLEGAL, naming the property that asks for it.
    """
    for name in ("DELAY", "TRAN_MSG", *_ASKED):
        value = find_property(properties, name.encode())
        if value is not None and value not in (b"0", b"false"):
            raise Refusal(
                Cause.MESSAGE_ILLEGAL,
                f"a message of the batch has property {name}; batches are neither delayed nor transactional",
            )


def _level(properties: bytes) -> int:
    """Return the delay level; 0 without one."""
    text = find_property(properties, b"DELAY") or b"0"
    if not text.isdigit():
        raise Refusal(Cause.MESSAGE_ILLEGAL, f"property DELAY is {text[:40]!r}, not a level from 1 to {LEVEL_MAX}")
    return min(int(text[:9]), LEVEL_MAX)


def _with_origin(properties: bytes, target: SendTarget) -> bytes:
    return properties + b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (target.topic, target.queue_id)


def _without_times(properties: bytes) -> bytes:
    """Return the properties without delivery times: a delay level takes precedence over them."""
    if b"TIMER_DEL" not in properties:
        return properties
    kept = {name: value for name, value in decode_properties(properties).items() if name not in _ASKED}
    return encode_properties(kept)
