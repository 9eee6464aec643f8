"""The table of undecided half messages, read from the half and op topics on the leader. Pure.

    half topic: record --add--> open ---end (op record, or END_TRANSACTION)---> decided
                  '-- a copy stored for a check replaces the one that it was made of

A copy names the first record of its message, so that one that was sent twice is two, which are decided apart.
Copies of RocketMQ, and of releases up to the one that began to name it, name none: they are known by their keys.

Progress is the same as RocketMQ's: the first open offset of the half topic, and the first op record that names one at
or behind it. It does not pass records that the disk could not read: they are read later, or deleted with their log.

Source: apache/rocketmq `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (5.3.3).
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from ledgermq.message.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQ_KEY
from ledgermq.message.record import Record

CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
ORIGINAL: Final = "TRAN_PREPARED_QUEUE_OFFSET"
OP_SEPARATOR: Final = ","
_UNREAD: Final = 1 << 63
"""Stands for the greatest half offset that an op record names, while that record cannot be read."""

_SENDS_MAX: Final = 64
"""Open sends of one message among which the one is looked for of which a copy was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One undecided message.

    Attributes:
        first: physical offset of the message's first record; later copies keep it.
        born_ms: when its producer made it, ms since the epoch; later copies keep it.
        check_times: how often its producer was asked.
        immunity_ms: age in ms below which its producer is not asked; None: the broker's setting.
        original: queue offset of its first record, in a copy that RocketMQ made within the immunity; else None.
        is_copy: stored for a check, within the immunity, or since it was given up and put back.
    """

    queue_offset: int
    physical_offset: int
    first: int
    born_ms: int
    topic: str
    group: str
    unique_key: str
    check_times: int
    immunity_ms: int | None
    original: int | None = None
    is_copy: bool = False

    @property
    def names_none(self) -> bool:
        """Whether this is a copy that does not name the message's first record."""
        return self.is_copy and bool(self.unique_key) and self.first == self.physical_offset

    @property
    def key(self) -> tuple[str, str, str]:
        """What all copies of the message share, and other sends of it."""
        return self.topic, self.group, self.unique_key


def half_of(record: Record, timeout_ms: int) -> Half:
    """Return the half message in a record of the half topic; its own immunity counts as at least `timeout_ms`."""
    properties = record.property_map
    immunity = properties.get(IMMUNITY_SECONDS)
    return Half(
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        first=record.prepared_transaction_offset or record.physical_offset,
        born_ms=record.born_timestamp,
        topic=properties.get(REAL_TOPIC, ""),
        group=properties.get(PRODUCER_GROUP, ""),
        unique_key=properties.get(UNIQ_KEY, ""),
        check_times=_number(properties.get(CHECK_TIMES)) or 0,
        immunity_ms=None if immunity is None else max((_number(immunity) or 0) * 1000, timeout_ms),
        original=_number(properties.get(ORIGINAL)),
        is_copy=CHECK_TIMES in properties or ORIGINAL in properties,
    )


