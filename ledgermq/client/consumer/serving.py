"""Requests of brokers to a consumer, their own and those of administrators.

| code | asked | answered |
|---|---|---|
| 40 | the group has changed | shared out again, at once |
| 220 | go on at these offsets | the queues move, and the offsets are committed |
| 221 | how far are you? | offsets by queue |
| 307 | how are you? | settings, queues, rates |
| 309 | handle this message now | what the handler made of it |

Source: apache/rocketmq `client/.../impl/ClientRemotingProcessor.java`, `ConsumeMessageDirectlyResult.java`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import orjson

from ledgermq.client.consumer.assigned import AssignedQueues
from ledgermq.client.consumer.commits import Commits
from ledgermq.client.consumer.handling import DeadLetter, Handling, Retry
from ledgermq.client.consumer.running_info import running_info, task_stacks
from ledgermq.client.consumer.topic_figures import TopicFigures
from ledgermq.client.core.message import Message
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.group.local_offsets import parse_queue_table
from ledgermq.client.group.subscription import Subscription
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.record import decode_record
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.java_json import QueueId, queue_map
from ledgermq.remoting.codec.lenient_json import loads
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import JsonError
from ledgermq.remoting.refusal import Cause, Refusal
from ledgermq.remoting.route import MessageQueue

_log: Final = logging.getLogger(__name__)

_REMARK_LENGTH_MAX: Final = 1000


class Serving:
    """Answers for one consumer.

    Args:
        group: consumer group.
        queues: the consumer's queues.
        commits: commits its offsets.
        figures: its rates by topic.
        subscriptions: its subscriptions.
        settings: returns the settings that administrators read.
        look: called when the group has changed.
    """

    def __init__(
        self,
        group: str,
        queues: AssignedQueues,
        commits: Commits,
        figures: TopicFigures,
        subscriptions: Iterable[Subscription],
        settings: Callable[[], Mapping[str, str]],
        look: Callable[[], None],
    ) -> None:
        self._group = group
        self._queues = queues
        self._commits = commits
        self._figures = figures
        self._subscriptions = subscriptions
        self._settings = settings
        self._look = look
        self.handling: Handling | None = None

    def serve(self, connection: Connection, command: Command) -> None:
        """Answer now, or later.

        Raises:
            Refusal: not served, or not our group.
        """
        code = command.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if command.ext.get("consumerGroup") == self._group:
                self._look()
            connection.respond(command, ResponseCode.SUCCESS)
        elif code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._check_group(command.ext.get("group"))
            self._queues.spawn(self._reset(connection, command, _offsets(command.body)), "reset of offsets")
        elif code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            self._check_group(command.ext.get("group"))
            connection.respond(command, ResponseCode.SUCCESS, body=self._status(command.ext.get("topic")))
        elif code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            self._check_group(command.ext.get("consumerGroup"))
            connection.respond(
                command, ResponseCode.SUCCESS, body=self._info(command.ext.get("jstackEnable") == "true")
            )
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
        known = ((QueueId(*q), offset) for q, offset in offsets if q.topic == topic and offset is not None)
        return b'{"messageQueueTable":' + queue_map(known) + b"}"

    def _info(self, with_stacks: bool) -> bytes:
        locks = self._queues.locks
        return running_info(
            self._settings(),
            self._subscriptions,
            self._queues.turns.readers(),
            frozenset(locks.held if locks else ()),
            self._figures,
            task_stacks() if with_stacks else None,
        )

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
        raise Refusal(
            Cause.INVALID_PARAMETER, f"body of a reset, offsetTable: {error!r}"[:_REMARK_LENGTH_MAX]
        ) from error


def _message(command: Command) -> Message:
    try:
        record = decode_record(bytes(command.body))
    except CorruptRecordError as error:
        raise Refusal(Cause.INVALID_PARAMETER, f"body: not a message: {error}") from error
    return Message(record, MessageQueue(record.topic, command.ext.get("brokerName") or "", record.queue_id))
