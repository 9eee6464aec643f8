"""Key batch: a run of records on its way into the index.

    loop's thread    tails (topic, properties) are copied by the thousand: out of drafts, or out of the log
    index's thread   keys are found in the tails by numpy, and hashed where they lie

What is not plain is taken apart record by record, by `index_keys`, whose rules are the same: IPv6 hosts, magic V2,
transactions, text that is not ASCII, several keys in one property.

Source: apache/rocketmq `store/.../CommitLog.java` (the DispatchRequest), `index/IndexService.java` (buildIndex, 5.3.3).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ledgermq.message.draft import RecordDraft
from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK, TRANSACTION_MASK
from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import index_keys
from ledgermq.message.layout import TOPIC_LENGTH_V1_MAX
from ledgermq.message.record import MAGIC_V1, check_record, dispatch_fields
from store.files.mapped_file import MappedFile
from store.record_tails import Bools, Hashes, Longs, Tails, hashes_of_runs, joined_hashes, windows
from store.recovery.record_batches import RecordBatch

_HEAD_SIZE = 88
_HEAD = np.dtype(
    {
        "names": ["magic", "sys_flag", "stored", "body"],
        "formats": [">i4", ">i4", ">i8", ">i4"],
        "offsets": [4, 36, 56, 84],
        "itemsize": _HEAD_SIZE,
    }
)
_RARE = HOST_MASK | TRANSACTION_MASK
_TAIL_SIZE_MIN = 3
_LENGTHS = tuple(bytes((length,)) for length in range(TOPIC_LENGTH_V1_MAX + 1))

Other = tuple[int, int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of index files, one a key: hashes, physical offsets and store times (ms) of the records."""

    hashes: Hashes
    offsets: Longs
    timestamps: Longs

    def __len__(self) -> int:
        return len(self.hashes)

    def behind(self, count: int) -> "Entries":
        """Return the entries without the first `count`."""
        return Entries(self.hashes[count:], self.offsets[count:], self.timestamps[count:])


class KeyBatch:
    """Topics and properties of some records of the log, in order, as `records_batch` and `drafts_batch` make them.

    Args:
        offsets: physical offset of each.
        timestamps: store time of each, ms.
        tails: of those that are not `others`, one behind the other.
        sizes: bytes of each tail; 0 where there is none.
        others: `(number, sysFlag, topic, properties)` of those that are taken apart one by one.
    """

    __slots__ = ("_offsets", "_others", "_sizes", "_tails", "_timestamps")

    def __init__(self, offsets: Longs, timestamps: Longs, tails: bytes, sizes: Longs, others: Sequence[Other]) -> None:
        self._offsets = offsets
        self._timestamps = timestamps
        self._tails = tails
        self._sizes = sizes
        self._others = others

    def entries(self) -> Entries:
        """Return the entries of the records' keys, in the log's order; of each record, its unique key first."""
        tails = Tails(self._tails, self._sizes)
        unique, keys = tails.values(b"UNIQ_KEY"), tails.values(b"KEYS")
        is_plain = tails.is_plain
        is_plain[keys.numbers[tails.has_space(keys)]] = False
        topics = tails.topic_hashes()
        numbers, hashes = [], []
        for found in (unique, keys):
            values = found.only(is_plain[found.numbers])
            numbers.append(values.numbers)
            raw = hashes_of_runs(tails.units, values.starts, values.lengths)
            hashes.append(joined_hashes(topics[values.numbers], raw, values.lengths))
        one_by_one = list(self._one_by_one(tails, is_plain))
        numbers.append(np.array([number for number, _ in one_by_one], np.int64))
        hashes.append(np.array([value for _, value in one_by_one], np.int32))
        return self._in_order(np.concatenate(numbers), np.concatenate(hashes))

    def _in_order(self, numbers: Longs, hashes: Hashes) -> Entries:
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        return Entries(hashes[order], self._offsets[numbers], self._timestamps[numbers])

    def _one_by_one(self, tails: Tails, is_plain: Bools) -> Iterator[tuple[int, int]]:
        """Yield `(number, key hash)` of the keys of records that are not plain."""
        for number in np.flatnonzero(tails.is_whole & ~is_plain).tolist():
            yield from _hashes(number, 0, *tails.parts(number))
        for other in self._others:
            yield from _hashes(*other)


