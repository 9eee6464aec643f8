"""Drafts with their queue: of one message, or of all messages of one batch request.

    request's body   |head|body|properties|head|body|properties|...           cut once, never taken apart
    log              |head|body|topic|properties|stamp|head|...               the same records as by drafts of their own

A batch is one draft, encoded and dispatched in tight loops. It is replaced by drafts of single messages (`singles`) if
it does not fit into one file, if its records are changed before they are placed, or if the log puts a frame around
each record.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ledgermq.message.batch import Cut
from ledgermq.message.crc import CRC_MASK, crc32
from ledgermq.message.draft import RecordDraft
from ledgermq.message.layout import MAGIC_V1, MAGIC_V2, SHORT, TOPIC_LENGTH_V1_MAX
from ledgermq.message.queue_unit import UNIT
from store.queues.consume_queue import ConsumeQueue


def _middle(born: int, store: int) -> struct.Struct:
    # what all records of a batch have in common: sysFlag, born time and host, store time and host, reconsume times, 0
    return struct.Struct(f">iq{born}sq{store}siq")


_MIDDLES: Final = (_middle(8, 8), _middle(20, 8), _middle(8, 20), _middle(20, 20))
_HEADS: Final = tuple(struct.Struct(f">iiiiiqq{middle.size}si") for middle in _MIDDLES)


class QueuedDraft(RecordDraft):
    """A draft with the queue to which its record goes.

    Attributes:
        queue: queue of the draft's topic and queue id; gives the queue offset.
        tally: number of the counter for the message once it is committed; set by the code that made the draft.
        messages: as in `RecordDraft`, set by the code that made the draft: that of a class is read slowly.
    """

    __slots__ = ("messages", "queue", "tally")

    messages: int
    queue: ConsumeQueue
    tally: int | None

    def singles(self) -> "Sequence[QueuedDraft]":
        """See `RecordDraft.singles`."""
        return (self,)

    def put_units(self) -> None:
        """Put the unit of each message into the queue, once the draft is placed; errors as `ConsumeQueue.put`."""
        self.queue.put(self.physical_offset, self.size, self.tags_code, self.queue_offset)


class BatchDraft(QueuedDraft):
    """Two or more messages of one request, which get consecutive offsets of one queue.

    `body` is the body of the request, let go when the batch is dispatched. `flag`, `properties` and `tags_code` are
    not used.

    Args:
        body: of the request.
        cuts: flag, start and end of each message in `body`.
        texts: encoded properties of each message, as they are stored.
        tags_codes: tags code of each message.
        sizes: bytes of each record.

    Attributes:
        offsets: physical offset of each record; set if the batch was placed as a whole.
        parts: drafts of the single messages; set if they were placed in place of the batch.
    """

    __slots__ = ("cuts", "offsets", "parts", "sizes", "tags_codes", "texts")

    def __init__(
        self,
        body: bytes | memoryview,
        cuts: Sequence[Cut],
        texts: Sequence[bytes],
        tags_codes: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        self.body, self.cuts, self.texts, self.tags_codes, self.sizes = body, cuts, texts, tags_codes, sizes
        self.messages = len(sizes)
        self.size = sum(sizes)
        self.prepared_transaction_offset = 0
        self.offsets: Sequence[int] = ()
        self.parts: Sequence[QueuedDraft] = ()

    def first_queue_offset(self) -> int:
        """See `RecordDraft.first_queue_offset`."""
        return self.parts[0].queue_offset if self.parts else self.queue_offset

    def physical_offsets(self) -> Sequence[int]:
        """See `RecordDraft.physical_offsets`."""
        return [part.physical_offset for part in self.parts] if self.parts else self.offsets

    def sizes_of_records(self) -> Sequence[int]:
        """See `RecordDraft.sizes_of_records`."""
        return [part.size for part in self.parts] if self.parts else self.sizes

    def texts_of_records(self) -> Sequence[bytes]:
        """See `RecordDraft.texts_of_records`."""
        return self.texts

    def put_units(self) -> None:
        """Put the units as `QueuedDraft.put_units` does, and let the body go."""
        if self.parts:
            self.store_timestamp = self.parts[0].store_timestamp
            self.offsets, self.sizes = self.physical_offsets(), self.sizes_of_records()
            self.parts = ()
        self.body = b""
        queue, queue_offset = self.queue, self.queue_offset
        if queue_offset == queue.max_offset:
            queue.extend(b"".join(map(UNIT.pack, self.offsets, self.sizes, self.tags_codes)))
            return
        units = zip(self.offsets, self.sizes, self.tags_codes, strict=True)  # a second try, or the queue begins here
        for number, unit in enumerate(units, queue_offset):
            queue.put(*unit, number)

    def singles(self) -> Sequence[QueuedDraft]:
        """Make, keep in `parts` and return a draft for each message, with its queue offset if the batch has one."""
        first = getattr(self, "queue_offset", 0)
        view = memoryview(self.body)
        self.parts = [
            self._part(flag, view[start:end], number, first + number)
            for number, (flag, start, end) in enumerate(self.cuts)
        ]
        return self.parts

    def _part(self, flag: int, body: memoryview, number: int, queue_offset: int) -> QueuedDraft:
        part = QueuedDraft()
        part.messages = 1
        part.topic, part.queue_id, part.queue, part.tally = self.topic, self.queue_id, self.queue, self.tally
        part.sys_flag, part.born_timestamp, part.born_host = self.sys_flag, self.born_timestamp, self.born_host
        part.reconsume_times = self.reconsume_times
        part.prepared_transaction_offset = self.prepared_transaction_offset
        part.flag, part.body, part.properties = flag, body, self.texts[number]
        part.tags_code, part.size = self.tags_codes[number], self.sizes[number]
        part.queue_offset = queue_offset
        return part

    def pieces(self, store_host: bytes) -> Sequence[bytes | memoryview]:
        """See `RecordDraft.pieces`; the bytes are those of the single drafts."""
        index = (self.sys_flag >> 4) & 3
        pack, pack_short = _HEADS[index].pack, SHORT.pack
        middle = _MIDDLES[index].pack(
            self.sys_flag, self.born_timestamp, self.born_host, self.store_timestamp, store_host,
            self.reconsume_times, self.prepared_transaction_offset,
        )  # fmt: skip
        topic, queue_id, view = self.topic, self.queue_id, memoryview(self.body)
        is_v1 = len(topic) <= TOPIC_LENGTH_V1_MAX
        magic = MAGIC_V1 if is_v1 else MAGIC_V2
        topic = (bytes((len(topic),)) if is_v1 else pack_short(len(topic))) + topic
        queue_offset = self.queue_offset
        self.parts = ()
        self.offsets = list(accumulate(self.sizes[:-1], initial=self.physical_offset))
        pieces: list[bytes | memoryview] = []
        for (flag, start, end), text, size, offset in zip(self.cuts, self.texts, self.sizes, self.offsets, strict=True):
            body = view[start:end]
            head = pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, middle, end - start)
            pieces += (head, body, topic, pack_short(len(text)), text)
            queue_offset += 1
        return pieces
