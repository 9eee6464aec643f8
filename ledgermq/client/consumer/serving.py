"""Serves the requests of brokers to a consumer: the brokers' own, and those of administrators.

| code | asked | answered |
|---|---|---|
| 40 | the group has changed | nothing; the queues are shared out again at once |
| 220 | continue at these offsets | the offsets; they are committed |
| 221 | offsets | offsets by queue |
| 307 | state | settings, queues, rates |
| 309 | handle this message now | the handler's outcome |

Source: apache/rocketmq `client/.../impl/ClientRemotingProcessor.java`,
`remoting/.../protocol/body/{ConsumerRunningInfo,ProcessQueueInfo,ConsumeMessageDirectlyResult}.java`.
"""

import asyncio
import io
import logging
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from ledgermq.client.consumer.assigned import AssignedQueues
from ledgermq.client.consumer.commits import Commits
from ledgermq.client.consumer.handling import DeadLetter, Handling, Retry
from ledgermq.client.consumer.queue_reader import QueueReader
from ledgermq.client.consumer.settings import ConsumerSettings
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.message import Message
from ledgermq.client.core.session import Session
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.group.local_offsets import parse_queue_table
from ledgermq.client.group.start_position import wire_name
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import queue_map, text_map
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue
from ledgermq.wall_clock import wall_clock_ms

_log: Final = logging.getLogger(__name__)

CLIENT_VERSION: Final = "V5_3_3"  # the version of RocketMQ's protocol
_REMARK_LENGTH_MAX: Final = 1000
_MIB: Final = 1024 * 1024


