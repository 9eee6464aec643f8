"""`diff`: the first record in which two replicas differ.

    A  |=====================|====X====|==========        compared byte by byte where both have records;
    B  |=====================|=========|======            the first byte that differs leads to its record

Replicas have the same bytes at the same offsets, classic or DLedger. Bytes after a filler are not compared, and a
replica that is shorter, or has deleted old files, is not different for that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from doctor.read.decoded import Found, as_json, as_text
from doctor.read.directory import StoreLayout, UnreadableError
from doctor.read.raw_file import CHUNK_BYTES, FileWindow, as_bytes
from doctor.read.walk import end_of, walk_file


@dataclass(frozen=True, slots=True)
class Side:
    """One replica at the place of the difference: its record, or None if it has none there."""

    name: str
    found: Found | None

    def as_json(self) -> dict[str, Any] | None:
        """Return the record, decoded."""
        return None if self.found is None else as_json(self.found, self.found.decode())

    def as_text(self) -> str:
        """Return a line for a person."""
        return "no record there" if self.found is None else as_text(self.found, self.found.decode())


@dataclass(frozen=True, slots=True)
class Difference:
    """The first byte that differs, and the record that contains it, on both sides."""

    offset: int
    record_offset: int
    sides: tuple[Side, Side]
    fields: list[str]

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        a, b = (side.as_json() for side in self.sides)
        return {"offset": self.offset, "record_offset": self.record_offset, "fields": self.fields, "a": a, "b": b}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The range `[start, end)` that was compared, the ends of both logs, and the difference, if any."""

    start: int
    end: int
    ends: tuple[int, int]
    difference: Difference | None


def compare(a: StoreLayout, b: StoreLayout) -> Comparison:
    """Compare two replicas.

    Raises:
        UnreadableError: they are of two kinds, or have no range in common.
    """
    if a.kind != b.kind or a.log_file_size != b.log_file_size:
        detail = f"{a.kind} with files of {a.log_file_size}, {b.kind} with files of {b.log_file_size}"
        raise UnreadableError(f"{a.root} and {b.root} cannot be replicas of one log: {detail}")
    ends = end_of(a), end_of(b)
    start = max(layout.log_files[0].start if layout.log_files else 0 for layout in (a, b))
    end = min(ends)
    if start > end:
        raise UnreadableError(f"{a.root} ends at {ends[0]}, {b.root} at {ends[1]}; the other begins at {start}")
    return Comparison(start, end, ends, _first_difference(a, b, start, end))


def _first_difference(a: StoreLayout, b: StoreLayout, start: int, end: int) -> Difference | None:
    others = {file.start: file for file in b.log_files}
    for file in a.log_files:
        other = others.get(file.start)
        if file.start + file.length <= start or file.start >= end:
            continue
        if other is None:
            return _difference(a, b, file.start)
        with FileWindow(file.path) as left, FileWindow(other.path) as right:
            stop = min(end - file.start, file.length)
            at = _first_byte(left, right, stop)
        if at is not None and (found := _difference(a, b, file.start + at)) is not None:
            return found
    return None


def _first_byte(left: FileWindow, right: FileWindow, stop: int) -> int | None:
    for at in range(0, stop, CHUNK_BYTES):
        size = min(CHUNK_BYTES, stop - at)
        x, y = left.read(at, size), right.read(at, size)
        if x != y:
            if len(x) != len(y):
                return at + min(len(x), len(y))
            return at + int(np.flatnonzero(as_bytes(x) != as_bytes(y))[0])
    return None


def _difference(a: StoreLayout, b: StoreLayout, offset: int) -> Difference | None:
    """Return the records around an offset; None where it lies after the fillers of both."""
    left, right = _record_around(a, offset), _record_around(b, offset)
    if left is None and right is None:
        return None
    record_offset = min(found.offset for found in (left, right) if found is not None)
    sides = Side(a.root.name, left), Side(b.root.name, right)
    return Difference(offset, record_offset, sides, _fields(sides))


def _record_around(layout: StoreLayout, offset: int) -> Found | None:
    for file in layout.log_files:
        if file.start <= offset < file.start + file.length:
            for found in walk_file(layout, file):
                if found.offset <= offset < found.end:
                    return found
                if found.offset > offset:
                    return None
    return None


def _fields(sides: tuple[Side, Side]) -> list[str]:
    """Return the names of the fields that differ."""
    a, b = (side.as_json() for side in sides)
    if a is None or b is None:
        return ["record"]
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
