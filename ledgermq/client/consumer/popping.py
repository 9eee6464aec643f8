"""The requests of POP consumption (200050 and others) and the messages in their answers.

A broker delivers each message to one consumer of the group and hides it from the others for a time. The message's
handle identifies that delivery (`message/pop_handle`); acknowledging the message or changing the time needs it.

Source: apache/rocketmq `client/.../impl/MQClientAPIImpl.java` (processPopResponse), `BatchAck.java`.
"""

import base64
import collections
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from ledgermq.client.core.message import Message
from ledgermq.client.errors import UndecodableError
from ledgermq.client.group.subscription import Subscription
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.pop_handle import POP_CK, PopHandle, parse_handle, real_topic, retry_flag
from ledgermq.message.record import Record, decode_records
from ledgermq.remoting.codec.codes import RequestCode, ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.route import MessageQueue
from ledgermq.wall_clock import wall_clock_ms

ANY_QUEUE: Final = "-1"
COUNT_MAX: Final = 32
BATCH_SPAN_MAX: Final = 4096  # most offsets of one acknowledgement: handles come from brokers
POP_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.POLLING_FULL,
        ResponseCode.POLLING_TIMEOUT,
    }
)


class PoppedMessage(Message):
    """A message that is hidden from other consumers for a time.

    Attributes:
        handle: identifies this delivery; `change_invisible` replaces it.
    """

    __slots__ = ("_times", "handle")

    def __init__(self, record: Record, queue: MessageQueue, handle: PopHandle, times: int | None) -> None:
        super().__init__(record, queue)
        self.handle = handle
        self._times = times

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
        return super().reconsume_times if self._times is None else self._times


def pop_command(
    group: str, subscription: Subscription, count_max: int, invisible_s: float, poll_s: float, *,
    from_end: bool, is_ordered: bool, attempt_id: str,
) -> Command:  # fmt: skip
    """Request 200050: messages of all queues of a topic at one broker."""
    ext = {
        "consumerGroup": group,
        "topic": subscription.topic,
        "queueId": ANY_QUEUE,
        "maxMsgNums": str(count_max),
        "invisibleTime": str(int(invisible_s * 1000)),
        "pollTime": str(int(poll_s * 1000)),
        "bornTime": str(wall_clock_ms()),
        "initMode": "1" if from_end else "0",
        "expType": subscription.kind,
        "exp": subscription.expression,
        "order": str(is_ordered).lower(),
    }
    if is_ordered:
        ext["attemptId"] = attempt_id
    return Command(RequestCode.POP_MESSAGE, ext=ext)


def notification_command(group: str, topic: str, poll_s: float, *, is_ordered: bool) -> Command:
    """Request 200054: answered when there are messages, or after `poll_s` seconds."""
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": ANY_QUEUE,
        "pollTime": str(int(poll_s * 1000)),
        "bornTime": str(wall_clock_ms()),
        "order": str(is_ordered).lower(),
    }
    return Command(RequestCode.NOTIFICATION, ext=ext)


def read_popped(address: str, broker: str, subscription: Subscription, answer: Command) -> list[PoppedMessage]:
    """Return the messages of an answer with one of `POP_CODES`, with their handles.

    Raises:
        UndecodableError: a corrupt record, or a header field of the delivery is missing or malformed.
    """
    if answer.code != ResponseCode.SUCCESS:
        return []
    try:
        records = decode_records(answer.body)
        header = _PopHeader(broker, answer.ext)
        return [header.message(record, subscription.topic) for record in records]
    except (CorruptRecordError, KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: messages taken of {subscription.topic}: {error!r}") from error


def message_ext(group: str, message: PoppedMessage) -> dict[str, str]:
    """Return the header fields that identify a message in requests 200051 and 200053."""
    handle = message.handle
    return {
        "consumerGroup": group,
        "topic": real_topic(message.queue.topic, group, handle.retry),
        "queueId": str(handle.queue_id),
        "extraInfo": str(handle),
        "offset": str(handle.offset),
    }


def changed_handle(address: str, message: PoppedMessage, ext: Mapping[str, str]) -> PopHandle:
    """Return the new handle of a message, from the answer to 200053.

    Raises:
        UndecodableError: a field is missing or malformed.
    """
    old = message.handle
    try:
        return old._replace(
            start=old.offset,
            pop_ms=int(ext["popTime"]),
            invisible_ms=int(ext["invisibleTime"]),
            revive_queue=int(ext["reviveQid"]),
        )
    except (KeyError, ValueError) as error:
        raise UndecodableError(f"{address}: answer to a change of the invisible time is {dict(ext)!r}") from error


def fits_batch(handle: PopHandle) -> bool:
    """Return whether one bit can acknowledge the message: its offset is near the first one of its delivery."""
    return 0 <= handle.offset - handle.start < BATCH_SPAN_MAX


def batch_ack_body(group: str, broker: str, messages: Iterable[PoppedMessage]) -> bytes:
    """Return the body of request 200151: an entry for each delivery of a queue with a bit for each message.

    An entry has the topic that was asked for, also for messages of its retry topic: that is in the flag `r`.
    `fits_batch` must hold for every message.
    """
    offsets: dict[tuple[PopHandle, str], int] = collections.defaultdict(int)
    for message in messages:
        handle = message.handle
        offsets[handle._replace(offset=0), message.queue.topic] |= 1 << (handle.offset - handle.start)
    acks: list[dict[str, Any]] = [
        {
            "b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode(),
            "c": group,
            "it": handle.invisible_ms,
            "pt": handle.pop_ms,
            "q": handle.queue_id,
            "r": handle.retry,
            "rq": handle.revive_queue,
            "so": handle.start,
            "t": topic,
        }
        for (handle, topic), bits in offsets.items()
    ]
    return orjson.dumps({"acks": acks, "brokerName": broker})


class _PopHeader:
    """The header of an answer, as far as it concerns the messages in it; lookups raise KeyError or ValueError."""

    def __init__(self, broker: str, ext: Mapping[str, str]) -> None:
        self._broker = broker
        self._times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
        self._starts = {(retry, int(queue)): int(start) for retry, queue, start in _triples(ext, "startOffsetInfo")}
        self._counts = {(retry, place): int(n) for retry, place, n in _triples(ext, "orderCountInfo")}

    def message(self, record: Record, topic: str) -> PoppedMessage:
        queue = MessageQueue(topic, self._broker, record.queue_id)
        text = record.property_map.get(POP_CK)
        if text is not None:  # records of a retry topic have it as a property
            return PoppedMessage(record, queue, message_handle(text), None)
        retry = retry_flag(record.topic)
        start = self._starts.get((retry, record.queue_id), record.queue_offset)
        handle = PopHandle(start, *self._times, retry, self._broker, record.queue_id, record.queue_offset)
        times = self._counts.get((retry, f"qo{record.queue_id}%{record.queue_offset}"))
        return PoppedMessage(record, queue, handle, times)


def message_handle(text: str) -> PopHandle:
    """Parse the property POP_CK of a message.

    Raises:
        ValueError: not a handle, without an offset, or with an unknown retry flag.
    """
    handle = parse_handle(text)
    if handle.offset < 0:
        raise ValueError("has no offset")
    real_topic("", "", handle.retry)  # raises here for an unknown flag, not only when the message is acknowledged
    return handle


def _triples(ext: Mapping[str, str], name: str) -> list[list[str]]:
    return [part.split(" ") for part in ext.get(name, "").split(";") if part]
