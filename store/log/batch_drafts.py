"""Batch drafts: the messages of one batch request as one draft, encoded and dispatched in tight loops.

    request's body   |head|body|properties|head|body|properties|...           cut once, never taken apart
    log              |head|body|topic|properties|stamp|head|...               the same records as by drafts of their own

A batch is taken apart into drafts of single messages (`parts`) if it does not fit into one file, if its records are
changed before they are placed, or if the log puts a frame around each record.
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
"""Bytes of memory that the properties of one message need beside their length, with the message's numbers."""


class BatchDraft(QueuedDraft):
    """Messages of one request, which get consecutive offsets of one queue.

    `body` is the body of the request and `size` the bytes of all records; `flag`, `properties` and `tags_code` are not
    used. `body` is emptied when the batch is dispatched.

    Attributes:
        cuts: flag, start and end of each message in `body`.
        texts: encoded properties of each message, as they are stored.
        tags_codes: tags code of each message.
        sizes: bytes of each record.
        offsets: physical offset of each record; set if the batch was placed as a whole.
        parts: drafts of the single messages; set, and placed instead of the batch, if it had to be taken apart.
    """

    __slots__ = ("cuts", "offsets", "parts", "sizes", "tags_codes", "texts")

    cuts: list[Cut]
    texts: list[bytes]
    tags_codes: list[int]
    sizes: list[int]
    offsets: list[int]
    parts: list[QueuedDraft]

    def first_queue_offset(self) -> int:
        """Return the queue offset of the first message; valid once the batch is placed."""
        return self.parts[0].queue_offset if self.parts else self.queue_offset

    def physical_offsets(self) -> list[int]:
        """Return the physical offset of each record; valid once the batch is placed."""
        return [part.physical_offset for part in self.parts] if self.parts else self.offsets

    def units(self) -> bytes:
        """Return the encoded consume queue units of all messages; valid once the batch is placed."""
        return b"".join(map(UNIT.pack, self.physical_offsets(), self.sizes, self.tags_codes))

    def take_apart(self) -> list[QueuedDraft]:
        """Set and return `parts`: one draft a message, with its queue offset if the batch has one already."""
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
    """Drafts of which at least one is a `BatchDraft`. Code that handles batches differently tests the list's type."""

    def messages(self) -> int:
        """Return the number of messages in all drafts."""
        return sum(len(draft.sizes) if type(draft) is BatchDraft else 1 for draft in self)

    def held_bytes(self) -> int:
        """Return the bytes of memory that the drafts keep in use once they are dispatched."""
        return sum(
            sum(map(len, draft.texts)) + _TEXT_BYTES * len(draft.texts) if type(draft) is BatchDraft else draft.size
            for draft in self
        )

    def taken_apart(self) -> list[QueuedDraft]:
        """Return the same messages as drafts of single messages."""
        drafts: list[QueuedDraft] = []
        for draft in self:
            if type(draft) is BatchDraft:
                drafts += draft.take_apart()
            else:
                drafts.append(draft)
        return drafts

    def as_placed(self) -> Sequence[QueuedDraft]:
        """Return the drafts that were placed: these, or single ones if all batches were taken apart."""
        if not any(draft.parts for draft in self if type(draft) is BatchDraft):
            return self
        return [one for draft in self for one in (draft.parts if type(draft) is BatchDraft else (draft,))]


def apart(drafts: Sequence[QueuedDraft]) -> Sequence[QueuedDraft]:
    """Return `drafts` with the batches among them taken apart."""
    return drafts.taken_apart() if isinstance(drafts, MixedDrafts) else drafts


def encode_mixed(drafts: Sequence[RecordDraft], start: int, timestamp: int, store_host: bytes) -> bytes:
    """Stamp drafts with their physical offsets, from `start` on, and the store time (ms); return their records."""
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
    """Append the pieces of each message's record to `pieces`; the bytes are those of `write_draft`."""
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
