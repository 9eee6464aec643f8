"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

A handle that is not known any more (its message was acknowledged, or delivered again since) is answered with success
and changes nothing.

Source: apache/rocketmq `broker/.../processor/AckMessageProcessor.java`, `ChangeInvisibleTimeProcessor.java`,
`remoting/.../protocol/body/BatchAck.java`.
"""

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.context import BrokerContext
from broker.counting.statistics import GROUP_ACK_NUMS
from broker.pop.checks import PopChecks
from broker.pop.handles import parse_handle, real_topic
from broker.pop.progress import PopProgress
from broker.state.pop_core import Checkpoint, checkpoint_key
from broker.state.pop_order import order_key
from broker.subsystem import Steps
from ledgermq.message.pop_handle import ORDER_REVIVE_QUEUE, PopHandle
from ledgermq.remoting.codec.codes import ResponseCode
from ledgermq.remoting.codec.command import Command
from ledgermq.remoting.codec.fields import long, text
from ledgermq.remoting.codec.lenient_json import check_count, request_json
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.refusal import Cause, Refusal

Freed = Callable[[str, str, int], None]

_BITS_MAX: Final = 1 << 16


class AckRequests:
    """Serves acknowledgements.

    Args:
        on_freed: called with topic, group and queue id when a queue that was blocked (orderly POP) has messages for
            the group again.
    """

    def __init__(self, context: BrokerContext, checks: PopChecks, progress: PopProgress, on_freed: Freed) -> None:
        self._checks = checks
        self._role = context.role
        self._store = context.store
        self._offsets = context.offsets
        self._progress = progress
        self._clock_ms = progress.now_ms
        self._on_freed = on_freed
        self._counting = context.counting

    def ack(self, connection: Connection, command: Command) -> None:
        """200051: acknowledge one message."""
        self._role.check_writable()
        fields = command.ext
        topic, queue_id = self._checks.acked_queue(connection, fields)
        offset = long(fields, "offset")
        first, end = self._bounds(topic.name, queue_id)
        if not first <= offset <= end:
            remark = f"offset is illegal, key:{topic.name}@{queue_id}, commit:{offset}, store:{first}~{end}"
            connection.respond(command, ResponseCode.NO_MESSAGE, remark=remark)
            return
        handle, group = parse_handle(text(fields, "extraInfo")), fields.get("consumerGroup", "")
        self._ack(topic.name, group, handle._replace(queue_id=queue_id), offset)
        connection.respond(command, ResponseCode.SUCCESS)

    def batch_ack(self, connection: Connection, command: Command) -> Steps:
        """200151: acknowledge the messages that the body names; those that are not open any more are skipped."""
        self._role.check_writable()
        acks = _acks(command)
        if not acks:
            connection.respond(command, ResponseCode.NO_MESSAGE)
            return
        for topic, group, handle, bits in acks:
            yield
            if self._store.queues.find(topic, handle.queue_id) is None:
                continue
            if not handle.is_ordered:
                count = self._progress.checkpoints.ack_all(_key(topic, group, handle), bits)
                if count:
                    self._progress.changed()
                    self._acked(topic, group, count)
                continue
            first, end = self._bounds(topic, handle.queue_id)
            for index in _set_bits(bits):
                if first <= handle.start + index <= end:
                    self._ack_ordered(topic, group, handle.queue_id, handle.start + index, handle.pop_ms)
        connection.respond(command, ResponseCode.SUCCESS)

    def change_invisible(self, connection: Connection, command: Command) -> None:
        """200053: set a message's invisible time anew (ms from now on); the answer has the parts of its new handle."""
        self._role.check_writable()
        fields = command.ext
        topic, queue_id = self._checks.acked_queue(connection, fields)
        group, offset, invisible_ms = (
            fields.get("consumerGroup", ""),
            long(fields, "offset"),
            long(fields, "invisibleTime"),
        )
        first, end = self._bounds(topic.name, queue_id)
        if not first <= offset < end:
            connection.respond(command, ResponseCode.NO_MESSAGE)
            return
        handle = parse_handle(text(fields, "extraInfo"))
        if handle.is_ordered:
            header = self._change_ordered(topic.name, group, queue_id, offset, handle.pop_ms, invisible_ms)
        else:
            header = self._change(topic.name, group, handle._replace(queue_id=queue_id), offset, invisible_ms)
        connection.respond(command, ResponseCode.SUCCESS, header)

    # ---- internals

    def _ack(self, topic: str, group: str, handle: PopHandle, offset: int) -> None:
        if handle.is_ordered:
            self._ack_ordered(topic, group, handle.queue_id, offset, handle.pop_ms)
        elif self._progress.checkpoints.ack(_key(topic, group, handle), offset):
            self._progress.changed()
            self._acked(topic, group, 1)

    def _acked(self, topic: str, group: str, count: int) -> None:
        self._counting.events.revive_in.add((group, topic, "ACK", "PUT_OK"), count)
        self._counting.statistics.counter(GROUP_ACK_NUMS, f"{topic}@{group}").add(count)

    def _ack_ordered(self, topic: str, group: str, queue_id: int, offset: int, pop_ms: int) -> None:
        stored = self._offsets.get(topic, group, queue_id)
        if stored is None or offset < stored:
            return
        key = order_key(topic, group, queue_id)
        if offset > stored and self._progress.orders.get(key) is None:
            # The leader that knew which messages were given has died, so earlier ones may be open. RocketMQ skips them.
            return
        try:
            next_offset = self._progress.orders.ack(key, offset, pop_ms)
        except LookupError:
            remark = f"offset is illegal, key:{key}, commit:{offset}: it was not given"
            raise Refusal(Cause.MESSAGE_ILLEGAL, remark) from None
        if next_offset is None:
            return
        self._progress.changed()
        self._offsets.commit(topic, group, queue_id, next_offset)
        if not self._progress.orders.is_blocked(key, "", self._clock_ms()):
            self._on_freed(topic, group, queue_id)

    def _change(self, topic: str, group: str, handle: PopHandle, offset: int, invisible_ms: int) -> dict[str, str]:
        checkpoints = self._progress.checkpoints
        pop_ms, queue_id = self._clock_ms(), handle.queue_id
        while checkpoint_key(topic, group, queue_id, offset, pop_ms) in checkpoints:
            pop_ms += 1
        if checkpoints.ack(_key(topic, group, handle), offset):
            self._progress.take(Checkpoint(topic, group, queue_id, offset, pop_ms, invisible_ms, (offset,)))
        return _changed(pop_ms, invisible_ms, handle.revive_queue)

    def _change_ordered(
        self, topic: str, group: str, queue_id: int, offset: int, pop_ms: int, invisible_ms: int
    ) -> dict[str, str]:
        if offset < (self._offsets.get(topic, group, queue_id) or 0):
            return {}
        visible_ms = self._clock_ms() + invisible_ms
        self._progress.orders.set_visible(order_key(topic, group, queue_id), offset, pop_ms, visible_ms)
        self._progress.changed()
        self._on_freed(topic, group, queue_id)
        return _changed(pop_ms, visible_ms - pop_ms, ORDER_REVIVE_QUEUE)

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._store.queues.find(topic, queue_id)
        return (self._store.reader.min_offset(queue), queue.max_offset) if queue is not None else (0, 0)


