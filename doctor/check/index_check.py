"""Checks index files: each by itself (`check_index_file`), and against the keys of the log's records (`check_keys`).

    header | slots | entries     an entry's `previous` is the entry before it with the same slot, and the slot has the
                                 number of the last one: all links follow from the hashes alone

The links of a whole file are computed at once and compared. Keys are compared as pairs (physical offset, hash), in the
range of one log file. The byte tables are in `ledgermq.message.index_unit`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from doctor.check.columns import Columns, Ints
from doctor.check.findings import Fault
from doctor.read.directory import StoreLayout
from doctor.read.index_layout import infer_layout
from doctor.read.raw_file import FileWindow
from ledgermq.index_files import ENTRY, index_hashes, link, prefix_hash
from ledgermq.message.hashing import java_string_hash
from ledgermq.message.index_unit import (
    ENTRY_SIZE,
    FILE_NAME_DIGITS,
    HEADER_SIZE,
    SLOT_SIZE,
    IndexHeader,
    IndexLayout,
    read_header,
)

_HASH_BITS: Final = 31


@dataclass(frozen=True, slots=True)
class IndexHandle:
    """An index file with a plausible header."""

    path: Path
    layout: IndexLayout
    header: IndexHeader

    @property
    def count(self) -> int:
        """Number of entries in use."""
        return min(self.header.entry_count, self.layout.entries) - 1

    def entries(self, first: int, count: int) -> npt.NDArray[np.void]:
        """Return the entries `[first, first + count)`; the first entry of the file has number 1.

        Raises:
            OSError: the disk cannot read them.
        """
        with FileWindow(self.path) as window:
            return np.frombuffer(window.read(self.layout.entry_at(first), count * ENTRY_SIZE), ENTRY)

    def range(self, low: int, high: int) -> npt.NDArray[np.void]:
        """Return the entries of records in `[low, high)`, by bisection if the entries are in the order of the log."""
        first, end = self.bisect(low), self.bisect(high)
        return self.entries(first, end - first)

    def bisect(self, offset: int) -> int:
        """Return the number of the first entry whose record is at or past `offset`."""
        low, high = 1, self.count + 1
        with FileWindow(self.path) as window:
            while low < high:
                middle = (low + high) // 2
                entry = np.frombuffer(window.read(self.layout.entry_at(middle), ENTRY_SIZE), ENTRY)
                if len(entry) and entry["offset"][0] < offset:
                    low = middle + 1
                else:
                    high = middle
        return low


def list_index(root: Path) -> list[Path]:
    """Return the index files, oldest first; files with other names are left out."""
    folder = root / "index"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and _is_index_name(path.name))


def open_index(path: Path) -> IndexHandle:
    """Read the header, and find out how many slots the file has.

    Raises:
        ValueError: no index file has this length.
        OSError: the disk cannot read it.
    """
    with FileWindow(path) as window:
        header = read_header(window.read(0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
        return IndexHandle(path, infer_layout(window, header), header)


def check_index_file(name: str, path: Path) -> tuple[list[Fault], int]:
    """Check the file by itself; return its faults and the number of its entries."""
    try:
        handle = open_index(path)
        if not 1 <= handle.header.entry_count <= handle.layout.entries:
            detail = f"its header counts {handle.header.entry_count} entries, it has room for {handle.layout.entries}"
            return [Fault(name, 36, "index-header", detail)], 0
        return _check_links(name, handle), handle.count
    except ValueError as error:
        return [Fault(name, 0, "bad-length", str(error))], 0
    except OSError as error:
        return [Fault(name, 0, "read-error", error.strerror or str(error))], 0


def _check_links(name: str, handle: IndexHandle) -> list[Fault]:
    entries = handle.entries(1, handle.count)
    slots = entries["hash"].astype(np.int64) % handle.layout.slots
    heads = np.zeros(handle.layout.slots, np.int32)
    previous = link(slots, heads)
    faults = []
    bad = np.flatnonzero(entries["previous"] != previous)
    if len(bad):
        at = handle.layout.entry_at(int(bad[0]) + 1) + 16
        detail = (
            f"{len(bad)} entries, the first is {int(bad[0]) + 1}: its link points at {int(entries['previous'][bad[0]])}"
        )
        faults.append(Fault(name, at, "index-chain", f"{detail}, should point at {int(previous[bad[0]])}"))
    with FileWindow(handle.path) as window:
        stored = np.frombuffer(window.read(HEADER_SIZE, handle.layout.slots * SLOT_SIZE), ">i4")
    bad = np.flatnonzero(stored != heads)
    if len(bad):
        detail = f"{len(bad)} slots, the first is {int(bad[0])}: has {int(stored[bad[0]])}"
        detail += f", should have {int(heads[bad[0]])}"
        faults.append(Fault(name, HEADER_SIZE + int(bad[0]) * SLOT_SIZE, "index-chain", detail))
    return faults + _check_header(name, handle, entries["offset"], int(np.count_nonzero(heads)))


def _check_header(name: str, handle: IndexHandle, offsets: Ints, used: int) -> list[Fault]:
    header = handle.header
    faults = []
    if header.slot_count != used:
        detail = f"its header counts {header.slot_count} used slots, {used} are used"
        faults.append(Fault(name, 32, "index-header", detail))
    if len(offsets) and (header.begin_offset, header.end_offset) != (offsets[0], offsets[-1]):
        detail = f"header: offsets {header.begin_offset} to {header.end_offset}, entries: {offsets[0]} to {offsets[-1]}"
        faults.append(Fault(name, 16, "index-header", detail))
    if len(offsets) and not 0 < header.begin_timestamp <= header.end_timestamp:
        detail = f"its header has impossible times {header.begin_timestamp} to {header.end_timestamp}"
        faults.append(Fault(name, 0, "index-header", detail))
    return faults


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """The keys of one log file compared with the index.

    Attributes:
        missing: first physical offset and number of the keys without an entry.
        torn: rows for which the index has keys that the record does not have.
    """

    faults: list[Fault]
    missing: tuple[int, int] | None
    torn: set[int]


def key_hashes(columns: Columns) -> Ints:
    """Return the index hash of every key."""
    if not columns.keys:
        return np.zeros(0, np.int64)
    prefixes = np.array([prefix_hash(name.topic) for name in columns.names], np.uint32)
    return index_hashes(prefixes[columns.queues[columns.key_owners]], columns.keys)


def check_keys(
    layout: StoreLayout,
    handles: list[IndexHandle],
    columns: Columns,
    optional: npt.NDArray[np.bool_],
    start: int,
    end: int,
) -> KeyCheck:
    """Compare the keys of the records of `[start, end)` with the index entries that point there.

    `optional` marks the records whose keys may be missing.
    """
    offsets = columns.physical_offsets[columns.key_owners]
    wanted = (offsets - start) << _HASH_BITS | key_hashes(columns)
    parts = [(handle, handle.range(start, end)) for handle in handles if _overlaps(handle, start, end)]
    stored = [(part["offset"].astype(np.int64) - start) << _HASH_BITS | part["hash"] for _, part in parts]
    everything = np.concatenate([np.zeros(0, np.int64), *stored])
    if np.array_equal(wanted, everything):
        return KeyCheck([], None, set())
    lacks = ~np.isin(wanted, everything)
    lacking = np.flatnonzero(lacks & ~optional[columns.key_owners])
    extra = [np.flatnonzero(~np.isin(pairs, wanted)) for pairs in stored]
    torn: set[int] = set()
    faults = []
    rows = {int(offset): row for row, offset in enumerate(columns.physical_offsets)} if any(map(len, extra)) else {}
    for (handle, part), bad in zip(parts, extra, strict=True):
        bad = np.array([at for at in bad if not _is_tag(columns, rows, part[at])], np.int64)
        if len(bad):
            torn |= {rows[int(offset)] for offset in part["offset"][bad] if int(offset) in rows}
            faults.append(_extra(layout, handle, part[bad[0]], start, len(bad)))
    missing = (int(offsets[lacking[0]]), len(lacking)) if len(lacking) else None
    return KeyCheck(
        faults, missing, torn & set(columns.key_owners[lacks].tolist()) | torn & set(columns.suspect.tolist())
    )


def _extra(layout: StoreLayout, handle: IndexHandle, entry: npt.NDArray[np.void], start: int, count: int) -> Fault:
    offset = int(entry["offset"])
    first = handle.range(offset, offset + 1)
    number = handle.bisect(offset) + int(np.flatnonzero(first["hash"] == entry["hash"])[0])
    detail = (
        f"{count} entries for records of the log file at {start} that have no such key; the first points at {offset}"
    )
    return Fault(layout.name(handle.path), handle.layout.entry_at(number), "index-wrong", detail)


def _is_tag(columns: Columns, rows: dict[int, int], entry: npt.NDArray[np.void]) -> bool:
    """Return whether an entry is for a tag, which newer releases index: its hash follows from the tags code."""
    row = rows.get(int(entry["offset"]))
    if row is None or not columns.codes[row]:
        return False
    prefix = java_string_hash(columns.names[columns.queues[row]].topic.decode(errors="replace") + "#T#")
    # the tag's length is not known: a hash over n more units is multiplied by 31 ** n
    return any(
        abs(_signed(prefix * pow(31, n, 1 << 32) + int(columns.codes[row]))) == int(entry["hash"])
        for n in range(1, 256)
    )


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _overlaps(handle: IndexHandle, start: int, end: int) -> bool:
    return handle.count > 0 and handle.header.begin_offset < end and handle.header.end_offset >= start


def _is_index_name(name: str) -> bool:
    return len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit()
