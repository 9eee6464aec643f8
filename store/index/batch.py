"""Key batch: a run of records on its way into the index.

    loop's thread    heads (88 bytes a record) and tails (topic, properties) are copied out of the log, by the thousand
    index's thread   keys are found in the tails by numpy, and hashed where they lie

What is not plain is taken apart record by record, by `index_keys`, whose rules are the same: IPv6 hosts, magic V2,
transactions, text that is not ASCII, several keys in one property.

Source: apache/rocketmq `store/.../CommitLog.java` (the DispatchRequest), `index/IndexService.java` (buildIndex, 5.3.3).
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ledgermq.message.errors import CorruptRecordError
from ledgermq.message.flags import HOST_MASK, TRANSACTION_MASK
from ledgermq.message.hashing import index_hash
from ledgermq.message.index_unit import index_keys
from ledgermq.message.record import MAGIC_V1, check_record, dispatch_fields
from store.index.hashing import Hashes, Longs, hashes_of_runs, joined_hashes
from store.index.tails import Bools, Tails

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


@dataclass(frozen=True, slots=True)
class Entries:
    """What is put into index files, an item a key: hashes, physical offsets and store times (ms) of the records."""

    hashes: Hashes
    offsets: Longs
    timestamps: Longs

    def __len__(self) -> int:
        return len(self.hashes)

    def behind(self, count: int) -> "Entries":
        """Without the first `count`."""
        return Entries(self.hashes[count:], self.offsets[count:], self.timestamps[count:])


class KeyBatch:
    """Copies of the heads and tails of some records of the log, in order. One that is damaged has no keys.

    Args:
        records: `(physical_offset, record)`, not empty; not kept.
    """

    __slots__ = ("_offsets", "_others", "_sizes", "_tails", "_timestamps")

    def __init__(self, records: Sequence[tuple[int, memoryview]]) -> None:
        offsets, views = zip(*records, strict=True)
        self._offsets = np.array(offsets, np.int64)
        sizes = np.fromiter(map(len, views), np.int64, len(views))
        heads = [view[:_HEAD_SIZE] for view in views]
        if int(sizes.min()) < _HEAD_SIZE:
            heads = [bytes(head).ljust(_HEAD_SIZE, b"\0") for head in heads]
        fields = np.frombuffer(b"".join(heads), _HEAD)
        self._timestamps = fields["stored"].astype(np.int64)
        is_rare = (fields["magic"] != MAGIC_V1) | (fields["sys_flag"] & _RARE != 0)
        starts = fields["body"].astype(np.int64) + _HEAD_SIZE
        is_left_out = is_rare | (starts < _HEAD_SIZE) | (starts + _TAIL_SIZE_MIN > sizes)
        starts[is_left_out] = sizes[is_left_out]
        self._sizes = sizes - starts
        self._tails = b"".join([view[start:] for view, start in zip(views, starts.tolist(), strict=True)])
        self._others = [(number, bytes(views[number])) for number in np.flatnonzero(is_rare).tolist()]

    def entries(self) -> Entries:
        """The keys of the records, in the log's order; of one record its unique key first."""
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
        """`(number, key hash)` of the keys of records that are not plain."""
        for number in np.flatnonzero(tails.is_whole & ~is_plain).tolist():
            yield from _hashes(number, 0, *tails.parts(number))
        for number, record in self._others:
            with contextlib.suppress(CorruptRecordError):
                check_record(record, 0, len(record), check_crc=False)
                _, _, sys_flag, _, _, timestamp, topic, properties = dispatch_fields(record, 0)
                self._timestamps[number] = timestamp
                yield from _hashes(number, sys_flag, topic, properties)


def _hashes(number: int, sys_flag: int, topic: bytes, properties: bytes) -> Iterator[tuple[int, int]]:
    prefix = topic.decode(errors="replace")
    for key in index_keys(sys_flag, properties):
        yield number, index_hash(f"{prefix}#{key.decode(errors='replace')}")