def _key(topic: str, group: str, handle: PopHandle) -> str:
    return checkpoint_key(topic, group, handle.queue_id, handle.start, handle.pop_ms)


def _changed(pop_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue)}


_Ack = tuple[str, str, PopHandle, int]


def _acks(command: Command) -> list[_Ack]:
    """Return the entries of the body: topic, group, handle, and bit i for the message at the handle's start + i."""
    if not command.body:
        return []
    body = request_json(command)
    try:
        broker, listed = str(body.get("brokerName") or ""), body.get("acks") or ()
        check_count(command, "acks", len(listed))
        acks = [_batch(entry, broker) for entry in listed]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        remark = f"{command.name}: the body has no good acks: {type(error).__name__}: {error}"
        raise Refusal(Cause.MALFORMED_FIELD, remark[:500]) from error
    check_count(command, "acks", sum(bits.bit_count() for *_, bits in acks), _BITS_MAX)
    return acks


def _batch(entry: Any, broker: str) -> _Ack:
    group, retry = str(entry["c"]), str(entry["r"])
    handle = PopHandle(
        int(entry["so"]), int(entry["pt"]), int(entry["it"]), int(entry["rq"]), retry, broker, int(entry["q"])
    )
    return real_topic(str(entry["t"]), group, retry), group, handle, _bits(str(entry["b"]))


def _bits(text_: str) -> int:
    try:
        data = base64.b64decode(text_, validate=True)
    except binascii.Error as error:
        raise ValueError(f"b: {error}") from error
    if len(data) > _BITS_MAX // 8:
        raise ValueError(f"b has {len(data)} bytes, the limit is {_BITS_MAX // 8}")
    return int.from_bytes(data, "little")


def _set_bits(bits: int) -> Iterator[int]:
    digits = f"{bits:b}"[::-1]
    index = digits.find("1")
    while index >= 0:
        yield index
        index = digits.find("1", index + 1)
