"""The records of one log file as columns, for comparison with queues, index and checkpoint.

The scan fills a `Collector` record by record, in lists, since that is fastest in Python; `Columns` are the arrays made
of them.
"""

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ledgermq.message.flags import INNER_BATCH, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from ledgermq.message.hashing import tags_code
from ledgermq.message.layout import TOPIC_LENGTH_V1_MAX
from ledgermq.message.queue_unit import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from store.queues.queue_entries import NOT_DISPATCHED, inner_count

Ints = npt.NDArray[np.int64]

_findall = re.compile(
    rb"(?:\A|\x02)"
    rb"(TAGS|KEYS|UNIQ_KEY|DELAY|INNER_NUM|INNER_BASE|INNER_MULTI_DISPATCH|INNER_MULTI_QUEUE_OFFSET)\x01([^\x02]+)"
).findall
_LIGHT_PREFIX = b"%LMQ%"
_RARE_FLAGS = INNER_BATCH


@dataclass(frozen=True, slots=True)
class QueueName:
    """The topic as the bytes in the record, and the queue id."""

    topic: bytes
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic.decode(errors='replace')}/{self.queue_id}"


@dataclass(frozen=True, slots=True)
class Columns:
    """One item for each record, in the order of the log.

    Attributes:
        names: the queues of these records; `queues` are indexes into it.
        physical_offsets: of each record's first byte; in DLedger 48 after that of its entry.
        codes: the tags codes that their units should have.
        in_queue: False for prepared and rolled-back records, which have no unit.
        damaged: whether the body fails its CRC.
        suspect: whether the properties have zero bytes.
        keys: for the index, in the order of the log; `key_owners` are indexes of their records.
        entry_indexes, terms: DLedger's; empty in a classic log.
        batches: record -> number of its messages, for messages stored as one record.
        light: further queues of a record: (record, queue, queue offset).
    """

    names: list[QueueName]
    physical_offsets: Ints
    sizes: Ints
    queues: Ints
    queue_offsets: Ints
    codes: Ints
    timestamps: Ints
    in_queue: npt.NDArray[np.bool_]
    damaged: Ints
    suspect: Ints
    keys: list[bytes]
    key_owners: Ints
    entry_indexes: Ints
    terms: Ints
    batches: dict[int, int]
    light: list[tuple[int, QueueName, int]]

    def __len__(self) -> int:
        return len(self.physical_offsets)


@dataclass(slots=True)
class Collector:
    """Collects the columns. The scan's fast loop appends to the lists itself."""

    numbers: dict[tuple[bytes, int], int] = field(default_factory=dict)
    names: list[QueueName] = field(default_factory=list)
    physical_offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    queues: list[int] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    suspect: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    key_owners: list[int] = field(default_factory=list)
    entry_indexes: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    batches: dict[int, int] = field(default_factory=dict)
    light: list[tuple[int, QueueName, int]] = field(default_factory=list)
    has_jumped: bool = False

    def jump(self) -> None:
        """Note that entries were left out: the next one may have any index."""
        self.has_jumped = True

    def take(
        self, physical: int, size: int, queue_id: int, queue_offset: int, flags: int, timestamp: int, tail: bytes
    ) -> bool:
        """Add a V1 record. `tail` begins at its topic's length; if it is malformed, return False and add nothing."""
        topic_end = 1 + tail[0]
        start = topic_end + 2
        if tail[0] > TOPIC_LENGTH_V1_MAX or start > len(tail):
            return False
        if start + (tail[topic_end] << 8 | tail[topic_end + 1]) != len(tail):
            return False
        properties = tail[start:]
        self.add(physical, size, tail[1:topic_end], queue_id, queue_offset, flags, timestamp, properties)
        return True

    def add(
        self,
        physical: int,
        size: int,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        flags: int,
        timestamp: int,
        properties: bytes,
    ) -> None:
        """Add a record whose fields are known."""
        number = self.numbers.get((topic, queue_id))
        if number is None:
            number = self._new_queue(topic, queue_id)
        row = len(self.sizes)
        found: dict[bytes, bytes] = dict(_findall(properties))
        tags = found.get(b"TAGS")
        code = tags_code(tags) if tags is not None else 0
        if flags & _RARE_FLAGS or b"\0" in properties or b"INNER_" in properties or b"DELAY" in found:
            code = self._add_rare(row, number, flags, timestamp, found, properties, code)
        if flags & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
            unique = found.get(b"UNIQ_KEY")
            if unique is not None:
                self.keys.append(unique)
                self.key_owners.append(row)
            keys = found.get(b"KEYS")
            if keys is not None:
                texts = list(filter(None, keys.split(b" ")))
                self.keys += texts
                self.key_owners += [row] * len(texts)
        self.physical_offsets.append(physical)
        self.sizes.append(size)
        self.queues.append(number)
        self.queue_offsets.append(queue_offset)
        self.codes.append(code)
        self.timestamps.append(timestamp)
        self.flags.append(flags)

    def add_opaque(self, physical: int, size: int) -> None:
        """Add an entry of which only the place is known; it belongs to no queue and no index."""
        self.add(physical, size, b"", -1, 0, TRANSACTION_ROLLBACK, 0, b"")

    def _new_queue(self, topic: bytes, queue_id: int) -> int:
        number = self.numbers[topic, queue_id] = len(self.names)
        self.names.append(QueueName(topic, queue_id))
        return number

    def _add_rare(
        self,
        row: int,
        number: int,
        flags: int,
        timestamp: int,
        found: dict[bytes, bytes],
        properties: bytes,
        code: int,
    ) -> int:
        """Add what only some records have; return the tags code."""
        name = self.names[number]
        if b"\0" in properties:
            self.suspect.append(row)
        if flags & INNER_BATCH or b"INNER_NUM" in found:
            self.batches[row] = inner_count(found.get(b"INNER_NUM", b""))
        if b"INNER_MULTI_DISPATCH" in found and not name.topic.startswith(NOT_DISPATCHED):
            offsets = found.get(b"INNER_MULTI_QUEUE_OFFSET", b"").split(b",")
            for light, offset in zip(found[b"INNER_MULTI_DISPATCH"].split(b","), offsets, strict=False):
                queue_id = 0 if light.startswith(_LIGHT_PREFIX) else name.queue_id
                self.light.append((row, QueueName(light, queue_id), _number(offset, -1)))
        if name.topic == SCHEDULE_TOPIC and (level := _number(found.get(b"DELAY", b"")[:9], 0)) > 0:
            return timestamp + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
        return code

    def columns(self) -> Columns:
        """Return the columns as arrays."""
        return Columns(
            names=self.names,
            physical_offsets=_array(self.physical_offsets),
            sizes=_array(self.sizes),
            queues=_array(self.queues),
            queue_offsets=_array(self.queue_offsets),
            codes=_array(self.codes),
            timestamps=_array(self.timestamps),
            in_queue=(_array(self.flags) & TRANSACTION_PREPARED) == 0,
            damaged=_array(self.damaged),
            suspect=_array(self.suspect),
            keys=self.keys,
            key_owners=_array(self.key_owners),
            entry_indexes=_array(self.entry_indexes),
            terms=_array(self.terms),
            batches=self.batches,
            light=self.light,
        )


def _array(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _number(text: bytes, otherwise: int) -> int:
    return int(text) if text.isdigit() and len(text) < 19 else otherwise
