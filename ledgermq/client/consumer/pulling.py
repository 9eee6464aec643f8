"""Pulls: request 11 and its answer.

    sysFlag  2 hold the request until there is something   4 the subscription is in the request itself

The subscription is part of every pull, so that a new leader can serve it before it got our heartbeat.

Source: apache/rocketmq `remoting/.../protocol/header/PullMessageRequestHeader.java`,
`client/.../impl/MQClientAPIImpl.java` (processPullResponse).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledgermq.client.core.answers import ask
from ledgermq.client.core.message import Message
from ledgermq.client.errors import LedgerMQError, UndecodableError
from ledgermq.client.group.subscription import Subscription
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.properties import TAGS, find_property
from ledgermq.message.record import decode_records
from ledgermq.remoting.client import RemotingClient
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import LEADER_ID, MessageQueue

HOLD_S: Final = 15.0
TIMEOUT_S: Final = 30.0
MESSAGES_MAX: Final = 256
BYTES_MAX: Final = 1024 * 1024
BULK: Final = "bulk"
RESET_REMARK: Final = "OFFSET_RESET"
_HOLD: Final = 2
_SUBSCRIPTION: Final = 4

PULL_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull.

    Attributes:
        code: 0 found, 19 no new message, 20 no matching message, 21 the offset is not in the queue.
        next_offset: offset to pull from next.
        messages: those that match the subscription, in order.
        is_reset: whether an administrator has reset the group's offset; the broker says so only once.
        suggested_id: broker id of the replica to pull from next; 0 for the leader.
    """

    code: int
    next_offset: int
    messages: list[Message]
    is_reset: bool = False
    suggested_id: int = LEADER_ID


def pull_command(
    group: str, queue: MessageQueue, offset: int, subscription: Subscription, *, hold: bool = True, bulk: int = 0
) -> Command:
    """Request 11: messages from `offset` on; with `hold` the broker waits up to 15 s for one.

    With `bulk`, so many messages, or about 1 MiB, are wanted at once. A broker that knows of it says so in its answer;
    any other has a limit of its own, mostly 32 messages.
    """
    ext = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(bulk or MESSAGES_MAX),
        "maxMsgBytes": str(BYTES_MAX),
        "sysFlag": str(_SUBSCRIPTION | _HOLD if hold else _SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(int(HOLD_S * 1000)),
        "subscription": subscription.expression,
        "subVersion": str(subscription.version),
        "expressionType": subscription.kind,
        "bname": queue.broker,
    }
    if bulk:
        ext[BULK] = "true"
    return Command(RequestCode.PULL_MESSAGE, ext=ext)


def read_pulled(address: str, queue: MessageQueue, offset: int, subscription: Subscription, answer: Command) -> Pulled:
    """Parse an answer with one of `PULL_CODES`.

    Raises:
        UndecodableError: it lacks the next offset, or a record is corrupt.
    """
    next_offset = _next_offset(address, answer.ext)
    suggestion = answer.ext.get("suggestWhichBrokerId", "")
    suggested_id = int(suggestion) if suggestion.isdecimal() else LEADER_ID
    if answer.code != ResponseCode.SUCCESS:
        return Pulled(answer.code, next_offset, [], answer.remark == RESET_REMARK, suggested_id)
    try:
        records = decode_records(answer.body)
    except CorruptRecordError as error:
        raise UndecodableError(f"{address}: messages of {queue} from {offset} on: {error}") from error
    tags = TAGS.encode()
    wants_all = not subscription.tags
    messages = [
        Message(record, queue)
        for record in records
        if record.queue_offset >= offset and (wants_all or subscription.wants(find_property(record.properties, tags)))
    ]
    return Pulled(answer.code, next_offset, messages, suggested_id=suggested_id)


def _next_offset(address: str, ext: Mapping[str, str]) -> int:
    try:
        return int(ext["nextBeginOffset"])
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: answer to a pull is {dict(ext)!r}") from error


class PullCall:
    """Pulls from one queue, one request at a time, which can be broken off while a broker holds it.

    Attributes:
        address: of the broker that is asked, or was asked last.
    """

    def __init__(self, remoting: RemotingClient, group: str, queue: MessageQueue, subscription: Subscription) -> None:
        self.address: str | None = None
        self._remoting = remoting
        self._group = group
        self._queue = queue
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._under_way: asyncio.Task[Command] | None = None

    def break_off(self) -> None:
        """Stop waiting for the answer; `run` returns None."""
        if self._under_way is not None:
            self._under_way.cancel()

    async def run(self, address: str, offset: int) -> Pulled | LedgerMQError | None:
        """Pull once; returns the result, the error, or None when it was broken off."""
        command = pull_command(self._group, self._queue, offset, self._subscription)
        self.address = address
        asking = ask(self._remoting, address, command, TIMEOUT_S, PULL_CODES)
        self._under_way = pull = self._loop.create_task(asking)
        try:
            await asyncio.wait((pull,))
        finally:
            self._under_way = None
            pull.cancel()
        if pull.cancelled():
            return None
        try:
            return read_pulled(address, self._queue, offset, self._subscription, pull.result())
        except LedgerMQError as error:
            return error
