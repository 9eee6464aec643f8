"""A record before it is in the log: the sender's fields, and those that the log sets."""

from collections.abc import Sequence
from typing import Final, Self

from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.layout import (
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    SHORT,
    TOPIC_LENGTH_V1_MAX,
    needs_v2,
    record_size,
)

_V1_LENGTHS: Final = tuple(bytes([length]) for length in range(TOPIC_LENGTH_V1_MAX + 1))


class RecordDraft:
    """One message before it is encoded. One is made per message on the hot path: it has slots and validates nothing.

    A subclass may stand for several messages, each of which becomes a record of its own (`store.log.drafts`): the
    methods have the same meaning for one message and for many.

    The code that makes a draft checks the limits, sets the IPv6 bits of `sys_flag` by the hosts that the record really
    has, and computes `size` by `record_size`. The store and the log set `queue_offset`, `store_timestamp` and
    `physical_offset`.

    Attributes:
        topic: UTF-8, 1 to 255 bytes.
        queue_id: 0 or more.
        flag: application flag, opaque.
        sys_flag: bits of `ledgermq.message.flags`.
        born_timestamp: ms, client's clock.
        born_host: address bytes (4 or 16) + port as i32: 8 or 20 bytes.
        reconsume_times: 0 or more.
        prepared_transaction_offset: physical offset of the half message, or 0.
        body: as sent; at most as long as the limit of bodies.
        properties: encoded properties, at most 32767 bytes.
        tags_code: of the consume-queue unit.
        size: bytes of the whole record, or of all records.
        messages: number of messages, and so of records.
    """

    __slots__ = (
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_timestamp",
        "sys_flag",
        "tags_code",
        "topic",
    )

    topic: bytes
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes | memoryview
    properties: bytes
    tags_code: int
    size: int
    queue_offset: int
    store_timestamp: int
    physical_offset: int
    messages: int = 1

    def fill(
        self,
        topic: bytes,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        *,
        born: tuple[int, bytes],
        sys_flag: int = 0,
        tags: int = 0,
    ) -> Self:
        """Set all fields except those that the store and the log set, for a message that was never consumed.

        `born` is `born_timestamp` and `born_host`, `tags` is `tags_code`; `sys_flag` has the IPv6 bits of both hosts.
        The hot path sets the fields itself.
        """
        self.topic, self.queue_id, self.flag, self.sys_flag = topic, queue_id, 0, sys_flag
        self.born_timestamp, self.born_host = born
        self.reconsume_times = self.prepared_transaction_offset = 0
        self.body, self.properties, self.tags_code = body, properties, tags
        self.size = record_size(len(body), len(topic), len(properties), sys_flag, needs_v2(topic))
        return self

    def singles(self) -> "Sequence[RecordDraft]":
        """Return drafts of one message each, which are placed instead of this one."""
        return (self,)

    def physical_offsets(self) -> Sequence[int]:
        """Return where each record lies; valid once they are placed."""
        return (self.physical_offset,)

    def first_queue_offset(self) -> int:
        """Return the queue offset of the first message; valid once it is placed."""
        return self.queue_offset

    def sizes_of_records(self) -> Sequence[int]:
        """Return the bytes of each record."""
        return (self.size,)

    def texts_of_records(self) -> Sequence[bytes]:
        """Return the encoded properties of each record."""
        return (self.properties,)

    def pieces(self, store_host: bytes) -> Sequence[bytes | memoryview]:
        """Return the encoded record, or records, in pieces of `size` bytes together; nothing is checked.

        `store_host` has the length that `sys_flag` says (8 or 20).

        Raises:
            struct.error: a number does not fit into its field.
        """
        body = self.body
        topic = self.topic
        properties = self.properties
        topic_length = len(topic)
        head = HEADS[(self.sys_flag >> 4) & 3].pack(
            self.size,
            MAGIC_V1 if topic_length <= TOPIC_LENGTH_V1_MAX else MAGIC_V2,
            crc32(body) & CRC_MASK,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.physical_offset,
            self.sys_flag,
            self.born_timestamp,
            self.born_host,
            self.store_timestamp,
            store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            len(body),
        )
        length_field = _V1_LENGTHS[topic_length] if topic_length <= TOPIC_LENGTH_V1_MAX else SHORT.pack(topic_length)
        return head, body, length_field, topic, SHORT.pack(len(properties)), properties


def singles_of(drafts: Sequence[RecordDraft]) -> Sequence[RecordDraft]:
    """Return the messages of `drafts`, in order, as drafts of one message each."""
    return [one for draft in drafts for one in draft.singles()]