class OpenHalves:
    """The open half messages.

    Attributes:
        half_end: next queue offset of the half topic to read; the reader moves it.
        op_end: next queue offset of the op topic to read; `end_all` moves it.
        unread: queue offsets of half messages that were passed over, by physical offset.
        unread_ops: queue offsets of op records that were passed over.
    """

    def __init__(self, half_start: int = 0, op_start: int = 0) -> None:
        self._open: dict[int, Half] = {}
        self._latest: dict[int, int] = {}  # queue offset of the open copy, by the first record's physical offset
        self._by_key: dict[tuple[str, str, str], list[int]] = {}  # first records of open messages
        self._unnamed: dict[tuple[str, str, str], int] = {}  # of one with a copy that names none
        self._originals: dict[int, int] = {}  # by `Half.original`
        self._ops: deque[tuple[int, int]] = deque()  # op offset, greatest half offset that it names
        self.half_end = half_start
        self.op_end = op_start
        self.unread: dict[int, int] = {}
        self.unread_ops: list[int] = []

    def __len__(self) -> int:
        return len(self._open)

    def halves(self) -> list[Half]:
        """Return all open half messages, in the order of the half topic."""
        return sorted(self._open.values(), key=lambda half: half.queue_offset)

    def add(self, half: Half) -> Half | None:
        """Add the half message of a record; return the earlier copy that it replaces."""
        self.unread.pop(half.first, None)  # this one, or of which this is a copy
        earlier, names_none = self._source_of(half), half.names_none
        if earlier is not None:
            names_none = names_none or self._unnamed.get(half.key) == earlier.first
            self._remove(earlier)
        self._open[half.queue_offset] = half
        self._latest[half.first] = half.queue_offset
        if len(firsts := self._by_key.setdefault(half.key, [])) < _SENDS_MAX:
            firsts.append(half.first)
        if names_none:
            self._unnamed[half.key] = half.first
        if half.original is not None:
            self._originals[half.original] = half.first
        return earlier

    def _source_of(self, half: Half) -> Half | None:
        """Return the open copy of which this one was made; if it names none, the oldest that may be."""
        if not half.names_none:
            return self.find(half.first)
        for first in self._by_key.get(half.key, ()):
            other = self.find(first)
            assert other is not None, first
            is_same = half.original is not None and half.original in (other.queue_offset, other.original)
            if is_same or other.check_times < half.check_times:
                return other
        return None

    def end(self, half: Half) -> None:
        """Remove a half message that is decided or given up."""
        self._remove(half)

    def end_all(self, op_offset: int, body: bytes) -> list[Half]:
        """Remove the half messages that an op record names; returns those that were open."""
        offsets = op_offsets(body)
        ended = []
        for offset in offsets:
            half = self._open.get(offset) or self.find(self._originals.get(offset, -1))
            if half is not None:
                self._remove(half)
                ended.append(half)
        if self.unread:
            gone = set(offsets)
            self.unread = {place: offset for place, offset in self.unread.items() if offset not in gone}
        named = op_offset, max([*offsets, *(half.queue_offset for half in ended)], default=-1)
        if op_offset in self.unread_ops:
            self.unread_ops.remove(op_offset)
            self._ops = deque(named if op[0] == op_offset else op for op in self._ops)
        else:
            self._ops.append(named)
            self.op_end = op_offset + 1
        return ended

    def pass_over_op(self, op_offset: int) -> None:
        """Note an op record that cannot be read; `end_all` takes it when it can."""
        self.unread_ops.append(op_offset)
        self._ops.append((op_offset, _UNREAD))
        self.op_end = op_offset + 1

    def find(self, first: int) -> Half | None:
        """Return the open copy of the message with this first record; None when it is decided."""
        return self._open.get(self._latest.get(first, -1))

    def find_copy_of(self, half: Half) -> Half | None:
        """Return the open copy of a message, of which this is one, or an earlier one; None when it is decided."""
        return self.find(half.first) or self.find(self._unnamed.get(half.key, -1))

    def is_open(self, half: Half) -> bool:
        """Return whether exactly this copy is open."""
        return self._open.get(half.queue_offset) is half

    def progress(self) -> tuple[int, int]:
        """Queue offsets of the half and the op topic from which this table can be rebuilt."""
        half_start = min([*self._open, *self.unread.values()], default=self.half_end)
        while self._ops and self._ops[0][1] < half_start:
            self._ops.popleft()
        return half_start, self._ops[0][0] if self._ops else self.op_end

    def _remove(self, half: Half) -> None:
        if self._open.pop(half.queue_offset, None) is None:
            return
        del self._latest[half.first]
        firsts = self._by_key.get(half.key, [])
        if half.first in firsts:
            firsts.remove(half.first)
            if not firsts:
                del self._by_key[half.key]
        if self._unnamed.get(half.key) == half.first:
            del self._unnamed[half.key]
        if half.original is not None and self._originals.get(half.original) == half.first:
            del self._originals[half.original]


def op_offsets(body: bytes) -> list[int]:
    """Return the half offsets in an op record's body: decimal, separated or followed by commas."""
    words = body.decode(errors="replace").split(OP_SEPARATOR)
    return [number for word in words if (number := _number(word)) is not None]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 18 else None
