"""From what a program gives to a plan: checks, a unique key, properties as text, the queue it must go to.

Everything is refused here that no broker would take, before anything is sent.
"""

import functools
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final

from ledgermq.client.errors import InvalidArgumentError
from ledgermq.client.outgoing import (
    BODY_BYTES_MAX,
    Body,
    Keys,
    Outgoing,
    check_body,
    check_topic,
    encode_properties,
)
from ledgermq.client.queue_choice import QueueChoice
from ledgermq.client.route import MessageQueue
from ledgermq.client.send_plan import SendPlan, Where, batch_send, single_send
from ledgermq.message.batch import BatchMessage, encode_batch
from ledgermq.message.hosts import Host, encode_host
from ledgermq.message.ids import UniqueIdGenerator

_PORT_LENGTH: Final = 4


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

    def single(
        self,
        topic: str,
        body: Body,
        tags: str | None,
        keys: Keys | None,
        properties: Mapping[str, str] | None,
        where: Where | None,
    ) -> SendPlan:
        """The plan of one message.

        Raises:
            InvalidArgumentError: a body, property or key that cannot be sent.
        """
        check_body(body)
        born_ms = time.time_ns() // 1_000_000
        message_id = self._ids.next(born_ms)
        text = encode_properties(message_id, tags, keys, properties)
        content = bytes(body) if isinstance(body, bytearray) else body
        return single_send(self.choice, self._group, topic, where, born_ms, message_id, text, content)

    def batch(self, topic: str, messages: Sequence[Outgoing | Body], where: Where | None) -> SendPlan:
        """The plan of a batch.

        Raises:
            InvalidArgumentError: no messages, too large in all, or one that cannot be sent.
        """
        if not messages:
            raise InvalidArgumentError("a batch of no messages")
        born_ms = time.time_ns() // 1_000_000
        message_ids, parts = [], []
        for message in messages:
            one = message if isinstance(message, Outgoing) else Outgoing(message)
            check_body(one.body)
            message_id = self._ids.next(born_ms)
            text = encode_properties(message_id, one.tags, one.keys, one.properties)
            message_ids.append(message_id)
            parts.append(BatchMessage(0, bytes(one.body), text.encode()))
        encoded = encode_batch(parts)
        if len(encoded) > BODY_BYTES_MAX:
            raise InvalidArgumentError(f"a batch of {len(encoded)} bytes, {BODY_BYTES_MAX} are allowed")
        return batch_send(self.choice, self._group, topic, where, born_ms, message_ids, encoded)

    def where(self, topic: str, queue: MessageQueue | int | None, order_key: str | None) -> Where | None:
        """What finds the one queue asked for; None for any.

        Raises:
            InvalidArgumentError: a topic name that is none, or a queue that contradicts topic or key.
        """
        if topic not in self._checked_topics:
            check_topic(topic)
            self._checked_topics.add(topic)
        if queue is None:
            return None if order_key is None else functools.partial(self.choice.by_key, topic, order_key)
        if order_key is not None:
            raise InvalidArgumentError(f"both queue {queue} and order_key {order_key!r}: either names the queue")
        if isinstance(queue, int):
            return functools.partial(self.choice.by_number, topic, queue)
        if queue.topic != topic:
            raise InvalidArgumentError(f"queue {queue} is not one of topic {topic!r}")
        return lambda: queue
