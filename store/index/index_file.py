"""Index file: one file of the index. Entries are appended by the descriptor, slots are stored into the mapping.

    entries written ---> slots point to them ---> header counts them ---> sync

Entries never change once written, and slots are derived from them: after a crash the slots are made again from the
entries that the checkpoint covers (`cut_to`). The header and the slots have their blocks from the start, so that a full
disk is an exception and never a SIGBUS. Queries read by the descriptor: full files are not mapped. The byte tables
are in `ledgermq.message.index_unit`.

Owned by one thread. Source: apache/rocketmq `store/.../index/IndexFile.java` (5.3.3), putKey and selectPhyOffset; files
are byte for byte what these make.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ledgermq.message.index_unit import (
    ENTRY,
    ENTRY_SIZE,
    FIRST_ENTRY,
    HEADER,
    HEADER_SIZE,
    SECONDS_MAX,
    SLOT,
    SLOT_SIZE,
    IndexHeader,
    IndexLayout,
    read_header,
)
from store.errors import StoreFormatError
from store.index.batch import Entries
from store.index.file_bytes import FileBytes
from store.record_tails import Longs

ENTRY_TYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT_TYPE = np.dtype(">i4")
_CHAIN_STEPS_MAX = 2048
_SCANNED_ENTRIES = 1 << 16
"""Looked at in one call of numpy, which may hold the GIL: about a millisecond."""


@dataclass(frozen=True, slots=True)
class QueryRange:
    """Which entries a query wants: key hash and store times, both ends (ms) included."""

    key_hash: int
    begin: int
    end: int


class IndexFile:
    """One file, opened or (when missing or empty) created; mapped only while it is written.

    Args:
        start: end timestamp and end offset of the file before a new one; (0, 0) for none.

    Attributes:
        header: as in the file.

    Raises:
        StoreFormatError: another length, or an entry count that the length does not allow.
        DiskFullError, DiskFailedError, DiskReadError: it cannot be made or read.
    """

    __slots__ = ("_bytes", "_is_dirty", "_slots", "header", "layout", "path")

    def __init__(self, path: Path, layout: IndexLayout, start: tuple[int, int] = (0, 0)) -> None:
        self.path = path
        self.layout = layout
        self._slots: NDArray[np.int32] | None = None
        self._is_dirty = False
        self._bytes = FileBytes(path)
        try:
            self.header = self._prepare(start)
        except BaseException:
            self._bytes.close()
            raise

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.header.entry_count}/{self.layout.entries}>"

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be put."""
        return self.header.entry_count >= self.layout.entries

    # -- writing

    def put(self, given: Entries) -> int:
        """Append as many entries as there is room for; return how many. On an error none counts as appended.

        Raises:
            DiskFullError, DiskFailedError: try again with the same entries, or not.
        """
        first = self.header.entry_count
        count = min(len(given), self.layout.entries - first)
        if count <= 0:
            return 0
        hashes, offsets, timestamps = given.hashes[:count], given.offsets[:count], given.timestamps[:count]
        entries = np.empty(count, ENTRY_TYPE)
        entries["hash"], entries["offset"] = hashes, offsets
        entries["seconds"] = self._seconds(timestamps)
        order, is_head = _by_slot(hashes % self.layout.slots)
        slots = (hashes % self.layout.slots)[order]
        heads = slots[is_head]
        newest = self._newest(heads, first)
        previous = np.empty(count, np.int32)
        previous[1:] = order[:-1] + first
        previous[is_head] = newest
        entries["previous"][order] = previous
        self._bytes.write(entries.tobytes(), self.layout.entry_at(first))
        table = self._map_slots()
        is_tail = np.append(is_head[1:], True)
        table[heads] = order[is_tail] + first
        begins = first > FIRST_ENTRY
        self._store_header(
            IndexHeader(
                self.header.begin_timestamp if begins else int(timestamps[0]),
                int(timestamps[-1]),
                self.header.begin_offset if begins else int(offsets[0]),
                int(offsets[-1]),
                self.header.slot_count + int(np.count_nonzero(newest == 0)),
                first + count,
            )
        )
        return count

    def cut_to(self, entry_count: int, end_timestamp: int | None = None) -> None:
        """Drop the entries from number `entry_count` on, and make every slot point to what is left.

        Args:
            entry_count: 1 or more; entries below it are whole.
            end_timestamp: store time of the last entry's record, ms; what its seconds say where it is not known.

        Raises:
            DiskFullError, DiskFailedError: the file is to be cut again before it is used.
        """
        entry_count = min(entry_count, self.layout.entries)
        self._bytes.clear_from(self.layout.entry_at(entry_count))
        table = self._map_slots()
        if entry_count != self.header.entry_count or bool(((table < 0) | (table >= entry_count)).any()):
            self._rebuild_slots(table, entry_count)
        used = int(np.count_nonzero(table != 0))
        if entry_count <= FIRST_ENTRY:
            self._store_header(IndexHeader(self.header.begin_timestamp, self.header.begin_timestamp))
            return
        (last,) = self.entries(entry_count - 1, entry_count)
        begin = self.header.begin_timestamp
        if end_timestamp is None:
            end_timestamp = begin + int(last["seconds"]) * 1000
        header = IndexHeader(begin, end_timestamp, self.offset_of(FIRST_ENTRY), int(last["offset"]), used, entry_count)
        self._store_header(header)

    def sync(self) -> None:
        """Make all that was put durable.

        Raises:
            DiskFailedError: the sync failed; it is never to be tried again.
        """
        if self._is_dirty:
            self._bytes.sync()
            self._is_dirty = False

    # -- reading

    def entries(self, start: int, stop: int) -> NDArray[np.void]:
        """Return a copy of the entries of numbers `[start, stop)`.

        Raises:
            DiskReadError: the disk cannot read them.
        """
        return np.frombuffer(self._bytes.read(self.layout.entry_at(start), (stop - start) * ENTRY_SIZE), ENTRY_TYPE)

    def offset_of(self, number: int) -> int:
        """Return the physical offset of one entry's record; errors as `entries`."""
        return int(self.entries(number, number + 1)["offset"][0])

    def find(self, window: QueryRange, count_max: int) -> list[int]:
        """Physical offsets of matching entries, newest first, at most `count_max`. Keys may collide.

        An entry's time is known to the second: one that may be after `begin` counts, as does one that may be
        before `end`.

        Raises:
            DiskReadError: as `entries`.
        """
        if not self._overlaps(window):
            return []
        layout, begin = self.layout, self.header.begin_timestamp
        found: list[int] = []
        limit = self.header.entry_count
        (number,) = SLOT.unpack(self._bytes.read(layout.slot_at(window.key_hash), SLOT_SIZE))
        for _ in range(_CHAIN_STEPS_MAX):
            if not FIRST_ENTRY <= number < limit or len(found) >= count_max:
                return found
            key_hash, offset, seconds, previous = ENTRY.unpack(self._bytes.read(layout.entry_at(number), ENTRY_SIZE))
            timestamp = begin if number == FIRST_ENTRY else begin + seconds * 1000
            if timestamp + 999 < window.begin:
                return found
            if key_hash == window.key_hash and timestamp <= window.end:
                found.append(offset)
            limit = number  # a chain leads back only
            number = previous
        return found + self._scan(window, limit, count_max - len(found))

    def _scan(self, window: QueryRange, limit: int, count_max: int) -> list[int]:
        """Find entries below `limit` in bulk: chains of frequent keys have millions of entries."""
        found: list[int] = []
        begin = self.header.begin_timestamp
        for stop in range(limit, FIRST_ENTRY, -_SCANNED_ENTRIES):
            if len(found) >= count_max:
                break
            some = self.entries(max(stop - _SCANNED_ENTRIES, FIRST_ENTRY), stop)
            some = some[some["hash"] == window.key_hash]
            times = begin + some["seconds"].astype(np.int64) * 1000
            some = some[(times + 999 >= window.begin) & (times <= window.end)]
            found += some["offset"][::-1].tolist()
        return found[: max(count_max, 0)]

    def _overlaps(self, window: QueryRange) -> bool:
        header = self.header
        is_empty = header.entry_count <= FIRST_ENTRY
        return not is_empty and window.begin <= header.end_timestamp and window.end >= header.begin_timestamp

    # -- closing

    def unmap(self) -> None:
        """Free the address space; the next `put` maps again."""
        self._slots = None
        self._bytes.unmap()

    def close(self) -> None:
        """Unmap and close."""
        self._slots = None
        self._bytes.close()

    def delete(self) -> None:
        """Close and remove. The caller syncs the directory."""
        self.close()
        self.path.unlink(missing_ok=True)

    # -- inside

    def _prepare(self, start: tuple[int, int]) -> IndexHeader:
        """Check the file, or make it; return its header."""
        size, wanted = self._bytes.size_bytes, self.layout.file_size
        if size not in (0, wanted):
            detail = f"is {size} bytes long, must be {wanted} (maxHashSlotNum and maxIndexNum give the length)"
            raise StoreFormatError(self.path, detail)
        if size == 0:
            return self._create(start)
        header = read_header(self._bytes.read(0, HEADER_SIZE))
        if header.entry_count > self.layout.entries:
            raise StoreFormatError(
                self.path, f"its header counts {header.entry_count} entries, it has room for {self.layout.entries}"
            )
        return header

    def _create(self, start: tuple[int, int]) -> IndexHeader:
        timestamp, offset = start
        header = IndexHeader(timestamp, timestamp, offset, offset)
        try:
            self._bytes.set_size(self.layout.file_size)
            self._store_header(header)
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise
        return header

    def _map_slots(self) -> NDArray[np.int32]:
        if self._slots is None:
            buffer = self._bytes.map(self.layout.entries_at)
            self._slots = np.frombuffer(buffer, _SLOT_TYPE, self.layout.slots, HEADER_SIZE)
        return self._slots

    def _newest(self, slots: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return the newest entry of each slot, 0 where it has none below `limit`."""
        newest = self._map_slots()[slots].astype(np.int32)
        newest[(newest < 0) | (newest >= limit)] = 0
        return newest

    def _seconds(self, timestamps: Longs) -> Longs:
        """Return seconds since the begin timestamp; for the first entry since the previous file's end, as in Java."""
        begin = self.header.begin_timestamp
        if self.header.entry_count > FIRST_ENTRY:
            return _seconds_since(begin, timestamps)
        seconds = _seconds_since(int(timestamps[0]), timestamps)
        seconds[:1] = _seconds_since(begin, timestamps[:1])
        return seconds

    def _store_header(self, header: IndexHeader) -> None:
        HEADER.pack_into(self._bytes.map(self.layout.entries_at), 0, *header)
        self.header = header
        self._is_dirty = True

    def _rebuild_slots(self, table: NDArray[np.int32], entry_count: int) -> None:
        """Point every slot to its newest entry below `entry_count`; of equal slots numpy stores the last one."""
        table[:] = 0
        for start in range(FIRST_ENTRY, entry_count, _SCANNED_ENTRIES):
            stop = min(start + _SCANNED_ENTRIES, entry_count)
            hashes = self.entries(start, stop)["hash"].astype(np.int32)
            table[hashes % self.layout.slots] = np.arange(start, stop, dtype=np.int32)


def _by_slot(slots: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return positions ordered by slot, older ones first, and which of them begin a slot's run."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_head = np.empty(len(slots), np.bool_)
    is_head[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_head[1:])
    return order, is_head


def _seconds_since(begin: int, timestamps: Longs) -> Longs:
    if begin <= 0:
        return np.zeros(len(timestamps), np.int64)
    return np.clip((timestamps - begin) // 1000, 0, SECONDS_MAX)
