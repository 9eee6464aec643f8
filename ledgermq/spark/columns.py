"""Columns of a block of records as Arrow arrays, made by numpy: no Python object for a common record.

    data   | head | body | . | topic | .. | properties | head | body | ...
    body          |______|                                    |______|        one binary array whose offsets cut it so;
                  take 0   1                                  take 2 ...      the column is every second piece of it

Records with IPv6 hosts or magic V2 are decoded one by one and put in their places.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.message.crc import crc32
from ledgermq.message.frames import HEAD_SIZE, Bools, Bytes, Ints, Structs
from ledgermq.message.record import Record, decode_record, dispatch_fields
from ledgermq.spark.parts import Block

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "phys_offset": pa.int64(),
    "size": pa.int32(),
    "msg_id": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "born_ts": TIMESTAMP,
    "store_ts": TIMESTAMP,
    "reconsume_times": pa.int32(),
    "sys_flag": pa.int32(),
    "properties": PROPERTIES,
    "body": pa.binary(),
    "record": pa.binary(),
    "record_crc": pa.int64(),
    "damage": pa.string(),
}
"""Every column of a record, in order; `record` is its bytes in the log, `record_crc` see `record_crcs`."""

SQL_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
    PROPERTIES: "map<string,string>",
}

_NUMBERS: Final = {
    "queue_id": ("queue_id", np.int32),
    "queue_offset": ("queue_offset", np.int64),
    "phys_offset": ("physical", np.int64),
    "size": ("size", np.int32),
    "reconsume_times": ("reconsumed", np.int32),
    "sys_flag": ("sys_flag", np.int32),
}
_TIMES: Final = {"born_ts": "born", "store_ts": "stored"}
_NAMED: Final = {"keys": "KEYS", "tags": "TAGS"}
_HEX: Final = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), np.uint8).reshape(256, 2)
_ONE, _TWO = 1, 2
_VIEW_BYTES: Final = 12
_COUNTED_MAX: Final = 8
"""How many times as long as the list of properties a table of (record, name) may be, which is cheaper than a sort."""


def record_batch(block: Block, names: Sequence[str], broker: str | None, rows: Ints | None = None) -> pa.RecordBatch:
    """Return the columns `names` of some records of a block, in order; of all records where `rows` is None."""
    if rows is None:
        rows = np.arange(len(block.starts))
    common = block.common[rows]
    if common.all():
        return _common_batch(block, rows, names, broker)
    rare = rows[~common]
    parts = [_common_batch(block, rows[common], names, broker), _decoded_batch(block, rare, names, broker)]
    order = np.argsort(np.concatenate((np.flatnonzero(common), np.flatnonzero(~common))), kind="stable")
    table = pa.Table.from_batches(parts).take(pa.array(order)).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else parts[0]


class Want:
    """Which records are wanted; bounds are half-open, None means any. Times are ms since 1970."""

    def __init__(
        self,
        topics: Sequence[str] = (),
        queues: Sequence[int] = (),
        offsets: tuple[int | None, int | None] = (None, None),
        times: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self._topics = frozenset(topic.encode() for topic in topics)
        self._queues = np.array(sorted(queues), np.int64)
        self._offsets = offsets
        self._times = times

    def rows(self, block: Block) -> Ints:
        """Return the wanted rows of a block, in order."""
        queue_ids, offsets, times = (
            block.heads[name].astype(np.int64) for name in ("queue_id", "queue_offset", "stored")
        )
        for row in np.flatnonzero(~block.common).tolist():
            _, queue_ids[row], _, offsets[row], _, times[row], *_ = dispatch_fields(block.record(row), 0)
        fits = np.ones(len(block.starts), np.bool_)
        if len(self._queues):
            fits &= np.isin(queue_ids, self._queues)
        for values, (low, high) in ((offsets, self._offsets), (times, self._times)):
            if low is not None:
                fits &= values >= low
            if high is not None:
                fits &= values < high
        rows = np.flatnonzero(fits)
        return rows[self._has_topic(block, rows)] if self._topics else rows

    def _has_topic(self, block: Block, rows: Ints) -> Bools:
        common = block.common[rows]
        found = np.zeros(len(rows), np.bool_)
        topics = _topics(block, rows[common]).dictionary_encode()
        wanted = np.array([value in self._topics for value in topics.dictionary.to_pylist()], np.bool_)
        if len(wanted):
            found[common] = wanted[topics.indices.to_numpy()]
        for place in np.flatnonzero(~common).tolist():
            found[place] = dispatch_fields(block.record(int(rows[place])), 0)[6] in self._topics
        return found


def damage_batch(names: Sequence[str], broker: str | None, physical: int, length: int, detail: str) -> pa.RecordBatch:
    """Return the one row that stands for bytes that are no records; all but place, size and damage is null."""
    row = {"broker": broker, "phys_offset": physical, "size": min(length, (1 << 31) - 1), "damage": detail}
    return pa.RecordBatch.from_arrays([pa.array([row.get(name)], TYPES[name]) for name in names], list(names))


def _common_batch(block: Block, rows: Ints, names: Sequence[str], broker: str | None) -> pa.RecordBatch:
    is_all = len(rows) == len(block.starts)
    heads = block.heads if is_all else block.heads[rows]
    named = not {"keys", "tags", "msg_id", "properties"}.isdisjoint(names)
    properties = _Properties(_properties(block, rows)) if named else None
    arrays = [_column(block, rows, heads, name, broker, properties) for name in names]
    return pa.RecordBatch.from_arrays(arrays, list(names))


def _column(
    block: Block, rows: Ints, heads: Structs, name: str, broker: str | None, properties: "_Properties | None"
) -> pa.Array:
    if name in _NUMBERS:
        field, kind = _NUMBERS[name]
        return pa.array(heads[field].astype(kind))
    if name in _TIMES:
        return pa.array(heads[_TIMES[name]].astype(np.int64) * 1000).view(TIMESTAMP)
    if name == "topic":
        return _text(_topics(block, rows))
    if name == "body":
        return _slices(block.data, block.starts[rows] + HEAD_SIZE, block.tails[rows])
    if name == "record":
        return _slices(block.data, block.starts[rows], block.ends[rows])
    if name == "record_crc":
        return pa.array(record_crcs(block, rows))
    if name == "broker":
        return repeated(broker, len(rows))
    if name == "damage":
        if not block.faults:
            return repeated(None, len(rows))
        return pa.array([block.faults.get(row) for row in rows.tolist()], pa.string())
    assert properties is not None
    if name == "properties":
        return properties.column()
    if name == "msg_id":
        unique = properties.values("UNIQ_KEY")
        if not unique.null_count:
            return unique
        return pc.coalesce(unique, _offset_ids(heads["store_host"], heads["physical"]))
    return properties.values(_NAMED[name])


def _decoded_batch(block: Block, rows: Ints, names: Sequence[str], broker: str | None) -> pa.RecordBatch:
    decode = functools.partial(decode_record, check_crc=False, topic_errors="replace")
    found = [(row, decode(block.record(row))) for row in rows.tolist()]
    fields: dict[str, Callable[[int, Record], Any]] = {
        "topic": lambda _, record: record.topic,
        "broker": lambda *_: broker,
        "queue_id": lambda _, record: record.queue_id,
        "queue_offset": lambda _, record: record.queue_offset,
        "phys_offset": lambda _, record: record.physical_offset,
        "size": lambda _, record: record.size,
        "msg_id": lambda _, record: record.unique_id or record.offset_message_id,
        "keys": lambda _, record: record.property_map.get("KEYS"),
        "tags": lambda _, record: record.tags,
        "born_ts": lambda _, record: record.born_timestamp * 1000,
        "store_ts": lambda _, record: record.store_timestamp * 1000,
        "reconsume_times": lambda _, record: record.reconsume_times,
        "sys_flag": lambda _, record: record.sys_flag,
        "properties": lambda _, record: list(record.property_map.items()),
        "body": lambda _, record: record.body,
        "record": lambda row, _: block.record(row),
        "record_crc": lambda row, _: int(record_crcs(block, np.array([row]))[0]),
        "damage": lambda row, _: block.faults.get(row),
    }
    arrays = [
        pa.array([fields[name](row, record) for row, record in found], TYPES[name]) for name in names
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, list(names))


def record_crcs(block: Block, rows: Ints) -> Ints:
    """Return the CRC-32 of the bytes of each of these records without its physical offset.

    Copies of a record are equal by it, also in logs where another record before them is missing.
    """
    view, crc_of = block.data.data, crc32
    places = zip(block.starts[rows].tolist(), block.ends[rows].tolist(), strict=True)
    crcs = (crc_of(view[start + 36 : end], crc_of(view[start : start + 28])) for start, end in places)
    return np.fromiter(crcs, np.int64, len(rows))


def may_have_properties(block: Block, text: bytes) -> bool:
    """Return whether a text is among the properties of any record, or anywhere in one that is not common."""
    packed = _properties(block, np.flatnonzero(block.common)).buffers()[2]
    others = np.flatnonzero(~block.common).tolist()
    return (packed is not None and text in packed.to_pybytes()) or any(text in block.record(row) for row in others)


def repeated(value: str | None, count: int) -> pa.Array:
    """Return a column of one text."""
    return pa.repeat(pa.scalar(value, pa.string()), count)


def _topics(block: Block, rows: Ints) -> pa.Array:
    tails = block.tails[rows]
    return _slices(block.data, tails + 1, tails + 1 + block.data[tails])


def _properties(block: Block, rows: Ints) -> pa.Array:
    tails = block.tails[rows]
    return _slices(block.data, tails + 1 + block.data[tails] + 2, block.ends[rows])


def _slices(data: Bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Return the bytes `[begin, end)` of each row as a binary array; rows must rise and not overlap."""
    offsets = np.empty(2 * len(begins) + 1, np.int32)
    offsets[:-1:2], offsets[1::2] = begins, ends
    offsets[-1] = len(data)
    cut = pa.BinaryArray.from_buffers(pa.binary(), 2 * len(begins), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return cut.take(pa.array(np.arange(0, 2 * len(begins), 2)))


def views(data: Bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Return the bytes `[begin, end)` of each row as a binary view array, which keeps `data` and copies no long value.

    A view is 16 bytes: the length, then up to 12 bytes of a value, or of a longer one 4 bytes, buffer and place.
    """
    found = np.zeros((len(begins), 4), "<i4")
    found[:, 0] = lengths = ends - begins
    found[:, 1] = np.ndarray((len(data) - 3,), "<i4", data, 0, (1,))[np.minimum(begins, len(data) - 4)]
    found[:, 3] = begins
    texts = found.view(np.uint8)[:, 4:]
    for row in np.flatnonzero(lengths <= _VIEW_BYTES).tolist():
        texts[row] = 0
        texts[row, : lengths[row]] = data[begins[row] : ends[row]]
    return pa.Array.from_buffers(pa.binary_view(), len(begins), [None, pa.py_buffer(found), pa.py_buffer(data)])


def _text(found: pa.Array) -> pa.Array:
    """Return the bytes as text; what is no UTF-8 becomes U+FFFD, as in Java."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode(errors="replace") for value in found.to_pylist()], pa.string())


def _offset_ids(hosts: Any, physical: Any) -> pa.Array:
    """Return the offset ids: store host and physical offset as 32 hex digits."""
    count = len(hosts)
    raw = np.empty((count, 16), np.uint8)
    raw[:, :8] = np.ascontiguousarray(hosts).view(np.uint8).reshape(count, 8)
    raw[:, 8:] = np.ascontiguousarray(physical.astype(">i8")).view(np.uint8).reshape(count, 8)
    digits = np.ascontiguousarray(_HEX[raw]).reshape(count * 32)
    offsets = np.arange(0, 32 * count + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))


class _Properties:
    """The properties of some records, `name 0x01 value 0x02` repeated; the last 0x02 may be missing.

    The rules are those of `ledgermq.message.properties`: a name's last value counts, an empty name or value is absent.
    """

    def __init__(self, packed: pa.Array) -> None:
        _, offsets_buffer, data_buffer = packed.buffers()
        bounds = np.frombuffer(offsets_buffer, np.int32)[: len(packed) + 1].astype(np.int64)
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
        data = data[: bounds[-1]]
        starts, ends = _segments(data, bounds)
        rows = np.repeat(np.arange(len(packed)), np.diff(np.searchsorted(starts, bounds)))
        middles = np.flatnonzero(data == _ONE)
        if len(middles) != len(starts) or not ((starts < middles) & (middles + 1 < ends)).all():
            middles = np.append(middles, len(data))
            middles = middles[np.searchsorted(middles, starts)]
            fits = (starts < middles) & (middles + 1 < ends)
            rows, starts, middles, ends = rows[fits], starts[fits], middles[fits], ends[fits]
        names = _slices(data, starts, middles).dictionary_encode()
        if (kept := _last_of_each(rows, names)) is not None:
            rows, names, middles, ends = rows[kept], names.take(pa.array(kept)), middles[kept], ends[kept]
        self._count, self._data, self._rows = len(packed), data, rows
        self._names, self._codes = names.dictionary, names.indices
        self._begins, self._ends = middles + 1, ends

    def values(self, name: str) -> pa.Array:
        """Return the value of one property each; null without it."""
        code = self._names.index(name.encode()).as_py()
        found = np.flatnonzero(self._codes.to_numpy() == code)
        values = _text(_slices(self._data, self._begins[found], self._ends[found]))
        if len(found) == self._count:
            return values
        numbers = np.full(self._count, -1, np.int64)
        numbers[self._rows[found]] = np.arange(len(found))
        return values.take(pa.array(numbers, mask=numbers < 0))

    def column(self) -> pa.Array:
        """Return a map each."""
        counts = np.bincount(self._rows, minlength=self._count)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int32)
        values = _text(_slices(self._data, self._begins, self._ends))
        names = _text(self._names).take(self._codes)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(PROPERTIES)


