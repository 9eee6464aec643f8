"""A message as a consumer reads it: a view of the record that the broker sent."""

from collections.abc import Mapping
from typing import Any

import orjson

from ledgermq.client.core.compression import decompress
from ledgermq.client.errors import UndecodableError
from ledgermq.message.flags import COMPRESSED
from ledgermq.message.hosts import Host
from ledgermq.message.properties import RETRY_TOPIC
from ledgermq.message.record import Record
from ledgermq.remoting.route import MessageQueue


class Message:
    """One stored message. Rarely used values are computed when they are asked for.

    Attributes:
        queue: the queue it was read from: topic, broker name, queue id.
        record: the record as the broker stores it, for fields without a property here.
    """

    __slots__ = ("_inflated", "queue", "record")

    def __init__(self, record: Record, queue: MessageQueue) -> None:
        self.record = record
        self.queue = queue
        self._inflated: bytes | None = None

    def __repr__(self) -> str:
        return f"<Message {self.message_id} {self.queue}@{self.queue_offset} {len(self.record.body)} bytes>"

    @property
    def body(self) -> bytes:
        """The bytes that the sender gave, decompressed.

        Raises:
            CompressionUnavailableError: the module of its codec is not installed; names the module.
            UndecodableError: the compressed bytes are corrupt.
        """
        record = self.record
        if not record.sys_flag & COMPRESSED:
            return record.body
        if self._inflated is None:
            self._inflated = decompress(record.body, record.sys_flag)
        return self._inflated

    def json(self) -> Any:
        """Return the value of a JSON body.

        Raises:
            UndecodableError: the body is not JSON, or cannot be decompressed.
        """
        body = self.body
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise UndecodableError(f"{self!r}: its body is not JSON: {error}") from error

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including those that RocketMQ itself sets."""
        return self.record.property_map

    @property
    def message_id(self) -> str:
        """The id that the sender gave (UNIQ_KEY): the same on every copy that a retried send has stored.

        It is the offset message id when the sender gave none.
        """
        return self.record.unique_id or self.record.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id of this stored copy: the storing broker's address and the physical offset."""
        return self.record.offset_message_id

    @property
    def topic(self) -> str:
        """The topic it was first sent to, also when it was read from the group's retry topic."""
        return self.record.property_map.get(RETRY_TOPIC) or self.record.topic

    @property
    def tags(self) -> str | None:
        """The tag; None if it has none."""
        return self.record.tags

    @property
    def keys(self) -> list[str]:
        """The business keys; an empty list if there are none."""
        return self.record.keys

    @property
    def queue_id(self) -> int:
        return self.queue.queue_id

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue."""
        return self.record.queue_offset

    @property
    def born_timestamp_ms(self) -> int:
        """When it was sent, by the sender's clock, in Unix milliseconds."""
        return self.record.born_timestamp

    @property
    def store_timestamp_ms(self) -> int:
        """When it was stored, by the broker's clock, in Unix milliseconds."""
        return self.record.store_timestamp

    @property
    def expects_reply(self) -> bool:
        """Whether it was sent by `Producer.request`, so that `Producer.reply` can answer it."""
        return "REPLY_TO_CLIENT" in self.record.property_map

    @property
    def born_host(self) -> Host:
        """The sender's address as the broker saw it."""
        return self.record.born_host

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back for another try."""
        return self.record.reconsume_times