class Serving:
    """Serves the requests to one consumer.

    Args:
        rebalance_soon: called when the group has changed.

    Attributes:
        handling: the handler that runs now, if one does.
    """

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        queues: AssignedQueues,
        commits: Commits,
        figures: TopicFigures,
        rebalance_soon: Callable[[], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._group = settings.group
        self._queues = queues
        self._commits = commits
        self._figures = figures
        self._rebalance_soon = rebalance_soon
        self._started_ms = wall_clock_ms()
        self.handling: Handling | None = None

    def serve(self, connection: Connection, command: Command) -> None:
        """Serve a request; the answer may follow later.

        Raises:
            Refusal: not served, or not our group.
        """
        code = command.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if command.ext.get("consumerGroup") == self._group:
                self._rebalance_soon()
            connection.respond(command, ResponseCode.SUCCESS)
        elif code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._check_group(command.ext.get("group"))
            self._queues.spawn(self._reset(connection, command, _offsets(command.body)), "reset of offsets")
        elif code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            self._check_group(command.ext.get("group"))
            connection.respond(command, ResponseCode.SUCCESS, body=self._status(command.ext.get("topic")))
        elif code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self._check_group(command.ext.get("consumerGroup"))
            info = self._info(command.ext.get("jstackEnable") == "true")
            connection.respond(command, ResponseCode.SUCCESS, body=info)
        elif code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            self._check_group(command.ext.get("consumerGroup"))
            message = _message(command)
            self._queues.spawn(self._consume(connection, command, message), "message handled directly")
        else:
            raise Refusal(Cause.NOT_SUPPORTED, f" request type {code} not supported")

    def _check_group(self, group: str | None) -> None:
        if group != self._group:
            raise Refusal(Cause.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")

    async def _reset(self, connection: Connection, command: Command, offsets: Mapping[MessageQueue, int]) -> None:
        readers = [reader for reader in self._queues.turns.readers() if reader.queue in offsets]
        for reader in readers:
            _log.warning("%s: reset to %d", reader.queue, offsets[reader.queue])
            reader.move(offsets[reader.queue])
        try:
            await self._commits.commit(readers)
        except LedgerMQError as failure:
            _log.warning("group %s: offsets that were reset are not committed yet: %s", self._group, failure)
        connection.respond(command, ResponseCode.SUCCESS)

    def _status(self, topic: str | None) -> bytes:
        offsets = ((reader.queue, reader.handled) for reader in self._queues.turns.readers())
        known = ((q, offset) for q, offset in offsets if q.topic == topic and offset is not None)
        return b'{"messageQueueTable":' + queue_map(known) + b"}"

    def _info(self, with_stacks: bool) -> bytes:
        """Return RocketMQ's ConsumerRunningInfo, with the stacks of all tasks if they are asked for."""
        held = self._queues.locks.held if self._queues.locks else ()
        readers = self._queues.turns.readers()
        subscriptions = self._settings.subscriptions.values()
        parts: dict[str, bytes] = {
            "mqPopTable": b"{}",
            "mqTable": queue_map((one.queue, _queue_info(one, one.queue in held)) for one in readers),
            "properties": orjson.dumps(self._properties()),
            "statusTable": orjson.dumps({one.topic: self._figures.to_wire(one.topic) for one in subscriptions}),
            "subscriptionSet": orjson.dumps([one.to_wire() for one in subscriptions]),
            "userConsumerInfo": b"{}",
        }
        if with_stacks:
            parts["jstack"] = orjson.dumps(_task_stacks())
        return text_map(sorted(parts.items()))

    def _properties(self) -> dict[str, str]:
        """Return the settings that administrators read, under RocketMQ's names."""
        return {
            "PROP_CLIENT_VERSION": CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": str(self._queues.locks is not None).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(self._session.nameservers.addresses) + ";",
            "PROP_THREADPOOL_CORE_SIZE": "1",
            "consumeFromWhere": wire_name(self._settings.start),
            "consumerGroup": self._group,
            "messageModel": self._settings.mode.upper(),
        }

    async def _consume(self, connection: Connection, command: Command, message: Message) -> None:
        if self.handling is None:
            remark = f"consumer of group {self._group} has no handler: the program iterates over it"
            connection.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        began_at = time.perf_counter()
        failure = await self.handling.handle_once(message)
        result = {
            "autoCommit": True,
            "consumeResult": _RESULTS.get(type(failure), "CR_THROW_EXCEPTION"),
            "order": self._queues.locks is not None,
            "remark": "" if failure is None else repr(failure)[:_REMARK_LENGTH_MAX],
            "spentTimeMills": int((time.perf_counter() - began_at) * 1000),
        }
        connection.respond(command, ResponseCode.SUCCESS, body=orjson.dumps(result))


_RESULTS: Final[dict[type, str]] = {type(None): "CR_SUCCESS", Retry: "CR_LATER", DeadLetter: "CR_ROLLBACK"}


def _offsets(body: bytes | memoryview) -> dict[MessageQueue, int]:
    try:
        return parse_queue_table(loads(body)["offsetTable"])
    except (JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
        remark = f"body of a reset, offsetTable: {error!r}"[:_REMARK_LENGTH_MAX]
        raise Refusal(Cause.INVALID_PARAMETER, remark) from error


def _message(command: Command) -> Message:
    try:
        record = decode_record(bytes(command.body))
    except CorruptRecordError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"body: not a message: {error}") from error
    return Message(record, MessageQueue(record.topic, command.ext.get("brokerName") or "", record.queue_id))


def _queue_info(reader: QueueReader, is_locked: bool) -> dict[str, Any]:
    """Return RocketMQ's ProcessQueueInfo; times that are not kept are 0."""
    backlog = reader.backlog
    waiting = [*backlog.in_hand.values(), *backlog.buffer]
    return {
        "cachedMsgCount": len(waiting),
        "cachedMsgMaxOffset": waiting[-1].queue_offset if waiting else 0,
        "cachedMsgMinOffset": waiting[0].queue_offset if waiting else 0,
        "cachedMsgSizeInMiB": sum(message.record.size for message in waiting) // _MIB,
        "commitOffset": -1 if reader.committed is None else reader.committed,
        "droped": backlog.is_dropped,
        "lastConsumeTimestamp": reader.consumed_ms,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": reader.pulled_ms,
        "locked": is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _task_stacks() -> str:
    """Return the stacks of all tasks of this loop and of all threads, like `jstack` for Java."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    for thread, frame in sys._current_frames().items():
        text.write(f"Thread {thread}:\n{''.join(traceback.format_stack(frame))}\n")
    return text.getvalue()