def _last_of_each(rows: Ints, names: pa.DictionaryArray) -> Ints | None:
    """Return which properties stay, in order, where a record has a name twice; None if no record has."""
    numbers = rows * max(len(names.dictionary), 1) + names.indices.to_numpy().astype(np.int64)
    if not len(numbers) or (numbers[-1] < _COUNTED_MAX * len(numbers) and np.bincount(numbers).max() == 1):
        return None
    last = np.unique(numbers[::-1], return_index=True)[1]
    return np.sort(len(numbers) - 1 - last)


def _segments(data: Bytes, offsets: Ints) -> tuple[Ints, Ints]:
    """Return start and end of each property, in order; some may be empty or lack a 0x01."""
    separators = np.flatnonzero(data == _TWO)
    row_ends = offsets[1:][offsets[1:] > offsets[:-1]]
    unclosed = row_ends[data[row_ends - 1] != _TWO]
    if not len(unclosed):
        return np.concatenate((np.zeros(min(len(separators), 1), np.int64), separators[:-1] + 1)), separators
    ends = np.concatenate((unclosed, separators))  # in this order, since the next record may begin with a 0x02
    order = np.argsort(ends, kind="stable")
    ends = ends[order]
    skips = np.concatenate((np.zeros(len(unclosed), np.int64), np.ones(len(separators), np.int64)))[order]
    return np.concatenate((np.zeros(1, np.int64), (ends + skips)[:-1])), ends