def records_batch(records: Sequence[tuple[int, memoryview]]) -> KeyBatch:
    """Return a batch copied from `(physical_offset, record)` pairs, at least one; damaged records have no keys."""
    offsets, views = zip(*records, strict=True)
    sizes = np.fromiter(map(len, views), np.int64, len(views))
    heads = [view[:_HEAD_SIZE] for view in views]
    if int(sizes.min()) < _HEAD_SIZE:
        heads = [bytes(head).ljust(_HEAD_SIZE, b"\0") for head in heads]
    fields = np.frombuffer(b"".join(heads), _HEAD)
    timestamps = fields["stored"].astype(np.int64)
    is_rare = (fields["magic"] != MAGIC_V1) | (fields["sys_flag"] & _RARE != 0)
    starts = fields["body"].astype(np.int64) + _HEAD_SIZE
    is_left_out = is_rare | (starts < _HEAD_SIZE) | (starts + _TAIL_SIZE_MIN > sizes)
    starts[is_left_out] = sizes[is_left_out]
    tails = b"".join([view[start:] for view, start in zip(views, starts.tolist(), strict=True)])
    others = []
    for number in np.flatnonzero(is_rare).tolist():
        with contextlib.suppress(CorruptRecordError):
            check_record(views[number], 0, len(views[number]), check_crc=False)
            _, _, sys_flag, _, _, timestamps[number], topic, properties = dispatch_fields(views[number], 0)
            others.append((number, sys_flag, topic, properties))
    return KeyBatch(np.array(offsets, np.int64), timestamps, tails, sizes - starts, others)


def log_batch(file: MappedFile, batch: RecordBatch) -> KeyBatch:
    """Return the batch of records of a log that is read by the batch, at least one."""
    heads = batch.heads
    is_rare = ~batch.common | (heads["sys_flag"] & _RARE != 0)
    timestamps = heads["stored"].astype(np.int64)
    tails_at = np.where(is_rare, batch.ends, batch.tails)
    sizes = batch.ends - tails_at
    size = int(sizes[0])
    if size and (sizes == size).all():
        tails = windows(np.frombuffer(file.view, np.uint8), size)[tails_at].tobytes()
    else:
        buffer = file.buffer
        tails = b"".join([buffer[at:end] for at, end in zip(tails_at.tolist(), batch.ends.tolist(), strict=True)])
    others = []
    for number in np.flatnonzero(is_rare).tolist():
        record = file.view[int(batch.starts[number]) : int(batch.ends[number])]
        with contextlib.suppress(CorruptRecordError):
            check_record(record, 0, len(record), check_crc=False)
            _, _, sys_flag, _, _, timestamps[number], topic, properties = dispatch_fields(record, 0)
            others.append((number, sys_flag, topic, properties))
    return KeyBatch(batch.starts + file.start_offset, timestamps, tails, sizes, others)


def drafts_batch(drafts: Sequence[RecordDraft]) -> KeyBatch:
    """Return the batch of records that this node wrote from these drafts, without reading the log."""
    offsets: list[int] = []
    timestamps: list[int] = []
    tails: list[bytes] = []
    sizes: list[int] = []
    others: list[Other] = []
    for draft in drafts:
        topic = draft.topic
        is_other = draft.sys_flag & TRANSACTION_MASK or len(topic) > TOPIC_LENGTH_V1_MAX
        if draft.messages > 1:
            texts, first = draft.texts_of_records(), len(offsets)
            offsets += draft.physical_offsets()
            timestamps += [draft.store_timestamp] * len(texts)
            if is_other:
                sizes += [0] * len(texts)
                others += [(number, draft.sys_flag, topic, text) for number, text in enumerate(texts, first)]
            else:
                head = _LENGTHS[len(topic)] + topic + b"\0\0"
                before = len(head)
                sizes += [before + len(text) for text in texts]
                tails += (head, head.join(texts))
            continue
        if is_other:
            sizes.append(0)
            others.append((len(offsets), draft.sys_flag, topic, draft.properties))
        else:
            properties = draft.properties
            sizes.append(len(topic) + len(properties) + 3)
            tails += (_LENGTHS[len(topic)], topic, b"\0\0", properties)
        offsets.append(draft.physical_offset)
        timestamps.append(draft.store_timestamp)
    columns = [np.array(column, np.int64) for column in (offsets, timestamps, sizes)]
    return KeyBatch(columns[0], columns[1], b"".join(tails), columns[2], others)


def _hashes(number: int, sys_flag: int, topic: bytes, properties: bytes) -> Iterator[tuple[int, int]]:
    prefix = topic.decode(errors="replace")
    for key in index_keys(sys_flag, properties):
        yield number, index_hash(f"{prefix}#{key.decode(errors='replace')}")
