"""Requests about timers: RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).

    recall handle --> a deletion into the timer topic, for the same slot --> removes the timer when the slot is loaded

Source: apache/rocketmq `broker/.../processor/RecallMessageProcessor.java`, `AdminBrokerProcessor.java` (5.3.3).
"""

import base64
import binascii
import logging
from collections.abc import Callable
from typing import NamedTuple

from broker.append.answers import REGION
from broker.context import BrokerContext
from broker.delay.parking import RECALL_VERSION, Parking
from broker.delay.timer_service import TimerService
from broker.subsystem import Steps
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import text
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal
from store.errors import StoreError
from store.replicated_log import PLACED, AppendReceipt
from store.timer.timer_message import TIMER_DELETE_KEY, TIMER_DELIVER_MS, delete_key, whole_number

log = logging.getLogger(__name__)

_TAG = "_RECALL_TAG_"
_STORED = (Cause.FLUSH_TIMEOUT, Cause.REPLICA_TIMEOUT)


class RecallHandle(NamedTuple):
    """The contents of a recall handle: which timer of which broker, and when it is due (ms since the epoch)."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    @classmethod
    def decode(cls, handle: str) -> "RecallHandle | None":
        """Decode the handle that a send was answered with; None when it is malformed."""
        try:
            words = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
        except (binascii.Error, UnicodeError):
            return None
        if len(words) < 5 or words[0] != RECALL_VERSION or not words[4].isprintable():
            return None
        due_ms = whole_number(words[3])
        return cls(words[1], words[2], -1 if due_ms is None else due_ms, words[4])


class TimerRequests:
    """Serves requests about timers."""

    def __init__(self, context: BrokerContext, service: TimerService, parking: Parking) -> None:
        self._config = context.config
        self._identity = context.identity
        self._metadata = context.metadata
        self._role = context.role
        self._service = service
        self._parking = parking
        self._targets = context.targets
        self._drafts = context.drafts
        self._appender = context.appender
        self._clock_ms = context.clock_ms

    def recall(self, connection: Connection, command: Command) -> None:
        """370: recall a timer; answered when its deletion is committed."""
        topic, encoded = text(command.ext, "topic"), text(command.ext, "recallHandle")
        no = self._why_not(topic) or self._why_no_handle(topic, RecallHandle.decode(encoded))
        handle = RecallHandle.decode(encoded)
        if no is not None or handle is None:
            code, remark = no or (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
            connection.respond(command, code, {"MSG_REGION": REGION}, remark=remark)
            return

        key = delete_key(handle.topic, handle.unique_key)

        def done(outcome: AppendReceipt | Refusal) -> None:
            if isinstance(outcome, Refusal) and outcome.cause not in PLACED:
                self._service.release(key)
            if isinstance(outcome, Refusal) and outcome.cause not in _STORED:
                connection.respond(
                    command, ResponseCode.SYSTEM_ERROR, outcome.ext, remark="recall failed, execute error"
                )
            else:
                fields = {"MSG_REGION": REGION, "msgId": handle.unique_key}
                connection.respond(command, ResponseCode.SUCCESS, fields)

        self._append(connection, handle, command.ext.get("producerGroup", ""), done)
        self._service.hold_back(key)

    def check_point(self, connection: Connection, command: Command) -> Steps:
        """60: answer the progress of timers, in the format of the file `config/timercheck`.

        A returning master of RocketMQ's takes over a slave's progress whose version is not lower than its own.
        """
        check = self._service.index.check
        if self._role.is_slave:
            try:
                read_ms = yield from self._service.read_ms_elsewhere()
            except StoreError as error:
                log.error("the progress of timers that were delivered elsewhere cannot be read: %s", error)
                read_ms = 0
            check = self._service.index.check
            if read_ms > check.read_ms:
                now_ms = self._clock_ms()  # RocketMQ's counter counts flushes: the time is higher
                version = {"state_version": self._role.generation, "timestamp": now_ms, "counter": now_ms}
                check = check._replace(read_ms=read_ms, **version)
        connection.respond(command, ResponseCode.SUCCESS, body=check.encode())

    def metrics(self, connection: Connection, command: Command) -> None:
        """61: answer the number of waiting timers by topic, in the format of the file `config/timermetrics`."""
        connection.respond(command, ResponseCode.SUCCESS, body=self._service.index.metrics.encode())

    def _why_not(self, topic: str) -> tuple[int, str] | None:
        config = self._config
        if not config.recall_enable:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        if not self._role.writable:
            return ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker service not available"
        if not self._identity.may_be_written and not config.recall_when_not_writable:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
        if self._metadata.topic(topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist"
        return None

    def _why_no_handle(self, topic: str, handle: RecallHandle | None) -> tuple[int, str] | None:
        code = ResponseCode.ILLEGAL_OPERATION
        if handle is None:
            return code, "recall handle is invalid"
        if handle.topic != topic:
            return code, "recall failed, topic not match"
        if handle.broker_name != self._identity.name:
            return code, "recall failed, broker service not available"
        left_ms = handle.due_ms - self._clock_ms()
        if self._is_delivered(handle) or not 0 < left_ms < self._config.timer_max_delay_s * 1000:
            return code, "recall failed, timestamp invalid"
        return None

    def _is_delivered(self, handle: RecallHandle) -> bool:
        """Return whether the timer was delivered early, when a clock was ahead; timers stored since then were not."""
        key = delete_key(handle.topic, handle.unique_key)
        return handle.due_ms < self._service.index.read_ms and not self._service.is_waiting(key)

    def _append(
        self,
        connection: Connection,
        handle: RecallHandle,
        group: str,
        done: Callable[[AppendReceipt | Refusal], None],
    ) -> None:
        now_ms = self._clock_ms()
        properties = {
            "TAGS": _TAG,
            TIMER_DELETE_KEY: delete_key(handle.topic, handle.unique_key),
            "UNIQ_KEY": handle.unique_key,
            TIMER_DELIVER_MS: str(handle.due_ms),
            "BORN_TIMESTAMP": str(now_ms),
        }
        if group.isprintable() and group:
            properties["PGROUP"] = group
        parked = self._parking.park(self._targets.target(handle.topic, 0), encode_properties(properties))
        if parked is None:
            raise Refusal(Cause.MESSAGE_ILLEGAL, f"the message was due at {handle.due_ms} ms, which is past")
        born = (now_ms, connection.peer_host)
        self._appender.add(self._drafts.new(parked.target, b"0", parked.properties, born=born, tags=_TAG), done)
