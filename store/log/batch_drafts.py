"""A batch's messages as one draft, from the request to the queue: what is per message is done in tight loops.

    request's body   |head|body|properties|head|body|properties|...           cut once, never taken apart
    log              |head|body|topic|properties|stamp|head|...               the same records as by drafts of their own

A batch that lies in several files, whose records are changed before they are placed, or whose log gives each record a
frame, is taken apart into drafts of single messages (`parts`).
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
from ledgermq.message.record import write_draft
from store.log.queued_draft import QueuedDraft


def _middle(born: int, store: int) -> struct.Struct:
    # what all records of a batch have in common: sysFlag, born time and host, store time and host, reconsume times, 0
    return struct.Struct(f">iq{born}sq{store}siq")


_MIDDLES: Final = (_middle(8, 8), _middle(20, 8), _middle(8, 20), _middle(20, 20))
_HEADS: Final = tuple(struct.Struct(f">iiiiiqq{middle.size}si") for middle in _MIDDLES)


_TEXT_BYTES: Final = 100
"""What one text costs beside its length, with the numbers that belong to it."""


class BatchDraft(QueuedDraft):
    """Messages of one request, one behind the other in one queue.

    `body` is the request's, `size` that of all records; `flag`, `properties` and `tags_code` say nothing. What a placed
    record has is told by the methods. Once dispatched it has no body any more.

    Attributes:
        cuts: of each message.
        texts: encoded properties of each, as they are stored.
        tags_codes: of each.
        sizes: bytes of each record.
        offsets: physical offset of each record, if it is placed as a whole.
        parts: the same as drafts of single messages, if it had to be taken apart; they are what is placed.
    """

    __slots__ = ("cuts", "offsets", "parts", "sizes", "tags_codes", "texts")

    cuts: list[Cut]
    texts: list[bytes]
    tags_codes: list[int]
    sizes: list[int]
    offsets: list[int]
    parts: list[QueuedDraft]

    def first_queue_offset(self) -> int:
        """Once placed."""
        return self.parts[0].queue_offset if self.parts else self.queue_offset

    def physical_offsets(self) -> list[int]:
        """Of each record, once placed."""
        return [part.physical_offset for part in self.parts] if self.parts else self.offsets

    def units(self) -> bytes:
        """The units of its queue, once placed as a whole."""
        return b"".join(map(UNIT.pack, self.physical_offsets(), self.sizes, self.tags_codes))

    def take_apart(self) -> list[QueuedDraft]:
        """Make `parts`, as if each message had come alone; queue offsets are given if this has some."""
        first = getattr(self, "queue_offset", 0)
        view = memoryview(self.body)
        self.parts = [
            self._part(flag, view[start:end], number, first + number)
            for number, (flag, start, end) in enumerate(self.cuts)
        ]
        return self.parts

    def _part(self, flag: int, body: memoryview, number: int, queue_offset: int) -> QueuedDraft:
        part = QueuedDraft()
        part.topic, part.queue_id, part.queue, part.tally = self.topic, self.queue_id, self.queue, self.tally
        part.sys_flag, part.born_timestamp, part.born_host = self.sys_flag, self.born_timestamp, self.born_host
        part.reconsume_times = self.reconsume_times
        part.prepared_transaction_offset = self.prepared_transaction_offset
        part.flag, part.body, part.properties = flag, body, self.texts[number]
        part.tags_code, part.size = self.tags_codes[number], self.sizes[number]
        part.queue_offset = queue_offset
        return part


class MixedDrafts(list[QueuedDraft]):
    """Drafts with at least one `BatchDraft` among them; what has to know of them looks at the type of the list."""

    def messages(self) -> int:
        """How many there are in all."""
        return sum(len(draft.sizes) if type(draft) is BatchDraft else 1 for draft in self)

    def held_bytes(self) -> int:
        """Memory that they keep from others once dispatched."""
        return sum(
            sum(map(len, draft.texts)) + _TEXT_BYTES * len(draft.texts) if type(draft) is BatchDraft else draft.size
            for draft in self
        )

    def taken_apart(self) -> list[QueuedDraft]:
        """Drafts of single messages."""
        drafts: list[QueuedDraft] = []
        for draft in self:
            if type(draft) is BatchDraft:
                drafts += draft.take_apart()
            else:
                drafts.append(draft)
        return drafts

    def as_placed(self) -> Sequence[QueuedDraft]:
        """These, or those that were placed instead of them. They are all taken apart, or none is."""
        if not any(draft.parts for draft in self if type(draft) is BatchDraft):
            return self
        return [one for draft in self for one in (draft.parts if type(draft) is BatchDraft else (draft,))]


def apart(drafts: Sequence[QueuedDraft]) -> Sequence[QueuedDraft]:
    """`drafts`, batches among them taken apart."""
    return drafts.taken_apart() if isinstance(drafts, MixedDrafts) else drafts


def encode_mixed(drafts: Sequence[RecordDraft], start: int, timestamp: int, store_host: bytes) -> bytes:
    """The records of drafts placed from physical offset `start` on at a time (ms), which are stamped with both."""
    pieces: list[bytes | bytearray | memoryview] = []
    for draft in drafts:
        draft.physical_offset = start
        draft.store_timestamp = timestamp
        start += draft.size
        if type(draft) is BatchDraft:
            _encode(draft, store_host, pieces)
        else:
            buffer = bytearray(draft.size)
            write_draft(buffer, 0, draft, store_host)
            pieces.append(buffer)
    return b"".join(pieces)


def _encode(batch: BatchDraft, store_host: bytes, pieces: list[bytes | bytearray | memoryview]) -> None:
    """As `write_draft` for each message."""
    index = (batch.sys_flag >> 4) & 3
    pack, pack_short = _HEADS[index].pack, SHORT.pack
    middle = _MIDDLES[index].pack(
        batch.sys_flag, batch.born_timestamp, batch.born_host, batch.store_timestamp, store_host,
        batch.reconsume_times, batch.prepared_transaction_offset,
    )  # fmt: skip
    topic, queue_id, view = batch.topic, batch.queue_id, memoryview(batch.body)
    is_v1 = len(topic) <= TOPIC_LENGTH_V1_MAX
    magic = MAGIC_V1 if is_v1 else MAGIC_V2
    topic = (bytes((len(topic),)) if is_v1 else pack_short(len(topic))) + topic
    queue_offset = batch.queue_offset
    batch.parts = []
    batch.offsets = list(accumulate(batch.sizes[:-1], initial=batch.physical_offset))
    for (flag, start, end), text, size, offset in zip(batch.cuts, batch.texts, batch.sizes, batch.offsets, strict=True):
        body = view[start:end]
        head = pack(size, magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, offset, middle, end - start)
        pieces += (head, body, topic, pack_short(len(text)), text)
        queue_offset += 1
