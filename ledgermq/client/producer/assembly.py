"""From what a program gives to a plan: checks, a unique key, properties as text, the queue it must go to.

Everything is refused here that no broker would take, before anything is sent.
"""

import functools
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ledgermq.client.core.checks import check_count, check_text
from ledgermq.client.core.route import QUEUE_ID_MAX, MessageQueue, check_queue
from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.producer.outgoing import (
    BODY_BYTES_MAX,
    Body,
    Keys,
    Outgoing,
    check_body,
    check_topic,
    encode_properties,
    order_text,
)
from ledgermq.client.producer.queue_choice import QueueChoice
from ledgermq.client.producer.send_plan import SendPlan, Where, batch_send, single_send
from ledgermq.message.batch import encode_batch
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import UniqueIdGenerator
from ledgermq.remoting.codec.codes import RequestCode

_PORT_LENGTH: Final = 4
_PART_OVERHEAD: Final = len(encode_batch([(0, b"", b"")]))


class Kind(NamedTuple):
    """What makes a message more than a plain one.

    Attributes:
        own: properties of the client's own, encoded.
        sys_flag: of the message.
        code: of the request.
        message_id: if it has one already.
    """

    own: str = ""
    sys_flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2
    message_id: str | None = None


PLAIN: Final = Kind()


class BatchPart(NamedTuple):
    """A message that is ready to be sent with others: its id, body and encoded properties."""

    message_id: str
    body: bytes
    properties: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a batch."""
        return _PART_OVERHEAD + len(self.body) + len(self.properties)


class Assembly:
    """Makes plans for one producer.

    Args:
        group: producer group.
        choice: finds queues.
        own_address: IP address that unique keys begin with.
    """

    def __init__(self, group: str, choice: QueueChoice, own_address: str) -> None:
        self._group = group
        self.choice = choice
        address = encode_host(Host(own_address, 0))[:-_PORT_LENGTH]
        self._ids = UniqueIdGenerator(address, os.getpid(), random.getrandbits(31))
        self._checked_topics: set[str] = set()

    def next_id(self) -> str:
        """A new message id, for a message that must be known by it before it is sent."""
        return self._ids.next(time.time_ns() // 1_000_000)

    def single(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        where: Where | None,
        kind: Kind = PLAIN,
        packed_flag: int = 0,
    ) -> SendPlan:
        """The plan of one message, whose body is checked already.

        Args:
            topic: where to.
            body: of the request.
            tags: one tag.
            keys: business keys.
            properties: the program's.
            where: the one queue it must go to; None for any.
            kind: what makes it more than a plain message.
            packed_flag: flags of how the body was compressed.

        Raises:
            InvalidArgumentError: a property or key that cannot be sent.
        """
        own, sys_flag, code, message_id = kind
        born_ms = time.time_ns() // 1_000_000
        if message_id is None:
            message_id = self._ids.next(born_ms)
        text = encode_properties(message_id, tags, keys, properties, own)
        content = bytes(body) if isinstance(body, bytearray) else body
        flag = sys_flag | packed_flag
        return single_send(self.choice, self._group, topic, where, born_ms, message_id, text, content, flag, code)

    def part(self, message: Outgoing | Body, order_key: str | None = None) -> BatchPart:
        """One message of a batch.

        Raises:
            InvalidArgumentError: it cannot be sent.
        """
        one = message if isinstance(message, Outgoing) else Outgoing(message)
        return self.part_of(one.body, one.tags, one.keys, one.properties, order_key)

    def part_of(
        self,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        order_key: str | None,
    ) -> BatchPart:
        """As `part`."""
        check_body(body)
        message_id = self._ids.next(time.time_ns() // 1_000_000)
        own = "" if order_key is None else order_text(order_key, properties)
        text = encode_properties(message_id, tags, keys, properties, own)
        return BatchPart(message_id, bytes(body), text.encode())

    def batch(self, topic: str, parts: Sequence[BatchPart], where: Where | None) -> SendPlan:
        """The plan of a batch.

        Raises:
            InvalidArgumentError: no messages, or too large in all.
        """
        if not parts:
            raise InvalidArgumentError("a batch of no messages")
        encoded = encode_batch((0, part.body, part.properties) for part in parts)
        if len(encoded) > BODY_BYTES_MAX:
            raise InvalidArgumentError(f"a batch of {len(encoded)} bytes, {BODY_BYTES_MAX} are allowed")
        born_ms = time.time_ns() // 1_000_000
        message_ids = [part.message_id for part in parts]
        return batch_send(self.choice, self._group, topic, where, born_ms, message_ids, encoded)

    def alone(self, topic: str, part: BatchPart, where: Where | None) -> SendPlan:
        """The plan of a message that was to be one of a batch, by itself."""
        born_ms = time.time_ns() // 1_000_000
        text = part.properties.decode()
        return single_send(self.choice, self._group, topic, where, born_ms, part.message_id, text, part.body)

    def where(self, topic: str, queue: MessageQueue | int | None, order_key: str | None) -> Where | None:
        """What finds the one queue asked for; None for any.

        Raises:
            InvalidArgumentError: a topic name that is none, or a queue that contradicts topic or key.
        """
        if not isinstance(topic, str) or topic not in self._checked_topics:
            check_topic(topic)
            self._checked_topics.add(topic)
        if order_key is not None:
            check_text(order_key, "order_key")
        if queue is None:
            return None if order_key is None else functools.partial(self.choice.by_key, topic, order_key)
        if order_key is not None:
            raise InvalidArgumentError(f"both queue {queue} and order_key {order_key!r}: either names the queue")
        if isinstance(queue, int):
            check_count(least=0, most=QUEUE_ID_MAX, queue=queue)
            return functools.partial(self.choice.by_number, topic, queue)
        if not isinstance(queue, MessageQueue):
            raise InvalidArgumentError(f"queue is {queue!r}: neither a MessageQueue nor the number of one")
        check_queue(queue)
        if queue.topic != topic:
            raise InvalidArgumentError(f"queue {queue} is not one of topic {topic!r}")
        return lambda: queue
