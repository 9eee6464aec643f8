"""A send as a request: which queue, which header fields (310, 320), and what the answer means.

Source: apache/rocketmq `remoting/.../protocol/header/SendMessageRequestHeaderV2.java` (one-letter names),
`SendMessageResponseHeader.java`, `common/.../message/MessageDecoder.java` (encodeMessages).
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ledgermq.client.core.calls import Answered, Target
from ledgermq.client.core.message import Message
from ledgermq.client.core.routes import AUTO_CREATED_QUEUE_COUNT, TEMPLATE_TOPIC
from ledgermq.client.errors import UndecodableError
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.message.flags import COMPRESSED, COMPRESSION_MASK
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codec.codes import RequestCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import MessageQueue


class SendStatus(enum.Enum):
    """How durable the message was when the broker answered; the value is the response code.

    Each means that the message is stored. Only `OK` means that it is as durable as the cluster's mode promises.
    """

    OK = 0
    FLUSH_DISK_TIMEOUT = 10  # stored, but not known to be flushed in time
    SLAVE_NOT_AVAILABLE = 11  # stored, but on no slave that is in sync
    FLUSH_SLAVE_TIMEOUT = 12  # stored, but not known to be on the replicas in time


STATUS_BY_CODE = {status.value: status for status in SendStatus}
STORED_CODES = frozenset(STATUS_BY_CODE)
_KEPT_FLAGS = COMPRESSED | COMPRESSION_MASK


class SendResult(NamedTuple):
    """The broker's answer about one stored message.

    Attributes:
        message_id: the id that every copy of this message has (UNIQ_KEY).
        offset_message_id: the id of the stored copy that was acknowledged.
        queue: topic, broker name and queue id.
        queue_offset: the message's offset in that queue.
        status: how durable it is, see `SendStatus`.
        attempts: number of requests that were sent; with more than one, earlier copies may be stored, too.
        term: the leader's Raft term; None from brokers that do not return it.
        copies: replicas that had received it when it was acknowledged; None from brokers that do not return it, and
            from a follower that found it in its log when the leader's answer was lost.
        durable_copies: those of them that had it on disk; None as above.
        recall_handle: for `Producer.recall`; None for messages without `delay` or `deliver_at`.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    attempts: int
    term: int | None
    copies: int | None
    durable_copies: int | None
    recall_handle: str | None = None

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def broker(self) -> str:
        """Broker name, which all nodes of a Raft group share."""
        return self.queue.broker

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id


def send_ext(group: str, topic: str, born_ms: int, sys_flag: int = 0) -> dict[str, str]:
    """Return the header fields of a send (310, 320), without queue id `e`, broker name `n` and properties `i`."""
    return {
        "a": group,
        "b": topic,
        "c": TEMPLATE_TOPIC,
        "d": str(AUTO_CREATED_QUEUE_COUNT),
        "f": str(sys_flag) if sys_flag else "0",
        "g": str(born_ms),
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def read_results(
    address: str, queue: MessageQueue, code: int, ext: Mapping[str, str], message_ids: Sequence[str], attempts: int
) -> list[SendResult]:
    """Return the results of one answered request: one for each of its messages, in order.

    Raises:
        UndecodableError: the answer lacks queue id, offset or message id, or they are not numbers.
    """
    try:
        queue_id, offset = int(ext["queueId"]), int(ext["queueOffset"])
        offset_ids = ext["msgId"].split(",")
        term, copies, durable = _number(ext, "term"), _number(ext, "copies"), _number(ext, "durableCopies")
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: answer to a send is {dict(ext)!r}: {error!r}") from error
    if len(offset_ids) != len(message_ids):
        raise UndecodableError(f"{address}: {len(offset_ids)} ids in the answer to {len(message_ids)} messages")
    if queue_id != queue.queue_id:
        queue = queue._replace(queue_id=queue_id)
    status = STATUS_BY_CODE[code]
    handle = ext.get("recallHandle")
    return [
        SendResult(message_id, offset_id, queue, offset + index, status, attempts, term, copies, durable, handle)
        for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]


def _number(ext: Mapping[str, str], name: str) -> int | None:
    text = ext.get(name)
    return None if text is None else int(text)


Where = Callable[[], MessageQueue | None]
"""Finds the one queue that a send must go to; returns None while its route is unknown."""


@dataclass(slots=True)
class SendPlan:
    """The plan of one request with one message, or with a batch; made once per send.

    Attributes:
        where: finds the one queue it must go to; None for any queue.
        message_ids: unique keys of the messages, in order.
        ext: header fields of the request, as `send_ext` makes them; queue id and broker name are set at each try.
    """

    choice: QueueChoice
    topic: str
    where: Where | None
    message_ids: Sequence[str]
    code: int
    ext: dict[str, str]
    body: bytes | memoryview
    queue: MessageQueue | None = None
    accepted: ClassVar[frozenset[int]] = STORED_CODES
    stores: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """Bytes of the request's body."""
        return len(self.body)

    def choose(self, failed_broker: str | None) -> Target | None:
        """Return the leader of any queue, or of the given one."""
        if self.where is None:
            return self.choice.next(self.topic, failed_broker)
        if self.queue is None:
            self.queue = self.where()
        return None if self.queue is None else self.choice.at(self.queue)

    def command(self, target: Target) -> Command:
        """Return the request for this target."""
        ext = self.ext
        ext["e"] = str(target.queue_id)
        ext["n"] = target.broker
        return Command(self.code, ext=ext, body=self.body)

    def describe(self) -> str:
        what = "batch" if self.code == RequestCode.SEND_BATCH_MESSAGE else "message"
        return f"{what} {self.message_ids[0]} to topic {self.topic!r}"

    def results(self, answered: Answered) -> list[SendResult]:
        """Return the result of each message, in order.

        Raises:
            UndecodableError: the answer lacks a field.
        """
        response, target, attempts = answered
        queue = MessageQueue(self.topic, target.broker, target.queue_id)
        return read_results(target.address, queue, response.code, response.ext, self.message_ids, attempts)


def copy_plan(
    choice: QueueChoice,
    group: str,
    topic: str,
    message: Message,
    properties: Mapping[str, str],
    ext: dict[str, str] | None = None,
) -> SendPlan:
    """Return the plan that sends a read message to any queue of `topic`, with these properties in place of its own.

    `ext` has further header fields. The body is sent as it was stored, compressed or not.
    """
    fields = send_ext(group, topic, message.born_timestamp_ms, message.record.sys_flag & _KEPT_FLAGS) | (ext or {})
    fields["h"] = str(message.record.flag)
    fields["i"] = encode_properties(properties).decode()
    body = message.record.body
    return SendPlan(choice, topic, None, (message.message_id,), RequestCode.SEND_MESSAGE_V2, fields, body)
